"""Chooses the containers that verify a trial, combines their verdicts, and compares passes with the oracle's."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from tbench.config.settings import Keep, Verify
from tbench.errors import TrialError
from tbench.results import ALONE, UNCONFIRMED, is_weak
from tbench.reward import canonical, is_solved
from tbench.sandbox.backend import Compares, Copies, Sandbox, service_of
from tbench.sandbox.copies import SpareCopies
from tbench.tasks.artifacts import MAIN
from tbench.tasks.task import Task
from tbench.text import plain
from tbench.verify.calibration import Calibration, test_differences, test_file_differences
from tbench.verify.changes.facts import OracleSystem, path_list
from tbench.verify.control_tests import SWAPPED
from tbench.verify.judging import CLEARED, MAX_REPLACED, NEEDS_PROCESSES, NEEDS_SERVERS, Judge
from tbench.verify.tests_shown import tests_shown
from tbench.verify.verifier import Verdict, VerifierFailed, logs_among, verify, verify_twice

UNLIKE_ORACLE, NEEDS_SYSTEM, SYSTEM_REPLACED = "unlike-oracle:", "needs-system:", "system-replaced:"
"""Prefixes of signs that depend on the calibration."""
ALSO_WITH_ORACLE = ", as with the oracle"
"""End of a sign that was cleared because the oracle's passes also have it."""
ORACLE_PASSES_FRESH = "; the oracle's work passes in a fresh one"
"""End of a sign about a pass that does not count because the oracle passes in a fresh container."""
_NOT_FRESH = f"{UNCONFIRMED} no verdict in a fresh container"
_DISAGREEMENT = "disagreement:"


def is_kept(keep: Keep, reward: float | None) -> bool:
    """Whether the container of a trial with this reward stays on the engine. `reward` is None without a verdict."""
    return keep == "all" or (keep == "failed" and (reward is None or not is_solved(reward)))


async def verify_by(
    policy: Verify,
    task: Task,
    sandbox: Sandbox,
    *,
    again: bool = False,
    oracle: Calibration | None = None,
    is_oracle: bool = False,
    copies: SpareCopies | None = None,
) -> Verdict:
    """Return the verdict about the work in a sandbox. Raises TrialError; VerifierFailed carries the integrity.

    `both` verifies in a fresh container first. Without a pass there, the agent's own container follows, unless the
    oracle's work is known to pass in a fresh one. If it is known to fail in a fresh one, only the agent's own is used.

    `again`: a verifier ran in this sandbox before. `oracle` is the task's calibration: a pass must show the oracle's
    tests, and may add to the system what the oracle's passes added. `is_oracle`: the work is the oracle's own.
    `copies` provides copies of this sandbox, and the caller closes it; by default, all copies are removed at the end.

    Tests that a task runs in a service never run in the agent's container, so the policy does not apply to them.
    """
    if copies is None:
        async with SpareCopies(sandbox) as own:
            return await verify_by(policy, task, sandbox, again=again, oracle=oracle, is_oracle=is_oracle, copies=own)
    if task.file.verifier.service != MAIN:
        service = service_of(sandbox, task.file.verifier.service)
        verdict = await verify_twice(lambda again: verify(task, service, again=again), again=again)
        return compare_pass(verdict.with_integrity(verify="shared"), oracle, task)
    judge = Judge(task, copies, again, oracle_system(oracle, task, is_oracle=is_oracle))
    passes_fresh = None if oracle is None else oracle.passes_fresh
    if policy == "isolated":
        verdict = await judge.judge_in_fresh_container()
    elif uses_fresh_container(policy, task, sandbox, oracle):
        verdict = await _judge_in_both(judge, oracle_passes_fresh=passes_fresh)
    else:
        verdict = await judge.judge_in_agent_container()
        if verdict.reward > 0 and policy == "both" and passes_fresh is False:
            verdict = await judge.try_control_in_agent_container(verdict)
            verdict = weigh_verdicts(verdict, None, oracle, needs_system=True)
        elif verdict.reward > 0 and isinstance(sandbox, Compares):
            replaced = path_list(verdict.integrity.replaced)
            sign = f"{ALONE}, with replaced system files: {replaced}" if replaced else ALONE
            verdict = verdict.with_signs(sign)
    return compare_pass(verdict.with_integrity(verify=policy), oracle, task)


def uses_fresh_container(policy: Verify, task: Task, sandbox: Sandbox, oracle: Calibration | None) -> bool:
    """Whether `verify_by` verifies the work in a fresh container first."""
    if policy == "shared" or task.file.verifier.service != MAIN or not isinstance(sandbox, Copies):
        return False
    return policy == "isolated" or oracle is None or oracle.passes_fresh is not False


def oracle_system(oracle: Calibration | None, task: Task, *, is_oracle: bool) -> OracleSystem:
    """Return the facts of a calibration that a verifier needs while it runs; `is_oracle`: on the oracle's own work."""
    if oracle is None:
        return OracleSystem(is_own=is_oracle)
    step = task.step_name
    return OracleSystem(
        frozenset(oracle.replaced),
        is_oracle,
        oracle.failed_control(step),
        NEEDS_SERVERS in oracle.usual_signs(step, shared=True) if oracle.passes_fresh and not is_oracle else None,
        oracle.passes_intact(step),
        NEEDS_PROCESSES in oracle.usual_signs(step, shared=True) if oracle.passes_fresh is False else None,
        oracle.of_control(step),
        oracle.failed_control(step, SWAPPED) == SWAPPED,
    )


def compare_pass(verdict: Verdict, oracle: Calibration | None, task: Task) -> Verdict:
    """Compare a pass with the oracle's passes: clear the signs that they share, and add signs where tests differ.

    Other verdicts, and those of tasks without a calibration, are returned unchanged.
    """
    if oracle is None or not is_solved(verdict.reward):
        return verdict
    usual = oracle.usual_signs(task.step_name, shared=verdict.integrity.verify == "shared")
    signs = [f"{CLEARED}{sign}{ALSO_WITH_ORACLE}" if sign in usual else sign for sign in verdict.integrity.tamper]
    for place in ("", "isolated/"):
        if logs := logs_among(verdict.files, f"{place}verifier/"):
            shown = tests_shown(logs)
            differences = test_differences(shown, oracle, task.step_name)
            of_files = test_file_differences(logs, shown, oracle, task.step_name)
            signs += [f"{UNLIKE_ORACLE} {words}" for words in (differences, of_files) if words]
    if oracle.passes_fresh:
        signs = [as_disagreement(sign) for sign in signs]
    return verdict.with_integrity(tamper=tuple(signs))


def as_disagreement(sign: str) -> str:
    """Turn the sign that no fresh container gave a verdict into one against the pass. Returns others unchanged."""
    if not sign.startswith(_NOT_FRESH):
        return sign
    return f"{_DISAGREEMENT}{sign.removeprefix(UNCONFIRMED)}{ORACLE_PASSES_FRESH}"


def as_unconfirmed(sign: str) -> str:
    """Undo `as_disagreement`."""
    before = f"{UNCONFIRMED}{sign.removeprefix(_DISAGREEMENT).removesuffix(ORACLE_PASSES_FRESH)}"
    return before if as_disagreement(before) == sign else sign


async def _judge_in_both(judge: Judge, *, oracle_passes_fresh: bool | None) -> Verdict:
    """Return the verdict of a fresh container if it decides, else the merged verdicts of both containers.

    The fresh container comes first, so that the work is copied before tests are in the agent's container.
    """
    failure: TrialError | None = None
    try:
        fresh = await judge.judge_in_fresh_container()
        fresh = fresh.with_integrity(rewards={"isolated": fresh.reward, **fresh.integrity.rewards})
        if oracle_passes_fresh or is_solved(fresh.reward):
            return fresh
    except TrialError as error:
        if oracle_passes_fresh or not error.agent_can_cause:
            raise
        failure = error
    try:
        own = await judge.try_control_in_agent_container(await judge.judge_in_agent_container())
    except TrialError as error:
        if failure is not None or not error.agent_can_cause:
            raise
        # An agent that broke its own container still gets the verdict of the fresh one.
        return fresh.remarked((f"no verdict in the agent's own container: {error.type}: {plain(str(error), 200)}",))
    if failure is None:
        return _merge_verdicts(own, fresh)
    if own.reward <= 0:
        return own
    signs = failure.integrity.tamper if isinstance(failure, VerifierFailed) else ()
    unconfirmed = f"{_NOT_FRESH}: {failure.type}: {plain(str(failure), 200)}"
    return own.with_signs(*signs, unconfirmed)


def _merge_verdicts(own: Verdict, fresh: Verdict) -> Verdict:
    """Merge the verdicts of both containers if the fresh one gave no full pass. The higher reward may count."""
    fresh_files = {f"isolated/{name}": data for name, data in fresh.files.items() if name.startswith("verifier/")}
    signs = (*own.integrity.tamper, *fresh.integrity.tamper)
    merged = dataclasses.replace(own, files={**own.files, **fresh_files})
    merged = merged.with_integrity(
        tamper=signs, rewards={**own.integrity.rewards, **fresh.integrity.rewards, "shared": own.reward}
    )
    if canonical(fresh.reward) >= canonical(own.reward):
        return dataclasses.replace(merged, reward=fresh.reward, metrics=fresh.metrics)
    return weigh_verdicts(merged, fresh, None, needs_system=all(map(is_weak, own.integrity.tamper)))


def weigh_verdicts(
    shared: Verdict, fresh: Verdict | None, oracle: Calibration | None, *, needs_system: bool
) -> Verdict:
    """Decide whether a reward from the agent's own container counts although a fresh container gave a lower one.

    `shared` has the signs of both containers; `fresh` is None if the oracle's work is known to fail in a fresh
    container, so that none was used. `needs_system`: `shared` may count, as the work may need its system.
    """
    other = f"{fresh.reward:g} in a fresh container" if fresh is not None else "no fresh container was used"
    rewards = f"{other}, {shared.reward:g} in the agent's own"
    passes_fresh = None if oracle is None else oracle.passes_fresh
    if fresh is not None and (passes_fresh or not needs_system):
        lower = dataclasses.replace(shared, reward=fresh.reward, metrics=fresh.metrics)
        return lower.with_signs(f"{_DISAGREEMENT} {rewards}{ORACLE_PASSES_FRESH if passes_fresh else ''}")
    replaced = path_list(_beyond_oracle(shared.integrity.replaced, oracle))
    needs = f"{NEEDS_SYSTEM} {rewards}"
    if passes_fresh is None:
        more = f"; replaced system files: {replaced}" if replaced else ""
        return shared.with_signs(f"{needs}; it is not known whether the oracle passes in a fresh one{more}")
    also = [f"{SYSTEM_REPLACED} {replaced}, unlike in the oracle's passes"] if replaced else []
    return shared.with_signs(f"{needs}; the oracle's work fails in a fresh one", *also)


def _beyond_oracle(replaced: Mapping[str, str], oracle: Calibration | None) -> list[str]:
    """Return the replaced system paths whose content no pass of the oracle has."""
    usual = set() if oracle is None else oracle.replaced
    return [path for path in replaced if (path, replaced[path]) not in usual] if len(usual) < MAX_REPLACED else []
