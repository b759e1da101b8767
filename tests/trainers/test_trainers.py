"""Rollouts as trainers call them: against their packages if installed, else their published signatures."""

from __future__ import annotations

import asyncio
import importlib
import sys
import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, Generic, TypedDict, TypeVar

import pytest
from fake_tmux import FakeTmux
from fault_server import FaultServer, answer, completion

import tbench
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.trainers.shared_runner import LoopThread, SharedRunner, sampling_of
from tbench.trainers.trl import TrlRollouts

CLAIM = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'
COMMAND = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\\n", "duration": 0.1}]}'
T, U = TypeVar("T"), TypeVar("U")


@pytest.fixture
def config(endpoint: FaultServer, monkeypatch: pytest.MonkeyPatch) -> tbench.RunConfig:
    """A configuration whose trials run a command and then finish; each prompt continues the turn before it."""
    endpoint.always_list({"id": "tiny"})

    def reply(request: Any) -> Any:
        turn = sum(message["role"] == "assistant" for message in request.json["messages"])
        body = completion(COMMAND if turn == 0 else CLAIM)
        body["prompt_token_ids"] = [1, 2] if turn == 0 else [1, 2, 3, 9][: 4 + turn]
        body["choices"][0] |= {"token_ids": [3], "logprobs": {"content": [{"logprob": -0.5}]}}
        if turn:
            body["prompt_token_ids"] = [1, 2, *([3, 9] * turn)]
        return answer(200, body)

    endpoint.answer_by(reply)
    monkeypatch.setattr(
        "tbench.api.runner.connect_backend",
        lambda *_: lambda settings: FakeBackend(lambda _: FakeSandbox(connect=FakeTmux().connect)),
    )
    return tbench.RunConfig.model_validate(
        {"model": {"base_url": endpoint.base_url}, "schedule": {"retries": 0, "concurrency": 8}}
    )


def broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "tbench.api.runner.connect_backend", lambda *_: lambda settings: FakeBackend(lambda _: FakeSandbox())
    )


# -- TRL -----------------------------------------------------------------------------------------

TRAINER = SimpleNamespace(
    processing_class=SimpleNamespace(eos_token_id=77), args=SimpleNamespace(temperature=0.9, top_p=1.0)
)


def test_trl_gets_a_row_for_each_prompt(config: tbench.RunConfig, endpoint: FaultServer, make_task: Any) -> None:
    rollouts = TrlRollouts(config, {"one": tbench.Task.read(make_task())})
    try:
        rows = rollouts.rollout_func(["one", [{"role": "user", "content": "one"}]], TRAINER)
        assert {len(values) for values in rows.values()} == {2}
        assert rows["prompt_ids"][0] == [1, 2] and rows["completion_ids"][0][:3] == [3, 9, 3]
        assert rows["env_mask"][0][:3] == [1, 0, 1] and rows["logprobs"][0][:3] == [-0.5, 0.0, -0.5]
        assert rollouts.reward_func(["x", "y"], rows["tbench_reward"], tbench_stop=rows["tbench_stop"]) == [1.0, 1.0]
        assert endpoint.seen[-1].json["temperature"] == 0.9
        with pytest.raises(KeyError, match="no task is named 'two'; each prompt must be the name of a task"):
            rollouts.rollout_func(["one", "two"], TRAINER)
    finally:
        rollouts.close()
    assert not [each for each in threading.enumerate() if each.name == "tbench rollouts"]


def test_trl_gets_no_reward_where_there_was_no_verdict(
    config: tbench.RunConfig, make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken(monkeypatch)
    rollouts = TrlRollouts(config, {"one": tbench.Task.read(make_task())})
    try:
        rows = rollouts.rollout_func(["one"], TRAINER)
    finally:
        rollouts.close()
    assert (rows["tbench_reward"], rows["env_mask"], rows["completion_ids"]) == ([None], [[0]], [[77]])
    assert rows["tbench_stop"] == ["error"]


# -- verl ----------------------------------------------------------------------------------------


@dataclass
class PublishedMetrics:
    """verl 0.9.1: AgentLoopMetrics."""

    generate_sequences: float = 0.0
    tool_calls: float = 0.0
    compute_score: float = 0.0
    num_preempted: int = -1


@dataclass
class PublishedOutput:
    """verl 0.9.1: AgentLoopOutput."""

    prompt_ids: list[int]
    response_ids: list[int]
    response_mask: list[int]
    metrics: PublishedMetrics
    response_logprobs: list[float] | None = None
    reward_score: float | None = None
    num_turns: int = 0
    extra_fields: dict[str, Any] = field(default_factory=dict)


class PublishedLoop(ABC):
    """verl 0.9.1: AgentLoopBase."""

    def __init__(
        self,
        trainer_config: Any,
        server_manager: Any,
        tokenizer: Any,
        processor: Any,
        dataset_cls: Any,
        data_config: Any,
        hf_model_type: str | None = None,
        **kwargs: Any,
    ) -> None:
        self.config = trainer_config.config
        self.rollout_config = self.config.actor_rollout_ref.rollout

    @abstractmethod
    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> PublishedOutput: ...


def published(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    """Stand in for a module of a package that is not installed."""
    parts = name.split(".")
    for end in range(1, len(parts) + 1):
        path = ".".join(parts[:end])
        monkeypatch.setitem(sys.modules, path, ModuleType(path))
    for member, value in members.items():
        setattr(sys.modules[name], member, value)


@pytest.fixture
def verl(monkeypatch: pytest.MonkeyPatch) -> Any:
    registered: dict[str, Any] = {}
    try:
        importlib.import_module("verl.experimental.agent_loop.agent_loop")
    except ImportError:
        published(
            monkeypatch,
            "verl.experimental.agent_loop.agent_loop",
            AgentLoopBase=PublishedLoop,
            AgentLoopMetrics=PublishedMetrics,
            AgentLoopOutput=PublishedOutput,
            register=lambda name: lambda loop: registered.setdefault(name, loop),
        )
    monkeypatch.delitem(sys.modules, "tbench.trainers.verl", raising=False)
    return importlib.import_module("tbench.trainers.verl")


async def test_verl_gets_one_output_per_sample(
    verl: Any, config: tbench.RunConfig, endpoint: FaultServer, make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    rollout = SimpleNamespace(response_length=2)
    wrapped = SimpleNamespace(
        config=SimpleNamespace(actor_rollout_ref=SimpleNamespace(rollout=rollout), get=lambda *_: {})
    )
    loop = verl.TbenchAgentLoop(wrapped, None, None, None, None, wrapped, config=config.model_dump(mode="json"))
    row = {"task": str(make_task()), "agent_name": "tbench", "index": 3}
    output = await loop.run({"temperature": 0.4, "top_k": 5, "logprobs": True}, **row)
    assert (output.prompt_ids, output.response_ids, output.response_mask) == ([1, 2], [3, 9], [1, 0])
    assert (output.response_logprobs, output.reward_score) == ([-0.5, 0.0], 1.0)
    sent = endpoint.seen[-1].json
    assert (sent["temperature"], sent["top_k"], sent["logprobs"]) == (0.4, 5, True)
    await loop._runner.close()
    broken(monkeypatch)
    with pytest.raises(tbench.TrialFailed):
        await loop.run({}, **row)
    await loop._runner.close()


# -- SkyRL ---------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TrajectoryName:
    """skyrl 0.3: TrajectoryID."""

    instance_id: str
    repetition_id: int


class GeneratorOutput(TypedDict):
    """skyrl 0.3: the fields of a GeneratorOutput."""

    prompt_token_ids: list[list[int]]
    response_ids: list[list[int]]
    rewards: list[float]
    loss_masks: list[list[int]]
    stop_reasons: list[str] | None
    rollout_metrics: dict[str, Any] | None
    rollout_logprobs: list[list[float]] | None
    trajectory_ids: list[Any] | None
    trajectory_generation_times: list[float] | None
    rollout_expert_indices: Any
    is_last_step: list[bool] | None
    env_metrics: Any


class GeneratorInterface(ABC):
    """skyrl 0.3: GeneratorInterface."""

    @abstractmethod
    async def generate(self, input_batch: Any) -> GeneratorOutput: ...


@pytest.fixture
def skyrl(monkeypatch: pytest.MonkeyPatch) -> Any:
    try:
        importlib.import_module("skyrl.train.generators.base")
    except ImportError:
        published(
            monkeypatch,
            "skyrl.train.generators.base",
            GeneratorInput=dict,
            GeneratorInterface=GeneratorInterface,
            GeneratorOutput=GeneratorOutput,
        )
    monkeypatch.delitem(sys.modules, "tbench.trainers.skyrl", raising=False)
    return importlib.import_module("tbench.trainers.skyrl")


def a_batch(*tasks: Path) -> dict[str, Any]:
    return {
        "prompts": [[]] * len(tasks),
        "env_classes": ["tbench"] * len(tasks),
        "env_extras": [{"task": str(task)} for task in tasks],
        "sampling_params": {"temperature": 0.3, "max_generate_length": 9, "logprobs": 1, "stop": None},
        "trajectory_ids": [TrajectoryName(task.name, index) for index, task in enumerate(tasks)],
        "batch_metadata": None,
    }


@pytest.mark.parametrize("step_wise", [False, True])
async def test_skyrl_gets_the_rows_in_their_order(
    skyrl: Any, config: tbench.RunConfig, make_task: Any, step_wise: bool
) -> None:
    generator = skyrl.TbenchGenerator(config, step_wise=step_wise)
    one, two = make_task("one"), make_task("two")
    output = await generator.generate(a_batch(one, two))
    await generator.close()
    assert [each.instance_id for each in output["trajectory_ids"]] == ["one", "two"]
    assert output["prompt_token_ids"] == [[1, 2]] * 2 and output["rewards"] == [1.0, 1.0]
    assert [mask[:3] for mask in output["loss_masks"]] == [[1, 0, 1]] * 2
    assert output["stop_reasons"] == ["complete"] * 2 and output["rollout_metrics"] == {"tbench/failed": 0}
    assert output["is_last_step"] == ([True, True] if step_wise else None)
    assert output.keys() == GeneratorOutput.__annotations__.keys()


async def test_skyrl_masks_all_rollouts_of_a_prompt_of_which_one_failed(
    skyrl: Any, config: tbench.RunConfig, make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []

    def sandbox(task: Any) -> FakeSandbox:
        if task.name == "bad":
            made.append(1)
        return FakeSandbox(connect=None if len(made) == 1 and task.name == "bad" else FakeTmux().connect)

    monkeypatch.setattr("tbench.api.runner.connect_backend", lambda *_: lambda settings: FakeBackend(sandbox))
    generator = skyrl.TbenchGenerator(config)
    bad, good = make_task("bad"), make_task("good")
    output = await generator.generate(a_batch(bad, bad, good))
    await generator.close()
    assert [any(mask) for mask in output["loss_masks"]] == [False, False, True]
    assert sorted(output["stop_reasons"]) == ["complete", "complete", "error"]
    assert output["rollout_metrics"] == {"tbench/failed": 1}


# -- verifiers -----------------------------------------------------------------------------------


class _OfTask(Generic[T]):
    def __init__(self, data: Any, config: Any = None) -> None:
        self.data, self.config = data, config


class _OfTaskset(Generic[T, U]):
    def __init__(self, config: Any) -> None:
        self.config = config


class _OfHarness(Generic[T]):
    def __init__(self, config: Any) -> None:
        self.config = config


@pytest.fixture
def verifiers(monkeypatch: pytest.MonkeyPatch) -> Any:
    from pydantic import BaseModel

    class TaskData(BaseModel):
        name: str | None = None
        prompt: str | None = None

    class TasksetConfig(BaseModel):
        task: Any = None

    class HarnessConfig(BaseModel):
        id: str = "x"

    result = dataclass(type("ProgramResult", (), {"__annotations__": {"exit_code": int, "stdout": str, "stderr": str}}))
    try:
        importlib.import_module("verifiers.v1")
    except ImportError:
        published(monkeypatch, "verifiers.v1.clients", ModelContext=object)
        published(monkeypatch, "verifiers.v1.trace", Trace=object)
        published(monkeypatch, "verifiers.v1.runtimes", ProgramResult=result, Runtime=object)
        vf = sys.modules["verifiers.v1"]
        for name, value in {
            "TaskData": TaskData, "Task": _OfTask, "Taskset": _OfTaskset, "Harness": _OfHarness,
            "TasksetConfig": TasksetConfig, "HarnessConfig": HarnessConfig, "reward": lambda method: method,
        }.items():  # fmt: skip
            setattr(vf, name, value)
        sys.modules["verifiers"].v1 = vf  # type: ignore[attr-defined]
    monkeypatch.delitem(sys.modules, "tbench.trainers.verifiers", raising=False)
    return importlib.import_module("tbench.trainers.verifiers")


async def test_verifiers_gets_tasks_and_a_harness_that_asks_its_endpoint(
    verifiers: Any, config: tbench.RunConfig, endpoint: FaultServer, make_task: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    taskset = verifiers.TbenchTaskset(verifiers.TbenchTasksetConfig(source=str(make_task())))
    (task,) = taskset.load()
    assert task.data.name == "small-task" and task.data.prompt
    sections = config.model_dump(mode="json", exclude={"model"})
    harness = verifiers.TbenchHarness(verifiers.TbenchHarnessConfig(run=sections))
    trace = SimpleNamespace(info={})
    ctx = SimpleNamespace(sampling=SimpleNamespace(model_dump=lambda **_: {"temperature": 0.2}))
    done = await harness.launch(ctx, trace, None, endpoint.base_url, "sk-of-this-rollout", {}, task.data)
    assert done.exit_code == 0 and await task.solved(trace) == 1.0
    assert endpoint.seen[-1].headers["authorization"] == "Bearer sk-of-this-rollout"
    assert endpoint.seen[-1].json["temperature"] == 0.2 and "return_token_ids" not in endpoint.seen[-1].json
    await harness._runner.close()
    broken(monkeypatch)
    failed = await harness.launch(ctx, SimpleNamespace(info={}), None, endpoint.base_url, "k", {}, task.data)
    assert failed.exit_code == 1 and "sandbox_failed" in failed.stderr
    await harness._runner.close()


# -- what they share -----------------------------------------------------------------------------


def test_sampling_parameters_of_trainers_become_settings_and_fields_of_the_request() -> None:
    given = {"temperature": 1.0, "top_p": 0.9, "top_k": -1, "logprobs": True, "n": 1, "seed": None, "min_p": None}
    assert sampling_of(given) == {"temperature": 1.0, "top_p": 0.9, "extra_body": {"top_k": -1}}
    assert sampling_of({}) == {}


def test_a_loop_in_a_thread_gives_results_errors_and_ends() -> None:
    thread = LoopThread()

    async def fail() -> None:
        raise KeyError("x")

    assert thread.run(asyncio.sleep(0, "done")) == "done"
    with pytest.raises(KeyError):
        thread.run(fail())
    thread.close()


async def test_each_loop_has_a_runner_of_its_own(config: tbench.RunConfig, make_task: Any) -> None:
    shared, task, thread = SharedRunner(config), make_task(), LoopThread()
    here = await asyncio.gather(*(shared.rollout(task) for _ in range(4)))
    there = await asyncio.to_thread(lambda: thread.run(shared.rollout(task)))
    assert [each.reward for each in (*here, there)] == [1.0] * 5
    await asyncio.to_thread(lambda: thread.run(shared.close()))
    await shared.close()
    await asyncio.to_thread(thread.close)


@pytest.mark.parametrize("name", ["trl", "verl", "skyrl", "verifiers"])
def test_an_adapter_is_a_hundred_lines_at_most(name: str) -> None:
    file = Path(tbench.__file__).parent / "trainers" / f"{name}.py"
    assert len(file.read_text().splitlines()) <= 100
