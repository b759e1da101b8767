"""Tasks and agent loop as a taskset and a harness of verifiers (0.4, `verifiers.v1`)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import verifiers.v1 as vf
from pydantic import Field
from verifiers.v1.clients import ModelContext
from verifiers.v1.runtimes import ProgramResult, Runtime
from verifiers.v1.trace import Trace

from tbench.api.runner import TrialFailed
from tbench.config.settings import RunConfig
from tbench.datasets.read_tasks import read_tasks
from tbench.trainers.shared_runner import SharedRunner, sampling_of

_REWARD = "tbench_reward"


class TbenchData(vf.TaskData):
    """A task: its directory, with the instruction as prompt."""

    path: str


class TbenchTask(vf.Task[TbenchData]):
    """A task that tbench's verifier has already judged when it is scored."""

    @vf.reward
    async def solved(self, trace: Trace) -> float:
        return float(trace.info[_REWARD])


class TbenchTasksetConfig(vf.TasksetConfig):
    """Source of the tasks: a directory, a dataset, or `bundled`."""

    source: str = "bundled"


class TbenchTaskset(vf.Taskset[TbenchTask, TbenchTasksetConfig]):
    """The tasks of a directory or a dataset."""

    def load(self) -> Iterator[TbenchTask]:
        for task in read_tasks(self.config.source).tasks:
            data = TbenchData(name=task.name, prompt=task.instruction, path=str(task.path))
            yield TbenchTask(data, self.config.task)


class TbenchHarnessConfig(vf.HarnessConfig):
    """The sections of a RunConfig, such as agent and limits."""

    run: dict[str, Any] = Field(default={})


class TbenchHarness(vf.Harness[TbenchHarnessConfig]):
    """tbench's own agent loop in this process, with its containers; requests go through verifiers' endpoint."""

    NEEDS_CONTAINER: ClassVar[bool] = False

    def __init__(self, config: TbenchHarnessConfig) -> None:
        super().__init__(config)
        self._runner = SharedRunner(RunConfig.model_validate(config.run))

    async def launch(
        self,
        ctx: ModelContext,
        trace: Trace,
        runtime: Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: TbenchData,
    ) -> ProgramResult:
        """Run one trial, and store its reward for scoring. Without a verdict, it counts as a failed program."""
        sampling = sampling_of(ctx.sampling.model_dump(exclude_none=True))
        try:
            rollout = await self._runner.rollout(
                Path(data.path), endpoint=endpoint, sampling=sampling, tokens=False, api_key=secret
            )
        except TrialFailed as error:
            return ProgramResult(exit_code=1, stdout="", stderr=str(error))
        trace.info[_REWARD] = rollout.reward
        trace.info["tbench_stop"] = rollout.stop_reason
        return ProgramResult(exit_code=0, stdout=rollout.stop_reason, stderr="")
