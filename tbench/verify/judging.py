"""Judges the work in the agent's own container or in a fresh one, and retries if the verifier fails.

In the agent's own container, tests run with whatever the agent left there. So after a pass, the container is inspected,
and changes that can influence the tests become signs against the pass. A fresh container of the image gets only the
agent's work, so tests run with the image's own tools.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import math
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from tbench.errors import TrialError
from tbench.results import UNCONFIRMED, is_weak
from tbench.reward import canonical, is_solved
from tbench.sandbox.backend import Compares, Copies, MakesRoom, Sandbox, removed_afterwards
from tbench.sandbox.copies import SpareCopies
from tbench.tasks.task import Task
from tbench.text import plain
from tbench.verify.changes.facts import NO_ORACLE, ContainerFacts, OracleSystem, path_list, sign_lines
from tbench.verify.changes.inspection import inspect_container
from tbench.verify.changes.system import is_oracle_file, replaced_paths
from tbench.verify.changes.work import (
    KINDS_NOT_COPIED,
    Work,
    holds_in_fresh,
    without_system,
    without_tests,
    work_of,
)
from tbench.verify.control_tests import try_control
from tbench.verify.verifier import Verdict, VerifierFailed, unjudged, verify, verify_twice

MAX_REPLACED = 100
"""Maximum number of replaced system paths that a verdict lists."""
CLEARED = "cleared: "
"""Prefix of a sign that was found to be harmless."""
ADDED_BY_ORACLE = ", as the oracle's passes have added it"
"""End of a sign that was cleared because the oracle's passes added the same file."""
SYSTEM_ADDED = "system-added:"
"""Prefix of a sign that names additions to the system, or removals from it, without which the work does not pass."""
TESTS_ADDED = "tests-added:"
"""Prefix of a sign that names files without which the work does not pass, and that tests may mistake for their own."""
NEEDS_SERVERS = "needs-servers: it passes only with the network of the agent's container, where its servers answer"
NEEDS_PROCESSES = "needs-processes: it passes only while processes that the agent left run beside the tests"
_MAX_EVIDENCE = 50
_STILL_SEC, _STILL_FACTOR = 10.0, 3.0
"""Time for the oracle's tests while its processes are stopped: seconds, and a multiple of their time beside them."""
_VERIFIER_PATHS = ("/tests/", "/logs/verifier/")
SECOND_RUN = "second-run: tests ran in this container before, with the agent's work, which may have changed it then"


def undo_clearing(sign: str, end: str) -> str:
    """Return a sign as it was before it was cleared for the reason `end`; other signs are returned unchanged."""
    return sign.removeprefix(CLEARED).removesuffix(end) if sign.endswith(end) else sign


@dataclass(frozen=True)
class Judge:
    """Judges the work in one sandbox: in that container, or in fresh ones that get a copy of the work."""

    task: Task
    copies: SpareCopies
    """Copies of the sandbox with the work."""
    again: bool
    """Whether a verifier ran in the agent's container before."""
    oracle: OracleSystem = NO_ORACLE

    @property
    def sandbox(self) -> Sandbox:
        """The agent's own container."""
        return self.copies.sandbox

    async def judge_in_fresh_container(self) -> Verdict:
        """Return the verdict of a fresh container with the work. Raises TrialError."""
        return await self._judge_with_repairs(self._try_fresh_container)

    async def judge_in_agent_container(self) -> Verdict:
        """Return the verdict of the agent's own container, with signs against it. Raises TrialError."""
        return await self._judge_with_repairs(self._try_agent_container)

    async def try_control_in_agent_container(self, verdict: Verdict) -> Verdict:
        """Run control tests in the agent's own container; return the pass, with a sign if they pass. Raises TrialError.

        The earlier tests may have left files that change the results of single tests, so only the reward is compared.
        """
        needed_them = any(sign.removeprefix(CLEARED) == NEEDS_PROCESSES for sign in verdict.integrity.tamper)
        is_still = self._stops_processes and not needed_them

        async def run(task: Task) -> Verdict:
            return await verify(task, self.sandbox, again=True, is_still=is_still)

        oracle = dataclasses.replace(self.oracle, of_control={}, passes_intact=False)
        return await try_control(verdict, self.task, run, oracle)

    @property
    def _stops_processes(self) -> bool:
        """Whether tests in the agent's own container are tried with the agent's processes stopped."""
        return self.oracle.is_own or self.oracle.needs_processes is False

    # -- one attempt -----------------------------------------------------------------------------

    async def _try_agent_container(self, again: bool) -> Verdict:
        given = await self.sandbox.backend_facts() if isinstance(self.sandbox, Compares) else None
        inspect_since = given.began_at if given is not None else None

        async def run(again: bool, *, is_still: bool = False, limit_sec: float = math.inf) -> Verdict:
            task, since = _limited(self.task, limit_sec), inspect_since
            return await verify(task, self.sandbox, again=again, inspect_since=since, is_still=is_still)

        own = await self._verify_beside_processes(run, again)
        if own.reward <= 0:
            return own
        if again or own.integrity.regrades:
            own = own.with_signs(SECOND_RUN)
        if given is None:
            return own
        try:
            inspection = await inspect_container(
                self.task, self.sandbox, own.facts, self.oracle, given=given, printed=own.inspection
            )
        except TrialError as failure:
            if failure.agent_can_cause:
                raise VerifierFailed(failure.type, str(failure), own.files, own.integrity, own.facts) from failure
            reason = f"the container could not be inspected: {failure.type}: {plain(str(failure), 200)}"
            return own.with_signs(f"{UNCONFIRMED} {reason}")
        of_oracle = [sign for sign in inspection.signs if is_oracle_file(inspection.seen, sign.path)]
        signs = sign_lines(sign for sign in inspection.signs if sign not in of_oracle)
        cleared = (f"{CLEARED}{sign}{ADDED_BY_ORACLE}" for sign in sign_lines(of_oracle))
        return own.with_signs(*signs, *cleared).with_integrity(replaced=_first_replaced(inspection.seen))

    async def _verify_beside_processes(self, run: Callable[..., Awaitable[Verdict]], again: bool) -> Verdict:
        """Return the verdict of `run` in the agent's own container. Raises TrialError.

        Processes that the agent left could act on the tests. They are stopped if the oracle's work passes with its own
        processes stopped. If the work passes only while they run, the pass gets a sign.
        """
        if self.oracle.is_own:
            return await self._measure_without_processes(await verify_twice(run, again=again), run)
        if not self._stops_processes:
            return await verify_twice(run, again=again)
        still: Verdict | VerifierFailed
        try:
            still = await verify_twice(partial(run, is_still=True), again=again)
        except VerifierFailed as failure:
            still = failure
        # After a timeout, the number of processes is unknown.
        may_need_them = still.facts.leftovers or still.facts.timed_out
        if isinstance(still, VerifierFailed) and not may_need_them:
            raise still
        if isinstance(still, Verdict) and (is_solved(still.reward) or not may_need_them):
            return still
        moving = await verify_twice(run, again=True)
        if moving.reward > 0:
            moving = moving.with_signs(NEEDS_PROCESSES)
        return moving

    async def _measure_without_processes(self, own: Verdict, run: Callable[..., Awaitable[Verdict]]) -> Verdict:
        """Return a pass of the oracle, with a cleared sign unless it also passes while its processes are stopped.

        A stopped server answers nothing: the tests get only a multiple of the time that they took beside it.
        """
        if own.reward <= 0 or not own.facts.leftovers:
            return own
        limit_sec = _STILL_SEC + _STILL_FACTOR * own.facts.took_sec
        with contextlib.suppress(VerifierFailed):
            if is_solved((await run(True, is_still=True, limit_sec=limit_sec)).reward):
                return own
        return own.with_signs(f"{CLEARED}{NEEDS_PROCESSES}")

    async def _try_fresh_container(self, _: bool) -> Verdict:
        """Return the verdict of a fresh container, which no earlier run of the verifier can have changed."""
        if not isinstance(self.sandbox, Copies):
            raise TrialError("verifier_failed", "this sandbox cannot be copied, so nothing can be verified in a copy")
        is_apart = self.sandbox.can_be_apart() and not self.oracle.needs_servers
        self.copies.prepare(is_apart=is_apart)
        inspection = await inspect_container(self.task, self.sandbox, oracle=self.oracle)
        seen, work = inspection.seen, work_of(inspection.seen, inspection.signs)
        if is_apart and seen.has_servers and self.oracle.needs_servers is None and not self.oracle.is_own:
            # The calibration does not say whether tests need the servers, so they stay reachable.
            is_apart = False
        try:
            verdict, is_apart = await self._verify_on_networks(work, seen, is_apart=is_apart)
        except VerifierFailed as failure:
            failure.files = {**inspection.logs, **failure.files}
            raise
        if verdict.reward > 0:
            verdict, work = await self._without_additions(verdict, seen, work, is_apart=is_apart)
            run = partial(self._verify_with, work, is_apart=is_apart)
            verdict = await try_control(verdict, self.task, run, self.oracle)
            verdict = verdict.with_integrity(replaced=_first_replaced(seen))
        # A failure keeps only signs about paths that were not copied, as these may explain it. A pass keeps only the
        # other signs, which may count against it.
        relevant = [sign for sign in inspection.signs if (sign.kind in KINDS_NOT_COPIED) is (verdict.reward <= 0)]
        holding = [sign for sign in relevant if holds_in_fresh(sign, seen, is_apart=is_apart)]
        others = sign_lines(sign for sign in relevant if sign not in holding)
        signs = (*sign_lines(holding), *(sign if is_weak(sign) else f"{CLEARED}{sign}" for sign in others))
        # If a verifier ran in the agent's container before, the files at these paths are its own, and not planted.
        planted = [path for path in seen.changes if path.startswith(_VERIFIER_PATHS) and not self.again]
        peak = max(inspection.memory_peak_bytes, verdict.facts.memory_peak_bytes)
        verdict = dataclasses.replace(
            verdict,
            files={**inspection.logs, **verdict.files},
            facts=dataclasses.replace(verdict.facts, memory_peak_bytes=peak),
        )
        evidence = (*verdict.integrity.evidence, *sorted(planted)[:_MAX_EVIDENCE])
        return verdict.with_signs(*signs).with_integrity(evidence=evidence)

    async def _verify_on_networks(self, work: Work, seen: ContainerFacts, *, is_apart: bool) -> tuple[Verdict, bool]:
        """Return the verdict of a fresh container, and whether it is apart from the agent's network. Raises TrialError.

        A container apart may fail because servers are out of reach: then another one, on the agent's network, is tried.
        Servers can tell tests from control tests, so a pass there gets a sign if the oracle's work needs none.
        """
        apart: Verdict | VerifierFailed
        try:
            apart = await self._verify_with(work, is_apart=is_apart)
        except VerifierFailed as failure:
            if not (is_apart and seen.has_servers):
                raise
            apart = failure
        if not (is_apart and seen.has_servers) or (isinstance(apart, Verdict) and is_solved(apart.reward)):
            assert isinstance(apart, Verdict)
            return apart, is_apart
        try:
            beside = await self._verify_with(work, is_apart=False)
        except VerifierFailed:
            if isinstance(apart, Verdict):
                return apart, True
            raise
        if isinstance(apart, Verdict) and canonical(apart.reward) >= canonical(beside.reward):
            return apart, True
        if beside.reward > 0:
            beside = beside.with_signs(f"{CLEARED}{NEEDS_SERVERS}" if self.oracle.is_own else NEEDS_SERVERS)
        return beside, False

    async def _without_additions(
        self, verdict: Verdict, seen: ContainerFacts, work: Work, *, is_apart: bool
    ) -> tuple[Verdict, Work]:
        """Verify a pass again without files that may influence tests in unknown ways; return verdict and work.

        If the reward is no lower, they are dropped from the work. Otherwise the pass gets a sign that names them.
        """
        for kind, rest_of, why in (
            (SYSTEM_ADDED, without_system, "added to the system or removed from it"),
            (TESTS_ADDED, without_tests, "which pytest collects or the tests name, and the instruction does not"),
        ):
            if (rest := rest_of(seen, work)) == work:
                continue
            try:
                of_rest = await self._verify_with(rest, is_apart=is_apart)
            except VerifierFailed:
                of_rest = None
            if of_rest is not None and of_rest.reward >= verdict.reward:
                verdict, work = of_rest, rest
            else:
                in_rest = set(itertools.chain(*rest))
                needed = path_list(path for path in itertools.chain(*work) if path not in in_rest)
                verdict = verdict.with_signs(f"{kind} it passes only with {needed}, {why}")
        return verdict, work

    async def _verify_with(self, work: Work, task: Task | None = None, *, is_apart: bool) -> Verdict:
        """Return the verdict of a fresh container with the work or, if no test ran there, of another one."""

        async def run(_: bool) -> Verdict:
            async with self.copies.filled(*work, is_apart=is_apart) as copy:
                return await verify(task or self.task, copy)

        return await verify_twice(run)

    # -- a verifier that fails -------------------------------------------------------------------

    async def _judge_with_repairs(self, judge: Callable[[bool], Awaitable[Verdict]]) -> Verdict:
        """Return a verdict; if there is none, free exhausted resources of the sandbox and retry. Raises TrialError."""
        verdict = await _attempt(judge, again=self.again)
        if isinstance(verdict, TrialError):
            return await self._retry_after_failure(verdict, judge)
        return verdict

    async def _retry_after_failure(self, error: TrialError, judge: Callable[[bool], Awaitable[Verdict]]) -> Verdict:
        """Retry after repairs, and once more if the verifier works without the agent's work. Raises TrialError."""
        if error.type == "verifier_timeout":
            raise error
        # If a verifier has started, the files at the paths of tests and reward are its own, not the agent's.
        again = self.again or isinstance(error, VerifierFailed)
        repairs = await self.sandbox.make_room() if isinstance(self.sandbox, MakesRoom) else ()
        if repairs:
            second = await _attempt(judge, again=again)
            if isinstance(second, Verdict):
                return _repaired(second, repairs)
            error, again = second, again or isinstance(second, VerifierFailed)
        if _is_inconclusive(error, repairs) or not isinstance(self.sandbox, Copies):
            raise error
        try:
            async with removed_afterwards(await self.sandbox.make_fresh()) as fresh:
                await verify(self.task, fresh)
        except VerifierFailed:
            raise error from None
        # A temporary problem may be over by now; then the agent did not cause it.
        last = await _attempt(judge, again=again)
        if isinstance(last, Verdict):
            return _repaired(last, repairs)
        raise last if _is_inconclusive(last, repairs) else unjudged(last)


async def _attempt(judge: Callable[[bool], Awaitable[Verdict]], *, again: bool) -> Verdict | TrialError:
    """Return a verdict, or an error that the agent may have caused; raise any other error."""
    try:
        return await judge(again)
    except TrialError as error:
        if not error.agent_can_cause:
            raise
        return error


def _limited(task: Task, limit_sec: float) -> Task:
    """Return the task with at most this time for its tests."""
    verifier = task.file.verifier
    verifier = verifier.model_copy(update={"timeout_sec": min(verifier.timeout_sec, limit_sec)})
    return task.with_file(task.file.model_copy(update={"verifier": verifier}))


def _first_replaced(seen: ContainerFacts) -> dict[str, str]:
    return dict(itertools.islice(replaced_paths(seen).items(), MAX_REPLACED))


def _is_inconclusive(error: TrialError, repairs: Sequence[str]) -> bool:
    """Whether an error may not be the agent's fault, even though the verifier works without the agent's work.

    After a timeout, the tests may only have taken longer because they ran the work. If no resource of the container was
    exhausted, the engine's machine may have failed to start a command.
    """
    return error.type == "verifier_timeout" or (error.type == "sandbox_failed" and not repairs)


def _repaired(verdict: Verdict, repairs: tuple[str, ...]) -> Verdict:
    return verdict.with_integrity(repairs=repairs + verdict.integrity.repairs)
