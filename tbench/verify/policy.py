"""Where a trial's verifier runs, and what a verdict from there is worth.

A verdict from the agent's own container rests on what the agent left in it: a pass is looked at, and what was changed
that decides how tests run is a sign against it. A verdict from a fresh container of the image, into which only the
agent's work is brought, rests on the image's own tools.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from tbench.config.settings import Keep, Verify
from tbench.errors import TrialError
from tbench.results import is_weak
from tbench.reward import canonical, is_solved
from tbench.sandbox.backend import Compares, Copies, MakesRoom, Sandbox, removed_afterwards
from tbench.tasks.task import Task
from tbench.text import plain
from tbench.verify.calibration import Calibration, unlike_oracle
from tbench.verify.changes.installed import UNCOMPARED, Late, compared, late_code
from tbench.verify.changes.looking import look
from tbench.verify.changes.signs import Sign, told
from tbench.verify.changes.work import comes_along, work_of
from tbench.verify.tests_shown import tests_shown
from tbench.verify.verifier import Verdict, VerifierFailed, unjudged, verify

_MAY_BE_WHY = (UNCOMPARED,)
"""Weak kinds that are an answer to why it passes in the agent's own container alone, as nothing could be compared."""
_CODE = re.compile(r"/(?:usr/(?:local/)?)?(?:s?bin|lib\w*)(?:/.*)?")
"""Where programs and libraries of the system lie."""


@dataclass(frozen=True)
class VerifyPolicy:
    """Where verifiers run, and what of a trial is kept on the engine for later."""

    verify: Verify = "shared"
    keep: Keep = "none"
    snapshot: bool = False
    """Whether the files before the verifier began are kept as an image."""
    artifacts_mb: int = 4096
    """Megabytes that a trial may hand over to a verifier in a container of its own."""

    def keeps(self, reward: float | None) -> bool:
        """Whether the container of a trial with this reward, None for no verdict, is kept."""
        return self.keep == "all" or (self.keep == "failed" and (reward is None or not is_solved(reward)))


async def verify_by(
    policy: Verify, task: Task, sandbox: Sandbox, *, again: bool = False, oracle: Calibration | None = None
) -> Verdict:
    """The verdict of a verifier that runs where the policy says. Raises TrialError; VerifierFailed has the integrity.

    `again`: a verifier ran in this sandbox before. What the agent used up is made free; a verifier that runs in a fresh
    container, but not beside what the agent left, is a 0. `oracle` is what is known of the task by its oracle: a pass
    has to show the oracle's tests, and where the oracle's work passes in a fresh container, that one decides.
    """
    verdict = await _attempt(policy, task, sandbox, again=again, oracle=oracle)
    if isinstance(verdict, TrialError):
        verdict = await _verdict_after(verdict, policy, task, sandbox)
    return _with(like_oracle(verdict, oracle, task), verify=policy)


def like_oracle(verdict: Verdict, oracle: Calibration | None, task: Task) -> Verdict:
    """A pass beside those of the oracle: it has to show the same tests, and a sign that those have too says nothing."""
    if oracle is None or not is_solved(verdict.reward):
        return verdict
    passes = [each for each in oracle.of("oracle") if each.is_pass]
    usual = set.intersection(*(set(each.signs) for each in passes)) if passes else set()
    signs = [f"cleared: {sign}, as with the oracle" if sign in usual else sign for sign in verdict.integrity.tamper]
    step = task.step.name if task.step is not None else ""
    for place in ("", "isolated/"):
        prefix = f"{place}verifier/"
        logs = {name.removeprefix(prefix): data for name, data in verdict.files.items() if name.startswith(prefix)}
        if logs and (words := unlike_oracle(tests_shown(logs), oracle, step)):
            signs.append(f"unlike-oracle: {words}")
    return _with(verdict, tamper=tuple(signs))


async def _attempt(
    policy: Verify, task: Task, sandbox: Sandbox, *, again: bool, oracle: Calibration | None = None
) -> Verdict | TrialError:
    """A verdict, or the error in its place that the agent may be the cause of; others are raised."""
    try:
        return await _verdict(policy, task, sandbox, again, oracle)
    except TrialError as error:
        if not error.agent_can_cause:
            raise
        return error


async def _verdict(policy: Verify, task: Task, sandbox: Sandbox, again: bool, oracle: Calibration | None) -> Verdict:
    if policy == "isolated":
        return await _in_a_copy(task, sandbox)
    shared = await verify(task, sandbox, again=again)
    if shared.reward > 0 and isinstance(sandbox, Compares):
        return await _looked_at(policy, task, sandbox, shared, oracle)
    return shared


async def _in_a_copy(task: Task, sandbox: Sandbox) -> Verdict:
    """The verdict from a fresh container with the agent's work."""
    if not isinstance(sandbox, Copies):
        raise TrialError("verifier_failed", "this sandbox cannot be copied, so nothing can be verified in a copy")
    seen, signs = await look(task, sandbox)
    verdict = await _with_work(task, sandbox, *work_of(seen, signs))
    along = told(sign for sign in signs if comes_along(sign, seen)) if verdict.reward > 0 else ()
    return _with(verdict, tamper=verdict.integrity.tamper + along)


async def _with_work(task: Task, sandbox: Copies, paths: Sequence[str], removed: Sequence[str]) -> Verdict:
    async with removed_afterwards(await sandbox.copy(paths, removed)) as copy:
        return await verify(task, copy)


# -- a pass in the agent's own container ---------------------------------------------------------


async def _looked_at(
    policy: Verify, task: Task, sandbox: Sandbox, shared: Verdict, oracle: Calibration | None
) -> Verdict:
    """A pass in the agent's own container with what speaks against it and, for `both`, one from a fresh container."""
    try:
        seen, signs = await look(task, sandbox, shared.facts)
    except TrialError as failure:
        if failure.agent_can_cause:
            raise VerifierFailed(failure.type, str(failure), shared.files, shared.integrity, shared.facts) from failure
        if policy == "both":
            raise
        return _unconfirmed(shared, failure, "it could not be looked at what changed")
    late = late_code(seen, shared.facts)
    isolated: Verdict | TrialError | None = None
    if isinstance(sandbox, Copies) and (policy == "both" or late):
        paths, removed = work_of(seen, signs)
        copying = sandbox.copy(paths, removed)
        isolated, found = await _elsewhere(policy, task, sandbox, copying, Late(seen, signs, late, paths))
        if late and found is None:
            # No work of the agent's can keep the tests from being installed there.
            _, found = await _elsewhere(policy, task, sandbox, sandbox.anew(), Late(seen, signs, late))
        signs = signs if found is None else found
    shared = _with(shared, tamper=shared.integrity.tamper + told(signs))
    if policy == "shared" or isolated is None:
        return shared
    if isinstance(isolated, Verdict):
        works_fresh = None if oracle is None else oracle.passes_fresh
        if works_fresh and isinstance(sandbox, Copies) and canonical(isolated.reward) < canonical(shared.reward):
            # A verifier may be flaky: no pass is taken away for that.
            with contextlib.suppress(VerifierFailed):
                again = await _with_work(task, sandbox, *work_of(seen, signs))
                isolated = max(isolated, again, key=lambda each: each.reward)
        along = told(sign for sign in signs if comes_along(sign, seen))
        return _joined(shared, isolated, along=along, works_fresh=works_fresh)
    return _unconfirmed(shared, isolated, "no verdict in a fresh container")


def _unconfirmed(shared: Verdict, failure: TrialError, what: str) -> Verdict:
    also = failure.integrity.tamper if isinstance(failure, VerifierFailed) else ()
    words = f"unconfirmed: {what}: {failure.type}: {plain(str(failure), 200)}"
    return _with(shared, tamper=(*shared.integrity.tamper, *also, words))


async def _elsewhere(
    policy: Verify, task: Task, sandbox: Sandbox, making: Awaitable[Sandbox], late: Late
) -> tuple[Verdict | TrialError, tuple[Sign, ...] | None]:
    """The verdict from a fresh container, or the error in its place; and the signs when what came late in the agent's
    own is compared with what came there, None where it cannot be. For `both` raises what no agent can cause."""
    verdict: Verdict | TrialError | None = None
    signs: tuple[Sign, ...] | None = None
    try:
        async with removed_afterwards(await making) as control:
            try:
                verdict = await verify(task, control)
            except VerifierFailed as failure:
                verdict = failure
            if late.paths:
                signs = await compared(sandbox, control, late)
    except TrialError as failure:
        if policy == "both" and not failure.agent_can_cause:
            raise
        verdict = verdict or failure
    return verdict, signs


def _joined(shared: Verdict, isolated: Verdict, *, along: Sequence[str], works_fresh: bool | None) -> Verdict:
    """What two verdicts come to: a pass in the fresh container is earned, else the signs against the other decide.

    `along` are signs about what both containers have. Where the oracle's work passes in a fresh container
    (`works_fresh`), a pass that needs more is none.
    """
    beside = {f"isolated/{name}": data for name, data in isolated.files.items() if name.startswith("verifier/")}
    rewards = {"isolated": isolated.reward, "shared": shared.reward}
    joined = _with(dataclasses.replace(shared, files={**shared.files, **beside}), rewards=rewards)
    signs = shared.integrity.tamper
    if canonical(isolated.reward) >= canonical(shared.reward):
        seen = (sign if is_weak(sign) or sign in along else f"cleared: {sign}" for sign in signs)
        return _with(joined, tamper=(*isolated.integrity.tamper, *seen))
    words = f"{isolated.reward:g} in a fresh container, {shared.reward:g} in the agent's own"
    if works_fresh:
        words = f"{words}; the oracle's work passes in a fresh one"
    elif all(map(is_weak, signs)) and not any(sign.startswith(_MAY_BE_WHY) for sign in signs):
        words += "; so does the oracle's work" if works_fresh is False else "; no oracle says whether work has to"
        return _with(joined, tamper=(*signs, *isolated.integrity.tamper, f"needs-system: {words}"))
    lower = dataclasses.replace(joined, reward=isolated.reward, metrics=isolated.metrics)
    return _with(lower, tamper=(*signs, *isolated.integrity.tamper, f"disagreement: {words}"))


# -- a verifier that could not run ---------------------------------------------------------------


async def _verdict_after(error: TrialError, policy: Verify, task: Task, sandbox: Sandbox) -> Verdict:
    """The verdict after a failed verifier: where room could be made or another try does it, or the agent broke it."""
    if error.type == "verifier_timeout":
        raise error
    # If the first verifier began, the files in the places of tests and reward are our own.
    again = isinstance(error, VerifierFailed)
    repairs = await sandbox.make_room() if isinstance(sandbox, MakesRoom) else ()
    if repairs:
        second = await _attempt(policy, task, sandbox, again=again)
        if isinstance(second, Verdict):
            return _repaired(second, repairs)
        error = second
    if _stands(error, repairs) or not isinstance(sandbox, Copies):
        raise error
    try:
        async with removed_afterwards(await sandbox.anew()) as fresh:
            control = await verify(task, fresh)
    except VerifierFailed:
        raise error from None
    # By now the trouble may be over: then it was not the agent's.
    last = await _attempt(policy, task, sandbox, again=True)
    if isinstance(last, Verdict):
        return _repaired(last, repairs)
    if _stands(last, repairs):
        raise last
    signs = await _broken(task, sandbox, last, control) if policy != "isolated" else ()
    if not signs:
        raise unjudged(last)
    assert isinstance(last, VerifierFailed)
    broken = Verdict(0.0, last.files, last.integrity)
    return _repaired(_with(broken, tamper=(*last.integrity.tamper, *signs)), repairs)


def _stands(error: TrialError, repairs: Sequence[str]) -> bool:
    """Whether an error says nothing about the agent, whatever the verifier does without its work.

    Tests that run the work take longer with it. Where nothing was used up in the container, it may be the engine's
    machine that has no room for a command.
    """
    return error.type == "verifier_timeout" or (error.type == "sandbox_failed" and not repairs)


async def _broken(task: Task, sandbox: Sandbox, error: TrialError, control: Verdict) -> tuple[str, ...]:
    """The signs which prove that the agent broke the verifier in its container; none where that is not proven.

    That is proven where strong signs, parts of the system that are gone, or a bash that does not start, show what is
    broken, memory was not used up, and the verifier comes to a verdict about the same work without that.
    """
    if not isinstance(error, VerifierFailed) or not isinstance(sandbox, Copies) or error.facts.out_of_memory:
        return ()
    try:
        seen, signs = await look(task, sandbox, error.facts)
        strong = [f"forgery: {words}" for words in error.facts.forged]
        strong += [sign for sign in told(signs) if not is_weak(sign)]
        gone = [path for path, change in seen.changes.items() if change == "removed" and _CODE.fullmatch(path)]
        shown = [f"{plain(gone[0], 120)} is gone"] if gone else []
        if control.facts.has_watcher and error.facts.never_began:
            shown.append("bash does not start")
        if not (strong or shown):
            return ()
        await _with_work(task, sandbox, *work_of(seen, signs))
    except TrialError as failure:
        if not failure.agent_can_cause:
            raise
        return ()
    why = "".join(f"; {words}" for words in shown)
    words = f"{error.type}, but in a fresh container the verifier runs{why}: {plain(str(error), 200)}"
    return (*strong, f"agent-broke-verifier: {words}")


def _repaired(verdict: Verdict, repairs: tuple[str, ...]) -> Verdict:
    return _with(verdict, repairs=repairs + verdict.integrity.repairs)


def _with(verdict: Verdict, **update: object) -> Verdict:
    if "tamper" in update:
        assert isinstance(update["tamper"], tuple)
        update["tamper"] = tuple(dict.fromkeys(update["tamper"]))
    return dataclasses.replace(verdict, integrity=verdict.integrity.model_copy(update=update))
