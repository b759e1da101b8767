"""Looks at what an agent changed: a walk finds the paths, the image and the container say what lies there."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import io
import math
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from posixpath import basename, dirname

from tbench.errors import TrialError
from tbench.sandbox.archive import sums_by_path, unpack
from tbench.sandbox.backend import Compares, GivenNames, Sandbox, output_of
from tbench.tasks.task import Task
from tbench.verify.changes.facts import (
    MENTIONS,
    MOST_LOOKED_AT,
    NO_ORACLE,
    File,
    ImageTree,
    OracleSystem,
    Seen,
    Sign,
    Tests,
    WalkedFiles,
    look_functions,
    walk_of_look,
)
from tbench.verify.changes.image_facts import image_facts
from tbench.verify.changes.system import host_signs, is_code, may_replace
from tbench.verify.changes.turning import READ, imported_work, is_around_tests, is_metadata, may_mention, turning_signs
from tbench.verify.changes.work import is_too_deep
from tbench.verify.report import Facts

# Programs that test.sh ran and that an agent had put where neither the image nor the instruction has any.

_UNLOOKED = "in test.sh: it ran more programs from elsewhere than are looked at"


def planted_programs(facts: Facts, image_paths: Collection[str], tests: Tests) -> tuple[Sign, ...]:
    """Signs `program-planted` against what test.sh ran, though it neither brought nor made it.

    Programs in the work are the work, unless they run the tests.
    """
    work = f"{tests.workdir.rstrip('/')}/"
    found = [
        Sign("program-planted", path, "ran in test.sh, was there before it, and is neither the image's nor asked for")
        for path in facts.programs
        if path not in image_paths
        and not tests.asks_for(path)
        and (path in facts.runners or work == "/" or not path.startswith(work))
    ]
    return (*found, *([Sign("program-planted", "/tests/test.sh", _UNLOOKED)] if facts.unlooked else []))


_LOOK_SEC = 600.0
_CONTINUE_SEC = 20.0
_TEXT_BYTES = 1 << 18
"""Size of a file of the tests above which it is no text that calls or imports anything."""
_CONTENT_BYTES = 64 << 20
_ACCOUNTS = ("/etc/passwd", "/etc/group")
_END = b"\0end"
_MOST_ASKED = 2
"""How often a container is asked about paths that a walk did not look at."""
_LEADS_OUT = re.compile(r"/(?:(?:tests|logs|solution|proc)/.*)?\Z", re.DOTALL)
_MENTIONS = re.compile(MENTIONS.encode())
_LOGS = (
    "[ ! -d /logs ] || $busybox find /logs/agent /logs/artifacts -type f -size -8388608 -print0 2>/dev/null"
    " | $busybox xargs -0 -r $busybox tar -cf - 2>/dev/null | $busybox head -c 33554432"
)
"""Prints an archive of what the agent has written below /logs."""


@dataclass(frozen=True)
class Looked:
    """What was seen in a container."""

    seen: Seen
    signs: tuple[Sign, ...]
    """What speaks against a verdict from there."""
    logs: Mapping[str, bytes]
    """Files below /logs/agent and /logs/artifacts, by path below /logs."""
    memory_peak_bytes: int
    """The most memory that it has had in use; 0 where that is not known."""


async def look(
    task: Task,
    sandbox: Sandbox,
    facts: Facts | None = None,
    oracle: OracleSystem = NO_ORACLE,
    *,
    given: GivenNames | None = None,
    printed: bytes = b"",
) -> Looked:
    """What was changed in the sandbox, and the signs against a verdict from there. Raises TrialError.

    `facts` of a verifier that has run there tell what was changed before it: test.sh may install what it needs.
    `printed` is what a look printed that was made as the verifier ended, and `given` what it was made with.
    """
    if not isinstance(sandbox, Compares):
        raise TrialError("verifier_failed", "this sandbox cannot be compared with its image")
    given = given or await sandbox.given_names()
    image = await image_facts(sandbox, _contents)
    times = given.began_at, facts.staged_at if facts is not None else math.inf
    walked, found, is_known = await _walk(sandbox, times, image.tree, printed)
    changes, tests = walked.beyond(image.tree.by_directory), _tests(task, sandbox.workdir)
    asked: set[str] = set()
    for _ in range(_MOST_ASKED):  # whatever else goes on in the container may have links lead elsewhere each time
        # Where links lead it is looked for settings and modules, too.
        tests = dataclasses.replace(tests, links=found.links)
        seen = Seen(changes, image.tree, tests, given=given, oracle=oracle)
        sums, contents = _wanted(seen)
        mentioning = {path for path in changes if may_mention(seen, path)}
        if is_known and found.lacking(sums, contents, walked.changed) <= asked:
            break
        is_known, asked = True, sums | contents
        answer = await _print_look(sandbox, "", _asking(sums, contents, mentioning), is_alone=True)
        found = dataclasses.replace(_LookedAt.read(answer), logs=found.logs)
    links = {path for path in mentioning & found.links.keys() if _LEADS_OUT.match(f"{found.links[path]}/")}
    large = mentioning.intersection(found.large)
    left = [Sign("left-out", path, "leads to the tests, to a process or nowhere") for path in sorted(links)]
    seen = dataclasses.replace(
        seen,
        now=found.files,
        then=await image.files(sums | contents, found.files),
        mentions=tuple(path for path in found.mentions if path in mentioning),
        changed_by_tests=walked.later,
        left_out=frozenset(links),
    )
    left += [Sign("unread", path, "has 4 GB or more, and stays behind") for path in sorted(large)]
    signs = [*host_signs(seen), *turning_signs(seen), *_unread(seen, sums | contents), *left]
    if facts is not None:
        signs += planted_programs(facts, seen.image.paths, seen.tests)
    return Looked(seen, tuple(dict.fromkeys(signs)), found.logs, found.memory_peak_bytes)


async def _walk(
    sandbox: Sandbox, times: tuple[float, float], image: ImageTree, printed: bytes
) -> tuple[WalkedFiles, _LookedAt, bool]:
    """A walk, what was looked at with it, and whether that is all that changed. Raises TrialError."""
    if not printed.endswith(_END):
        printed = await _print_look(sandbox, walk_of_look(*times), is_alone=True)
    walked, found = await asyncio.to_thread(_LookedAt.read_walk, printed)
    if walked.has_moved(image.by_directory):
        printed = await _print_look(sandbox, walk_of_look(*times, most=0), is_alone=True)
        return *await asyncio.to_thread(_LookedAt.read_walk, printed), False
    return walked, found, len(walked.changed) <= MOST_LOOKED_AT


def _unread(seen: Seen, wanted: set[str]) -> Iterator[Sign]:
    """What could not be looked at, and is not taken for harmless: volumes, odd names, files beyond the bounds."""
    for path in sorted(seen.given.volumes):
        yield Sign("unread", path, "is a volume, which is not compared with the image")
    for path, change in seen.changes.items():
        if change != "removed" and not path.isprintable() and is_code(seen, path.replace("\n", "?")):
            yield Sign("unread", path, "has a name that cannot be asked for")
    if deep := [path for path, change in seen.changes.items() if change != "removed" and is_too_deep(path)]:
        yield Sign("unread", min(deep, key=len), f"and {len(deep) - 1} more lie too deep, and stay behind")
    for path in sorted(wanted & seen.changes.keys()):
        now = seen.now.get(path)
        if now is not None and now.mode >> 12 == 0o10 and not now.sha256:
            yield Sign("unread", path, "is too large to be compared")


def _wanted(seen: Seen) -> tuple[set[str], set[str]]:
    """Paths whose sums are wanted, and those whose contents are: what the rules ask about."""
    sums: set[str] = set()
    contents = {"/etc/hosts", "/etc/resolv.conf", *imported_work(seen)}
    for path, change in seen.changes.items():
        if path.startswith("/etc/") and path.endswith(("/passwd", "/group", "shadow")):
            contents.update(_ACCOUNTS)
        if change == "removed" or not path.isprintable() or is_too_deep(path):
            continue
        is_setting = READ.fullmatch(basename(path)) is not None or path.endswith("/.git/config")
        if is_setting or is_around_tests(seen, path):
            contents.add(path)
        elif may_replace(seen, path) or _may_stand_in(seen, path, change):
            sums.add(path)
    return sums - contents, contents


def _may_stand_in(seen: Seen, path: str, change: str) -> bool:
    """Whether what lies at a path may be taken for another module, a plugin, or the tests: where it is such a link."""
    name = basename(path)
    is_beside = dirname(path) in seen.tests.import_directories and (change == "changed" or "." not in name)
    return is_beside or name in seen.tests.files or is_metadata(path)


@dataclass(frozen=True)
class _LookedAt:
    """What a look printed about paths."""

    files: Mapping[str, File]
    mentions: tuple[str, ...]
    """Those that speak of the verifier."""
    large: tuple[str, ...]
    """Those that are too large to be brought."""
    links: Mapping[str, str]
    """Where links lead at their end; empty for nowhere."""
    memory_peak_bytes: int
    logs: Mapping[str, bytes]

    @classmethod
    def read_walk(cls, printed: bytes) -> tuple[WalkedFiles, _LookedAt]:
        """The walk that a look printed, and the rest of it."""
        walked, _, rest = printed.partition(b"\0\0")
        return WalkedFiles.read(walked), cls.read(b"\0" + rest)

    @classmethod
    def read(cls, printed: bytes) -> _LookedAt:
        """The answer of a look without a walk."""
        sections = printed.removesuffix(_END).split(b"\0", 7)[1:] + [b""] * 7
        modes, sums, mentions, large, links, peak, archive = sections[:7]
        held = unpack(io.BytesIO(archive), _CONTENT_BYTES, whole_names=True)
        digests = sums_by_path(_text(sums))
        files, mentioning = dict[str, File](), [*_lines(mentions)]
        for path, mode in _modes(modes).items():
            content = held.get(path.lstrip("/"))
            sha256 = digests.get(path) or ("" if content is None else hashlib.sha256(content).hexdigest())
            files[path] = File(int(mode, 16), sha256, content)
            if content is not None and _MENTIONS.search(content):
                mentioning.append(path)
        pairs = _text(links).split("\n")
        about = tuple(mentioning), _lines(large), dict(zip(pairs[::2], pairs[1::2], strict=False))
        logs = {name.removeprefix("logs/"): data for name, data in held.items() if name.startswith("logs/")}
        return cls(files, *about, max(map(int, peak.split()), default=0), logs)

    def lacking(self, sums: set[str], contents: set[str], changed: Collection[str]) -> set[str]:
        """Paths without a sum, or a content: a look at all that changed leaves out what is large."""

        def lacks(path: str) -> bool:
            if (file := self.files.get(path)) is None:
                return path in changed
            is_whole = file.sha256 and (path in sums or file.content is not None)
            return file.mode >> 12 in (0o10, 0o12) and not is_whole

        return set(filter(lacks, sums | contents))


def _asking(sums: set[str], contents: set[str], mentioning: Collection[str] = ()) -> bytes:
    """The lines that ask look.sh about paths."""
    kinds = (("s", sums | contents), ("c", contents), ("g", mentioning))
    lines = [f"{kind}\t{path}\n" for kind, paths in kinds for path in sorted(paths) if "\n" not in path]
    return "".join(lines).encode("utf-8", "surrogateescape")


async def _contents(original: Sandbox, paths: set[str]) -> Mapping[str, File]:
    return _LookedAt.read(await _print_look(original, "", _asking(set(), paths))).files


async def _print_look(sandbox: Sandbox, walk: str, stdin: bytes = b"", *, is_alone: bool = False) -> bytes:
    """What look.sh prints. `is_alone` keeps all others in the container still meanwhile. Raises TrialError."""
    look = f"look {shlex.quote(walk)} || exit 1"
    if walk:
        look += f"; {_LOGS}"
    if is_alone:
        look = f"{{ kill -STOP -1; kill -CONT $PPID; }} 2>/dev/null; {look}; kill -CONT -1 2>/dev/null"
    script = f"{look_functions()}\n{look}\nprintf '\\0end'\n"
    try:
        return await output_of(sandbox, script, timeout_sec=_LOOK_SEC, stdin=stdin)
    except TrialError:
        if is_alone:  # its time may have been over, and the others still stand
            with contextlib.suppress(TrialError):
                await sandbox.shell("kill -CONT -1", timeout_sec=_CONTINUE_SEC, user="root")
        raise


def _lines(data: bytes) -> tuple[str, ...]:
    return tuple(line for line in _text(data).split("\n") if line)


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _modes(data: bytes) -> dict[str, str]:
    pairs = (line.partition(" ") for line in _text(data).split("\n"))
    return {path: mode for mode, _, path in pairs if path}


def _tests(task: Task, workdir: str) -> Tests:
    texts = tuple(
        entry.data.decode("utf-8", "replace")
        for name, entry in task.tests.items()
        if name != "test.sh" and entry.data is not None and len(entry.data) <= _TEXT_BYTES and b"\0" not in entry.data
    )
    files = frozenset(basename(name) for name, entry in task.tests.items() if entry.data is not None)
    script = task.test_script.decode("utf-8", "replace")
    return Tests(script, texts, task.instruction, workdir.rstrip("/") or "/", files - {"test.sh"})
