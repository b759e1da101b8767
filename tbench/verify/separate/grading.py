"""The verdict of a verifier in a container of its own: of the agent's comes there only what it handed over."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Sequence

from tbench.errors import TrialError
from tbench.results import Integrity
from tbench.sandbox.backend import Compares, Sandbox, removed_afterwards, use_network
from tbench.tasks.environment import Environment
from tbench.verify.changes.looking import look
from tbench.verify.changes.signs import Sign, told
from tbench.verify.changes.system import replaced
from tbench.verify.separate.earned import joined, turning_paths
from tbench.verify.separate.handover import HandedOver
from tbench.verify.separate.restoring import restore
from tbench.verify.verifier import Verdict, VerifierFailed, unjudged, verify

_KEPT = ("verifier",)
"""Folders of /logs that are kept: everything else there is known already."""


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
        self._sandbox = await self._start()
        try:
            verdict, turning = await self._verdict(self._sandbox, handed)
            verdict = await self._earned(verdict, turning, handed)
        except VerifierFailed as error:
            if error.type != "verifier_timeout" and await self._verdict_about_nothing(handed) is not None:
                error = unjudged(error)
            error.integrity = _seen(error.integrity, handed)
            raise error from None
        return dataclasses.replace(verdict, integrity=_seen(verdict.integrity, handed))

    async def _verdict(
        self, sandbox: Sandbox, handed: HandedOver, without: Sequence[str] = ()
    ) -> tuple[Verdict, tuple[str, ...]]:
        """The verdict from a sandbox; and the paths that turn the tests, of a pass. Raises TrialError."""
        task, tests = self._environment.task, await restore(self._environment, sandbox, handed, without)
        await use_network(sandbox, self._environment, "verifier")
        verdict = await verify(task, sandbox, brought=tests, kept=_KEPT)
        if verdict.reward <= 0 or not isinstance(sandbox, Compares):
            return verdict, ()
        signs: tuple[Sign, ...] = ()
        turning: tuple[str, ...] = ()
        try:
            # Tests that run what was handed over may be turned by it, here as anywhere.
            looked = await look(task, sandbox, verdict.facts)
            why = "comes before the image's own, or in its place"
            signs = looked.signs + tuple(Sign("system-replaced", path, why) for path in replaced(looked.seen))
            turning = turning_paths(signs, task.file.artifacts, looked.seen.tests.asks_for)
        except TrialError as error:
            # The tests of an image need not be in the task's directory.
            if error.origin is not None or not self._environment.brings_tests:
                raise
        return verdict.with_integrity(tamper=(*verdict.integrity.tamper, *told(signs))), turning

    async def _earned(self, verdict: Verdict, turning: Sequence[str], handed: HandedOver) -> Verdict:
        """A pass that strong signs speak against counts as it does without what turns the tests. Raises TrialError."""
        if turning:
            try:
                verdict = joined(verdict, (await self._in_another(handed, turning))[0])
            except VerifierFailed as failure:
                words = f"disagreement: no verdict without what turns the tests, {verdict.reward:g} with it"
                tamper = (*verdict.integrity.tamper, *failure.integrity.tamper, words)
                failure.integrity = failure.integrity.model_copy(update={"tamper": tamper})
                raise
        return verdict

    async def _verdict_about_nothing(self, handed: HandedOver) -> Verdict | None:
        """What the verifier says where nothing is handed over; None where it comes to no verdict there either.

        Raises TrialError where it cannot run.
        """
        try:
            return (await self._in_another(HandedOver(handed.archive, ())))[0]
        except VerifierFailed:
            return None

    async def _in_another(self, handed: HandedOver, without: Sequence[str] = ()) -> tuple[Verdict, tuple[str, ...]]:
        """The same in a new sandbox, in place of the one before. Raises TrialError."""
        self._ran_out_of_memory = self.ran_out_of_memory
        await self.remove()
        async with removed_afterwards(await self._start()) as another:
            return await self._verdict(another, handed, without)

    async def remove(self) -> None:
        """Remove the sandbox, if it was started. Never raises."""
        sandbox, self._sandbox = self._sandbox, None
        if sandbox is not None:
            # Shielded: a cancelled trial still leaves no container behind.
            await asyncio.shield(sandbox.remove())


def _seen(integrity: Integrity, handed: HandedOver) -> Integrity:
    return integrity.model_copy(update={"verify": "separate", "remarks": (*handed.remarks, *integrity.remarks)})
