"""Rollouts as SkyRL's trainer calls them (skyrl 0.3, `GeneratorInterface`)."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from skyrl.train.generators.base import GeneratorInput, GeneratorInterface, GeneratorOutput

from tbench.api.rollouts import Rollout, TokenSequence
from tbench.api.runner import TrialFailed
from tbench.config.settings import RunConfig
from tbench.trainers.shared_runner import SharedRunner, sampling_of


class TbenchGenerator(GeneratorInterface):
    """A generator for rows that name a task's directory under `task` in their `env_extras`.

    With `step_wise`, a conversation whose history was changed becomes several rows, the last of which has the reward;
    else its longest token sequence becomes one row.
    """

    def __init__(self, config: RunConfig, *, step_wise: bool = False) -> None:
        self._runner = SharedRunner(config)
        self._step_wise = step_wise

    async def generate(self, input_batch: GeneratorInput, disable_tqdm: bool = False) -> GeneratorOutput:
        """Return the rows of all trajectories in order.

        If a trajectory has no verdict, all rows of its prompt are masked, because they are compared with each other.
        """
        extras, sampling = input_batch["env_extras"] or [], sampling_of(input_batch.get("sampling_params") or {})
        done = await asyncio.gather(*(self._one(str(each["task"]), sampling) for each in extras))
        ids = input_batch.get("trajectory_ids") or [None] * len(extras)
        prompts = [each.instance_id if each is not None else index for index, each in enumerate(ids)]
        failed = {prompt for prompt, (rollout, _) in zip(prompts, done, strict=True) if rollout is None}
        rows: list[dict[str, Any]] = []
        for trajectory, prompt, (rollout, _) in zip(ids, prompts, done, strict=True):
            sequences = self._sequences(rollout)
            for number, found in enumerate(sequences, 1):
                is_last = number == len(sequences)
                rows.append(
                    {
                        "prompt_token_ids": found.prompt_ids,
                        "response_ids": found.response_ids,
                        "rewards": rollout.reward if rollout is not None and is_last else 0.0,
                        "loss_masks": [0] * len(found.loss_mask) if prompt in failed else found.loss_mask,
                        "stop_reasons": rollout.stop_reason if rollout is not None else "error",
                        "rollout_logprobs": found.logprobs,
                        "trajectory_ids": trajectory,
                        "is_last_step": is_last,
                    }
                )
        names = ("prompt_token_ids", "response_ids", "rewards", "loss_masks", "stop_reasons", "rollout_logprobs")
        output: dict[str, Any] = {name: [row[name] for row in rows] for name in (*names, "trajectory_ids")}
        output["is_last_step"] = [row["is_last_step"] for row in rows] if self._step_wise else None
        output["trajectory_generation_times"] = [seconds for _, seconds in done]
        output["rollout_metrics"] = {"tbench/failed": sum(rollout is None for rollout, _ in done)}
        return GeneratorOutput(**output, rollout_expert_indices=None, env_metrics=None)

    async def close(self) -> None:
        """Close the Runner of this event loop."""
        await self._runner.close()

    async def _one(self, task: str, sampling: dict[str, Any]) -> tuple[Rollout | None, float]:
        started = time.monotonic()
        try:
            rollout = await self._runner.rollout(Path(task), sampling=sampling)
        except TrialFailed:
            return None, time.monotonic() - started
        return rollout, time.monotonic() - started

    def _sequences(self, rollout: Rollout | None) -> Sequence[TokenSequence]:
        if rollout is None or not rollout.turns:
            return [TokenSequence([0], [0], [0], [0.0], 0)]
        if self._step_wise:
            return rollout.sequences()
        found = rollout.longest_sequence()
        return [] if found is None else [found]
