"""Collects what a task hands over, once the agent has ended: hooks, then files, from its container and its services."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import shlex
import shutil
import tempfile
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, Literal

from tbench.errors import TrialError
from tbench.sandbox.backend import ExecResult, HasServices, MakesRoom, Sandbox, Streams
from tbench.tasks.artifacts import LOGS, MAIN, Artifact, CollectHook, in_order
from tbench.tasks.task import Task
from tbench.text import one_line
from tbench.verify.separate.cleaning import END, BrokenArchive, Room, Taken, TooMany, is_file, members, take_over
from tbench.verify.separate.handover import ARCHIVE_NAME, FOLDER, ArtifactEntry, HandedOver, write_manifest

COLLECTING = ("artifact:", "collect-hook:", "service:")
"""How remarks begin about what was collected."""
MOST_MB = 4096
"""Megabytes of artifacts that a trial may hand over where nobody says otherwise."""
_MOST_ENTRIES = 200_000
_SHOWN_BYTES = 64 << 20
_LOGS_BYTES = 32 << 20
_LOGS_OF_AGENT = "/logs/agent"
_COLLECT_SEC = 900.0
_TRIES = 3
_LARGE, _BROKEN = 98, 3
"""Exit codes of collect.sh."""
_MB = 1 << 20


async def collect(
    task: Task, sandbox: Sandbox, directory: Path, *, most_mb: int = MOST_MB, is_last: bool = True
) -> HandedOver:
    """Collect a task's artifacts into the directory of its trial. Raises TrialError.

    Unless the agent's sandbox goes on (not `is_last`), its own container is at rest afterwards.
    """
    collecting = _Collecting(task, directory, most_mb, is_last)
    try:
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        with (directory / ARCHIVE_NAME).open("w+b") as archive:
            await collecting.main(sandbox, archive)
            await collecting.services(sandbox, archive)
            archive.write(END)
        write_manifest(directory, tuple(collecting.entries))
    except OSError as error:
        raise TrialError("result_unwritable", f"{directory}: {error.strerror or error}") from error
    return HandedOver(
        directory / ARCHIVE_NAME, tuple(collecting.entries), tuple(collecting.remarks), dict(collecting.files)
    )


def hands_over(task: Task) -> bool:
    """Whether a task says of itself what it hands over, or runs commands for that."""
    return bool(task.file.artifacts or task.file.verifier.collect)


async def save_artifacts(task: Task, sandbox: Sandbox, directory: Path, most_mb: int = MOST_MB) -> tuple[str, ...]:
    """Store a task's artifacts, for people, beside an agent's sandbox that goes on; returns what went wrong.

    Never raises TrialError: nothing is judged by them.
    """
    try:
        handed = await collect(task, sandbox, directory, most_mb=most_mb, is_last=False)
    except TrialError as error:
        return (f"artifact: {one_line(str(error), 200)}",)
    finally:
        (directory / ARCHIVE_NAME).unlink(missing_ok=True)
    return handed.remarks


@dataclass
class _Collecting:
    task: Task
    directory: Path
    most_mb: int
    is_last: bool
    entries: list[ArtifactEntry] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        is_separate = self.task.file.verifier.is_separate
        self._artifacts = [
            (each, is_free and not (is_separate and _is_of_tests(each.path)))
            for each, is_free in in_order(self.task.file.artifacts)
        ]
        self._room = Room(_MOST_ENTRIES, _SHOWN_BYTES)

    async def main(self, sandbox: Sandbox, archive: IO[bytes]) -> None:
        try:
            await self._collect(MAIN, sandbox, archive)
        except TrialError:
            # What the agent used up is made free.
            repairs = await sandbox.make_room() if isinstance(sandbox, MakesRoom) else ()
            if not repairs:
                raise
            self.remarks[:] = repairs
            archive.seek(0)
            archive.truncate()
            await self._collect(MAIN, sandbox, archive)

    async def services(self, sandbox: Sandbox, archive: IO[bytes]) -> None:
        names = sorted(self.task.file.services)
        if names and self.is_last and isinstance(sandbox, HasServices):
            await sandbox.stop_main()
        for name in names:
            try:
                service = _service(sandbox, name)
            except TrialError as error:
                self.remarks.append(f"service: {one_line(str(error), 200)}")
                self.entries += [_not_taken(each, "failed") for each, _ in self._artifacts if each.of == name]
            else:
                await self._collect(name, service, archive)

    async def _collect(self, service: str, sandbox: Sandbox, archive: IO[bytes]) -> None:
        for hook in self.task.file.verifier.collect:
            if hook.service == service and (remark := await self._run(hook, sandbox)) is not None:
                self.remarks.append(remark)
        free = [each for each, is_free in self._artifacts if each.of == service and is_free]
        taken = await self._take_over(sandbox, free, archive, with_logs=service == MAIN)
        found = dict(zip(free, taken, strict=True))
        for each in (each for each, _ in self._artifacts if each.of == service):
            self.entries.append(_entry(each, found[each]) if each in found else _not_taken(each, "skipped"))
            if each in found:
                self.remarks += [f"artifact: {one_line(f'{each.path}/{left}', 200)}" for left in found[each].left_out]

    async def _run(self, hook: CollectHook, sandbox: Sandbox) -> str | None:
        """Run a hook; returns what went wrong. Raises TrialError where a verdict that needs it is too late."""
        # In the agent's container as Harbor has it, by bash; images of services need not have one.
        shell = "bash" if hook.service == MAIN else "sh"
        script = f"cd {shlex.quote(sandbox.workdir)} 2>/dev/null; exec {shell} -c {shlex.quote(hook.command)} 2>&1"
        user = None if hook.user is None else str(hook.user)
        ended = await sandbox.shell(script, timeout_sec=hook.timeout_sec, user=user)
        if ended.exit_code == 0 and not ended.timed_out:
            return None
        how = f"took longer than {hook.timeout_sec:g} s" if ended.timed_out else f"ended with {ended.exit_code}"
        words = one_line(ended.output[-200:].decode("utf-8", "replace"), 200)
        remark = f"collect-hook: {one_line(hook.command, 80)!r} {how}: {words}"
        if ended.timed_out and self.task.file.verifier.is_separate:
            raise TrialError("verifier_timeout", remark)
        return remark

    async def _take_over(
        self, sandbox: Sandbox, artifacts: Sequence[Artifact], archive: IO[bytes], *, with_logs: bool
    ) -> list[Taken]:
        """What was taken over of each artifact; one that stays broken however often it is asked for is nothing."""
        taken: list[Taken] = []
        tries = 0
        while (rest := artifacts[len(taken) :]) or with_logs:
            left_bytes = self.most_mb * _MB - archive.tell()
            async with self._packed(sandbox, rest, with_logs, left_bytes) as raw:
                taken += await asyncio.to_thread(self._take_whole, raw, rest, archive)
                if len(taken) == len(artifacts):
                    if with_logs:
                        self.files |= await asyncio.to_thread(_logs, raw)
                    return taken
            tries += 1
            if tries == _TRIES:
                broken = Taken()
                broken.leave(".", "changed while it was read")
                taken, tries = [*taken, broken], 0
        return taken

    def _take_whole(self, raw: IO[bytes], artifacts: Sequence[Artifact], archive: IO[bytes]) -> list[Taken]:
        """What was taken over of the first artifacts, up to one whose archive is broken."""
        taken = []
        for each in artifacts:
            began_at, room = archive.tell(), dataclasses.replace(self._room)
            show_at = self.directory / FOLDER / each.place
            try:
                taken.append(take_over(raw, archive, each.path, self._room, show_at))
            except BrokenArchive:
                archive.seek(began_at)
                archive.truncate()
                self._room = room
                _remove(show_at)
                break
            except TooMany:
                raise _too_much(f"more than {_MOST_ENTRIES:,} files and folders", each.path) from None
        return taken

    @contextlib.asynccontextmanager
    async def _packed(
        self, sandbox: Sandbox, artifacts: Sequence[Artifact], with_logs: bool, left_bytes: int
    ) -> AsyncIterator[IO[bytes]]:
        """The archives of these artifacts, one after the other, as they came out of the container."""
        follow = _reads_all(self.task, sandbox)
        script = _script(artifacts, with_logs, left_bytes, follow=follow, goes_on=not self.is_last)
        with tempfile.TemporaryFile(dir=self.directory) as raw:
            ended = await _streamed(sandbox, script, raw, left_bytes + _LOGS_BYTES + _MB)
            at = artifacts[0].path if artifacts else _LOGS_OF_AGENT
            raw.seek(0)
            if ended.exit_code == _LARGE:
                size, count, path = raw.read(1 << 16).decode("utf-8", "replace").split(" ", 2)
                raise _too_much(f"{int(size) / _MB:,.0f} MB in {int(count):,} files and folders", path, self.most_mb)
            if ended.was_cut:
                raise _too_much(f"more than {self.most_mb} MB", at, self.most_mb)
            if ended.timed_out:
                raise TrialError("verifier_timeout", f"collecting {at} took longer than {_COLLECT_SEC:.0f} s")
            if ended.exit_code not in (0, _BROKEN):
                raise TrialError("verifier_failed", f"collecting artifacts failed ({ended.exit_code})")
            yield raw


def _is_of_tests(path: str) -> bool:
    """Whether a path is where the verifier's tests are: nobody but the task says what lies there."""
    return path == "/tests" or path.startswith("/tests/")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _too_much(what: str, path: str, most_mb: int | None = None) -> TrialError:
    most = f"; at most {most_mb} MB are taken over (--artifacts-mb)" if most_mb is not None else ""
    return TrialError("artifacts_too_large", f"the agent left {what} to hand over, up to {path}{most}")


def _service(sandbox: Sandbox, name: str) -> Sandbox:
    if not isinstance(sandbox, HasServices):
        raise TrialError("sandbox_failed", f"there is no service {name!r}: this sandbox is one container")
    return sandbox.service(name)


def _reads_all(task: Task, sandbox: Sandbox) -> bool:
    """Whether the agent could read everything itself, so that its links give nothing away."""
    user = task.file.agent.user
    return sandbox.runs_as_root if user is None else str(user) in ("root", "0")


async def _streamed(sandbox: Sandbox, script: str, raw: IO[bytes], limit_bytes: int) -> ExecResult:
    if not isinstance(sandbox, Streams):
        raise TrialError("verifier_failed", "this sandbox cannot pass files on to another")
    return await sandbox.stream(script, timeout_sec=_COLLECT_SEC, user="root", sink=raw, limit_bytes=limit_bytes)


@cache
def _functions() -> str:
    return Path(__file__).with_name("collect.sh").read_text()


def _script(artifacts: Sequence[Artifact], with_logs: bool, most_bytes: int, *, follow: bool, goes_on: bool) -> str:
    lines = [_functions(), f"follow={int(follow) or ''}", "stop_others"]
    if goes_on:
        lines.append("trap continue_others EXIT")
    lines += (f"weigh {most_bytes} {_MOST_ENTRIES} {_words(each)}" for each in artifacts)
    lines += (f"pack {_words(each)}" for each in artifacts)
    if with_logs:
        lines.append(f"pack_small {_LOGS_BYTES} {_LOGS_OF_AGENT}")
    return "\n".join([*lines, "exit 0"])


def _words(artifact: Artifact) -> str:
    """The path of an artifact, and find's words for what is left out of it by the rules of GNU tar's --exclude.

    There `*` matches `/` too, a pattern may begin at any part of the path, and what lies in a folder goes with it.
    """
    tests = [word for pattern in artifact.exclude for word in ("-o", "-path", pattern, "-o", "-path", f"*/{pattern}")]
    left_out = ["(", *tests[1:], ")", "-prune", "-o"] if tests else []
    return shlex.join([artifact.path, *left_out])


def _logs(raw: IO[bytes]) -> dict[str, bytes]:
    """Files of the agent's logs, by path in the trial's directory; of a broken archive those before the break."""
    found: dict[str, bytes] = {}
    with contextlib.suppress(BrokenArchive):
        for member in members(raw):
            if is_file(member):
                found.setdefault(f"agent/{member.name.removeprefix('./')}", raw.read(member.size))
    return found


def _entry(artifact: Artifact, taken: Taken) -> ArtifactEntry:
    is_convention = artifact.path == LOGS and artifact.of == MAIN
    if is_convention and not taken.files:
        return _of(artifact, "directory", "empty")
    if taken.kind == "nothing":
        return _not_taken(artifact, "failed")
    return _of(artifact, taken.kind, "ok")


def _not_taken(artifact: Artifact, status: Literal["failed", "skipped"]) -> ArtifactEntry:
    return _of(artifact, "file" if Path(artifact.source).suffix else "directory", status)


def _of(artifact: Artifact, kind: str, status: str) -> ArtifactEntry:
    return ArtifactEntry.model_validate(
        {
            "source": artifact.source,
            "destination": f"{FOLDER}/{artifact.place}",
            "type": kind,
            "status": status,
            "service": artifact.service,
            "exclude": artifact.exclude if kind == "directory" else (),
        }
    )
