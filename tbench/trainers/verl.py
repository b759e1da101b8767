"""Rollouts as verl's agent loop workers call them (verl 0.9.1, `AgentLoopBase`)."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from tbench.api.rollouts import TokenSequence
from tbench.config.settings import RunConfig
from tbench.trainers.shared import SharedRunner, sampling_of

_RUNNERS: dict[str, SharedRunner] = {}
"""By configuration: a worker makes a loop object for each sample."""
_NOTHING = TokenSequence([0], [0], [0], [0.0], 0)
"""Stands for a conversation without a reply."""


@register("tbench")
class TbenchAgentLoop(AgentLoopBase):
    """An agent loop whose rows name a task's directory in `task`.

    The agent loop configuration gives it `config`, the sections of a RunConfig, of which `model.base_url` is verl's own
    server; a row may name another one in `base_url`.
    """

    def __init__(self, *args: Any, config: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = RunConfig.model_validate(config or {})
        self._runner = _RUNNERS.setdefault(settings.model_dump_json(), SharedRunner(settings))

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """One rollout. Raises TrialFailed where there is no verdict: verl masks, or fails, the sample."""
        rollout = await self._runner.rollout(
            str(row["task"]), endpoint=row.get("base_url"), sampling=sampling_of(sampling_params)
        )
        found, length = rollout.longest_sequence() or _NOTHING, self.rollout_config.response_length
        timings = rollout.result.timings
        return AgentLoopOutput(
            prompt_ids=found.prompt_ids,
            response_ids=found.response_ids[:length],
            response_mask=found.loss_mask[:length],
            response_logprobs=found.logprobs[:length] or None,
            reward_score=rollout.reward,
            num_turns=2 * len(rollout.turns) + 1,
            metrics=AgentLoopMetrics(
                generate_sequences=timings.model_sec,
                tool_calls=timings.command_sec,
                compute_score=timings.verifier_sec,
            ),
            extra_fields={"stop_reason": rollout.stop_reason, "turn_scores": [], "tool_rewards": []},
        )
