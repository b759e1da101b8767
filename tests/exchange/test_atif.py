"""ATIF: whatever a trajectory holds becomes a valid document, and what it says is found at its place."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from atif_rules import AtifDocument
from click.testing import CliRunner, Result
from fault_server import FaultServer
from hypothesis import given, settings
from hypothesis import strategies as st
from stored_conversations import BEGAN, LISTED, SCRIPTS, StoredTrial, called, conversation, keys, store_run

from harness.endpoint.chat import Rendering
from harness.history import DROPPED
from harness.protocols import PROTOCOLS, load_protocol
from harness.trajectory import Compaction, Message, Reply, Step, ToolCall, Trajectory, Usage
from tbench.cli import app
from tbench.exchange.atif import atif_document, cast_times, linear_documents
from tbench.exchange.selection import ExportedPart, ExportedTrial
from tbench.results import TaskStepResult, TrialResult
from tbench.storage.read_run import StoredRun, read_run

KILLED = Path(__file__).parents[1] / "data" / "killed-run" / "run"
Fields = dict[str, Any]


def export(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", "atif", *map(str, arguments)])


def document(file: Path) -> Fields:
    """The document in a file, which is valid."""
    content: Fields = json.loads(file.read_text(), parse_constant=lambda word: pytest.fail(word))
    AtifDocument.model_validate_json(file.read_text())
    return content


def exported(tmp_path: Path, trajectory: Trajectory, **fields: Any) -> Fields:
    run = store_run(tmp_path / "run", [StoredTrial(trajectory, fields=fields)])
    done = export(run, "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    return document(tmp_path / "out" / "trials" / "list-notes" / "seed-0" / "trajectory.json")


def kinds(made: Fields) -> list[str]:
    return [step["source"] for step in made["steps"]]


# -- anything --------------------------------------------------------------------------------------

TEXT = st.text(max_size=20)
USAGE = st.builds(Usage, prompt_tokens=st.integers(0, 9), completion_tokens=st.integers(0, 9))
ANY_FLOAT = st.floats()
CALL = st.builds(
    ToolCall, id=TEXT, name=TEXT, arguments=st.one_of(TEXT, st.just('{"command": NaN}'), st.just('{"a":1}'))
)
REPLIES = st.one_of(
    TEXT, st.sampled_from([keys("ls\n", done=True), "```bash\nls\n```", "<think>a</think>b", "</think>", "<think>"])
)
REPLY = st.builds(
    Reply,
    content=REPLIES,
    reasoning=st.none() | TEXT,
    tool_calls=st.lists(CALL, max_size=2).map(tuple),
    cut=st.booleans(),
    usage=USAGE,
    model=st.none() | TEXT,
    latency_sec=ANY_FLOAT,
    waited_sec=ANY_FLOAT,
)
STEP = st.builds(
    Step,
    index=st.integers(-2, 5),
    reply=REPLY,
    actions=st.lists(TEXT | st.just("ls"), max_size=2).map(tuple),
    format_error=st.none() | st.sampled_from(["no_json", "context_full"]),
    warnings=st.lists(TEXT | st.just("context_compacted: x"), max_size=2).map(tuple),
    observation=TEXT,
    exit_code=st.none() | st.integers(0, 255),
    model_sec=ANY_FLOAT,
    command_sec=ANY_FLOAT,
)
COMPACTION = st.builds(
    Compaction,
    step=st.integers(0, 5),
    policy=st.sampled_from(["stop", "drop-oldest-outputs", "summarize"]),
    outputs_dropped=st.integers(0, 3),
    messages_before=st.just(3),
    messages_after=st.just(3),
    tokens_before=st.just(3),
    tokens_after=st.just(3),
    summary=st.none() | REPLY,
    model_sec=ANY_FLOAT,
)
MESSAGE = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=TEXT,
    tool_calls=st.lists(CALL, max_size=1).map(tuple),
)
TRAJECTORY = st.builds(
    Trajectory,
    protocol=st.sampled_from([*PROTOCOLS, "mine:Agent"]),
    messages=st.lists(MESSAGE, max_size=3).map(tuple),
    steps=st.lists(STEP, max_size=3).map(tuple),
    usage=USAGE,
    compactions=st.lists(COMPACTION, max_size=2).map(tuple),
)
RESULT = TrialResult(run="r", trial="t", task="t", seed=0, agent="a", started_at=BEGAN, finished_at=BEGAN)
NO_RUN = StoredRun(path=Path("/nowhere"), name="r", planned_tasks=[], planned_seeds=[], results=[])


@given(TRAJECTORY, st.none() | st.builds(TaskStepResult, name=TEXT))
@settings(max_examples=100)
def test_whatever_a_trajectory_holds_its_document_is_valid(trajectory: Trajectory, step: TaskStepResult | None) -> None:
    part = ExportedPart(Path("/nowhere"), trajectory, step)
    trial = ExportedTrial(NO_RUN, RESULT, Path("/nowhere"), (part,))
    for linear in linear_documents(trial, part):
        AtifDocument.model_validate_json(json.dumps(linear, allow_nan=False))
    made = atif_document(trial, part)
    if made is None:
        assert not trajectory.steps and not trajectory.compactions
        return
    AtifDocument.model_validate_json(json.dumps(made, allow_nan=False))
    said = [each["extra"]["index"] for each in made["steps"] if "index" in each.get("extra", {})]
    assert said == [each.index for each in trajectory.steps]


# -- what is where ---------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", SCRIPTS)
async def test_each_reply_is_a_step_with_its_calls_and_what_came_back(
    protocol: str, endpoint: FaultServer, tmp_path: Path
) -> None:
    trajectory, requests = await conversation(endpoint, protocol)
    made = exported(tmp_path, trajectory)
    opening = [message["content"] for message in requests[0]["messages"]]
    assert [step["message"] for step in made["steps"][: len(opening)]] == opening
    assert kinds(made) == ["system", "user"][-len(opening) :] + ["agent"] * len(trajectory.steps)
    replies = made["steps"][len(opening) :]
    assert [step["message"] for step in replies] == [step.reply.content for step in trajectory.steps]
    assert all(step["llm_call_count"] == 1 for step in replies)
    first, wrong = replies[0], replies[1]
    assert wrong["extra"]["format_error"] == trajectory.steps[1].format_error is not None
    assert "tool_calls" not in wrong
    assert wrong["observation"]["results"] == [{"content": trajectory.steps[1].observation}]
    assert first["observation"]["results"][0]["content"] == trajectory.steps[0].observation
    assert first["extra"]["exit_code"] == 0
    assert first["metrics"]["prompt_tokens"] == 10 and first["metrics"]["completion_tokens"] == 3
    assert made["final_metrics"]["total_steps"] == len(made["steps"])
    assert made["agent"]["extra"]["prompt_hash"]
    assert made["agent"].get("tool_definitions") == requests[0].get("tools")
    arguments = [(call["function_name"], call["arguments"]) for call in first["tool_calls"]]
    function = "bash" if load_protocol(protocol).tools else "bash_command"
    if load_protocol(protocol).types_commands:
        assert arguments == [(function, {"command": "ls"})]
    else:
        assert arguments == [(function, {"keystrokes": typed, "duration": 0.5}) for typed in ("ls\n", "C-c")]
        assert [call["function_name"] for call in replies[-1]["tool_calls"]] == ["mark_task_complete"]


async def test_calls_that_were_not_run_are_beside_those_that_were(endpoint: FaultServer, tmp_path: Path) -> None:
    twice = called("ls")
    twice["tool_calls"] = [*twice["tool_calls"], *called("rm -r /", number=2)["tool_calls"]]
    odd = {"content": "", "tool_calls": [{"id": "x", "type": "function", "function": {"name": "sh", "arguments": "{"}}]}
    trajectory, _ = await conversation(endpoint, "bash-tool", [twice, odd], ["$ ", LISTED], steps=2)
    first, second = exported(tmp_path, trajectory)["steps"][2:]
    assert [call["tool_call_id"] for call in first["tool_calls"]] == ["call-1"]
    assert first["observation"]["results"][0]["source_call_id"] == "call-1"
    assert [call["id"] for call in first["extra"]["calls_not_run"]] == ["call-2"]
    assert "tool_calls" not in second
    assert second["extra"]["calls_not_run"] == [{"id": "x", "name": "sh", "arguments": "{"}]


async def test_thinking_stands_apart_from_the_message_wherever_it_came(endpoint: FaultServer, tmp_path: Path) -> None:
    script = [
        {"content": keys("ls\n"), "reasoning_content": "apart"},
        f"<think>\nin tags\n</think>\n\n{keys(done=True)}",
        f"without a beginning\n</think>\n{keys(done=True)}",
    ]
    trajectory, _ = await conversation(endpoint, "keystrokes-json", script, rendering=Rendering(send_reasoning="on"))
    replies = exported(tmp_path, trajectory)["steps"][1:]
    assert [step["reasoning_content"] for step in replies] == ["apart", "in tags", "without a beginning"]
    assert [step["message"] for step in replies] == [keys("ls\n"), keys(done=True), keys(done=True)]


def test_a_history_that_was_made_shorter_says_so_between_the_replies(tmp_path: Path) -> None:
    facts = {"messages_before": 9, "messages_after": 3, "tokens_before": 900, "tokens_after": 100}
    done = Compaction(step=2, policy="summarize", summary=Reply(content="<think>so</think>All done."), **facts)
    notes = "Do it.\n\nThe conversation so far was shortened. Your notes on it:\n\nAll done.\n\nGo on"
    steps = [
        Step(index=1, reply=Reply(content="a")),
        Step(index=2, reply=Reply(content="b"), warnings=("context_compacted: x",)),
    ]
    messages = (Message(role="user", content=notes), Message(role="assistant", content="b"))
    made = exported(
        tmp_path,
        Trajectory(protocol="keystrokes-json", messages=messages, steps=tuple(steps), compactions=(done,)),
    )
    assert [(step["source"], step["message"]) for step in made["steps"]] == [
        ("user", "Do it."),
        ("agent", "a"),
        ("agent", "All done."),
        ("system", "The context was full: summarize took the history from about 900 to 100 tokens."),
        ("agent", "b"),
    ]
    summary, told = made["steps"][2:4]
    assert summary["reasoning_content"] == "so"
    assert (summary["extra"]["context_management"], told["extra"]["compaction"]["step"]) == ("summary", 2)


async def test_linear_documents_hold_a_context_each_and_name_the_next(tmp_path: Path) -> None:
    facts = {"messages_before": 3, "messages_after": 3, "tokens_before": 900, "tokens_after": 100}
    done = Compaction(step=3, policy="drop-oldest-outputs", outputs_dropped=1, **facts)
    outputs = ["o" * 99, "p" * 99, "q"]
    steps = [
        Step(
            index=n,
            reply=Reply(content=f"r{n}", usage=Usage(prompt_tokens=n)),
            observation=output,
            warnings=("context_compacted: x",) if n == 3 else (),
        )
        for n, output in enumerate(outputs, start=1)
    ]
    words = ["Do it.", "r1", DROPPED, "r2", outputs[1], "r3", outputs[2]]
    messages = tuple(Message(role="assistant" if n % 2 else "user", content=text) for n, text in enumerate(words))
    trajectory = Trajectory(protocol="bash-block", messages=messages, steps=tuple(steps), compactions=(done,))
    run = store_run(tmp_path / "run", [StoredTrial(trajectory)])
    assert export(run, "-o", tmp_path / "out", "--linear").exit_code == 0
    place = tmp_path / "out" / "trials" / "list-notes" / "seed-0"
    first, second = (document(place / name) for name in ("trajectory.json", "trajectory.cont-1.json"))
    assert sorted(path.name for path in place.iterdir()) == ["trajectory.cont-1.json", "trajectory.json"]
    assert (first["continued_trajectory_ref"], "continued_trajectory_ref" in second) == (
        "trajectory.cont-1.json",
        False,
    )
    assert second["trajectory_id"] == f"{first['trajectory_id']}/cont-1"
    assert [step["message"] for step in first["steps"]] == ["Do it.", "r1", "r2"]
    assert not any("is_copied_context" in step for step in first["steps"])
    copied = [(step["message"], step.get("is_copied_context", False)) for step in second["steps"]]
    assert copied == [("Do it.", True), ("r1", True), ("r2", True), ("r3", False)]
    assert second["steps"][1]["observation"]["results"][0]["content"] == DROPPED
    assert second["final_metrics"]["total_prompt_tokens"] == 3


def test_a_document_tells_what_the_benchmark_says_of_the_trial(tmp_path: Path) -> None:
    steps = (Step(index=1, reply=Reply(content="a")),)
    made = exported(tmp_path, Trajectory(protocol="bash-block", steps=steps), human_touched=True, attempt=1)
    about = made["extra"]
    assert (about["run"], about["task"], about["task_hash"]) == ("nightly", "list-notes", "sha256:list-notes")
    assert (about["seed"], about["reward"], about["human_touched"]) == (0, 1.0, True)
    assert made["session_id"] == "list-notes.s0.abc"
    assert made["trajectory_id"] == "nightly/list-notes.s0.abc"
    assert (made["agent"]["version"], made["agent"]["model_name"]) == ("0.1.0", "m")


def test_a_packaged_agent_has_its_own_version(tmp_path: Path) -> None:
    steps = (Step(index=1, reply=Reply(content="a")),)
    made = exported(tmp_path, Trajectory(protocol="codex@0.169.0", steps=steps), agent="codex@0.169.0")
    assert (made["agent"]["name"], made["agent"]["version"]) == ("codex", "0.169.0")


def test_steps_of_a_task_are_documents_of_their_own(tmp_path: Path) -> None:
    parts = {
        name: Trajectory(protocol="bash-block", steps=(Step(index=1, reply=Reply(content=name)),)) for name in "ab"
    }
    run = store_run(tmp_path / "run", [StoredTrial(steps=parts)])
    assert export(run, "-o", tmp_path / "out").output == f"1 trial written to {tmp_path / 'out'}\n"
    made = [
        document(tmp_path / "out" / "trials" / "list-notes" / "seed-0" / "steps" / name / "trajectory.json")
        for name in "ab"
    ]
    assert [each["trajectory_id"] for each in made] == ["nightly/list-notes.s0.abc/a", "nightly/list-notes.s0.abc/b"]
    assert {each["session_id"] for each in made} == {"list-notes.s0.abc"}
    assert [each["extra"]["task_step"] for each in made] == ["a", "b"]


def test_a_killed_run_is_exported(tmp_path: Path) -> None:
    done = export(KILLED, "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    files = sorted((tmp_path / "out").rglob("trajectory.json"))
    assert len(files) == len(read_run(KILLED).results) == 3
    for file in files:
        made = document(file)
        assert any("timestamp" in step for step in made["steps"])


def test_runs_go_below_their_names(tmp_path: Path) -> None:
    one = StoredTrial(Trajectory(protocol="bash-block", steps=(Step(index=1, reply=Reply(content="a")),)))
    runs = [store_run(tmp_path / name, [one], name=name) for name in ("x", "y")]
    assert export(*runs, "-o", tmp_path / "out").exit_code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["x", "y"]


def test_a_run_in_which_nothing_was_said_is_refused(tmp_path: Path) -> None:
    run = store_run(tmp_path / "run", [StoredTrial(Trajectory(protocol="bash-block"))])
    done = export(run, "-o", tmp_path / "out")
    assert "nothing to export: left out: 1 trial without any message" in str(done.exception)
    assert not (tmp_path / "out").exists()


# -- the recording -----------------------------------------------------------------------------------


def steps_that(*actions: tuple[str, ...]) -> list[Step]:
    return [Step(index=n, reply=Reply(content=""), actions=typed) for n, typed in enumerate(actions, start=1)]


def test_a_step_began_when_its_first_action_was_typed(tmp_path: Path) -> None:
    began = int(BEGAN.timestamp())
    lines = [{"version": 2, "timestamp": began}, [0.5, "o", '"i"'], [1.0, "i", "ls\n"], [2.0, "i", "C-c"]]
    lines += [[3.0, "i", "x"], "torn"]
    file = tmp_path / "session.cast"
    file.write_text("\n".join(map(json.dumps, lines)) + '\n[4.0, "i", "e')
    found = cast_times(file, steps_that(("ls\n", "C-c"), (), ("never",), ("x\0",)), BEGAN - timedelta(days=1))
    assert (found.began_at, found.by_step_sec) == (BEGAN, {1: 1.0, 4: 3.0})
    late = cast_times(file, [], BEGAN + timedelta(seconds=0.4))
    assert late.datetime_at(1.0) == BEGAN + timedelta(seconds=1.4)


@pytest.mark.parametrize("content", [None, "", "{", "[]", '{"timestamp": 1e99}', '{"timestamp": "x"}', '[9, "i", 1]'])
def test_a_recording_that_cannot_be_read_gives_no_times(content: str | None, tmp_path: Path) -> None:
    if content is not None:
        (tmp_path / "session.cast").write_text(content)
    found = cast_times(tmp_path / "session.cast", steps_that(("ls",)), BEGAN)
    assert found.by_step_sec == {}
    assert found.datetime_at(1.0) is None
