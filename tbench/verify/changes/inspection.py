"""Inspects an agent's container: a walk finds the changed paths, which are then read there and in the image."""

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
from tbench.sandbox.backend import STOP_OTHERS, BackendFacts, Compares, Sandbox, check_output
from tbench.tasks.task import Task
from tbench.verify.changes.facts import (
    MAX_INSPECTED,
    NO_ORACLE,
    ContainerFacts,
    File,
    ImageTree,
    OracleSystem,
    Sign,
    Tests,
    WalkedFiles,
    look_functions,
    walk_argument,
)
from tbench.verify.changes.image_facts import image_facts
from tbench.verify.changes.system import host_signs, is_code, may_replace
from tbench.verify.changes.tampering import (
    READ_BY_RULES,
    is_metadata,
    is_test_package,
    tampering_signs,
)
from tbench.verify.changes.work import is_in_work_area, is_too_deep
from tbench.verify.report import Facts


def planted_programs(facts: Facts, image_paths: Collection[str], tests: Tests) -> tuple[Sign, ...]:
    """Return a sign `program-planted` for each program that test.sh ran but did not create, and that the image lacks.

    Programs in the working directory are part of the work, unless they run the tests.
    """
    work = f"{tests.workdir.rstrip('/')}/"
    found = [
        Sign("program-planted", path, "existed before test.sh ran it, and is neither in the image nor asked for")
        for path in facts.programs
        if path not in image_paths
        and not tests.asks_for(path)
        and (path in facts.runners or work == "/" or not path.startswith(work))
    ]
    if facts.has_unchecked_programs:
        why = "ran more programs from outside of the image than are checked"
        found.append(Sign("program-planted", "/tests/test.sh", why))
    return tuple(found)


_LOOK_SEC = 600.0
_STOP = """{
    parents=$($busybox cat /proc/[0-9]*/status | $busybox awk '/^PPid:/ && $2 > 1 { print $2 }' | $busybox sort -un)
    for pid in $parents; do
        [ $pid != $$ ] && [ $pid != $PPID ] && kill -STOP $pid || continue
        tries=0
        while [ $tries -lt 100 ] && $busybox grep -q '^State:.[RS]' /proc/$pid/status; do
            $busybox usleep 1000
            tries=$((tries + 1))
        done
    done
    stop_others
} 2>/dev/null"""
_CONTINUE = (
    "{ kill -CONT $($busybox ls /proc | $busybox grep -x '[0-9]*' | $busybox sort -rn); kill -CONT -1; } 2>/dev/null"
)
"""Stop all other processes, parents before their children, and continue them, children before their parents. A shell
whose program stops shows its prompt again, which would disturb an agent that continues afterwards."""
_CONTINUE_SEC = 20.0
_TEXT_BYTES = 1 << 18
"""Size of a test file above which it is not searched for calls and imports."""
_CONTENT_BYTES = 64 << 20
_COPIED_BYTES = (1 << 32) - 512
"""Size of a file above which it is not copied."""
_ACCOUNTS = ("/etc/passwd", "/etc/group")
_END = b"\0end"
_MAX_REQUESTS = 2
"""Maximum number of requests to a container about paths that the walk did not inspect."""
_FORBIDDEN_TARGET = re.compile(r"/(?:(?:tests|logs|solution|proc)/.*)?\Z", re.DOTALL)
_LOGS = (
    "[ ! -d /logs ] || $busybox find /logs/agent /logs/artifacts -type f -size -8388608 -print0 2>/dev/null"
    " | $busybox xargs -0 -r $busybox tar -cf - 2>/dev/null | $busybox head -c 33554432"
)
"""Prints an archive of the agent's files below /logs."""


@dataclass(frozen=True)
class Inspection:
    """The result of inspecting a container."""

    seen: ContainerFacts
    signs: tuple[Sign, ...]
    """Reasons to distrust a verdict from this container."""
    logs: Mapping[str, bytes]
    """Contents of the files in /logs/agent and /logs/artifacts, by path relative to /logs."""
    memory_peak_bytes: int
    """Peak memory use of the container; 0 if unknown."""


async def inspect_container(
    task: Task,
    sandbox: Sandbox,
    facts: Facts | None = None,
    oracle: OracleSystem = NO_ORACLE,
    *,
    given: BackendFacts | None = None,
    printed: bytes = b"",
) -> Inspection:
    """Return the changes in a sandbox and the signs against a verdict from it. Raises TrialError.

    `facts` are from a verifier that has run there: system paths changed during its run do not count as replaced, as
    test.sh may install packages. `printed` is the output of a walk made when the verifier ended, and `given` the
    backend's facts from before it.
    """
    if not isinstance(sandbox, Compares):
        raise TrialError("verifier_failed", "this sandbox cannot be compared with its image")
    given = given or await sandbox.backend_facts()
    image = await image_facts(sandbox, _contents)
    times = given.began_at, facts.staged_at if facts is not None else math.inf
    walked, found, is_complete = await _walk(sandbox, times, image.tree, printed)
    changes, tests = walked.beyond(image.tree.by_directory), _tests(task, sandbox.workdir)
    asked: set[str] = set()
    for _ in range(_MAX_REQUESTS):  # processes in the container may change links between requests
        # The targets of links may hold settings and modules, too.
        tests = dataclasses.replace(tests, links=found.links)
        seen = ContainerFacts(changes, image.tree, tests, given=given, oracle=oracle)
        sums, contents = _needed_paths(seen)
        work = {path for path in changes if _may_be_work(seen, path)}
        if is_complete and found.find_missing(sums, contents, walked.changed) <= asked:
            break
        is_complete, asked = True, sums | contents
        answer = await _run_look(sandbox, "", _request_lines(sums, contents, work), stop_others=True)
        found = dataclasses.replace(_LookOutput.read(answer), logs=found.logs)
    links = {path for path in work & found.links.keys() if _FORBIDDEN_TARGET.match(f"{found.links[path]}/")}
    large = work.intersection(found.large)
    left = [Sign("left-out", path, "leads to tests, logs or a process, or nowhere") for path in sorted(links)]
    seen = dataclasses.replace(
        seen,
        now=found.files,
        then=await image.files(sums | contents, found.files),
        changed_by_tests=walked.later,
        left_out=frozenset(links),
        has_servers=found.has_servers,
    )
    left += [Sign("unread", path, "is 4 GB or larger, and is not copied") for path in sorted(large)]
    signs = [*host_signs(seen), *tampering_signs(seen), *_unread(seen, sums | contents), *left]
    if facts is not None:
        signs += planted_programs(facts, seen.image.paths, seen.tests)
    return Inspection(seen, tuple(dict.fromkeys(signs)), found.logs, found.memory_peak_bytes)


async def _walk(
    sandbox: Sandbox, times: tuple[float, float], image: ImageTree, printed: bytes
) -> tuple[WalkedFiles, _LookOutput, bool]:
    """Return a walk, the paths inspected with it, and whether they are all that changed. Raises TrialError."""
    if not printed.endswith(_END):
        printed = await _run_look(sandbox, walk_argument(*times), stop_others=True)
    walked, found = await asyncio.to_thread(_LookOutput.read_walk, printed)
    if walked.has_moved_directory(image.by_directory):
        printed = await _run_look(sandbox, walk_argument(*times, most=0), stop_others=True)
        return *await asyncio.to_thread(_LookOutput.read_walk, printed), False
    return walked, found, len(walked.changed) <= MAX_INSPECTED


def _unread(seen: ContainerFacts, wanted: set[str]) -> Iterator[Sign]:
    """Yield a sign for each path that cannot be inspected: volumes, odd names, files beyond the limits."""
    for path in sorted(seen.given.volumes):
        yield Sign("unread", path, "is a volume, which is not compared with the image")
    for path, change in seen.changes.items():
        if change != "removed" and not path.isprintable() and is_code(seen, path.replace("\n", "?")):
            yield Sign("unread", path, "has a name that cannot be asked for")
    if deep := [path for path, change in seen.changes.items() if change != "removed" and is_too_deep(path)]:
        yield Sign("unread", min(deep, key=len), f"and {len(deep) - 1} more are nested too deeply to be copied")
    for path in sorted(wanted & seen.changes.keys()):
        now = seen.now.get(path)
        if now is not None and now.mode >> 12 == 0o10 and not now.sha256:
            yield Sign("unread", path, "is too large to be compared")


def _needed_paths(seen: ContainerFacts) -> tuple[set[str], set[str]]:
    """Return the paths whose checksums the rules need, and those whose contents they need."""
    sums: set[str] = set()
    contents = {"/etc/hosts", "/etc/resolv.conf"}
    for path, change in seen.changes.items():
        if path.startswith("/etc/") and path.endswith(("/passwd", "/group", "shadow")):
            contents.update(_ACCOUNTS)
        if change == "removed" or not path.isprintable() or is_too_deep(path):
            continue
        is_setting = READ_BY_RULES.fullmatch(basename(path)) is not None or path.endswith("/.git/config")
        if is_setting or is_test_package(seen, path):
            contents.add(path)
        elif may_replace(seen, path) or _may_impersonate(seen, path, change):
            sums.add(path)
    return sums - contents, contents


def _may_be_work(seen: ContainerFacts, path: str) -> bool:
    """Whether a changed path may belong to the work, in which links and very large files are looked for."""
    return seen.changes[path] != "removed" and not is_too_deep(path) and is_in_work_area(seen, path)


def _may_impersonate(seen: ContainerFacts, path: str, change: str) -> bool:
    """Whether a path, if it is a link, may pass for another module, a plugin or a test file."""
    name = basename(path)
    is_beside = dirname(path) in seen.tests.import_directories and (change == "changed" or "." not in name)
    return is_beside or name in seen.tests.files or is_metadata(path)


@dataclass(frozen=True)
class _LookOutput:
    """Parsed output of look.sh about paths."""

    files: Mapping[str, File]
    large: Collection[str]
    """Files too large to be copied."""
    links: Mapping[str, str]
    """Final target of each link; empty if it is broken."""
    memory_peak_bytes: int
    has_servers: bool
    """Whether a server may run on the container's network, now or soon."""
    logs: Mapping[str, bytes]

    @classmethod
    def read_walk(cls, printed: bytes) -> tuple[WalkedFiles, _LookOutput]:
        """Parse the output of a walk and of the inspection that follows it."""
        walked, _, rest = printed.partition(b"\0\0")
        return WalkedFiles.read(walked), cls.read(b"\0" + rest)

    @classmethod
    def read(cls, printed: bytes) -> _LookOutput:
        """Parse the output of an inspection without a walk."""
        sections = printed.removesuffix(_END).split(b"\0", 6)[1:] + [b""] * 6
        stats, sums, links, peak, servers, archive = sections[:6]
        held = unpack(io.BytesIO(archive), _CONTENT_BYTES, whole_names=True)
        digests = sums_by_path(_text(sums))
        files = dict[str, File]()
        large = set[str]()
        for mode, size, path in (line.split(" ", 2) for line in _text(stats).split("\n") if line.count(" ") > 1):
            content = held.get(path.lstrip("/"))
            sha256 = digests.get(path) or ("" if content is None else hashlib.sha256(content).hexdigest())
            files[path] = File(int(mode, 16), sha256, content)
            if int(size) > _COPIED_BYTES:
                large.add(path)
        pairs = _text(links).split("\n")
        targets = dict(zip(pairs[::2], pairs[1::2], strict=False))
        logs = {name.removeprefix("logs/"): data for name, data in held.items() if name.startswith("logs/")}
        return cls(files, large, targets, max(map(int, peak.split()), default=0), bool(servers), logs)

    def find_missing(self, sums: set[str], contents: set[str], changed: Collection[str]) -> set[str]:
        """Return the paths whose checksum or content is missing: the inspection after a walk omits large files."""

        def lacks(path: str) -> bool:
            if (file := self.files.get(path)) is None:
                return path in changed
            is_whole = file.sha256 and (path in sums or file.content is not None)
            return file.mode >> 12 in (0o10, 0o12) and not is_whole

        return set(filter(lacks, sums | contents))


def _request_lines(sums: set[str], contents: set[str], work: Collection[str] = ()) -> bytes:
    """Build the standard input of look.sh."""
    kinds = (("s", sums | contents), ("c", contents), ("g", work))
    lines = [f"{kind}\t{path}\n" for kind, paths in kinds for path in sorted(paths) if "\n" not in path]
    return "".join(lines).encode("utf-8", "surrogateescape")


async def _contents(original: Sandbox, paths: set[str]) -> Mapping[str, File]:
    return _LookOutput.read(await _run_look(original, "", _request_lines(set(), paths))).files


async def _run_look(sandbox: Sandbox, walk: str, stdin: bytes = b"", *, stop_others: bool = False) -> bytes:
    """Return the output of look.sh. `stop_others` stops all other processes meanwhile. Raises TrialError."""
    look = f"look {shlex.quote(walk)} servers || exit 1"
    if walk:
        look += f"; {_LOGS}"
    if stop_others:
        look = f"{_STOP}; {look}; {_CONTINUE}"
    script = f"{STOP_OTHERS}{look_functions()}\n{look}\nprintf '\\0end'\n"
    try:
        return await check_output(sandbox, script, timeout_sec=_LOOK_SEC, stdin=stdin)
    except TrialError:
        if stop_others:  # after a timeout, the other processes may still be stopped
            with contextlib.suppress(TrialError):
                await sandbox.shell(f"{look_functions()}\n{_CONTINUE}", timeout_sec=_CONTINUE_SEC, user="root")
        raise


def _text(data: bytes) -> str:
    return data.decode("utf-8", "surrogateescape")


def _tests(task: Task, workdir: str) -> Tests:
    texts = tuple(
        entry.data.decode("utf-8", "replace")
        for name, entry in task.tests.items()
        if name != "test.sh" and entry.data is not None and len(entry.data) <= _TEXT_BYTES and b"\0" not in entry.data
    )
    files = frozenset(basename(name) for name, entry in task.tests.items() if entry.data is not None)
    script = task.test_script.decode("utf-8", "replace")
    user = str(task.file.agent.user or "root")
    home = "/root" if user == "root" else f"/home/{user}"
    return Tests(script, texts, task.instruction, workdir.rstrip("/") or "/", files - {"test.sh"}, home)
