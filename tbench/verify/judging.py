"""Judges one piece of work, in a fresh container or in the agent's own, whatever the agent used up or broke there.

A verdict from the agent's own container rests on what the agent left in it: a pass is looked at, and what was changed
that decides how tests run is a sign against it. A verdict from a fresh container of the image, into which only the
agent's work is brought, rests on the image's own tools.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tbench.errors import TrialError
from tbench.results import UNCONFIRMED, is_weak
from tbench.reward import is_solved
from tbench.sandbox.backend import Compares, Copies, Fill, MakesRoom, Sandbox, background_copy, removed_afterwards
from tbench.tasks.task import Task
from tbench.text import plain
from tbench.verify.calibration import CONTROL
from tbench.verify.changes.facts import NO_ORACLE, ContainerFacts, OracleSystem, path_list, sign_lines
from tbench.verify.changes.inspection import inspect_container
from tbench.verify.changes.system import is_oracle_file, replaced
from tbench.verify.changes.work import (
    KINDS_ABOUT_TEXT,
    KINDS_NOT_COPIED,
    Work,
    has_code,
    holds_in_fresh,
    without_system,
    work_of,
)
from tbench.verify.control_tests import try_control
from tbench.verify.verifier import Verdict, VerifierFailed, unjudged, verify, verify_twice

MOST_REPLACED = 100
"""Most paths of the image's system that are named as replaced."""
ADDED_BY_ORACLE = ", as the oracle's passes have added it"
"""End of a sign that says nothing, as it is about a file of the oracle's."""
_MOST_EVIDENCE = 50
_PLACES_OF_OURS = ("/tests/", "/logs/verifier/")
SECOND_RUN = "second-run: tests ran in this container before, with the agent's work, which may have changed it then"
CLEARED, SYSTEM_ADDED = "cleared: ", "system-added:"
"""Begins of signs: one that says nothing after all, and one about what a pass needs besides the work."""


def uncleared(sign: str, end: str) -> str:
    """A sign as it was before it was cleared for the reason `end`, which is the end of its words."""
    return sign.removeprefix(CLEARED).removesuffix(end) if sign.endswith(end) else sign


@dataclass(frozen=True)
class Judging:
    """One piece of work, to be judged in a fresh container, in the agent's own, or in both."""

    task: Task
    sandbox: Sandbox
    again: bool
    """Whether a verifier ran in the agent's container before."""
    oracle: OracleSystem = NO_ORACLE

    async def in_fresh(self) -> Verdict:
        """The verdict of a fresh container with the work, whatever the agent used up. Raises TrialError."""
        return await self._surely(self._fresh)

    async def in_own(self) -> Verdict:
        """The verdict of the agent's own container, with what speaks against it. Raises TrialError."""
        return await self._surely(self._own)

    # -- one attempt -----------------------------------------------------------------------------

    async def _own(self, again: bool) -> Verdict:
        given = await self.sandbox.backend_facts() if isinstance(self.sandbox, Compares) else None
        began_at = given.began_at if given is not None else None

        async def run(again: bool) -> Verdict:
            return await verify(self.task, self.sandbox, again=again, inspect_since=began_at)

        own = await verify_twice(run, again=again)
        if own.reward <= 0:
            return own
        if again or own.integrity.regrades:
            own = own.with_integrity(tamper=(*own.integrity.tamper, SECOND_RUN))
        if given is None:
            return own
        try:
            looked = await inspect_container(
                self.task, self.sandbox, own.facts, self.oracle, given=given, printed=own.inspection
            )
        except TrialError as failure:
            if failure.agent_can_cause:
                raise VerifierFailed(failure.type, str(failure), own.files, own.integrity, own.facts) from failure
            words = f"{UNCONFIRMED} it could not be looked at what changed: {failure.type}: {plain(str(failure), 200)}"
            return own.with_integrity(tamper=(*own.integrity.tamper, words))
        oracles = [sign for sign in looked.signs if is_oracle_file(looked.seen, sign.path)]
        signs = sign_lines(sign for sign in looked.signs if sign not in oracles)
        cleared = (f"{CLEARED}{sign}{ADDED_BY_ORACLE}" for sign in sign_lines(oracles))
        return own.with_integrity(tamper=(*own.integrity.tamper, *signs, *cleared), replaced=_replaced(looked.seen))

    async def _fresh(self, again: bool) -> Verdict:
        """The verdict of a fresh container, to which it makes no difference whether a verifier runs `again`."""
        if not isinstance(self.sandbox, Copies):
            raise TrialError("verifier_failed", "this sandbox cannot be copied, so nothing can be verified in a copy")
        async with background_copy(self.sandbox) as fill:
            looked = await inspect_container(self.task, self.sandbox, oracle=self.oracle)
            work = work_of(looked.seen, looked.signs)
            try:
                verdict = await self._with_work(fill, work)
            except VerifierFailed as failure:
                failure.files = {**looked.logs, **failure.files}
                raise
        if verdict.reward > 0:
            verdict = await self._without_added(verdict, work, without_system(looked.seen, work))
            if has_code(looked.seen, work[0]) or self.oracle.is_own:
                run, oracle = partial(self._with_work, self.sandbox.copy, work), self.oracle
                verdict = await try_control(
                    verdict, self.task, run, is_oracle=oracle.is_own, oracle_fails=oracle.fails_control
                )
            verdict = verdict.with_integrity(replaced=_replaced(looked.seen))
        # What stayed behind may be why work does not pass, and says nothing against a pass; the others do.
        shown = [sign for sign in looked.signs if (sign.kind in KINDS_NOT_COPIED) is (verdict.reward <= 0)]
        is_controlled = not is_solved(verdict.integrity.rewards.get(CONTROL, 1.0))
        along = [sign for sign in shown if holds_in_fresh(sign, looked.seen)]
        if is_controlled and not self.oracle.is_own:
            along = [sign for sign in along if sign.kind not in KINDS_ABOUT_TEXT]
        left = sign_lines(sign for sign in shown if sign not in along)
        signs = (*sign_lines(along), *(sign if is_weak(sign) else f"{CLEARED}{sign}" for sign in left))
        # What lies there behind an earlier verifier is our own.
        planted = [path for path in looked.seen.changes if path.startswith(_PLACES_OF_OURS) and not self.again]
        peak = max(looked.memory_peak_bytes, verdict.facts.memory_peak_bytes)
        verdict = dataclasses.replace(
            verdict,
            files={**looked.logs, **verdict.files},
            facts=dataclasses.replace(verdict.facts, memory_peak_bytes=peak),
        )
        tamper, evidence = (*verdict.integrity.tamper, *signs), sorted(planted)[:_MOST_EVIDENCE]
        return verdict.with_integrity(tamper=tamper, evidence=(*verdict.integrity.evidence, *evidence))

    async def _without_added(self, verdict: Verdict, whole: Work, alone: Work) -> Verdict:
        """A pass with all that the agent has made; where it added to the system, and the rest passes as well without
        that, the verdict about the rest."""
        if alone == whole:
            return verdict
        assert isinstance(self.sandbox, Copies)
        try:
            if (rest := await self._with_work(self.sandbox.copy, alone)).reward >= verdict.reward:
                return rest
        except VerifierFailed:
            pass
        own = {path for paths in alone for path in paths}
        others = path_list([path for paths in whole for path in paths if path not in own])
        words = f"{SYSTEM_ADDED} it passes only with {others}, added to the system or removed from it"
        return verdict.with_integrity(tamper=(*verdict.integrity.tamper, words))

    async def _with_work(self, fill: Fill, work: Work, task: Task | None = None) -> Verdict:
        """The verdict of a fresh container with the work; if no test ran there, of another one."""
        assert isinstance(self.sandbox, Copies)
        fills = iter((fill, self.sandbox.copy))

        async def run(_: bool) -> Verdict:
            # At once: on one network, what is left there could answer the tests of the next container.
            async with removed_afterwards(await next(fills)(*work)) as copy:
                return await verify(task or self.task, copy)

        return await verify_twice(run)

    # -- a verifier that could not run -----------------------------------------------------------

    async def _surely(self, judge: Callable[[bool], Awaitable[Verdict]]) -> Verdict:
        """A verdict, whatever the agent used up, or broke, where the verifier runs. Raises TrialError."""
        verdict = await _attempt(judge, again=self.again)
        if isinstance(verdict, TrialError):
            return await self._after(verdict, judge)
        return verdict

    async def _after(self, error: TrialError, judge: Callable[[bool], Awaitable[Verdict]]) -> Verdict:
        """The verdict after a failed verifier, where room could be made, or another try does it."""
        if error.type == "verifier_timeout":
            raise error
        # If a verifier began, the files in the places of tests and reward are our own.
        again = self.again or isinstance(error, VerifierFailed)
        repairs = await self.sandbox.make_room() if isinstance(self.sandbox, MakesRoom) else ()
        if repairs:
            second = await _attempt(judge, again=again)
            if isinstance(second, Verdict):
                return _repaired(second, repairs)
            error, again = second, again or isinstance(second, VerifierFailed)
        if _stands(error, repairs) or not isinstance(self.sandbox, Copies):
            raise error
        try:
            async with removed_afterwards(await self.sandbox.anew()) as fresh:
                await verify(self.task, fresh)
        except VerifierFailed:
            raise error from None
        # By now the trouble may be over: then it was not the agent's.
        last = await _attempt(judge, again=again)
        if isinstance(last, Verdict):
            return _repaired(last, repairs)
        raise last if _stands(last, repairs) else unjudged(last)


async def _attempt(judge: Callable[[bool], Awaitable[Verdict]], *, again: bool) -> Verdict | TrialError:
    """A verdict, or the error in its place that the agent may be the cause of; others are raised."""
    try:
        return await judge(again)
    except TrialError as error:
        if not error.agent_can_cause:
            raise
        return error


def _replaced(seen: ContainerFacts) -> dict[str, str]:
    return dict(itertools.islice(replaced(seen).items(), MOST_REPLACED))


def _stands(error: TrialError, repairs: Sequence[str]) -> bool:
    """Whether an error says nothing about the agent, whatever the verifier does without its work.

    Tests that run the work take longer with it. Where nothing was used up in the container, it may be the engine's
    machine that has no room for a command.
    """
    return error.type == "verifier_timeout" or (error.type == "sandbox_failed" and not repairs)


def _repaired(verdict: Verdict, repairs: tuple[str, ...]) -> Verdict:
    return verdict.with_integrity(repairs=repairs + verdict.integrity.repairs)
