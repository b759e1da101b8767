"""Verifies the agent's artifacts in a fresh container, which contains nothing else of the agent's work."""

from __future__ import annotations

import asyncio
import dataclasses
import shlex
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tbench.errors import TrialError
from tbench.results import Integrity, is_weak
from tbench.reward import canonical
from tbench.sandbox.backend import BUSYBOX, NOT_STAGED, Compares, Sandbox, Streams, removed_afterwards, use_network
from tbench.tasks.artifacts import Artifact
from tbench.tasks.environment import Environment
from tbench.tasks.task import Task
from tbench.verify.changes.facts import NO_ORACLE, OracleSystem, Sign, sign_lines
from tbench.verify.changes.inspection import inspect_container
from tbench.verify.changes.system import replaced_paths
from tbench.verify.changes.work import KINDS_ON_NETWORK
from tbench.verify.control_tests import try_control
from tbench.verify.judging import CLEARED
from tbench.verify.separate.handover import ArtifactEntry, HandedOver
from tbench.verify.verifier import ImageTests, Verdict, VerifierFailed, unjudged, verify, verify_twice


def tampering_paths(
    signs: Iterable[Sign], artifacts: Iterable[Artifact], asks_for: Callable[[str], bool]
) -> tuple[str, ...]:
    """Return the paths of strong signs, except files that the task asks for as artifacts or in its instruction."""
    requested = {each.path for each in artifacts}
    return tuple(
        dict.fromkeys(
            sign.path
            for sign in signs
            if not is_weak(sign.kind)
            and sign.kind not in KINDS_ON_NETWORK
            and not (sign.path in requested or asks_for(sign.path))
        )
    )


def combine(first: Verdict, without: Verdict) -> Verdict:
    """Combine the verdict of a pass with the verdict `without` the files that tamper with the tests.

    The lower reward counts.
    """
    signs = first.integrity.tamper
    other_files = {f"without/{name}": data for name, data in without.files.items() if name.startswith("verifier/")}
    both = dataclasses.replace(first, files={**first.files, **other_files}, facts=without.facts)
    rewards = {"separate": first.reward, "without": without.reward}
    if canonical(without.reward) >= canonical(first.reward):
        seen = (sign if is_weak(sign) else f"{CLEARED}{sign}" for sign in signs)
        return both.with_integrity(tamper=(*without.integrity.tamper, *seen), rewards=rewards)
    rewards_text = f"{without.reward:g} without the files that tamper with the tests, {first.reward:g} with them"
    lower = dataclasses.replace(both, reward=without.reward, metrics=without.metrics)
    tamper = (*signs, *without.integrity.tamper, f"disagreement: {rewards_text}")
    return lower.with_integrity(tamper=tamper, rewards=rewards)


_NO_TESTS = 95
"""Exit code of restore.sh if the image lacks the tests."""
_RESTORE_SEC = 900.0
_ASIDE = "/.tbench-aside"
_SET_ASIDE = f"""{BUSYBOX} mkdir -m 700 {_ASIDE} || exit 1
number=0
while IFS= read -r path; do
    number=$((number + 1))
    if [ -e "$path" ] || [ -L "$path" ]; then {BUSYBOX} cp -a "$path" {_ASIDE}/$number || exit 1; fi
done
"""
_PUT_BACK = f"""number=0
while IFS= read -r path; do
    number=$((number + 1))
    {BUSYBOX} rm -rf "$path" || exit 1
    if [ -e {_ASIDE}/$number ] || [ -L {_ASIDE}/$number ]; then
        {BUSYBOX} mkdir -p "${{path%/*}}/" && {BUSYBOX} mv {_ASIDE}/$number "$path" || exit 1
    fi
done
{BUSYBOX} rm -rf {_ASIDE}
"""
"""Scripts that save and restore the image's files at the paths on standard input, one per line."""


async def restore(
    environment: Environment, sandbox: Sandbox, handover: HandedOver, without: Collection[str] = ()
) -> ImageTests | None:
    """Restore the artifacts at their original paths; return the tests if the image has them. Raises TrialError.

    The paths in `without` keep the image's content.
    """
    entries = handover.to_restore
    if not entries and not environment.brings_tests:
        return None
    if not isinstance(sandbox, Streams):
        raise TrialError("verifier_failed", "this sandbox cannot receive files, so no artifacts can be verified")
    if without:
        await _run_on_paths(sandbox, _SET_ASIDE, without)
    tests = await _restore(environment, sandbox, handover, entries)
    if without:
        await _run_on_paths(sandbox, _PUT_BACK, without)
    return tests


async def _run_on_paths(sandbox: Sandbox, script: str, paths: Collection[str]) -> None:
    lines = "".join(f"{path}\n" for path in sorted(paths) if "\n" not in path)
    ended = await sandbox.shell(
        script, timeout_sec=_RESTORE_SEC, user="root", stdin=lines.encode("utf-8", "surrogateescape")
    )
    if ended.exit_code != 0:
        raise TrialError("verifier_failed", "files that tamper with the tests could not be excluded from the artifacts")


async def _restore(
    environment: Environment, sandbox: Streams, handover: HandedOver, entries: Sequence[ArtifactEntry]
) -> ImageTests | None:
    with handover.archive.open("rb") as archive:
        script = _script(entries, environment.brings_tests)
        ended = await sandbox.stream(script, timeout_sec=_RESTORE_SEC, user="root", source=archive)
    if ended.exit_code == _NO_TESTS:
        image = environment.settings.docker_image or f"built of {environment.folder}/"
        raise TrialError("tests_missing", f"the verifier's image ({image}) has no /tests/test.sh")
    if ended.exit_code != 0:
        why = "timed out" if ended.timed_out else "the disk is full, or a path needs a folder where a file is"
        code = "" if ended.exit_code in (None, NOT_STAGED) else f" ({ended.exit_code})"
        message = f"the artifacts could not be copied into the verifier's container: {why}{code}"
        # Unless it timed out, the artifacts themselves may be the cause.
        raise (
            TrialError("verifier_failed", message)
            if ended.timed_out
            else VerifierFailed("verifier_failed", message, {})
        )
    if not environment.brings_tests:
        return None
    others, _, script_text = ended.output.partition(b"\n")
    return ImageTests(script_text, others_mention_reward=others.strip() != b"0")


@cache
def _shell_functions() -> str:
    return Path(__file__).with_name("restore.sh").read_text()


def _script(entries: Sequence[ArtifactEntry], brings_tests: bool) -> str:
    lines = [_shell_functions()]
    for entry in entries:
        lines.append(f"{'empty' if entry.type == 'directory' else 'beside'} {shlex.quote(entry.path)}")
    if entries:
        lines.append("unpack")
    for entry in entries:
        if entry.type == "directory" and "__pycache__" not in entry.path.split("/"):
            lines.append(f"drop_caches {shlex.quote(entry.path)}")
    if brings_tests:
        lines.append("show_tests")
    return "\n".join([*lines, "exit 0"])


_LOG_FOLDERS = ("verifier",)
"""Folders of /logs that are kept; the others are part of the artifacts."""


@dataclass(frozen=True)
class _Graded:
    """Verdict and, for a pass, the result of the inspection."""

    verdict: Verdict
    tampering: tuple[str, ...] = ()
    """Paths of files that tamper with the tests."""


class SeparateVerifier:
    """Verifies one trial in fresh sandboxes, one at a time. The first lasts until the second or `remove`."""

    def __init__(self, environment: Environment, start: Callable[[], Awaitable[Sandbox]]) -> None:
        """`start` starts a new sandbox of the environment."""
        self._environment = environment
        self._start = start
        self._sandbox: Sandbox | None = None
        self._ran_out_of_memory = False

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel killed a process of one of the sandboxes because memory ran out."""
        return self._ran_out_of_memory or (self._sandbox is not None and self._sandbox.ran_out_of_memory)

    async def verify(self, handover: HandedOver, oracle: OracleSystem = NO_ORACLE) -> Verdict:
        """Return the verdict about the artifacts. Raises TrialError; VerifierFailed carries the integrity."""
        self._sandbox = sandbox = await self._start()
        graded: list[_Graded] = []

        async def run(again: bool) -> Verdict:
            graded.append(await (self._grade_in_new(handover) if again else self._grade(sandbox, handover)))
            return graded[-1].verdict

        try:
            verdict = await verify_twice(run)
            verdict = await self._check_pass(verdict, graded[-1], handover, oracle)
        except VerifierFailed as error:
            if error.type != "verifier_timeout" and await self._works_without_artifacts(handover):
                error = unjudged(error)
            error.integrity = _as_separate(error.integrity, handover)
            raise error from None
        return dataclasses.replace(verdict, integrity=_as_separate(verdict.integrity, handover))

    async def _grade(
        self, sandbox: Sandbox, handover: HandedOver, without: Sequence[str] = (), task: Task | None = None
    ) -> _Graded:
        """Verify in a sandbox, with the tests of `task` instead if given. Raises TrialError."""
        tests = await restore(self._environment, sandbox, handover, without)
        await use_network(sandbox, self._environment, "verifier")
        verdict = await verify(task or self._environment.task, sandbox, image_tests=tests, log_folders=_LOG_FOLDERS)
        if task is not None or verdict.reward <= 0 or not isinstance(sandbox, Compares):
            return _Graded(verdict)
        task = self._environment.task
        try:
            # Artifacts can tamper with the tests that run them, even in a fresh container.
            inspection = await inspect_container(task, sandbox, verdict.facts)
        except TrialError as error:
            # If the image has the tests, the task's directory may lack them, so that they cannot be read here.
            if error.origin is not None or not self._environment.brings_tests:
                raise
            return _Graded(verdict)
        why = "shadows or replaces the image's own"
        signs = inspection.signs + tuple(Sign("system-replaced", path, why) for path in replaced_paths(inspection.seen))
        tampering = tampering_paths(signs, task.file.artifacts, inspection.seen.tests.asks_for)
        verdict = verdict.with_signs(*sign_lines(signs))
        return _Graded(verdict, tampering)

    async def _check_pass(
        self, verdict: Verdict, graded: _Graded, handover: HandedOver, oracle: OracleSystem
    ) -> Verdict:
        """Verify a pass without the files that tamper with the tests, and with control tests. Raises TrialError."""
        without = graded.tampering
        if without:
            try:
                verdict = combine(verdict, (await self._grade_in_new(handover, without)).verdict)
            except VerifierFailed as failure:
                rewards = f"no verdict without the files that tamper with the tests, {verdict.reward:g} with them"
                tamper = (*verdict.integrity.tamper, *failure.integrity.tamper, f"disagreement: {rewards}")
                failure.integrity = failure.integrity.model_copy(update={"tamper": tamper})
                raise
        if not self._environment.brings_tests:

            async def run(task: Task) -> Verdict:
                return (await self._grade_in_new(handover, without, task)).verdict

            verdict = await try_control(verdict, self._environment.task, run, oracle)
        return verdict

    async def _works_without_artifacts(self, handover: HandedOver) -> bool:
        """Whether the verifier reaches a verdict without any artifacts. Raises TrialError if it cannot run."""
        try:
            await self._grade_in_new(HandedOver(handover.archive, ()))
        except VerifierFailed:
            return False
        return True

    async def _grade_in_new(
        self, handover: HandedOver, without: Sequence[str] = (), task: Task | None = None
    ) -> _Graded:
        """Remove the current sandbox, and verify in a new one that is removed afterwards. Raises TrialError."""
        self._ran_out_of_memory = self.ran_out_of_memory
        await self.remove()
        async with removed_afterwards(await self._start()) as new_sandbox:
            try:
                return await self._grade(new_sandbox, handover, without, task)
            finally:
                self._ran_out_of_memory |= new_sandbox.ran_out_of_memory

    async def remove(self) -> None:
        """Remove the sandbox, if it was started. Never raises."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            # A cancelled trial must not leave its container behind.
            await asyncio.shield(sandbox.remove())


def _as_separate(integrity: Integrity, handover: HandedOver) -> Integrity:
    return integrity.model_copy(update={"verify": "separate", "remarks": (*handover.remarks, *integrity.remarks)})
