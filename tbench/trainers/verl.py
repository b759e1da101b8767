"""Rollouts as verl's agent loop workers call them (verl 0.9.1, `AgentLoopBase`)."""

from __future__ import annotations

from typing import Any

from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopMetrics, AgentLoopOutput, register

from tbench.api.rollouts import TokenSequence
from tbench.config.settings import RunConfig
from tbench.trainers.shared_runner import SharedRunner, sampling_of

_RUNNERS: dict[str, SharedRunner] = {}
"""Runners by configuration: a worker makes a loop object for each sample."""
_NOTHING = TokenSequence([0], [0], [0], [0.0], 0)
"""Placeholder for a conversation without a reply."""


@register("tbench")
class TbenchAgentLoop(AgentLoopBase):
    """An agent loop for rows that name a task's directory in `task`.

    Its `config` in the agent loop configuration has sections of a RunConfig, with verl's own server as
    `model.base_url`; a row may name another one in `base_url`.
    """

    def __init__(self, *args: Any, config: dict[str, Any] | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        settings = RunConfig.model_validate(config or {})
        self._runner = _RUNNERS.setdefault(settings.model_dump_json(), SharedRunner(settings))

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Run one rollout. Raises TrialFailed without a verdict: verl masks, or fails, the sample."""
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
