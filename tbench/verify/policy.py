"""Where a trial's verifier runs, and what a verdict from there is worth.

A verdict from the agent's own container rests on what the agent left in it: a pass is looked at, and what was changed
that decides how tests run is a sign against it. A verdict from a fresh container of the image, into which only the
agent's work is brought, rests on the image's own tools.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tbench.config.settings import Keep, Verify
from tbench.errors import TrialError
from tbench.results import ALONE, UNCONFIRMED, is_weak
from tbench.reward import canonical, is_solved
from tbench.sandbox.backend import Compares, Copies, Fill, MakesRoom, Sandbox, copy_begun, removed_afterwards
from tbench.tasks.task import Task
from tbench.text import plain
from tbench.verify.calibration import Calibration, unlike_oracle
from tbench.verify.changes.facts import Seen
from tbench.verify.changes.looking import look
from tbench.verify.changes.signs import Sign, listed, told
from tbench.verify.changes.system import replaced
from tbench.verify.changes.work import comes_along, work_of
from tbench.verify.tests_shown import tests_shown
from tbench.verify.verifier import Verdict, VerifierFailed, is_unjudged, unjudged, verify

MOST_REPLACED = 100
"""Most paths of the image's system that are named as replaced."""
UNLIKE_ORACLE, NEEDS_SYSTEM, DISAGREEMENT = "unlike-oracle:", "needs-system:", "disagreement:"
SYSTEM_REPLACED, SYSTEM_ADDED = "system-replaced:", "system-added:"
_NOT_FRESH = f"{UNCONFIRMED} no verdict in a fresh container"
CLEARED, AS_THE_ORACLE = "cleared: ", ", as with the oracle"
WORKS_FRESH = "; the oracle's work passes in a fresh one"
"""Begins and ends of signs that came out as they are by what was known of the task."""
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
        if isinstance(verdict, VerifierFailed) and is_unjudged(verdict.integrity):
            raise verdict
        verdict = await _verdict_after(verdict, policy, task, sandbox, oracle)
    return like_oracle(verdict.with_integrity(verify=policy), oracle, task)


def like_oracle(verdict: Verdict, oracle: Calibration | None, task: Task) -> Verdict:
    """A pass beside those of the oracle: it has to show the same tests, and a sign that those have too says nothing."""
    if oracle is None or not is_solved(verdict.reward):
        return verdict
    step = task.step.name if task.step is not None else ""
    usual = oracle.usual_signs(step, shared=verdict.integrity.verify == "shared")
    signs = [f"{CLEARED}{sign}{AS_THE_ORACLE}" if sign in usual else sign for sign in verdict.integrity.tamper]
    for place in ("", "isolated/"):
        prefix = f"{place}verifier/"
        logs = {name.removeprefix(prefix): data for name, data in verdict.files.items() if name.startswith(prefix)}
        if logs and (words := unlike_oracle(tests_shown(logs), oracle, step)):
            signs.append(f"{UNLIKE_ORACLE} {words}")
    if oracle.passes_fresh:
        found = f"{DISAGREEMENT}{_NOT_FRESH.removeprefix(UNCONFIRMED)}{WORKS_FRESH}"
        signs = [found if sign.startswith(_NOT_FRESH) else sign for sign in signs]
    return verdict.with_integrity(tamper=tuple(signs))


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
    async with copy_begun(sandbox) as fill:
        seen, signs = await look(task, sandbox)
        verdict = await _in_fresh(task, [fill, sandbox.copy], seen, signs, wanted=1.0, again=False)
    along = told(sign for sign in signs if comes_along(sign, seen)) if verdict.reward > 0 else ()
    return verdict.with_integrity(tamper=verdict.integrity.tamper + along)


async def _with_work(task: Task, fill: Fill, paths: Sequence[str], removed: Sequence[str]) -> Verdict:
    async with removed_afterwards(await fill(paths, removed)) as copy:
        return await verify(task, copy)


# -- a pass in the agent's own container ---------------------------------------------------------


async def _looked_at(
    policy: Verify, task: Task, sandbox: Sandbox, shared: Verdict, oracle: Calibration | None
) -> Verdict:
    """A pass in the agent's own container with what speaks against it and, for `both`, one from a fresh container.

    That one is started meanwhile.
    """
    if policy == "both" and isinstance(sandbox, Copies):
        async with copy_begun(sandbox) as fill:
            return await _compared_with(fill, policy, task, sandbox, shared, oracle)
    return await _compared_with(None, policy, task, sandbox, shared, oracle)


async def _compared_with(
    fill: Fill | None, policy: Verify, task: Task, sandbox: Sandbox, shared: Verdict, oracle: Calibration | None
) -> Verdict:
    try:
        seen, signs = await look(task, sandbox, shared.facts)
    except TrialError as failure:
        if failure.agent_can_cause:
            raise VerifierFailed(failure.type, str(failure), shared.files, shared.integrity, shared.facts) from failure
        if policy == "both":
            raise
        return _unconfirmed(shared, f"{UNCONFIRMED} it could not be looked at what changed", failure)
    others = dict(itertools.islice(replaced(seen).items(), MOST_REPLACED))
    shared = shared.with_integrity(tamper=shared.integrity.tamper + told(signs), replaced=others)
    if fill is None or not isinstance(sandbox, Copies):
        also = f", where of the image's system {listed([*others])} is other, or comes later" if others else ""
        return shared.with_integrity(tamper=(*shared.integrity.tamper, f"{ALONE}{also}"))
    works_fresh = None if oracle is None else oracle.passes_fresh
    fills = [fill, sandbox.copy]
    try:
        fresh = await _in_fresh(task, fills, seen, signs, wanted=shared.reward, again=bool(works_fresh))
    except TrialError as failure:
        if not failure.agent_can_cause:
            raise
        if isinstance(failure, VerifierFailed):
            if works_fresh:
                # Whoever keeps the tests from a verdict where the oracle's work has one gains nothing by it.
                raise unjudged(failure) from failure
            shared = shared.with_integrity(tamper=shared.integrity.tamper + failure.integrity.tamper)
        return _unconfirmed(shared, _NOT_FRESH, failure)
    along = told(sign for sign in signs if comes_along(sign, seen))
    return _joined(shared, fresh, along=along, oracle=oracle)


async def _in_fresh(
    task: Task, fills: Sequence[Fill], seen: Seen, signs: Sequence[Sign], *, wanted: float, again: bool
) -> Verdict:
    """The best verdict of a fresh container with the work, and of another where that has not the `wanted` reward.

    The other one has what was added to the system besides, if something was; else it is there where `again` says so: a
    verifier may be flaky, and no pass is taken away for that. Raises TrialError where none comes to a verdict.
    """
    works = [work_of(seen, signs, with_system=False)]
    if (more := work_of(seen, signs)) != works[0] or again:
        works.append(more)
    found: list[Verdict] = []
    failed: VerifierFailed | None = None
    for fill, work in zip(fills, works, strict=False):
        try:
            verdict = await _with_work(task, fill, *work)
        except VerifierFailed as failure:
            failed = failure
            continue
        if work != works[0] and verdict.reward > max((each.reward for each in found), default=0.0):
            own = set(works[0][0])
            added = listed([path for path in more[0] if path not in own])
            words = f"{SYSTEM_ADDED} it passes only with {added}, added to the system"
            verdict = verdict.with_integrity(tamper=(*verdict.integrity.tamper, words))
        found.append(verdict)
        if canonical(verdict.reward) >= canonical(wanted):
            break
    if not found:
        assert failed is not None
        raise failed
    return max(found, key=lambda each: each.reward)


def _unconfirmed(shared: Verdict, sign: str, failure: TrialError) -> Verdict:
    """A pass in the agent's own container with a sign that says what failed, and why."""
    words = f"{sign}: {failure.type}: {plain(str(failure), 200)}"
    return shared.with_integrity(tamper=(*shared.integrity.tamper, words))


def _joined(shared: Verdict, fresh: Verdict, *, along: Sequence[str], oracle: Calibration | None) -> Verdict:
    """What two verdicts come to: a pass in the fresh container is earned. Where the oracle's work passes in one, and
    where strong signs speak against the other, the fresh one counts; else the pass may need its system.

    `along` are signs about what both containers have.
    """
    beside = {f"isolated/{name}": data for name, data in fresh.files.items() if name.startswith("verifier/")}
    rewards = {"isolated": fresh.reward, "shared": shared.reward}
    joined = dataclasses.replace(shared, files={**shared.files, **beside}).with_integrity(rewards=rewards)
    signs = shared.integrity.tamper
    if canonical(fresh.reward) >= canonical(shared.reward):
        seen = (sign if is_weak(sign) or sign in along else f"{CLEARED}{sign}" for sign in signs)
        return joined.with_integrity(tamper=(*fresh.integrity.tamper, *seen))
    joined = joined.with_integrity(tamper=(*signs, *fresh.integrity.tamper))
    return weighed(joined, fresh, oracle, needs_system=all(map(is_weak, signs)))


def weighed(shared: Verdict, fresh: Verdict, oracle: Calibration | None, *, needs_system: bool) -> Verdict:
    """A reward in the agent's own container, beside a lower one in a fresh container, as far as it counts.

    `shared` has the signs of both; `needs_system` says whether it may stand.
    """
    words = f"{fresh.reward:g} in a fresh container, {shared.reward:g} in the agent's own"
    signs = shared.integrity.tamper
    works_fresh = None if oracle is None else oracle.passes_fresh
    if works_fresh or not needs_system:
        words += WORKS_FRESH if works_fresh else ""
        lower = dataclasses.replace(shared, reward=fresh.reward, metrics=fresh.metrics)
        return lower.with_integrity(tamper=(*signs, f"{DISAGREEMENT} {words}"))
    others = _beyond_oracle(shared.integrity.replaced, oracle)
    what = f"of the image's system {listed(others)} is other, or comes later" if others else ""
    if works_fresh is None:
        words += "; no oracle says whether work has to" + (f"; {what}" if what else "")
    else:
        words += "; so does the oracle's work"
    also = (f"{SYSTEM_REPLACED} {what}, and not as beside the oracle",) if what and works_fresh is False else ()
    return shared.with_integrity(tamper=(*signs, f"{NEEDS_SYSTEM} {words}", *also))


def _beyond_oracle(others: Mapping[str, str], oracle: Calibration | None) -> list[str]:
    """What of the image's system is other than the oracle's passes have it: where it lies, and its content."""
    usual = set() if oracle is None else oracle.replaced
    return [path for path in others if (path, others[path]) not in usual] if len(usual) < MOST_REPLACED else []


# -- a verifier that could not run ---------------------------------------------------------------


async def _verdict_after(
    error: TrialError, policy: Verify, task: Task, sandbox: Sandbox, oracle: Calibration | None
) -> Verdict:
    """The verdict after a failed verifier: where room could be made or another try does it, or the agent broke it."""
    if error.type == "verifier_timeout":
        raise error
    # If the first verifier began, the files in the places of tests and reward are our own.
    again = isinstance(error, VerifierFailed)
    repairs = await sandbox.make_room() if isinstance(sandbox, MakesRoom) else ()
    if repairs:
        second = await _attempt(policy, task, sandbox, again=again, oracle=oracle)
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
    last = await _attempt(policy, task, sandbox, again=True, oracle=oracle)
    if isinstance(last, Verdict):
        return _repaired(last, repairs)
    if _stands(last, repairs):
        raise last
    signs = await _broken(task, sandbox, last, control) if policy != "isolated" else ()
    if not signs:
        raise unjudged(last)
    assert isinstance(last, VerifierFailed)
    broken = Verdict(0.0, last.files, last.integrity)
    return _repaired(broken.with_integrity(tamper=(*last.integrity.tamper, *signs)), repairs)


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
        await _with_work(task, sandbox.copy, *work_of(seen, signs))
    except TrialError as failure:
        if not failure.agent_can_cause:
            raise
        return ()
    why = "".join(f"; {words}" for words in shown)
    words = f"{error.type}, but in a fresh container the verifier runs{why}: {plain(str(error), 200)}"
    return (*strong, f"agent-broke-verifier: {words}")


def _repaired(verdict: Verdict, repairs: tuple[str, ...]) -> Verdict:
    return verdict.with_integrity(repairs=repairs + verdict.integrity.repairs)
