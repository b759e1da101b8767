"""Bytecode that came while the tests ran: whether it is what python makes of the source beside it.

It cannot be compared byte by byte: it names the place of its source, and python writes the same code in more than one
way. So it is read in a container where no process of the agent's runs, and compared with the source, compiled there.
"""

from __future__ import annotations

import io
import re
from collections.abc import Collection

from tbench.sandbox.archive import FileEntry, unpack
from tbench.sandbox.backend import BUSYBOX, Sandbox, output_of

_READ_SEC = 60.0
_CHECK_SEC = 60.0
_CONTENT_BYTES = 56 << 20
_STAGE = "/.tbench-bytecode"
_READ = f"""{{ kill -STOP -1; kill -CONT $PPID; }} 2>/dev/null
cd / && {BUSYBOX} tr '\\n' '\\0' | {BUSYBOX} xargs -0 -r {BUSYBOX} tar -chf - 2>/dev/null
kill -CONT -1 2>/dev/null
exit 0
"""
_AT_ONCE = 100
"""Files of bytecode that are read at once: what is cut at the limit of contents would look like another's."""
_PYTHONS = "$(command -v python3) /usr/bin/python3 /usr/local/bin/python3"
# Those that uv keeps, and those that its environments lead to.
_PYTHONS += " /root/.local/share/uv/python/*/bin/python3 /root/.cache/uv/archive-v0/*/bin/python"
_CHECK = f"""for python in $(for each in {_PYTHONS}; do {BUSYBOX} readlink -f "$each"; done | {BUSYBOX} sort -u); do
    $python -I %s/check.py 2>/dev/null
done
"""
_PROGRAM = """
import ast, glob, importlib.util, marshal, os, sys
sys.dont_write_bytecode = True
here = os.path.dirname(os.path.abspath(__file__))
with open(f"{here}/sites") as lines:
    sys.path += lines.read().split("\\n")

def made(name, source):
    if "-pytest-" not in name:
        level = name.partition(".opt-")[2][:1]
        return compile(source, name, "exec", dont_inherit=True, optimize=int(level or 0))
    # The tests' pytest rewrites the assertions of its plugins.
    from _pytest.assertion.rewrite import rewrite_asserts
    tree = ast.parse(source, filename=name)
    rewrite_asserts(tree, source, name, None)
    return compile(tree, name, "exec", dont_inherit=True)

for path in glob.glob(f"{here}/*.pyc"):
    number = os.path.basename(path)[:-4]
    with open(path, "rb") as file:
        found = file.read()
    if found[:4] != importlib.util.MAGIC_NUMBER:
        continue
    try:
        with open(f"{here}/{number}.py", "rb") as file, open(f"{here}/{number}.name") as name:
            is_made = made(name.read(), file.read()) == marshal.loads(found[16:])
    except Exception:
        is_made = False
    print(number, int(is_made), flush=True)
"""
_NAME = re.compile(r"(?P<folder>.*)/__pycache__/(?P<name>[^/.]+)\.[^/]+\.pyc")


def source_of(path: str) -> str:
    """The source of which python makes a .pyc; empty where it would need none."""
    found = _NAME.fullmatch(path)
    return f"{found['folder']}/{found['name']}.py" if found else ""


async def foreign_bytecode(
    theirs: Sandbox, control: Sandbox, paths: Collection[str], sites: Collection[str]
) -> tuple[set[str], set[str]]:
    """Paths of bytecode in `theirs` that is not made of its source, and those that no python of the control can read.

    `sites` are directories of packages in the control. Raises TrialError.
    """
    with_source = sorted(path for path in paths if source_of(path))
    foreign, unread = {path for path in paths if not source_of(path)}, set[str]()
    for start in range(0, len(with_source), _AT_ONCE):
        other, unknown = await _compared(
            theirs, control, with_source[start : start + _AT_ONCE], sites, f"{_STAGE}{start or ''}"
        )
        foreign |= other
        unread |= unknown
    return foreign, unread


async def _compared(
    theirs: Sandbox, control: Sandbox, paths: Collection[str], sites: Collection[str], stage: str
) -> tuple[set[str], set[str]]:
    """The same for as many as can be read at once, each with a source."""
    numbered = {str(number): path for number, path in enumerate(paths)}
    contents = await contents_of(theirs, {each for path in numbered.values() for each in (path, source_of(path))})
    foreign: set[str] = set()
    files = {
        f"{stage}/check.py": FileEntry(_PROGRAM.encode()),
        f"{stage}/sites": FileEntry("\n".join(sites).encode()),
    }
    for number, path in numbered.items():
        compiled, source = contents.get(path), contents.get(source_of(path))
        if source is None:
            # Python takes none without its source.
            continue
        if compiled is None:
            foreign.add(path)
            continue
        files |= {
            f"{stage}/{number}.pyc": FileEntry(compiled),
            f"{stage}/{number}.py": FileEntry(source),
            f"{stage}/{number}.name": FileEntry(path.rpartition("/")[2].encode()),
        }
    await control.put(files)
    told = (await control.shell(_CHECK % stage, timeout_sec=_CHECK_SEC, user="root")).output.decode("utf-8", "replace")
    # Two pythons may read the same bytecode and compile in different ways: it is enough that one makes it.
    answers = [line.split(" ") for line in told.splitlines() if line.count(" ") == 1]
    read, made = {number for number, _ in answers}, {number for number, answer in answers if answer == "1"}
    asked = {number: path for number, path in numbered.items() if f"{stage}/{number}.pyc" in files}
    foreign |= {path for number, path in asked.items() if number in read - made}
    return foreign, {path for number, path in asked.items() if number not in read}


async def contents_of(sandbox: Sandbox, paths: Collection[str]) -> dict[str, bytes]:
    """Contents of the files at the paths, while all others in the container stand still. Raises TrialError."""
    stdin = "".join(f"{path.lstrip('/')}\n" for path in sorted(paths)).encode("utf-8", "surrogateescape")
    told = await output_of(sandbox, _READ, timeout_sec=_READ_SEC, stdin=stdin)
    held = unpack(io.BytesIO(told), _CONTENT_BYTES, whole_names=True)
    return {f"/{name}": data for name, data in held.items()}
