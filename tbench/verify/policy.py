"""Where a trial's verifier runs, and what a verdict from there is worth.

A verdict from the agent's own container rests on what the agent left in it: a pass is looked at, and what was changed
that decides how tests run is a sign against it. A verdict from a fresh container of the image, into which only the
agent's work is brought, rests on the image's own tools.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Awaitable, Sequence
from dataclasses import dataclass

from tbench.config.settings import Keep, Verify
from tbench.errors import TrialError
from tbench.results import Integrity, is_weak
from tbench.reward import canonical, is_solved
from tbench.sandbox.backend import Compares, Copies, MakesRoom, Sandbox, removed_afterwards
from tbench.tasks.task import Task
from tbench.text import plain
from tbench.verify.changes.installed import UNCOMPARED, Late, compared, late_code
from tbench.verify.changes.looking import look
from tbench.verify.changes.signs import Sign, told
from tbench.verify.changes.work import work_of
from tbench.verify.verifier import Verdict, VerifierFailed, verify

NOT_THE_AGENTS = frozenset(
    {"env_missing", "task_changed", "engine_unreachable", "image_no_space", "sandbox_lost", "tests_missing"}
)
"""Types of errors that no agent can cause: nobody inside can end the first process of a sandbox."""
_COMES_ALONG = ("hosts",)
"""Kinds of signs about what a fresh container has, too: names of servers belong to the network."""

_MAY_BE_WHY = (UNCOMPARED,)
"""Weak kinds that are an answer to why it passes in the agent's own container alone, as nothing could be compared."""


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


async def verify_by(policy: Verify, task: Task, sandbox: Sandbox, *, again: bool = False) -> Verdict:
    """The verdict of a verifier that runs where the policy says. Raises TrialError; VerifierFailed has the integrity.

    `again`: a verifier ran in this sandbox before. What the agent used up is made free; a verifier that runs in a fresh
    container, but not beside what the agent left, is a 0.
    """
    verdict = await _attempt(policy, task, sandbox, again=again)
    if isinstance(verdict, TrialError):
        verdict = await _verdict_after(verdict, policy, task, sandbox)
    return _with(verdict, verify=policy)


async def _attempt(policy: Verify, task: Task, sandbox: Sandbox, *, again: bool) -> Verdict | TrialError:
    """A verdict, or the error in its place that the agent may be the cause of; others are raised."""
    try:
        return await _verdict(policy, task, sandbox, again=again)
    except TrialError as error:
        if error.type in NOT_THE_AGENTS:
            raise
        return error


async def _verdict(policy: Verify, task: Task, sandbox: Sandbox, *, again: bool) -> Verdict:
    if policy == "isolated":
        return await _in_a_copy(task, sandbox)
    shared = await verify(task, sandbox, again=again)
    if shared.reward > 0 and isinstance(sandbox, Compares):
        return await _looked_at(policy, task, sandbox, shared)
    return shared


async def _in_a_copy(task: Task, sandbox: Sandbox) -> Verdict:
    """The verdict from a fresh container with the agent's work."""
    if not isinstance(sandbox, Copies):
        raise TrialError("verifier_failed", "this sandbox cannot be copied, so nothing can be verified in a copy")
    seen, signs = await look(task, sandbox)
    verdict = await _with_work(task, sandbox, *work_of(seen, signs))
    along = told(sign for sign in signs if sign.kind in _COMES_ALONG) if verdict.reward > 0 else ()
    return _with(verdict, tamper=verdict.integrity.tamper + along)


async def _with_work(task: Task, sandbox: Copies, paths: Sequence[str], removed: Sequence[str]) -> Verdict:
    async with removed_afterwards(await sandbox.copy(paths, removed)) as copy:
        return await verify(task, copy)


# -- a pass in the agent's own container ---------------------------------------------------------


async def _looked_at(policy: Verify, task: Task, sandbox: Sandbox, shared: Verdict) -> Verdict:
    """A pass in the agent's own container with what speaks against it and, for `both`, one from a fresh container."""
    seen, signs = await look(task, sandbox, shared.facts)
    late = late_code(seen, shared.facts)
    isolated: Verdict | TrialError | None = None
    if isinstance(sandbox, Copies) and (policy == "both" or late):
        paths, removed = work_of(seen, signs)
        copying = sandbox.copy(paths, removed)
        isolated, found = await _elsewhere(task, sandbox, copying, Late(seen, signs, late, paths))
        if late and found is None:
            # No work of the agent's can keep the tests from being installed there.
            _, found = await _elsewhere(task, sandbox, sandbox.anew(), Late(seen, signs, late))
        signs = signs if found is None else found
    shared = _with(shared, tamper=shared.integrity.tamper + told(signs))
    if policy == "shared" or isolated is None:
        return shared
    if isinstance(isolated, Verdict):
        return _joined(shared, isolated)
    if isolated.type in NOT_THE_AGENTS:
        raise isolated
    also = isolated.integrity.tamper if isinstance(isolated, VerifierFailed) else ()
    words = f"unconfirmed: no verdict in a fresh container: {isolated.type}: {plain(str(isolated), 200)}"
    return _with(shared, tamper=(*shared.integrity.tamper, *also, words))


async def _elsewhere(
    task: Task, sandbox: Sandbox, making: Awaitable[Sandbox], late: Late
) -> tuple[Verdict | TrialError, tuple[Sign, ...] | None]:
    """The verdict from a fresh container, or the error in its place; and the signs when what came late in the agent's
    own is compared with what came there, None where it cannot be."""
    verdict: Verdict | TrialError
    signs: tuple[Sign, ...] | None = None
    try:
        made = await making
    except TrialError as failure:
        return failure, None
    async with removed_afterwards(made) as control:
        try:
            verdict = await verify(task, control)
        except TrialError as failure:
            verdict = failure
        if late.paths:
            with contextlib.suppress(TrialError):
                signs = await compared(sandbox, control, late)
    return verdict, signs


def _joined(shared: Verdict, isolated: Verdict) -> Verdict:
    """What two verdicts come to: a pass in the fresh container is earned, else the signs against the other decide."""
    beside = {f"isolated/{name}": data for name, data in isolated.files.items() if name.startswith("verifier/")}
    rewards = {"isolated": isolated.reward, "shared": shared.reward}
    joined = _with(dataclasses.replace(shared, files={**shared.files, **beside}), rewards=rewards)
    signs = shared.integrity.tamper
    if canonical(isolated.reward) >= canonical(shared.reward):
        seen = (sign if is_weak(sign) or sign.startswith(_COMES_ALONG) else f"cleared: {sign}" for sign in signs)
        return _with(joined, tamper=(*isolated.integrity.tamper, *seen))
    words = f"{isolated.reward:g} in a fresh container, {shared.reward:g} in the agent's own"
    if all(map(is_weak, signs)) and not any(sign.startswith(_MAY_BE_WHY) for sign in signs):
        return _with(joined, tamper=(*signs, *isolated.integrity.tamper, f"needs-system: {words}"))
    lower = dataclasses.replace(joined, reward=isolated.reward, metrics=isolated.metrics)
    return _with(lower, tamper=(*signs, *isolated.integrity.tamper, f"disagreement: {words}"))


# -- a verifier that could not run ---------------------------------------------------------------


async def _verdict_after(error: TrialError, policy: Verify, task: Task, sandbox: Sandbox) -> Verdict:
    """The verdict after a failed verifier: where room could be made or another try does it, else about who broke it."""
    # If the first verifier began, the files in the places of tests and reward are our own.
    again = isinstance(error, VerifierFailed)
    repairs = await sandbox.make_room() if isinstance(sandbox, MakesRoom) else ()
    if repairs:
        second = await _attempt(policy, task, sandbox, again=again)
        if isinstance(second, Verdict):
            return _repaired(second, repairs)
        error = second
    if not isinstance(sandbox, Copies) or not await _runs_anew(task, sandbox):
        raise error
    if error.type == "verifier_timeout":
        return _repaired(broken_by_agent(error), repairs)
    # By now the trouble may be over: then it was not the agent's.
    last = await _attempt(policy, task, sandbox, again=True)
    return _repaired(last if isinstance(last, Verdict) else broken_by_agent(last), repairs)


async def _runs_anew(task: Task, sandbox: Copies) -> bool:
    """Whether the verifier comes to a verdict in a fresh container, with nothing of the agent's."""
    try:
        async with removed_afterwards(await sandbox.anew()) as control:
            await verify(task, control)
    except TrialError:
        return False
    return True


def broken_by_agent(error: TrialError) -> Verdict:
    """The verdict about an agent that broke the verifier: nothing is gained by it."""
    integrity = error.integrity if isinstance(error, VerifierFailed) else Integrity()
    words = f"agent-broke-verifier: {error.type}, but in a fresh container the verifier runs: {plain(str(error), 200)}"
    return _with(Verdict(0.0, error.files, integrity), tamper=(*integrity.tamper, words))


def _repaired(verdict: Verdict, repairs: tuple[str, ...]) -> Verdict:
    return _with(verdict, repairs=repairs + verdict.integrity.repairs)


def _with(verdict: Verdict, **update: object) -> Verdict:
    if "tamper" in update:
        assert isinstance(update["tamper"], tuple)
        update["tamper"] = tuple(dict.fromkeys(update["tamper"]))
    return dataclasses.replace(verdict, integrity=verdict.integrity.model_copy(update=update))
