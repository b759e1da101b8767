"""Runs single trials in a backend that stays open: for trainers, notebooks and other programs."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import shutil
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Self

from pydantic import ValidationError

from harness.model import SamplingSettings
from harness.trajectory import Outcome, Step
from tbench.agents.setup import AgentSetup, connect_if_used, package_of
from tbench.agents.trial_agent import TrialAgent
from tbench.api.rollouts import Rollout, TokensMissing
from tbench.config.document import Locked, RunPlan, Status
from tbench.config.settings import RunConfig
from tbench.errors import EngineUnavailable, TbenchError, UsageError
from tbench.events import Event, Events, Note
from tbench.fleet.engines import connect_backend
from tbench.results import TrialResult
from tbench.reward import canonical
from tbench.runs.admission import Admission, NoMachine, RetryBudget, make_admission, why_no_machine
from tbench.runs.host import HostWatch
from tbench.runs.plan import as_configured, sandbox_settings, stored_config, trial_id
from tbench.runs.redaction import make_redactor
from tbench.runs.run import planned_tasks, require_capabilities, run_document, trial_demand
from tbench.runs.spare_capacity import SpareCapacity
from tbench.runs.trial import Trial
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.backend import MakeBackend
from tbench.sandbox.container_proxy import container_proxy
from tbench.storage.read_run import read_steps
from tbench.storage.run_store import RunStore
from tbench.tasks.consent import withheld_variables_note
from tbench.tasks.environment import agent_environment
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task
from tbench.verify.calibration import architecture_of, image_identity

_AS_CONFIGURED: Mapping[str, Any] = MappingProxyType({})


class TrialFailed(TbenchError):
    """A trial ended without a verdict, not because of the agent: there is no reward, and nothing to train on.

    `result.error` has the stage, the type, the blame, and `retryable`: whether a retry may succeed.
    """

    def __init__(self, result: TrialResult) -> None:
        assert result.error is not None
        self.result = result
        super().__init__(f"{result.task} seed {result.seed}: {result.error.type}: {result.error.message}")


@dataclass(frozen=True)
class TrialRecord:
    """A trial with a verdict."""

    result: TrialResult
    """Result of the trial, its line in results.jsonl."""
    directory: Path
    """Directory of its files: trajectory.json, session.cast, verifier output."""

    @property
    def reward(self) -> float:
        """Reward from the verifier; 1.0 and above is a pass."""
        assert self.result.reward is not None
        return canonical(self.result.reward)

    @property
    def outcome(self) -> Outcome | None:
        """Outcome of the agent."""
        return self.result.outcome

    @property
    def turns(self) -> list[Step]:
        """The model's replies in order, each with its keystrokes and observation; read from disk.

        The steps of all task steps follow each other, each counted from 1.
        """
        names = [step.name for step in self.result.task_steps if step.begun]
        parts = [self.directory / "steps" / name for name in names] or [self.directory]
        return [step for part in parts for step in read_steps(part)]


@dataclass(frozen=True)
class _Endpoint:
    """Plan, agent and store that trials at one endpoint share."""

    plan: RunPlan
    make_agent: Callable[[], TrialAgent]
    store: RunStore


class Runner:
    """Runs trials of one configuration on request, on an engine that is connected once.

    An asynchronous context manager. Any number of `trial` calls may be in progress; the configuration's concurrency and
    the machine's CPUs and memory decide how many run. All results are stored in `directory`, which `tbench summary` and
    `read_run` read like any run's.
    """

    def __init__(
        self,
        config: RunConfig | None = None,
        *,
        directory: Path | str | None = None,
        backend: MakeBackend | None = None,
        say: Callable[[str], None] = lambda _: None,
        spare: SpareCapacity | None = None,
    ) -> None:
        """`directory` must be new or empty; without one, the files are deleted at the end of the block.

        `backend` makes a backend other than the configuration's engines (by default DOCKER_HOST's); `say` is called
        with messages about builds and retries. With `spare`, trials run in a run's spare capacity, on that run's
        backend.
        """
        self.config = config or RunConfig()
        schedule = self.config.schedule
        self._path = Path(directory) if directory is not None else None
        self._make_backend = backend or connect_backend(self.config.sandbox, schedule.at_once)
        self._say = say
        self._spare = spare
        self._stack = contextlib.AsyncExitStack()
        self._slots = asyncio.Semaphore(schedule.at_once)
        self._connecting = asyncio.Lock()
        self._endpoints: dict[tuple[str | None, str], _Endpoint] = {}
        self._rollouts: Counter[tuple[str, int]] = Counter()
        """Number of running rollouts by task and seed."""
        self._numbers = itertools.count(2)
        """Attempt numbers of rollouts. The directory of attempt 1 contains the directories of all others."""
        self._tasks: dict[str, Task] = {}
        self._seeds: set[tuple[str, int]] = set()
        """Tasks and seeds with a verdict, or with a running trial."""
        self._under_way: set[asyncio.Task[object]] = set()
        self._name = self._path.name if self._path is not None else f"runner-{uuid.uuid4().hex[:8]}"
        self._store: RunStore | None = None
        self._admission: Admission | SpareCapacity
        self._host: HostWatch | None

    @property
    def directory(self) -> Path:
        """Directory of the results, which exists from the first trial on."""
        if self._store is None:
            raise UsageError("Runner.directory: no trial has been run yet")
        return self._store.path

    async def __aenter__(self) -> Self:
        """Connect the backend and make it ready. Raises UsageError."""
        config = self.config
        async with contextlib.AsyncExitStack() as stack:
            locked = Locked(agent=config.agent.name, base_url=config.model.base_url)
            if self._spare is not None:
                require_capabilities(config.verify, config.sandbox, self._spare.backend)
                self._admission, self._backend, self._host = self._spare, self._spare.backend, None
                return self
            # In a thread: the loop may be a trainer's, and connecting a cluster takes seconds.
            settings = sandbox_settings(self._plan(config, locked), package=package_of(config.agent))
            backend = await asyncio.to_thread(self._make_backend, settings)
            stack.push_async_callback(backend.close)
            require_capabilities(config.verify, config.sandbox, backend)
            await backend.open(self._say)
            capacity = backend.capacity()
            self._admission = make_admission(backend, config.schedule, self._say)
            self._host = HostWatch() if capacity.is_this_machine else None
            if self._host is not None:
                await stack.enter_async_context(self._host)
            self._backend, self._stack = backend, stack.pop_all()
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        """Cancel running trials, and close the backend."""
        for each in self._under_way:
            if not each.cancelling():  # otherwise it is already removing its sandbox
                each.cancel()
        if self._under_way:
            await asyncio.wait(self._under_way)
        if self._store is not None:
            self._write_document("finished" if kind is None else "interrupted")
            self._store.close()
        await self._stack.aclose()

    async def trial(self, task: Task | Path | str, *, seed: int = 0, endpoint: str | None = None) -> TrialRecord:
        """Run one trial to its verdict; `endpoint` is a base URL, by default the configuration's.

        Raises TrialFailed if there is no verdict after all attempts; the trial may then be run again. Raises UsageError
        for mistakes of the caller. When cancelled, removes the sandbox first.
        """
        task = task if isinstance(task, Task) else Task.read(Path(task))
        at = await self._endpoint_at(endpoint, task)
        task = self._known_task(task)
        if (task.name, seed) in self._seeds:
            raise UsageError(f"{task.name} seed {seed}: has already been run; give another seed")
        self._seeds.add((task.name, seed))
        result = None
        try:
            async with self._track_call(), self._slots:
                result = await self._attempts(at, task, seed)
        finally:
            if result is None or result.reward is None:
                self._seeds.discard((task.name, seed))
        if result.reward is None:
            raise TrialFailed(result)
        return TrialRecord(result, at.store.trial_dir(task.name, seed, result.attempt))

    def _as_configured(self, task: Task) -> Task:
        return as_configured(task, self.config)

    async def prepare(self, task: Task) -> tuple[str, str]:
        """Pull or build a task's image; return the image's identity and its architecture.

        Raises TrialError if the image is unavailable.
        """
        async with self._slots:
            await self._backend.prepare(agent_environment(self._as_configured(task)))
        origins, ids = self._backend.image_origins, self._backend.image_ids
        image = image_identity(origins.get(task.name), ids.get(task.name))
        return image, architecture_of(self._backend.describe())

    async def rollout(
        self,
        task: Task | Path | str,
        *,
        endpoint: str | None = None,
        sampling: Mapping[str, Any] | None = None,
        seed: int | None = None,
        tokens: bool = True,
        api_key: str | None = None,
    ) -> Rollout:
        """Run one trial and return it as a training example; task and seed may be repeated.

        `endpoint` is as in `trial`. `sampling` overrides fields of the configuration's `[model]`, such as temperature.
        Without a `seed`, one is drawn. With `tokens`, token ids and logprobs are requested from the endpoint. With an
        `api_key`, the rollout has a connection of its own.

        A rollout is not a measurement: it is not in results.jsonl, and has files only if the Runner has a directory.
        Raises as `trial` does, and TokensMissing if the endpoint gives no token ids.
        """
        given = task if isinstance(task, Task) else Task.read(Path(task))
        seed = random.getrandbits(31) if seed is None else seed
        async with contextlib.AsyncExitStack() as stack:
            settings = _rollout_settings(self.config, sampling, tokens)
            at = await self._endpoint_at(endpoint, given, settings, None if api_key is None else (api_key, stack))
            task = self._known_task(given)
            plan = TrialPlan(trial_id(task.name, task.hash, seed, at.plan), task.name, seed, task)
            await stack.enter_async_context(self._track_call())
            await stack.enter_async_context(self._slots)
            retries, made = self._retry_budget(), list[TrialAgent]()
            while not (result := await self._run_unrecorded(at, plan, made, retries)).final:
                made.clear()
        if result.reward is None:
            raise TrialFailed(result)
        rollout = Rollout.from_trial(result, [done for agent in made if (done := agent.partial()) is not None])
        if tokens and any(turn.tokens is None for turn in rollout.turns):
            raise TokensMissing(f"{at.plan.locked.base_url}: gives no token ids; use vLLM, or tokens=False")
        return rollout

    async def _run_unrecorded(
        self, at: _Endpoint, plan: TrialPlan, made: list[TrialAgent], retries: RetryBudget
    ) -> TrialResult:
        """Run an attempt that leaves no line in the results. Its agents are appended to `made`."""

        def make_agent(make: Callable[[], TrialAgent] = at.make_agent) -> TrialAgent:
            made.append(make())
            return made[-1]

        trial = plan.task_name, plan.seed
        self._rollouts[trial] += 1
        plan = replace(plan, attempt=next(self._numbers))
        at = replace(at, make_agent=make_agent)
        try:
            return await self._attempt(at, plan, retries, Events(self._on_event))
        finally:
            self._rollouts[trial] -= 1
            if self._path is None:
                directory = at.store.trial_dir(*trial, plan.attempt)
                await asyncio.to_thread(shutil.rmtree, directory, ignore_errors=True)
                if not self._rollouts[trial]:
                    del self._rollouts[trial]
                    with contextlib.suppress(OSError):  # it contains a trial that counts, or does not exist
                        directory.parent.rmdir()

    def _known_task(self, task: Task) -> Task:
        """Return the task as first read, with the access that it is granted. Raises UsageError if it has changed."""
        if self._tasks[task.name].hash != task.hash:
            raise UsageError(f"{task.name}: differs from the earlier task of that name; use another Runner")
        return self._tasks[task.name]

    @contextlib.asynccontextmanager
    async def _track_call(self) -> AsyncIterator[None]:
        task = asyncio.current_task()
        assert task is not None
        self._under_way.add(task)
        try:
            yield
        finally:
            self._under_way.discard(task)

    def _retry_budget(self) -> RetryBudget:
        return RetryBudget(1 + self.config.schedule.retries, self.config.schedule.retry_choice)

    async def _attempts(self, at: _Endpoint, task: Task, seed: int) -> TrialResult:
        plan = TrialPlan(trial_id(task.name, task.hash, seed, at.plan), task.name, seed, task)
        before = max(at.store.attempts(task.name, seed), default=0)
        if before:
            at.store.supersede({plan.trial})
        retries = self._retry_budget()
        for attempt in itertools.count(before + 1):
            result = await self._attempt(at, replace(plan, attempt=attempt), retries)
            if result.final:
                return result
        raise AssertionError

    async def _attempt(
        self, at: _Endpoint, plan: TrialPlan, retries: RetryBudget, events: Events | None = None
    ) -> TrialResult:
        """Run one attempt and return its result. Raises EngineUnavailable if no machine is left."""
        verify, queued = self.config.verify, time.monotonic()
        try:
            admitted = self._admission.admit(
                trial_demand(plan, verify.mode), retries.preference(plan.task_name), retries.avoided
            )
            async with admitted as budget:
                assert budget.node is not None
                retries.start_on(budget.node)
                trial = Trial(
                    plan,
                    run=at.plan.run,
                    make_agent=at.make_agent,
                    model=at.plan.locked.model,
                    backend=budget.node.backend,
                    node=budget.node,
                    store=at.store,
                    events=events or Events(at.store.on_event, self._on_event),
                    is_last=lambda error: retries.is_last(error) or why_no_machine(self._backend) is not None,
                    host=self._host,
                    verify=verify,
                    sandbox=self.config.sandbox,
                )
                tear_down = await trial.run(queue_sec=time.monotonic() - queued)
                assert trial.result is not None
                retries.record(trial.result.error)
        except NoMachine:
            raise EngineUnavailable(why_no_machine(self._backend) or "no machine is available") from None
        tearing_down = asyncio.ensure_future(tear_down())
        try:
            return await asyncio.shield(tearing_down)
        except asyncio.CancelledError:
            await tearing_down
            raise

    async def _endpoint_at(
        self,
        base_url: str | None,
        task: Task,
        model: Mapping[str, Any] = _AS_CONFIGURED,
        own: tuple[str, contextlib.AsyncExitStack] | None = None,
    ) -> _Endpoint:
        """Return the shared objects of trials at this endpoint; connect it on first use.

        `model` overrides settings of the model. With `own`, an API key and a stack, the endpoint gets a connection of
        its own until the stack is closed.
        """
        key = base_url, json.dumps(dict(model), sort_keys=True)
        async with self._connecting:
            if own is not None:
                found = await self._connect(base_url, model, *own)
            elif (known := self._endpoints.get(key)) is not None:
                found = known
            else:
                found = self._endpoints[key] = await self._connect(base_url, model, None, self._stack)
            if task.name not in self._tasks:
                self._tasks[task.name] = self._as_configured(task)
                if message := withheld_variables_note(task.requested_variables, self.config.sandbox.allow_env):
                    self._say(message)
                self._write_document("running")
            return found

    async def _connect(
        self, base_url: str | None, model: Mapping[str, Any], api_key: str | None, stack: contextlib.AsyncExitStack
    ) -> _Endpoint:
        config = _with_model(self.config, base_url, model)
        if config.agent.asks_before_acting:
            raise UsageError("agent.approve: a Runner cannot ask a person; use allowlist=FILE, or tbench.debug")
        setup = AgentSetup.from_config(config.agent, config.model, config.limits)
        chat, served = await connect_if_used(setup, self._say, api_key)
        if chat is not None:
            stack.push_async_callback(chat.close)
            for each in chat.chats:
                each.model_identity.is_strict = False  # in training the weights change between steps
        plan = self._plan(config, setup.resolve_names(chat, served))
        for other in self._endpoints.values():
            if other.plan.locked.model != plan.locked.model:
                message = f"serves {plan.locked.model}, not {other.plan.locked.model}"
                raise UsageError(f"{base_url}: {message}; a Runner is for one model")
        return _Endpoint(plan, setup.maker(chat), self._store or self._begin(plan))

    def _plan(self, config: RunConfig, locked: Locked) -> RunPlan:
        return RunPlan(run=self._name, config=stored_config(config), locked=locked, seeds=())

    def _begin(self, plan: RunPlan) -> RunStore:
        path = self._path
        if path is None:
            path = Path(self._stack.enter_context(tempfile.TemporaryDirectory(prefix="tbench-"))) / plan.run
        self._document = run_document(plan, TaskSet((), {}), self._backend, None)
        self._store = RunStore.create(
            path, self._document, make_redactor([], proxy=container_proxy(plan.config.sandbox.container_proxy))
        )
        return self._store

    def _write_document(self, status: Status) -> None:
        """Write run.json with the tasks and seeds so far."""
        assert self._store is not None
        tasks = planned_tasks(TaskSet(tuple(task for _, task in sorted(self._tasks.items())), {}), self._backend)
        seeds = tuple(sorted({seed for _, seed in self._seeds}))
        self._store.write_document(self._document.model_copy(update={"tasks": tasks, "seeds": seeds, "status": status}))

    def _on_event(self, event: Event) -> None:
        if isinstance(event, Note):
            self._say(event.text)


def _rollout_settings(config: RunConfig, sampling: Mapping[str, Any] | None, tokens: bool) -> dict[str, Any]:
    """Return the model's settings for a rollout, with vLLM's options for tokens. Raises UsageError."""
    known = SamplingSettings.model_fields
    if unknown := sorted((sampling or {}).keys() - known.keys()):
        raise UsageError(f"sampling: {unknown[0]}: no such field; known: {', '.join(known)}")
    wanted = dict(sampling or {})
    extra = {**config.model.extra_body, **wanted.get("extra_body", {})}
    if tokens:
        # /v1/completions, which gets prompts rendered here, takes a number.
        extra |= {"return_token_ids": True, "logprobs": True if config.model.template == "server" else 1}
    return {**wanted, "extra_body": extra}


def _with_model(config: RunConfig, base_url: str | None, model: Mapping[str, Any]) -> RunConfig:
    """Return the configuration with another endpoint and model settings. Raises UsageError."""
    # One URL replaces a list of servers.
    where = {} if base_url is None else {"base_url": base_url, "endpoints": ()}
    try:
        return config.with_values(model={**where, **model}) if where or model else config
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        message = problem["msg"].removeprefix("Value error, ")
        raise UsageError(f"{'.'.join(map(str, problem['loc']))}: {message}") from None
