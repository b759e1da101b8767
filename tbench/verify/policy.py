"""Where a trial's verifier runs: in the agent's own container, in a copy without the agent's processes, or in both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from tbench.config.settings import Keep, Verify
from tbench.errors import TrialError
from tbench.results import Integrity
from tbench.sandbox.backend import Copies, Sandbox
from tbench.tasks.task import Task
from tbench.verify.verifier import Verdict, VerifierFailed, examine, verify


@dataclass(frozen=True)
class VerifyPolicy:
    """Where verifiers run, and what of a trial is kept on the engine for later."""

    verify: Verify = "shared"
    keep: Keep = "none"
    snapshot: bool = False
    """Whether the files before the verifier began are kept as an image."""

    def keeps(self, reward: float | None) -> bool:
        """Whether the container of a trial with this reward, None for no verdict, is kept."""
        return self.keep == "all" or (self.keep == "failed" and (reward is None or reward < 1))


async def verify_by(policy: Verify, task: Task, sandbox: Sandbox, *, again: bool = False) -> Verdict:
    """The verdict of a verifier that runs where the policy says. Raises TrialError; VerifierFailed has the integrity.

    `again`: a verifier ran in this sandbox before.
    """
    if policy == "shared":
        return await verify(task, sandbox, again=again)
    seen = await examine(task, sandbox)
    try:
        isolated = await _verify_in_a_copy(task, sandbox, again)
    except VerifierFailed as failure:
        integrity = _join_integrity(failure.integrity, seen, policy)
        raise VerifierFailed(failure.type, str(failure), failure.files, integrity) from None
    if policy == "isolated":
        return Verdict(isolated.reward, isolated.files, _join_integrity(isolated.integrity, seen, policy))
    return await _compare_with_shared(task, sandbox, isolated, again)


async def _verify_in_a_copy(task: Task, sandbox: Sandbox, again: bool) -> Verdict:
    if not isinstance(sandbox, Copies):
        raise TrialError("verifier_failed", "this sandbox cannot be copied, so nothing can be verified in a copy")
    copy = await sandbox.copy()
    try:
        return await verify(task, copy, again=again)
    finally:
        await asyncio.shield(copy.remove())


async def _compare_with_shared(task: Task, sandbox: Sandbox, isolated: Verdict, again: bool) -> Verdict:
    """The isolated verdict, which counts; another verdict from the agent's own container is a sign against it."""
    rewards = {"isolated": isolated.reward}
    try:
        shared = await verify(task, sandbox, again=again)
        rewards["shared"] = shared.reward
        seen, files, words = shared.integrity, shared.files, f"{shared.reward:g}"
    except VerifierFailed as failure:
        seen, files, words = failure.integrity, failure.files, failure.type
    integrity = _join_integrity(isolated.integrity, seen, "both").model_copy(update={"rewards": rewards})
    if words != f"{isolated.reward:g}":
        disagreement = f"disagreement: {isolated.reward:g} in a copy, {words} in the agent's own container"
        integrity = integrity.model_copy(update={"tamper": (*integrity.tamper, disagreement)})
    beside = {f"shared/{name}": data for name, data in files.items() if name.startswith("verifier/")}
    return Verdict(isolated.reward, {**isolated.files, **beside}, integrity)


def _join_integrity(counted: Integrity, seen: Integrity, policy: Verify) -> Integrity:
    """The integrity of the verdict that counts, with what was seen besides in the agent's own container."""
    return counted.model_copy(
        update={
            "verify": policy,
            "tamper": tuple(dict.fromkeys(seen.tamper + counted.tamper)),
            "evidence": tuple(dict.fromkeys(seen.evidence + counted.evidence)),
            "repairs": tuple(dict.fromkeys(seen.repairs + counted.repairs)),
            "regrades": counted.regrades + seen.regrades,
        }
    )
