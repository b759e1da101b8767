"""The verdict of a verifier in a container of its own: only what was handed over is restored there, and judged."""

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
from tbench.verify.changes.facts import Sign, told
from tbench.verify.changes.looking import look
from tbench.verify.changes.system import replaced
from tbench.verify.changes.turning import imported_work
from tbench.verify.changes.work import KINDS_IN_FRESH
from tbench.verify.control_tests import try_control
from tbench.verify.judging import CLEARED
from tbench.verify.separate.handover import ArtifactEntry, HandedOver
from tbench.verify.verifier import BroughtTests, Verdict, VerifierFailed, unjudged, verify, verify_twice

# Whether a pass was earned by what was handed over, or by what of it turns the tests: rules about two verdicts.


def turning_paths(
    signs: Iterable[Sign], artifacts: Iterable[Artifact], asks_for: Callable[[str], bool]
) -> tuple[str, ...]:
    """Paths that strong signs are about. Where a task asks for a file, as an artifact or in its instruction, it may
    lie there."""
    asked_for = {each.path for each in artifacts}
    return tuple(
        dict.fromkeys(
            sign.path
            for sign in signs
            if not is_weak(sign.kind)
            and sign.kind not in KINDS_IN_FRESH
            and not (sign.path in asked_for or asks_for(sign.path))
        )
    )


def joined(first: Verdict, without: Verdict) -> Verdict:
    """What a pass comes to beside what the tests say `without` all that turns them: the lower reward counts."""
    signs = first.integrity.tamper
    beside = {f"without/{name}": data for name, data in without.files.items() if name.startswith("verifier/")}
    both = dataclasses.replace(first, files={**first.files, **beside}, facts=without.facts)
    rewards = {"separate": first.reward, "without": without.reward}
    if canonical(without.reward) >= canonical(first.reward):
        seen = (sign if is_weak(sign) else f"{CLEARED}{sign}" for sign in signs)
        return both.with_integrity(tamper=(*without.integrity.tamper, *seen), rewards=rewards)
    words = f"{without.reward:g} without what turns the tests, {first.reward:g} with it"
    lower = dataclasses.replace(both, reward=without.reward, metrics=without.metrics)
    tamper = (*signs, *without.integrity.tamper, f"disagreement: {words}")
    return lower.with_integrity(tamper=tamper, rewards=rewards)


# Restores what an agent handed over in the verifier's own container, and looks at the tests that are there.

_NO_TESTS = 95
"""Exit code of restore.sh where the image lacks the tests."""
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
"""What the image has at the paths on standard input, a line each, is kept, and takes its place again."""


async def restore(
    environment: Environment, sandbox: Sandbox, handed: HandedOver, without: Collection[str] = ()
) -> BroughtTests | None:
    """Put the artifacts where they were collected; returns the tests of an image that has them. Raises TrialError.

    At the paths of `without` stays what the image has there.
    """
    entries = handed.to_restore
    if not entries and not environment.brings_tests:
        return None
    if not isinstance(sandbox, Streams):
        raise TrialError("verifier_failed", "this sandbox cannot take files, so there is nothing to verify in it")
    if without:
        await _swap(sandbox, _SET_ASIDE, without)
    tests = await _restore(environment, sandbox, handed, entries)
    if without:
        await _swap(sandbox, _PUT_BACK, without)
    return tests


async def _swap(sandbox: Sandbox, script: str, paths: Collection[str]) -> None:
    listed = "".join(f"{path}\n" for path in sorted(paths) if "\n" not in path)
    ended = await sandbox.shell(
        script, timeout_sec=_RESTORE_SEC, user="root", stdin=listed.encode("utf-8", "surrogateescape")
    )
    if ended.exit_code != 0:
        raise TrialError("verifier_failed", "what turns the tests could not be left out of what was handed over")


async def _restore(
    environment: Environment, sandbox: Streams, handed: HandedOver, entries: Sequence[ArtifactEntry]
) -> BroughtTests | None:
    with handed.archive.open("rb") as archive:
        script = _script(entries, environment.brings_tests)
        ended = await sandbox.stream(script, timeout_sec=_RESTORE_SEC, user="root", source=archive)
    if ended.exit_code == _NO_TESTS:
        image = environment.settings.docker_image or f"built of {environment.folder}/"
        raise TrialError("tests_missing", f"the verifier's image ({image}) has no /tests/test.sh")
    if ended.exit_code != 0:
        why = "it took too long" if ended.timed_out else "no room, or no folder where one is needed"
        code = "" if ended.exit_code in (None, NOT_STAGED) else f" ({ended.exit_code})"
        words = f"the artifacts could not be put into the verifier's container: {why}{code}"
        # It may be what was handed over that has no place there.
        raise TrialError("verifier_failed", words) if ended.timed_out else VerifierFailed("verifier_failed", words, {})
    if not environment.brings_tests:
        return None
    others, _, script_text = ended.output.partition(b"\n")
    return BroughtTests(script_text, speak_elsewhere=others.strip() != b"0")


@cache
def _functions() -> str:
    return Path(__file__).with_name("restore.sh").read_text()


def _script(entries: Sequence[ArtifactEntry], brings_tests: bool) -> str:
    lines = [_functions()]
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


_KEPT = ("verifier",)
"""Folders of /logs that are kept: everything else there is known already."""


@dataclass(frozen=True)
class _Graded:
    """A verdict, and what was seen of a pass."""

    verdict: Verdict
    turning: tuple[str, ...] = ()
    """Paths that turn the tests."""
    imports_work: bool = False
    """Whether the tests import modules that were handed over."""


class SeparateVerifier:
    """A verifier's own sandbox for one trial: started to verify, and there until it is removed."""

    def __init__(self, environment: Environment, start: Callable[[], Awaitable[Sandbox]]) -> None:
        """`start` starts a sandbox of the environment."""
        self._environment = environment
        self._start = start
        self._sandbox: Sandbox | None = None
        self._ran_out_of_memory = False

    @property
    def ran_out_of_memory(self) -> bool:
        """Whether the kernel has ended one of its processes because it was out of memory."""
        return self._ran_out_of_memory or (self._sandbox is not None and self._sandbox.ran_out_of_memory)

    async def verify(self, handed: HandedOver) -> Verdict:
        """The verdict about what was handed over. Raises TrialError; VerifierFailed has the integrity."""
        self._sandbox = sandbox = await self._start()
        graded: list[_Graded] = []

        async def run(again: bool) -> Verdict:
            graded.append(await (self._in_another(handed) if again else self._graded(sandbox, handed)))
            return graded[-1].verdict

        try:
            verdict = await verify_twice(run)
            verdict = await self._earned(verdict, graded[-1], handed)
        except VerifierFailed as error:
            if error.type != "verifier_timeout" and await self._has_verdict_about_nothing(handed):
                error = unjudged(error)
            error.integrity = _seen(error.integrity, handed)
            raise error from None
        return dataclasses.replace(verdict, integrity=_seen(verdict.integrity, handed))

    async def _graded(
        self, sandbox: Sandbox, handed: HandedOver, without: Sequence[str] = (), task: Task | None = None
    ) -> _Graded:
        """Verify in a sandbox, with the tests of another task where one is given. Raises TrialError."""
        tests = await restore(self._environment, sandbox, handed, without)
        await use_network(sandbox, self._environment, "verifier")
        verdict = await verify(task or self._environment.task, sandbox, brought=tests, kept=_KEPT)
        if task is not None or verdict.reward <= 0 or not isinstance(sandbox, Compares):
            return _Graded(verdict)
        task = self._environment.task
        try:
            # Tests that run what was handed over may be turned by it, here as anywhere.
            looked = await look(task, sandbox, verdict.facts)
        except TrialError as error:
            # The tests of an image need not be in the task's directory.
            if error.origin is not None or not self._environment.brings_tests:
                raise
            return _Graded(verdict)
        why = "comes before the image's own, or in its place"
        signs = looked.signs + tuple(Sign("system-replaced", path, why) for path in replaced(looked.seen))
        turning = turning_paths(signs, task.file.artifacts, looked.seen.tests.asks_for)
        verdict = verdict.with_integrity(tamper=(*verdict.integrity.tamper, *told(signs)))
        return _Graded(verdict, turning, any(imported_work(looked.seen)))

    async def _earned(self, verdict: Verdict, graded: _Graded, handed: HandedOver) -> Verdict:
        """A pass that strong signs speak against counts as it does without what turns the tests. Raises TrialError."""
        without = graded.turning
        if without:
            try:
                verdict = joined(verdict, (await self._in_another(handed, without)).verdict)
            except VerifierFailed as failure:
                words = f"disagreement: no verdict without what turns the tests, {verdict.reward:g} with it"
                tamper = (*verdict.integrity.tamper, *failure.integrity.tamper, words)
                failure.integrity = failure.integrity.model_copy(update={"tamper": tamper})
                raise
        if graded.imports_work and not self._environment.brings_tests:

            async def run(task: Task) -> Verdict:
                return (await self._in_another(handed, without, task)).verdict

            verdict = await try_control(verdict, self._environment.task, run, is_oracle=False, fails=False)
        return verdict

    async def _has_verdict_about_nothing(self, handed: HandedOver) -> bool:
        """Whether the verifier comes to a verdict where nothing is handed over. Raises TrialError if it cannot run."""
        try:
            await self._in_another(HandedOver(handed.archive, ()))
        except VerifierFailed:
            return False
        return True

    async def _in_another(self, handed: HandedOver, without: Sequence[str] = (), task: Task | None = None) -> _Graded:
        """The same in a new sandbox, in place of the one before. Raises TrialError."""
        self._ran_out_of_memory = self.ran_out_of_memory
        await self.remove()
        async with removed_afterwards(await self._start()) as another:
            return await self._graded(another, handed, without, task)

    async def remove(self) -> None:
        """Remove the sandbox, if it was started. Never raises."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            # Shielded: a cancelled trial still leaves no container behind.
            await asyncio.shield(sandbox.remove())


def _seen(integrity: Integrity, handed: HandedOver) -> Integrity:
    return integrity.model_copy(update={"verify": "separate", "remarks": (*handed.remarks, *integrity.remarks)})
