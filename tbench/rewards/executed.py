"""The executed reward: runs completions, or whole agents, in live trials; the verifier decides the reward.

A completion becomes a trial of one step: a container for its task, the completion as the model's only reply (a
thinking-bash completion's command is typed), then the task's tests. Containers, terminal, admission, retries and
verdicts are those of `tbench run`.
"""

from __future__ import annotations

import contextlib
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.errors import FormatError
from harness.limits import Limits
from harness.model import Sampling
from harness.protocols import load_protocol
from harness.protocols.base import ActionProtocol
from harness.trajectory import Message, Reply, Trajectory
from tbench.agents.model_agent import ModelAgent
from tbench.agents.trial_agent import AgentReport, TrialAgent, Workplace
from tbench.config.document import Locked, PlannedTask, RunDocument, RunPlan
from tbench.config.settings import NetworkChoice, RunConfig, Verify
from tbench.errors import EngineUnavailable, TbenchError, UsageError
from tbench.events import Events, RunStarted
from tbench.fleet.engines import connect_backend
from tbench.results import TrialResult, is_weak
from tbench.reward import canonical
from tbench.rewards.reward_functions import completion_text
from tbench.runs.plan import as_configured, sandbox_settings, trial_id
from tbench.runs.redaction import make_redactor
from tbench.runs.run import Run
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.backend import MakeBackend, open_backend
from tbench.storage.run_store import RunStore
from tbench.tasks.sources import TaskSet, tasks_dir
from tbench.tasks.task import Task
from tbench.text import one_line

TaskLike = Task | Path | str
"""A task, its directory, or the name of a bundled one."""
NO_COMMAND = 0.0
"""Reward of a completion without a command; no container is started for it."""


class RewardUnavailable(TbenchError):
    """Some trials ended without a verdict, so they have no reward. All trials have ended.

    `rewards` and `results` follow the order of the completions; without a verdict a reward is None, without a trial a
    result is None.
    """

    def __init__(self, rewards: Sequence[float | None], results: Sequence[TrialResult | None]) -> None:
        self.rewards = list(rewards)
        self.results = list(results)
        lost = [result for result in results if result is not None and result.reward is None]
        first = next((result for result in lost if result.error is not None), None)
        why = f"; first: {first.task}: {first.error.type}: {first.error.message}" if first and first.error else ""
        super().__init__(one_line(f"{len(lost)} of {len(rewards)} trials have no verdict{why}"))


@dataclass(frozen=True)
class Live:
    """Settings of trials that are run for rewards."""

    concurrency: int = 4
    """Maximum number of concurrent trials in one call; the machine's CPUs and memory may allow fewer."""
    retries: int = 1
    """Maximum number of retries of a trial whose error a retry may fix."""
    on_error: Literal["raise"] | float = "raise"
    """Reward of a trial without a verdict, which is not the completion's fault. `raise` raises RewardUnavailable after
    all trials have ended. TRL treats float("nan") like None, and leaves it out of the sum of a completion's rewards."""
    command_sec: float = 120.0
    """Time limit of a completion's command, in seconds."""
    protocol: str = "thinking-bash"
    """Action protocol by which completions are parsed."""
    verify: Verify = "shared"
    """Container in which the tests run; `isolated` is a second one, out of reach of the completion's processes."""
    network: NetworkChoice = "task"
    """Network of the trials; `task` leaves it to each task."""
    container_proxy: str = "inherit"
    """Proxy of containers and builds with a network: `inherit`, `none` or its URL."""
    block_host: bool = False
    """Whether trials are blocked from reaching the engine's host."""
    allow_env: tuple[str, ...] = ()
    """Variables that tasks may take from this process's environment."""
    cap_add: tuple[str, ...] = ()
    """Additional Linux capabilities of the trials."""
    on_flagged: Literal["keep"] | float = "keep"
    """Reward of a verdict with strong signs of tampering: `keep` the verifier's, or another number."""
    output: Path | None = None
    """Directory in which each call's trials are stored in a subdirectory; None stores nothing."""
    engines: tuple[str, ...] = ()
    """Addresses of the engines, as for `--engine`; without any, DOCKER_HOST or this machine's."""
    backend: MakeBackend | None = None
    """Makes the backend for each call; None uses the engines."""

    def __post_init__(self) -> None:
        if self.on_error != "raise" and not isinstance(self.on_error, int | float):
            raise ValueError(f"on_error must be 'raise' or a number, not {self.on_error!r}")
        if self.on_flagged != "keep" and not isinstance(self.on_flagged, int | float):
            raise ValueError(f"on_flagged must be 'keep' or a number, not {self.on_flagged!r}")


async def executed_reward(
    completions: Sequence[Any],
    prompts: Sequence[Any] | None = None,
    *,
    task: TaskLike | Sequence[TaskLike],
    live: Live = Live(),
    **columns: Any,
) -> list[float]:
    """Return each completion's reward by the verifier, after running it in a container of `task` (or of its own task).

    A completion without a command (also None) gets 0 without a trial. Raises RewardUnavailable (see `Live.on_error`),
    UsageError for an unusable task or protocol, EngineUnavailable; ValueError if the number of tasks differs.
    """
    tasks = _tasks(task, len(completions))
    if several := next((each for each in tasks if each.steps), None):
        raise UsageError(f"{several.path}: has several steps, but a completion is one reply; use agent_reward")
    protocol = _protocol(live.protocol)
    texts = [_with_command(protocol, completion) for completion in completions]
    wanted = [index for index, text in enumerate(texts) if text is not None]
    limits = Limits(steps=1, command_sec=live.command_sec)

    def agent(index: int) -> TrialAgent:
        return ModelAgent(_FixedReply(texts[wanted[index]] or ""), protocol, limits, name=f"completion:{protocol.name}")

    done = await run_trials([tasks[index] for index in wanted], agent, live)
    results: list[TrialResult | None] = [None] * len(completions)
    for index, result in zip(wanted, done, strict=True):
        results[index] = result
    return _rewards(results, live)


async def agent_reward(
    task: TaskLike | Sequence[TaskLike],
    make_agent: Callable[[], TrialAgent],
    *,
    live: Live = Live(),
) -> list[float]:
    """Return the verifier's reward of a whole trial for each task, in order.

    `make_agent` makes an agent for each task, and for each step of a task with several. Each repetition of a
    task gets the next seed, from 0. Raises like `executed_reward`.
    """
    tasks = [task] if isinstance(task, Task | Path | str) else list(task)
    results = await run_trials(_tasks(tasks, len(tasks)), lambda _: make_agent(), live)
    return _rewards(results, live)


def make_executed_reward(
    tasks: str | Path = "bundled",
    *,
    column: str = "task",
    live: Live = Live(),
) -> Callable[..., Any]:
    """Make `executed_reward` for a trainer: the dataset's `column` names tasks in the directory `tasks`.

    The result is a coroutine function, which newer versions of TRL await; for other trainers use `lambda *args,
    **columns: asyncio.run(reward(*args, **columns))`. Raises UsageError for a missing directory.
    """
    directory = tasks_dir() if tasks == "bundled" else Path(tasks)
    if not directory.is_dir():
        raise UsageError(f"{tasks}: no such directory; give a directory of tasks, or 'bundled'")

    async def executed(completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any) -> list[float]:
        names = columns.get(column)
        if names is None:
            raise UsageError(f"the dataset has no column {column!r}, which must name each prompt's task in {directory}")
        return await executed_reward(completions, prompts, task=[directory / str(name) for name in names], live=live)

    return executed


async def run_trials(tasks: Sequence[Task], agent: Callable[[int], TrialAgent], live: Live) -> list[TrialResult]:
    """Run one trial per task; return all results in order, errors included.

    `agent` makes the agent of the trial at an index. Raises UsageError, and EngineUnavailable if
    the run stops. When cancelled, removes its containers first.
    """
    if not tasks:
        return []
    run = f"reward-{uuid.uuid4().hex[:12]}"
    config = RunConfig.model_validate(
        {
            "schedule": {"concurrency": live.concurrency, "retries": live.retries},
            "verify": {"mode": live.verify},
            "sandbox": {
                "engines": live.engines,
                "network": live.network,
                "block_host": live.block_host,
                "container_proxy": live.container_proxy,
                "allow_env": live.allow_env,
                "cap_add": live.cap_add,
            },
        }
    )
    named = {task.name: as_configured(task, config) for task in tasks}
    if any(named[task.name].path != task.path for task in tasks):
        raise UsageError("two tasks have the same name in different directories; rename one")
    plan = RunPlan(run=run, config=config, locked=Locked(agent="rewards"), seeds=(0,))
    planned = [
        PlannedTask(name=name, hash=task.hash, reward_range=task.own_reward_range) for name, task in named.items()
    ]
    document = RunDocument(**dict(plan), tasks=tuple(planned))
    plans = _plans([named[task.name] for task in tasks], plan)
    agents = {(each.task_name, each.seed): index for index, each in enumerate(plans)}
    settings = sandbox_settings(plan)
    hide = make_redactor(tasks, proxy=settings.container_proxy)
    with (
        _directory(live.output, run) as directory,
        contextlib.closing(RunStore.create(directory, document, hide)) as store,
    ):
        make_backend = live.backend or connect_backend(config.sandbox, live.concurrency)
        events = Events(store.on_event)
        events.emit(RunStarted(run=run, trials=len(plans)))
        async with open_backend(make_backend(settings)) as backend:
            outcome = await Run(
                plan,
                TaskSet(tuple(named.values()), {}),
                make_agent=lambda: _AgentOfTrial(agent, agents),
                backend=backend,
                store=store,
                events=events,
                plans=plans,
            ).execute()
    if outcome.stopped is not None:
        raise EngineUnavailable(outcome.stopped)
    final = {result.trial: result for result in outcome.results if result.final}
    return [final[each.trial] for each in plans]


def _plans(tasks: Sequence[Task], plan: RunPlan) -> list[TrialPlan]:
    seen: Counter[str] = Counter()
    plans = []
    for task in tasks:
        seed = seen[task.name]
        seen[task.name] += 1
        plans.append(TrialPlan(trial_id(task.name, task.hash, seed, plan), task.name, seed, task))
    return plans


@contextlib.contextmanager
def _directory(output: Path | None, run: str) -> Iterator[Path]:
    if output is not None:
        yield output / run
        return
    with tempfile.TemporaryDirectory(prefix="tbench-") as directory:
        yield Path(directory) / run


class _FixedReply:
    """A model whose only reply is a given completion."""

    context_tokens = None
    sampling = Sampling()
    patience_sec = 0.0

    def __init__(self, text: str) -> None:
        self._text = text

    async def query(
        self,
        messages: Sequence[Message],
        *,
        seed: int | None,
        max_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        return Reply(content=self._text)


class _AgentOfTrial:
    """An agent that makes its trial's agent when it starts to work: a run makes agents before it knows their trials."""

    name = "reward"

    def __init__(self, make: Callable[[int], TrialAgent], index: Mapping[tuple[str, int], int]) -> None:
        self._make = make
        self._index = index
        self._agent: TrialAgent | None = None

    async def work(self, place: Workplace) -> AgentReport:
        self._agent = self._make(self._index[place.task.name, place.seed])
        self.name = self._agent.name
        return await self._agent.work(place)

    def partial(self) -> Trajectory | None:
        return None if self._agent is None else self._agent.partial()


def _rewards(results: Sequence[TrialResult | None], live: Live) -> list[float]:
    rewards = [_reward(result, live) for result in results]
    if live.on_error == "raise":
        if None in rewards:
            raise RewardUnavailable(rewards, results)
        return [reward for reward in rewards if reward is not None]
    return [live.on_error if reward is None else reward for reward in rewards]


def _reward(result: TrialResult | None, live: Live) -> float | None:
    """Return the reward of one result; None without a verdict. A result of None means that nothing was run."""
    if result is None:
        return NO_COMMAND
    if live.on_flagged != "keep" and result.reward is not None and not all(map(is_weak, result.integrity.tamper)):
        return live.on_flagged
    return None if result.reward is None else canonical(result.reward)


def _tasks(wanted: TaskLike | Sequence[TaskLike], number: int) -> list[Task]:
    each = [wanted] * number if isinstance(wanted, Task | Path | str) else list(wanted)
    if len(each) != number:
        raise ValueError(f"{number} completions, but {len(each)} tasks")
    read: dict[TaskLike, Task] = {}
    for one in each:
        if one not in read:
            read[one] = _task(one)
    return [read[one] for one in each]


def _task(wanted: TaskLike) -> Task:
    if isinstance(wanted, Task):
        return wanted
    path = Path(wanted)
    bundled = tasks_dir() / path
    return Task.read(bundled if isinstance(wanted, str) and not path.is_dir() and bundled.is_dir() else path)


def _protocol(name: str) -> ActionProtocol:
    try:
        return load_protocol(name)
    except ValueError as error:
        raise UsageError(f"Live.protocol: {error}") from None


def _with_command(protocol: ActionProtocol, completion: object) -> str | None:
    """Return the completion's text; None if it has nothing to type or run."""
    text = completion_text(completion)
    if text is None:
        return None
    try:
        return text if protocol.parse(text).actions else None
    except FormatError:
        return None
