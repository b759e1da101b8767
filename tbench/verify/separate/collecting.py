"""Collects a task's artifacts after the agent has ended: runs hooks, then copies files from container and services."""

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
from tbench.sandbox.backend import STOP_OTHERS, ExecResult, HasServices, MakesRoom, Sandbox, Streams, service_of
from tbench.tasks.artifacts import LOGS, MAIN, Artifact, CollectHook, collection_order
from tbench.tasks.task import Task
from tbench.text import one_line
from tbench.verify.separate.handover import ARCHIVE_NAME, FOLDER, ArtifactEntry, HandedOver, write_manifest
from tbench.verify.separate.untrusted_tar import (
    END,
    BrokenArchive,
    Copied,
    CopyBudget,
    TooManyEntries,
    copy_safe_entries,
    is_file,
    members,
)

COLLECTING = ("artifact:", "collect-hook:", "service:")
"""Prefixes of remarks about collecting."""
MAX_MB = 4096
"""Default limit of a trial's artifacts, in megabytes."""
_MAX_ENTRIES = 200_000
_SHOWN_BYTES = 64 << 20
_LOGS_BYTES = 32 << 20
_AGENT_LOGS = "/logs/agent"
_COLLECT_SEC = 900.0
_MAX_TRIES = 3
_LARGE, _BROKEN = 98, 3
"""Exit codes of collect.sh."""
_MB = 1 << 20


async def collect(
    task: Task, sandbox: Sandbox, directory: Path, *, most_mb: int = MAX_MB, is_last: bool = True
) -> HandedOver:
    """Collect a task's artifacts into its trial's directory. Raises TrialError.

    With `is_last`, the agent's container stays stopped afterwards; otherwise its processes continue.
    """
    collector = _Collector(task, directory, most_mb, is_last)
    try:
        await asyncio.to_thread(directory.mkdir, parents=True, exist_ok=True)
        with (directory / ARCHIVE_NAME).open("w+b") as archive:
            await collector.collect_main(sandbox, archive)
            await collector.collect_services(sandbox, archive)
            archive.write(END)
        write_manifest(directory, tuple(collector.entries))
    except OSError as error:
        raise TrialError("result_unwritable", f"{directory}: {error.strerror or error}") from error
    return HandedOver(
        directory / ARCHIVE_NAME, tuple(collector.entries), tuple(collector.remarks), dict(collector.files)
    )


def hands_over(task: Task) -> bool:
    """Whether a task declares artifacts or collect hooks."""
    return bool(task.file.artifacts or task.file.verifier.collect)


async def save_artifacts(task: Task, sandbox: Sandbox, directory: Path, most_mb: int = MAX_MB) -> tuple[str, ...]:
    """Store a task's artifacts for people to read while the sandbox continues; return remarks on failures.

    Never raises TrialError, because the verdict does not depend on them.
    """
    try:
        handover = await collect(task, sandbox, directory, most_mb=most_mb, is_last=False)
    except TrialError as error:
        return (f"artifact: {one_line(str(error), 200)}",)
    finally:
        (directory / ARCHIVE_NAME).unlink(missing_ok=True)
    return handover.remarks


@dataclass
class _Collector:
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
            (each, is_free and not (is_separate and _is_tests_path(each.path)))
            for each, is_free in collection_order(self.task.file.artifacts)
        ]
        self._budget = CopyBudget(_MAX_ENTRIES, _SHOWN_BYTES)

    async def collect_main(self, sandbox: Sandbox, archive: IO[bytes]) -> None:
        try:
            await self._collect(MAIN, sandbox, archive)
        except TrialError:
            # The agent may have filled the disk.
            repairs = await sandbox.make_room() if isinstance(sandbox, MakesRoom) else ()
            if not repairs:
                raise
            self.remarks[:] = repairs
            archive.seek(0)
            archive.truncate()
            await self._collect(MAIN, sandbox, archive)

    async def collect_services(self, sandbox: Sandbox, archive: IO[bytes]) -> None:
        names = sorted(self.task.file.services)
        if names and self.is_last and isinstance(sandbox, HasServices):
            await sandbox.stop_main()
        for name in names:
            try:
                service = service_of(sandbox, name)
            except TrialError as error:
                self.remarks.append(f"service: {one_line(str(error), 200)}")
                self.entries += [
                    _not_copied(each, "failed") for each, _ in self._artifacts if each.from_service == name
                ]
            else:
                await self._collect(name, service, archive)

    async def _collect(self, service: str, sandbox: Sandbox, archive: IO[bytes]) -> None:
        for hook in self.task.file.verifier.collect:
            if hook.service == service and (remark := await self._run(hook, sandbox)) is not None:
                self.remarks.append(remark)
        free = [each for each, is_free in self._artifacts if each.from_service == service and is_free]
        copied = await self._copy(sandbox, free, archive, with_logs=service == MAIN)
        found = dict(zip(free, copied, strict=True))
        for each in (each for each, _ in self._artifacts if each.from_service == service):
            self.entries.append(_entry(each, found[each]) if each in found else _not_copied(each, "skipped"))
            if each in found:
                self.remarks += [f"artifact: {one_line(f'{each.path}/{why}', 200)}" for why in found[each].skipped]

    async def _run(self, hook: CollectHook, sandbox: Sandbox) -> str | None:
        """Run a hook; return a remark if it failed. Raises TrialError on a timeout if the verdict depends on it."""
        # bash in the agent's container, as in Harbor; images of services may lack it.
        shell = "bash" if hook.service == MAIN else "sh"
        script = f"cd {shlex.quote(sandbox.workdir)} 2>/dev/null; exec {shell} -c {shlex.quote(hook.command)} 2>&1"
        user = None if hook.user is None else str(hook.user)
        ended = await sandbox.shell(script, timeout_sec=hook.timeout_sec, user=user)
        if ended.exit_code == 0 and not ended.timed_out:
            return None
        how = f"took longer than {hook.timeout_sec:g} s" if ended.timed_out else f"ended with {ended.exit_code}"
        output = one_line(ended.output[-200:].decode("utf-8", "replace"), 200)
        remark = f"collect-hook: {one_line(hook.command, 80)!r} {how}: {output}"
        if ended.timed_out and self.task.file.verifier.is_separate:
            raise TrialError("verifier_timeout", remark)
        return remark

    async def _copy(
        self, sandbox: Sandbox, artifacts: Sequence[Artifact], archive: IO[bytes], *, with_logs: bool
    ) -> list[Copied]:
        """Copy each artifact into the archive. An artifact that cannot be read whole in any try is skipped."""
        copied: list[Copied] = []
        tries = 0
        while (rest := artifacts[len(copied) :]) or with_logs:
            left_bytes = self.most_mb * _MB - archive.tell()
            async with self._pack(sandbox, rest, with_logs, left_bytes) as raw:
                copied += await asyncio.to_thread(self._copy_until_broken, raw, rest, archive)
                if len(copied) == len(artifacts):
                    if with_logs:
                        self.files |= await asyncio.to_thread(_logs, raw)
                    return copied
            tries += 1
            if tries == _MAX_TRIES:
                broken = Copied()
                broken.skip(".", "changed while it was read")
                copied, tries = [*copied, broken], 0
        return copied

    def _copy_until_broken(self, raw: IO[bytes], artifacts: Sequence[Artifact], archive: IO[bytes]) -> list[Copied]:
        """Copy the first artifacts, up to one whose archive is broken."""
        copied = []
        for each in artifacts:
            start, budget = archive.tell(), dataclasses.replace(self._budget)
            show_at = self.directory / FOLDER / each.stored_path
            try:
                copied.append(copy_safe_entries(raw, archive, each.path, self._budget, show_at))
            except BrokenArchive:
                archive.seek(start)
                archive.truncate()
                self._budget = budget
                _remove(show_at)
                break
            except TooManyEntries:
                raise _too_much(f"more than {_MAX_ENTRIES:,} files and folders", each.path) from None
        return copied

    @contextlib.asynccontextmanager
    async def _pack(
        self, sandbox: Sandbox, artifacts: Sequence[Artifact], with_logs: bool, left_bytes: int
    ) -> AsyncIterator[IO[bytes]]:
        """Open a temporary file with the archives of these artifacts, as the container sent them. Raises TrialError."""
        follow = _reads_all(self.task, sandbox)
        script = _script(artifacts, with_logs, left_bytes, follow=follow, goes_on=not self.is_last)
        with tempfile.TemporaryFile(dir=self.directory) as raw:
            ended = await _stream(sandbox, script, raw, left_bytes + _LOGS_BYTES + _MB)
            at = artifacts[0].path if artifacts else _AGENT_LOGS
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


def _is_tests_path(path: str) -> bool:
    """Whether a path belongs to the verifier's tests, which only the task may provide."""
    return path == "/tests" or path.startswith("/tests/")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _too_much(what: str, path: str, most_mb: int | None = None) -> TrialError:
    limit = f"; the limit is {most_mb} MB (--artifacts-mb)" if most_mb is not None else ""
    return TrialError("artifacts_too_large", f"the agent's artifacts are too large: {what}, up to {path}{limit}")


def _reads_all(task: Task, sandbox: Sandbox) -> bool:
    """Whether the agent could read every file, so that following its links reveals nothing new."""
    user = task.file.agent.user
    return sandbox.runs_as_root if user is None else str(user) in ("root", "0")


async def _stream(sandbox: Sandbox, script: str, raw: IO[bytes], limit_bytes: int) -> ExecResult:
    if not isinstance(sandbox, Streams):
        raise TrialError("verifier_failed", "this sandbox cannot copy files to another sandbox")
    return await sandbox.stream(script, timeout_sec=_COLLECT_SEC, user="root", sink=raw, limit_bytes=limit_bytes)


@cache
def _shell_functions() -> str:
    return STOP_OTHERS + Path(__file__).with_name("collect.sh").read_text()


def _script(artifacts: Sequence[Artifact], with_logs: bool, most_bytes: int, *, follow: bool, goes_on: bool) -> str:
    lines = [_shell_functions(), f"follow={int(follow) or ''}", "stop_others"]
    if goes_on:
        lines.append("trap continue_others EXIT")
    lines += (f"weigh {most_bytes} {_MAX_ENTRIES} {_find_arguments(each)}" for each in artifacts)
    lines += (f"pack {_find_arguments(each)}" for each in artifacts)
    if with_logs:
        lines.append(f"pack_small {_LOGS_BYTES} {_AGENT_LOGS}")
    return "\n".join([*lines, "exit 0"])


def _find_arguments(artifact: Artifact) -> str:
    """Return an artifact's path and arguments of find that exclude files by the rules of GNU tar's --exclude.

    `*` also matches `/`, a pattern may begin at any component of the path, and a folder is excluded with its contents.
    """
    tests = [arg for pattern in artifact.exclude for arg in ("-o", "-path", pattern, "-o", "-path", f"*/{pattern}")]
    pruned = ["(", *tests[1:], ")", "-prune", "-o"] if tests else []
    return shlex.join([artifact.path, *pruned])


def _logs(raw: IO[bytes]) -> dict[str, bytes]:
    """Return the agent's logs by path in the trial's directory; of a broken archive, those before the break."""
    found: dict[str, bytes] = {}
    with contextlib.suppress(BrokenArchive):
        for member in members(raw):
            if is_file(member):
                found.setdefault(f"agent/{member.name.removeprefix('./')}", raw.read(member.size))
    return found


def _entry(artifact: Artifact, copied: Copied) -> ArtifactEntry:
    is_convention = artifact.path == LOGS and artifact.from_service == MAIN
    if is_convention and not copied.files:
        return _manifest_entry(artifact, "directory", "empty")
    if copied.kind == "nothing":
        return _not_copied(artifact, "failed")
    return _manifest_entry(artifact, copied.kind, "ok")


def _not_copied(artifact: Artifact, status: Literal["failed", "skipped"]) -> ArtifactEntry:
    return _manifest_entry(artifact, "file" if Path(artifact.source).suffix else "directory", status)


def _manifest_entry(artifact: Artifact, kind: str, status: str) -> ArtifactEntry:
    return ArtifactEntry.model_validate(
        {
            "source": artifact.source,
            "destination": f"{FOLDER}/{artifact.stored_path}",
            "type": kind,
            "status": status,
            "service": artifact.service,
            "exclude": artifact.exclude if kind == "directory" else (),
        }
    )
