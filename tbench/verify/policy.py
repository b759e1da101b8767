"""Which containers a trial's verifier is asked in, and what their verdicts come to beside those of the oracle."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tbench.config.settings import Keep, Verify
from tbench.errors import TrialError
from tbench.results import ALONE, UNCONFIRMED, is_weak
from tbench.reward import canonical, is_solved
from tbench.sandbox.backend import Compares, Copies, Sandbox
from tbench.tasks.task import Task
from tbench.text import plain
from tbench.verify.calibration import Calibration, test_differences, test_file_differences
from tbench.verify.changes.facts import OracleSystem, path_list
from tbench.verify.judging import CLEARED, MOST_REPLACED, Judging
from tbench.verify.tests_shown import tests_shown
from tbench.verify.verifier import Verdict, VerifierFailed, logs_among

UNLIKE_ORACLE, NEEDS_SYSTEM, DISAGREEMENT = "unlike-oracle:", "needs-system:", "disagreement:"
SYSTEM_REPLACED = "system-replaced:"
_NOT_FRESH = f"{UNCONFIRMED} no verdict in a fresh container"
AS_THE_ORACLE = ", as with the oracle"
WORKS_FRESH = "; the oracle's work passes in a fresh one"
"""Begins and ends of signs that came out as they are by what was known of the task."""


def is_kept(keep: Keep, reward: float | None) -> bool:
    """Whether the container of a trial with this reward, None for no verdict, stays on the engine for later."""
    return keep == "all" or (keep == "failed" and (reward is None or not is_solved(reward)))


async def verify_by(
    policy: Verify,
    task: Task,
    sandbox: Sandbox,
    *,
    again: bool = False,
    oracle: Calibration | None = None,
    is_oracle: bool = False,
) -> Verdict:
    """The verdict of a verifier that runs where the policy says. Raises TrialError; VerifierFailed has the integrity.

    `both` asks a fresh container first, and the agent's own only where the work does not pass in that one and the
    oracle's does not either, or nobody knows. `again`: a verifier ran in this sandbox before. What the agent used up is
    made free. `oracle` is what is known of the task by its oracle: a pass has to show the oracle's tests, and what its
    passes have added to the system may be added. `is_oracle`: the work is the oracle's own.
    """
    usual = frozenset() if oracle is None else frozenset(oracle.replaced)
    fails_control = oracle is not None and oracle.fails_control(task.step_name)
    judging = Judging(task, sandbox, again, OracleSystem(usual, is_own=is_oracle, fails_control=fails_control))
    works_fresh = None if oracle is None else oracle.passes_fresh
    if policy == "isolated":
        verdict = await judging.in_fresh()
    elif policy == "both" and works_fresh is not False and isinstance(sandbox, Copies):
        verdict = await _in_both(judging, works_fresh=works_fresh)
    else:
        verdict = await judging.in_own()
        if verdict.reward > 0 and policy == "both" and works_fresh is False:
            verdict = weighed(verdict, None, oracle, needs_system=True)
        elif verdict.reward > 0 and isinstance(sandbox, Compares):
            others = path_list([*verdict.integrity.replaced])
            also = f", where of the image's system {others} is other, or comes later" if others else ""
            verdict = verdict.with_integrity(tamper=(*verdict.integrity.tamper, f"{ALONE}{also}"))
    return like_oracle(verdict.with_integrity(verify=policy), oracle, task)


def like_oracle(verdict: Verdict, oracle: Calibration | None, task: Task) -> Verdict:
    """A pass beside those of the oracle: it has to show the same tests, and a sign that those have too says nothing."""
    if oracle is None or not is_solved(verdict.reward):
        return verdict
    usual = oracle.usual_signs(task.step_name, shared=verdict.integrity.verify == "shared")
    signs = [f"{CLEARED}{sign}{AS_THE_ORACLE}" if sign in usual else sign for sign in verdict.integrity.tamper]
    for place in ("", "isolated/"):
        if logs := logs_among(verdict.files, f"{place}verifier/"):
            shown = tests_shown(logs)
            found = test_differences(shown, oracle, task.step_name)
            also = test_file_differences(logs, shown, oracle, task.step_name)
            signs += [f"{UNLIKE_ORACLE} {words}" for words in (found, also) if words]
    if oracle.passes_fresh:
        found = f"{DISAGREEMENT}{_NOT_FRESH.removeprefix(UNCONFIRMED)}{WORKS_FRESH}"
        signs = [found if sign.startswith(_NOT_FRESH) else sign for sign in signs]
    return verdict.with_integrity(tamper=tuple(signs))


async def _in_both(judging: Judging, *, works_fresh: bool | None) -> Verdict:
    """The verdict of a fresh container; where that is no pass, and may be one elsewhere, beside the agent's own's.

    Nothing of the tests has been in the agent's container when its work is taken.
    """
    failure: TrialError | None = None
    try:
        fresh = await judging.in_fresh()
        fresh = fresh.with_integrity(rewards={"isolated": fresh.reward, **fresh.integrity.rewards})
        if works_fresh or is_solved(fresh.reward):
            return fresh
    except TrialError as error:
        if works_fresh or not error.agent_can_cause:
            raise
        failure = error
    try:
        own = await judging.in_own()
    except TrialError as error:
        if failure is not None or not error.agent_can_cause:
            raise
        # Whoever breaks the container that it worked in keeps the verdict about its work.
        return fresh.remarked((f"no verdict in the agent's own container: {error.type}: {plain(str(error), 200)}",))
    if failure is None:
        return _joined(own, fresh)
    if own.reward <= 0:
        return own
    signs = failure.integrity.tamper if isinstance(failure, VerifierFailed) else ()
    words = f"{_NOT_FRESH}: {failure.type}: {plain(str(failure), 200)}"
    return own.with_integrity(tamper=(*own.integrity.tamper, *signs, words))


def _joined(own: Verdict, fresh: Verdict) -> Verdict:
    """What two verdicts come to, of which the fresh container's is no full one: the better one, as far as it counts."""
    beside = {f"isolated/{name}": data for name, data in fresh.files.items() if name.startswith("verifier/")}
    signs = (*own.integrity.tamper, *fresh.integrity.tamper)
    joined = dataclasses.replace(own, files={**own.files, **beside})
    joined = joined.with_integrity(tamper=signs, rewards={**fresh.integrity.rewards, "shared": own.reward})
    if canonical(fresh.reward) >= canonical(own.reward):
        return dataclasses.replace(joined, reward=fresh.reward, metrics=fresh.metrics)
    return weighed(joined, fresh, None, needs_system=all(map(is_weak, own.integrity.tamper)))


def weighed(shared: Verdict, fresh: Verdict | None, oracle: Calibration | None, *, needs_system: bool) -> Verdict:
    """A reward in the agent's own container, beside a lower one in a fresh container, as far as it counts.

    `shared` has the signs of both; `needs_system` says whether it may stand. `fresh` is None where the oracle's work
    does not pass in one, so that none was asked.
    """
    other = f"{fresh.reward:g} in a fresh container" if fresh is not None else "no fresh container was asked"
    words = f"{other}, {shared.reward:g} in the agent's own"
    signs = shared.integrity.tamper
    works_fresh = None if oracle is None else oracle.passes_fresh
    if fresh is not None and (works_fresh or not needs_system):
        words += WORKS_FRESH if works_fresh else ""
        lower = dataclasses.replace(shared, reward=fresh.reward, metrics=fresh.metrics)
        return lower.with_integrity(tamper=(*signs, f"{DISAGREEMENT} {words}"))
    others = _beyond_oracle(shared.integrity.replaced, oracle)
    what = f"of the image's system {path_list(others)} is other, or comes later" if others else ""
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
