"""Calibrates tasks: runs their oracle and an agent that does nothing, and derives whether verdicts can be trusted."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

from tbench.config.setting import iter_settings
from tbench.config.settings import AgentConfig, OverridesConfig, RunConfig, SandboxConfig, ScheduleConfig, VerifyConfig
from tbench.errors import TrialError
from tbench.results import CONTROL, UNCONFIRMED, ErrorInfo, TrialResult, is_weak
from tbench.reward import canonical, reward_text
from tbench.runs.plan import as_configured
from tbench.runs.spare_capacity import Say, SpareCapacity
from tbench.sandbox.archive import sums_by_path
from tbench.sandbox.backend import MakeBackend
from tbench.storage.run_files import step_directory, trial_directory
from tbench.tasks.task import Task
from tbench.text import counted, names_text, one_line, plain
from tbench.verifier_logs import Logs
from tbench.verify.calibration import (
    CalibratingAgent,
    Calibration,
    MeasuredTrial,
    load_calibration,
    save_calibration,
)
from tbench.verify.tests_shown import TEST_SUMS, logs_in, tests_shown

if TYPE_CHECKING:
    from tbench.api.runner import Runner

AGENTS: tuple[CalibratingAgent, ...] = ("oracle", "nop")
REPETITIONS = 3
"""Default number of trials of each agent."""


@dataclass(frozen=True)
class CalibratedTask:
    """A task and its calibration, new or stored."""

    task: Task
    calibration: Calibration | None = None
    error: ErrorInfo | None = None
    """Error that prevented its image; then there is no calibration."""


@dataclass(frozen=True)
class CalibrationRun:
    """A calibration of tasks: configuration, number of trials, and where results are stored."""

    config: RunConfig
    repetitions: int
    offline: bool = False
    """Whether passing oracles are also run without a network."""
    again: bool = False
    """Whether stored results are measured again."""
    say: Callable[[str], None] = lambda _: None
    backend: MakeBackend | None = None
    spare: SpareCapacity | None = None
    """Spare capacity of a run, if tasks are measured beside one."""
    root: Path | None = None
    """Directory of the results; None for the cache."""

    @classmethod
    def from_config(cls, config: RunConfig, repetitions: int, **more: Any) -> CalibrationRun:
        """Calibrate tasks as they are: with their own limits, and verified in a fresh container, too."""
        as_they_are = {
            "overrides": OverridesConfig(),
            "verify": VerifyConfig(mode="both"),
            "sandbox": config.sandbox.model_copy(update={"keep": "none", "snapshot": False}),
        }
        return cls(config.model_copy(update=as_they_are), repetitions, **more)

    async def tasks(self, tasks: Sequence[Task]) -> list[CalibratedTask]:
        """Measure tasks: first all oracles, then nop, then oracles without a network. Raises UsageError.

        Each result is stored at once, so that an interrupted calibration can continue.
        """
        done = {task.name: CalibratedTask(task) for task in tasks}
        for agent in AGENTS:
            wanted = [each for each in done.values() if self._wants(agent, each)]
            if not wanted:
                continue
            async with self.runner(agent) as runner:
                for each in await asyncio.gather(*(self._calibrate(runner, agent, each) for each in wanted)):
                    done[each.task.name] = each
        wanted = [each for each in done.values() if self.offline and _passes_with_network(each)]
        if wanted:
            async with self.runner("oracle", network="none") as runner:
                for each in await asyncio.gather(*(self._without_network(runner, each) for each in wanted)):
                    done[each.task.name] = each
        return list(done.values())

    async def run_once(self, tasks: Sequence[Task]) -> dict[str, list[MeasuredTrial]]:
        """Run one trial of each agent in each task, and return them by task; nothing is stored. Raises UsageError."""
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
        """Make a Runner for trials of an agent, with other settings of `sandbox`."""
        from tbench.api.runner import Runner  # not needed if all tasks are calibrated

        config = self.config.model_copy(update={"agent": AgentConfig(name=agent)}).with_values(sandbox=sandbox)
        return Runner(config, backend=self.backend, say=self.say, spare=self.spare)

    def _wants(self, agent: CalibratingAgent, each: CalibratedTask) -> bool:
        if each.task.unsupported or each.error is not None or (agent == "oracle" and not each.task.has_oracle):
            return False
        # Stored results can only be found once the image is known.
        return each.calibration is None or len(each.calibration.of(agent)) < self.repetitions

    async def _calibrate(self, runner: Runner, agent: CalibratingAgent, each: CalibratedTask) -> CalibratedTask:
        try:
            found = each if each.calibration is not None else await self._with_stored(runner, each.task)
        except TrialError as error:
            return replace(each, error=ErrorInfo.of(error))
        assert found.calibration is not None
        have = {trial.repetition for trial in found.calibration.of(agent)}
        numbers = [number for number in range(self.repetitions) if number not in have]
        if not numbers:
            return found

        async def one(number: int) -> MeasuredTrial:
            nonlocal found
            assert found.calibration is not None
            trial = await measure(runner, found.task, agent, number)
            found = self._store(found, trials=(*found.calibration.trials, trial))
            return trial

        trials = await asyncio.gather(*map(one, numbers))
        self.say(f"{found.task.name}: {agent} {' '.join(map(_outcome, trials))}")
        return found

    async def _without_network(self, runner: Runner, each: CalibratedTask) -> CalibratedTask:
        trial = await measure(runner, each.task, "oracle", 0)
        self.say(f"{each.task.name}: oracle without a network {_outcome(trial)}")
        return self._store(each, offline=trial)

    def _store(self, each: CalibratedTask, **update: Any) -> CalibratedTask:
        """Return the task with an updated calibration; trials that count are also stored."""
        assert each.calibration is not None
        now = each.calibration.model_copy(update={**update, "measured_at": datetime.now(UTC)})
        lasting = {
            "trials": tuple(trial for trial in now.trials if trial.counts),
            "offline": now.offline if now.offline is not None and now.offline.counts else None,
        }
        save_calibration(now.model_copy(update=lasting), self.root)
        return replace(each, calibration=now)

    async def _with_stored(self, runner: Runner, task: Task) -> CalibratedTask:
        """Return the task with its stored calibration, or an empty one. Raises TrialError if there is no image."""
        image, architecture = await runner.prepare(task)
        earlier = None if self.again else load_calibration(task, image, architecture, self.say, self.root)
        if earlier is not None:
            return CalibratedTask(task, earlier)
        begun = Calibration(
            task=task.name, task_hash=task.hash, image=image, architecture=architecture, measured_at=datetime.now(UTC)
        )
        return CalibratedTask(task, begun)


def _passes_with_network(each: CalibratedTask) -> bool:
    """Whether the oracle passes with a network, and was not yet run without one."""
    if each.calibration is None or each.calibration.offline is not None:
        return False
    networks = each.task.file.networks
    has_network = any(each.mode != "no-network" for each in (networks.start, networks.agent, networks.verifier))
    return has_network and any(trial.is_pass for trial in each.calibration.of("oracle"))


def _outcome(trial: MeasuredTrial) -> str:
    return reward_text(trial.reward) if trial.reward is not None else trial.error.type if trial.error else "none"


async def measure(runner: Runner, task: Task, agent: CalibratingAgent, repetition: int) -> MeasuredTrial:
    """Run one trial with the agent of `runner`, and return its measurements. Raises UsageError."""
    from tbench.api.runner import TrialFailed

    try:
        result = (await runner.trial(task, seed=repetition)).result
    except TrialFailed as failure:
        result = failure.result
    directory = trial_directory(runner.directory, result.task, result.seed, result.attempt)
    config = runner.config
    task = as_configured(task, config)
    return await asyncio.to_thread(_make_measured_trial, task, agent, repetition, result, directory)


def _make_measured_trial(
    task: Task, agent: CalibratingAgent, repetition: int, result: TrialResult, directory: Path
) -> MeasuredTrial:
    from tbench.verify.judging import ADDED_BY_ORACLE, CLEARED, undo_clearing

    steps = {step.name: step_directory(directory, step.name) for step in result.task_steps if step.begun}
    places = steps or {"": directory}
    logs = {name: logs_in(each / "verifier") for name, each in places.items()}
    controls = {
        "/".join(filter(None, (name, found.name))): logs_in(found / "verifier")
        for name, each in places.items()
        for found in sorted(each.glob(f"{CONTROL}-*"))
    }
    tamper = [undo_clearing(sign, ADDED_BY_ORACLE) for sign in result.integrity.tamper]
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
        tests={name: tests_shown(each) for name, each in {**logs, **controls}.items()},
        test_files={name: sums_by_path(each.get(TEST_SUMS, b"").decode()) for name, each in logs.items()},
        reward_writes=result.integrity.reward_writes,
        solution_sec=result.timings.agent_sec,
        tests_sec=result.timings.tests_sec,
        memory_peak_mb=result.memory_peak_mb,
        out_of_memory=result.out_of_memory,
        shares={kind: round(share, 4) for kind, share in _limit_shares(task, result)},
        last_words=_last_line([*logs.values()][-1]),
    )


def _limit_shares(task: Task, result: TrialResult) -> Iterator[tuple[str, float]]:
    begun = [step.timings for step in result.task_steps if step.begun] or [result.timings]
    parts = list(zip(task.parts, begun, strict=False))
    limited = [(limit, took) for part, took in parts if (limit := part.file.agent.timeout_sec)]
    if limited:
        yield "solution", max(took.agent_sec / limit for limit, took in limited)
    yield "tests", max(took.tests_sec / part.file.verifier.timeout_sec for part, took in parts)
    if result.memory_peak_mb is not None:
        yield "memory", result.memory_peak_mb / task.file.environment.memory_mb


def _last_line(logs: Logs) -> str:
    lines = logs.get("stdout.txt", b"")[-4096:].decode("utf-8", "replace").splitlines()
    return next((one_line(line, 200) for line in reversed(lines) if line.strip()), "")


Condition = Literal[
    "cannot be run",
    "cannot be built",
    "no verdict",
    "oracle fails",
    "nop passes",
    "flaky verifier",
    "limits too tight here",
    "isolation impossible",
    "needs network",
    "no oracle",
    "healthy",
]
"""Conditions of a task, the worst first."""
HARMLESS: frozenset[Condition] = frozenset({"isolation impossible", "needs network", "no oracle", "healthy"})
"""Conditions that do not make a task's verdicts doubtful."""
TIGHT = 0.8
"""Used share of a limit from which it may decide a trial."""


def health_conditions(each: CalibratedTask) -> Mapping[Condition, str]:
    """Return a task's conditions with reasons, the worst first; never empty."""
    if each.task.unsupported:
        return {"cannot be run": f"needs {each.task.unsupported[0]}, which tbench does not have"}
    if each.calibration is None:
        message = f"{each.error.type}: {each.error.message}" if each.error else ""
        return {"cannot be built": message}
    found = dict(_conditions(each.calibration))
    if not each.task.has_oracle:
        found["no oracle"] = "it has no solution/solve.sh"
    if message := _network(each.task, each.calibration):
        found["needs network"] = message
    return found or {"healthy": ""}


def is_healthy(found: Mapping[Condition, str]) -> bool:
    """Whether none of the conditions makes a task's verdicts doubtful."""
    return found.keys() <= HARMLESS


def _conditions(calibration: Calibration) -> Iterator[tuple[Condition, str]]:
    oracle, nop = calibration.of("oracle"), calibration.of("nop")
    for each in (*oracle, *nop):
        # An error of the task itself counts as a failed oracle; for nop, any error means that there is no verdict.
        if each.error is not None and (each.agent == "nop" or not each.counts):
            yield "no verdict", f"{each.agent}: {plain(each.error_words, 250)}"
            break
    passes = [each for each in oracle if each.is_pass]
    judged = [each for each in oracle if each.counts]
    if judged and not passes:
        yield "oracle fails", _failure(judged[0])
    if any(each.is_pass for each in nop):
        yield "nop passes", "doing nothing scores 1"
    for trials in (judged, [each for each in nop if each.error is None]):
        if len(outcomes := dict.fromkeys(map(_shared_outcome, trials))) > 1:
            yield "flaky verifier", f"{trials[0].agent}: {', '.join(outcomes)}"
            break
    else:
        if calibration.passes_fresh and not all(each.passes_fresh for each in passes if each.passes_fresh is not None):
            yield "flaky verifier", "oracle: not every pass is also a pass in a fresh container"
    if message := _tight_limit(oracle, nop):
        yield "limits too tight here", message
    if calibration.passes_fresh is False:
        yield "isolation impossible", "the oracle's work passes only in its own container"


def _network(task: Task, calibration: Calibration) -> str:
    """Return why a task needs a network: it names hosts, or its oracle fails without a network. Empty if unknown."""
    networks = task.file.networks
    phases = (networks.start, networks.agent, networks.verifier)
    if hosts := dict.fromkeys(host for phase in phases for host in phase.hosts):
        return f"task.toml names {names_text(hosts)}"
    tried = calibration.offline
    return f"without one, {_failure(tried)}" if tried is not None and tried.counts and not tried.is_pass else ""


def _shared_outcome(trial: MeasuredTrial) -> str:
    if trial.reward is None:
        return trial.error.type if trial.error is not None else "no verdict"
    return reward_text(canonical(trial.rewards.get("shared", trial.reward)))


def _failure(trial: MeasuredTrial) -> str:
    if trial.error is not None:
        return plain(trial.error_words, 250)
    last = f"; the verifier's last words: {plain(trial.last_words, 200)!r}" if trial.last_words else ""
    return f"scores {_shared_outcome(trial)}{last}"


def _tight_limit(oracle: list[MeasuredTrial], nop: list[MeasuredTrial]) -> str:
    """Return the time limit nearly reached, or that memory ran out; else empty. Memory peaks include caches."""
    if any(each.out_of_memory for each in oracle):
        return "the oracle ran out of memory"
    shares = [(share, f"{kind} of {each.agent}") for each in oracle for kind, share in each.shares.items()]
    shares += [(each.shares["tests"], "tests of nop") for each in nop if "tests" in each.shares]
    share, what = max((each for each in shares if not each[1].startswith("memory")), default=(0.0, ""))
    return f"{what}: {share:.0%} of the time limit" if share >= TIGHT else ""


# Calibration beside a run, in its spare capacity.

_SAME_CONTAINER = frozenset({"pin_cpus", "allow_env", "ignore_keys", "trust"})
"""Sandbox settings that do not change what a task's containers can do."""


class BackgroundCalibration:
    """Calibrates tasks of a run that have an oracle but no calibration, and judges all that have an oracle.

    If `schedule.calibrate` is `all`, each of these is measured again, and the run waits for it. Nothing is measured
    with `off`, or with `missing` in a run of the oracle or nop.
    """

    def __init__(
        self, tasks: Sequence[Task], source: str, agent: str, sandbox: SandboxConfig, schedule: ScheduleConfig
    ) -> None:
        """`source` of the tasks is shown in messages, so it has no password; `agent` is the run's."""
        which = schedule.calibrate
        self._source, self._config = source, RunConfig(sandbox=sandbox, schedule=schedule)
        self._tasks = [task for task in tasks if task.has_oracle and not task.unsupported]
        self._measures = which == "all" or (which == "missing" and agent not in get_args(CalibratingAgent))
        self._prevented_by = _preventing_option(sandbox)
        self._done: dict[str, CalibratedTask] = {}
        self._wanted: list[Task] = []
        self.is_waited_for = which == "all"

    async def measure(self, spare: SpareCapacity, say: Say) -> None:
        if not self._measures or self._prevented_by:
            return
        self._wanted = [task for task in self._tasks if task.name in spare.tasks]
        calibrating = CalibrationRun.from_config(self._config, REPETITIONS, again=self.is_waited_for, spare=spare)

        async def one(task: Task) -> None:
            await spare.image(task.name)
            (self._done[task.name],) = await calibrating.tasks([task])

        try:
            async with asyncio.TaskGroup() as group:
                for task in self._wanted:
                    group.create_task(one(task))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def unhealthy(self, known: Mapping[str, Calibration]) -> dict[str, str] | None:
        found, is_complete = dict[str, str](), bool(self._tasks)
        for task in self._tasks:
            each = self._done.get(task.name) or CalibratedTask(task, known.get(task.name))
            if each.calibration is None and each.error is None:
                is_complete = False
            elif not is_healthy(of_task := health_conditions(each)):
                found[task.name] = next(iter(of_task))
            else:
                is_complete &= each.calibration is not None and all(map(each.calibration.of, AGENTS))
        return found if found or is_complete else None

    def remaining_message(self) -> str:
        if self._prevented_by and self.is_waited_for:
            return f"calibration: not possible beside a run with {self._prevented_by}; run tbench calibrate instead"
        left = [task.name for task in self._wanted if task.name not in self._done]
        if not left:
            return ""
        source = shlex.quote(self._source)
        chosen = "" if len(left) > 3 else "".join(f" -t {shlex.quote(name)}" for name in left)
        engine = self._config.sandbox.engine_options
        message = f"{len(left)} of {counted(len(self._wanted), 'task')} not checked with oracle and nop"
        return f"calibration: {message}; check them with: tbench calibrate -d {source}{chosen}{engine}"


def _preventing_option(sandbox: SandboxConfig) -> str:
    """Return the option that prevents calibrating tasks as they are, or would fetch their images again; else empty."""
    if sandbox.drop_images:
        return "--drop-images"
    usual = SandboxConfig()
    deciding = [each for each in iter_settings(RunConfig) if each.section == "sandbox" and each.is_measured]
    changed = (
        each.flags[0]
        for each in deciding
        if each.name not in _SAME_CONTAINER and getattr(sandbox, each.name) != getattr(usual, each.name)
    )
    return next(changed, "")
