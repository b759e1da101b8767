"""Runs the oracle, and nobody, in tasks, and writes down what that tells of them; what is known is not run again."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tbench.api.runner import Runner, TrialFailed
from tbench.config.settings import AgentConfig, OverridesConfig, RunConfig, VerifyConfig
from tbench.errors import TrialError
from tbench.results import UNCONFIRMED, ErrorInfo, TrialResult, is_weak
from tbench.reward import reward_text
from tbench.runs.beside import Spare
from tbench.runs.overrides import as_configured
from tbench.sandbox.backend import MakeBackend
from tbench.storage.run_files import step_directory, trial_directory
from tbench.tasks.task import Task
from tbench.text import one_line
from tbench.verifier_logs import Logs
from tbench.verify.calibration import CalibratingAgent, Calibration, MeasuredTrial, keep, known
from tbench.verify.judging import ADDED_BY_ORACLE, CLEARED, uncleared
from tbench.verify.tests_shown import logs_in, tests_shown

AGENTS: tuple[CalibratingAgent, ...] = ("oracle", "nop")
REPETITIONS = 3
"""Trials of each agent, where nothing else is asked for."""


@dataclass(frozen=True)
class CalibratedTask:
    """A task and what was measured of it, now or earlier."""

    task: Task
    calibration: Calibration | None = None
    error: ErrorInfo | None = None
    """What kept its image from being had; then there is no calibration."""


@dataclass(frozen=True)
class Calibrating:
    """One calibration of tasks: with which configuration, how often, and where its results are kept."""

    config: RunConfig
    repetitions: int
    offline: bool = False
    """Whether oracles that pass are also tried without a network."""
    again: bool = False
    """Whether what is known is measured anew."""
    say: Callable[[str], None] = lambda _: None
    backend: MakeBackend | None = None
    spare: Spare | None = None
    """What room a run leaves, where tasks are measured beside one."""
    root: Path | None = None
    """Where results are kept; None for the cache."""

    @classmethod
    def of(cls, config: RunConfig, repetitions: int, **more: Any) -> Calibrating:
        """Calibrate tasks as they are: with their own limits, and verified in a fresh container, too."""
        as_they_are = {
            "overrides": OverridesConfig(),
            "verify": VerifyConfig(mode="both"),
            "sandbox": config.sandbox.model_copy(update={"keep": "none", "snapshot": False}),
        }
        return cls(config.model_copy(update=as_they_are), repetitions, **more)

    async def tasks(self, tasks: Sequence[Task]) -> list[CalibratedTask]:
        """Measure tasks: first all oracles, then nobody, then oracles without a network. Raises UsageError.

        What is measured is kept at once, so that a calibration which is cut short goes on where it was.
        """
        done = {task.name: CalibratedTask(task) for task in tasks}
        for agent in AGENTS:
            wanted = [each for each in done.values() if self._wants(agent, each)]
            if not wanted:
                continue
            async with self.runner(agent) as runner:
                for each in await asyncio.gather(*(self._calibrated(runner, agent, each) for each in wanted)):
                    done[each.task.name] = each
        wanted = [each for each in done.values() if self.offline and _passes_with_network(each)]
        if wanted:
            async with self.runner("oracle", network="none") as runner:
                for each in await asyncio.gather(*(self._without_network(runner, each) for each in wanted)):
                    done[each.task.name] = each
        return list(done.values())

    async def once(self, tasks: Sequence[Task]) -> dict[str, list[MeasuredTrial]]:
        """One trial of each agent in each task, by name; nothing of it is read or kept. Raises UsageError."""
        found: dict[str, list[MeasuredTrial]] = {task.name: [] for task in tasks}
        for agent in AGENTS:
            fitting = [task for task in tasks if agent != "oracle" or task.has_oracle]
            if fitting:
                async with self.runner(agent) as runner:
                    trials = await asyncio.gather(*(measure(runner, task, agent, 0) for task in fitting))
                for task, trial in zip(fitting, trials, strict=True):
                    found[task.name].append(trial)
        return found

    def runner(self, agent: CalibratingAgent, **sandbox: Any) -> Runner:
        """Give what runs trials of an agent, with other settings of `sandbox`."""
        config = self.config.model_copy(update={"agent": AgentConfig(name=agent)}).with_values(sandbox=sandbox)
        return Runner(config, backend=self.backend, say=self.say, spare=self.spare)

    def _wants(self, agent: CalibratingAgent, each: CalibratedTask) -> bool:
        if each.task.unsupported or each.error is not None or (agent == "oracle" and not each.task.has_oracle):
            return False
        # Before the image is there, nobody knows what is known of it.
        return each.calibration is None or len(each.calibration.of(agent)) < self.repetitions

    async def _calibrated(self, runner: Runner, agent: CalibratingAgent, each: CalibratedTask) -> CalibratedTask:
        try:
            found = each if each.calibration is not None else await self._begun(runner, each.task)
        except TrialError as error:
            return replace(each, error=error.info())
        assert found.calibration is not None
        have = {trial.repetition for trial in found.calibration.of(agent)}
        numbers = [number for number in range(self.repetitions) if number not in have]
        if not numbers:
            return found

        async def one(number: int) -> MeasuredTrial:
            nonlocal found
            assert found.calibration is not None
            trial = await measure(runner, found.task, agent, number)
            found = self._kept(found, trials=(*found.calibration.trials, trial))
            return trial

        trials = await asyncio.gather(*map(one, numbers))
        self.say(f"{found.task.name}: {agent} {' '.join(map(_ending, trials))}")
        return found

    async def _without_network(self, runner: Runner, each: CalibratedTask) -> CalibratedTask:
        trial = await measure(runner, each.task, "oracle", 0)
        self.say(f"{each.task.name}: oracle without a network {_ending(trial)}")
        return self._kept(each, offline=trial)

    def _kept(self, each: CalibratedTask, **update: Any) -> CalibratedTask:
        """The task with what was measured now; what says nothing of the task is not kept for later."""
        assert each.calibration is not None
        now = each.calibration.model_copy(update={**update, "measured_at": datetime.now(UTC)})
        lasting = {
            "trials": tuple(trial for trial in now.trials if trial.counts),
            "offline": now.offline if now.offline is not None and now.offline.counts else None,
        }
        keep(now.model_copy(update=lasting), self.root)
        return replace(each, calibration=now)

    async def _begun(self, runner: Runner, task: Task) -> CalibratedTask:
        """The task with what is known of it, which may be nothing. Raises TrialError where there is no image."""
        image, architecture = await runner.prepare(task)
        earlier = None if self.again else known(task, image, architecture, self.say, self.root)
        if earlier is not None:
            return CalibratedTask(task, earlier)
        begun = Calibration(
            task=task.name, task_hash=task.hash, image=image, architecture=architecture, measured_at=datetime.now(UTC)
        )
        return CalibratedTask(task, begun)


def _passes_with_network(each: CalibratedTask) -> bool:
    """Whether the oracle passes, and nobody knows whether it does without the network that it has."""
    if each.calibration is None or each.calibration.offline is not None:
        return False
    networks = each.task.file.networks
    has_network = any(each.mode != "no-network" for each in (networks.start, networks.agent, networks.verifier))
    return has_network and any(trial.is_pass for trial in each.calibration.of("oracle"))


def _ending(trial: MeasuredTrial) -> str:
    return reward_text(trial.reward) if trial.reward is not None else trial.error.type if trial.error else "none"


async def measure(runner: Runner, task: Task, agent: CalibratingAgent, repetition: int) -> MeasuredTrial:
    """Run one trial of the agent of a `runner`, and give what it tells. Raises UsageError."""
    try:
        result = (await runner.trial(task, seed=repetition)).result
    except TrialFailed as failure:
        result = failure.result
    directory = trial_directory(runner.directory, result.task, result.seed, result.attempt)
    return await asyncio.to_thread(_measured, as_configured(task, runner.config), agent, repetition, result, directory)


def _measured(
    task: Task, agent: CalibratingAgent, repetition: int, result: TrialResult, directory: Path
) -> MeasuredTrial:
    steps = {step.name: step_directory(directory, step.name) for step in result.task_steps if step.begun}
    logs = {name: logs_in(each / "verifier") for name, each in (steps or {"": directory}).items()}
    tamper = [uncleared(sign, ADDED_BY_ORACLE) for sign in result.integrity.tamper]
    return MeasuredTrial(
        agent=agent,
        repetition=repetition,
        reward=result.reward,
        error=result.error,
        rewards=result.integrity.rewards,
        signs=tuple(sign for sign in tamper if not is_weak(sign)),
        replaced=result.integrity.replaced,
        cleared=tuple(sign.removeprefix(CLEARED) for sign in tamper if sign.startswith(CLEARED)),
        unconfirmed=next((sign for sign in tamper if sign.startswith(UNCONFIRMED)), ""),
        tests={name: tests_shown(each) for name, each in logs.items()},
        reward_writes=result.integrity.reward_writes,
        solution_sec=result.timings.agent_sec,
        tests_sec=result.timings.tests_sec,
        memory_peak_mb=result.memory_peak_mb,
        out_of_memory=result.out_of_memory,
        shares={kind: round(share, 4) for kind, share in _shares(task, result)},
        last_words=_last_words([*logs.values()][-1]),
    )


def _shares(task: Task, result: TrialResult) -> Iterator[tuple[str, float]]:
    begun = [step.timings for step in result.task_steps if step.begun] or [result.timings]
    parts = list(zip(task.parts, begun, strict=False))
    limited = [(limit, took) for part, took in parts if (limit := part.file.agent.timeout_sec)]
    if limited:
        yield "solution", max(took.agent_sec / limit for limit, took in limited)
    yield "tests", max(took.tests_sec / part.file.verifier.timeout_sec for part, took in parts)
    if result.memory_peak_mb is not None:
        yield "memory", result.memory_peak_mb / task.file.environment.memory_mb


def _last_words(logs: Logs) -> str:
    lines = logs.get("stdout.txt", b"")[-4096:].decode("utf-8", "replace").splitlines()
    return next((one_line(line, 200) for line in reversed(lines) if line.strip()), "")
