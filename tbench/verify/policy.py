"""How a trial is judged: in the agent's own container, in a copy without the agent's processes, or in both."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Literal

from tbench.errors import TrialError
from tbench.results import Integrity
from tbench.sandbox.backend import Copies, Sandbox
from tbench.tasks.task import Task
from tbench.verify.verifier import Verdict, VerifierFailed, look, verify

Verify = Literal["shared", "isolated", "both"]
Keep = Literal["none", "failed", "all"]


@dataclass(frozen=True)
class JudgePolicy:
    """How trials are judged, and what of them is kept on the engine for a later look."""

    verify: Verify = "shared"
    keep: Keep = "none"
    snapshot: bool = False
    """The files before the verifier began, as an image."""

    def keeps(self, reward: float | None) -> bool:
        return self.keep == "all" or (self.keep == "failed" and (reward is None or reward < 1))


async def judge(task: Task, sandbox: Sandbox, verify_in: Verify = "shared", *, again: bool = False) -> Verdict:
    """The verdict. Raises TrialError; VerifierFailed has the integrity. `again`: the sandbox was judged before."""
    if verify_in == "shared":
        return await verify(task, sandbox, again=again)
    seen = await look(task, sandbox)
    try:
        isolated = await _in_a_copy(task, sandbox, again)
    except VerifierFailed as failure:
        integrity = _joined(failure.integrity, seen, verify_in)
        raise VerifierFailed(failure.type, str(failure), failure.files, integrity) from None
    if verify_in == "isolated":
        return Verdict(isolated.reward, isolated.files, _joined(isolated.integrity, seen, verify_in))
    return await _compared(task, sandbox, isolated, again)


async def _in_a_copy(task: Task, sandbox: Sandbox, again: bool) -> Verdict:
    if not isinstance(sandbox, Copies):
        raise TrialError("verifier_failed", "this sandbox cannot be copied, so nothing can be verified in a copy")
    copy = await sandbox.copy()
    try:
        return await verify(task, copy, again=again)
    finally:
        await asyncio.shield(copy.remove())


async def _compared(task: Task, sandbox: Sandbox, isolated: Verdict, again: bool) -> Verdict:
    """The isolated verdict counts; that another one was to be had from the agent's own container speaks against it."""
    rewards = {"isolated": isolated.reward}
    try:
        shared = await verify(task, sandbox, again=again)
        rewards["shared"] = shared.reward
        seen, files, words = shared.integrity, shared.files, f"{shared.reward:g}"
    except VerifierFailed as failure:
        seen, files, words = failure.integrity, failure.files, failure.type
    integrity = _joined(isolated.integrity, seen, "both").model_copy(update={"rewards": rewards})
    if words != f"{isolated.reward:g}":
        disagreement = f"disagreement: {isolated.reward:g} in a copy, {words} in the agent's own container"
        integrity = integrity.model_copy(update={"tamper": (*integrity.tamper, disagreement)})
    beside = {f"shared/{name}": data for name, data in files.items() if name.startswith("verifier/")}
    return Verdict(isolated.reward, {**isolated.files, **beside}, integrity)


def _joined(judged: Integrity, seen: Integrity, verify_in: Verify) -> Integrity:
    return judged.model_copy(
        update={
            "verify": verify_in,
            "tamper": tuple(dict.fromkeys(seen.tamper + judged.tamper)),
            "evidence": tuple(dict.fromkeys(seen.evidence + judged.evidence)),
            "repairs": tuple(dict.fromkeys(seen.repairs + judged.repairs)),
            "regrades": judged.regrades + seen.regrades,
        }
    )
