"""Rollouts as TRL's GRPOTrainer calls them: `rollout_func`, experimental in TRL 1.16, and a reward function."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from tbench.api.rollouts import Rollout
from tbench.api.runner import TrialFailed
from tbench.config.settings import RunConfig
from tbench.tasks.task import Task
from tbench.trainers.shared_runner import LoopThread, SharedRunner

_ROW = ("prompt_ids", "completion_ids", "logprobs", "env_mask", "tbench_reward", "tbench_stop")


class TrlRollouts:
    """Rollouts of tasks; the dataset's prompts are task names.

    `GRPOTrainer(rollout_func=rollouts.rollout_func, reward_funcs=rollouts.reward_func, …)`. The configuration's
    endpoint has to serve the weights in training.
    """

    def __init__(self, config: RunConfig, tasks: Mapping[str, Task]) -> None:
        """`tasks` maps the names used as prompts to tasks."""
        self._tasks = tasks
        self._runner = SharedRunner(config)
        self._thread = LoopThread()

    def rollout_func(self, prompts: Sequence[Any], trainer: Any) -> dict[str, list[Any]]:
        """Return a row for each prompt; without a verdict, reward None and a mask that excludes it from training."""
        end = getattr(trainer.processing_class, "eos_token_id", None) or 0
        args = trainer.args
        sampling = {"temperature": args.temperature, "top_p": args.top_p}
        rollouts = self._thread.run(self._all([_name(prompt) for prompt in prompts], sampling))
        rows: dict[str, list[Any]] = {name: [] for name in _ROW}
        for rollout in rollouts:
            scored = rollout if isinstance(rollout, Rollout) else None
            found = scored.longest_sequence() if scored is not None else None
            rows["prompt_ids"].append(found.prompt_ids if found else [end])
            rows["completion_ids"].append(found.response_ids if found else [end])
            rows["logprobs"].append(found.logprobs if found else [0.0])
            rows["env_mask"].append(found.loss_mask if found else [0])
            rows["tbench_reward"].append(scored.reward if scored is not None else None)
            rows["tbench_stop"].append(scored.stop_reason if scored is not None else "error")
        return rows

    def reward_func(self, completions: Sequence[Any], tbench_reward: Sequence[float | None], **_: Any) -> list[Any]:
        """Return the reward of each rollout; None without a verdict, which TRL leaves out."""
        assert len(completions) == len(tbench_reward)
        return list(tbench_reward)

    def close(self) -> None:
        """Close the Runner and its thread."""
        self._thread.run(self._runner.close())
        self._thread.close()

    async def _all(self, names: Sequence[str], sampling: Mapping[str, Any]) -> list[Rollout | TrialFailed]:
        if unknown := sorted(set(names) - self._tasks.keys()):
            raise KeyError(f"no task is named {unknown[0]!r}; each prompt must be the name of a task")
        work = (self._runner.rollout(self._tasks[name], sampling=sampling) for name in names)
        done = await asyncio.gather(*work, return_exceptions=True)
        for each in done:
            if isinstance(each, BaseException) and not isinstance(each, TrialFailed):
                raise each
        return [each for each in done if isinstance(each, Rollout | TrialFailed)]


def _name(prompt: Any) -> str:
    """Return the task name in a prompt, which is a text or a conversation of one message."""
    return str(prompt if isinstance(prompt, str) else prompt[-1]["content"])
