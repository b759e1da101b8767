"""Training data: what a row holds is what the endpoint received and sent, and who is to learn from it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from fault_server import FaultServer
from stored_conversations import SCRIPTS, StoredTrial, called, conversation, keys, store_run

from harness.endpoint.chat import Rendering
from harness.trajectory import Branch, Message, Outcome, Reply, Step, ToolCall, Trajectory
from tbench.cli import app
from tbench.results import TaskStepResult, WentOn

Fields = dict[str, Any]


def export(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["export", "sft", *map(str, arguments)])


def rows(directory: Path, name: str = "messages") -> list[Fields]:
    return [json.loads(line) for line in (directory / f"{name}.jsonl").read_text().splitlines()]


def as_sent(message: Fields) -> Fields:
    """A message of a row the way it went over the wire."""
    wire = {name: value for name, value in message.items() if name != "train" and value != []}
    for call in wire.get("tool_calls", ()):
        call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    return wire


def talk(*turns: str, error: str | None = None, **fields: Any) -> Trajectory:
    """A trajectory of a user and a model in turn."""
    messages = tuple(Message(role="assistant" if n % 2 else "user", content=text) for n, text in enumerate(turns))
    steps = tuple(
        Step(index=n, reply=Reply(content=text), format_error=error) for n, text in enumerate(turns[1::2], start=1)
    )
    known = {"protocol": "keystrokes-json", "messages": messages, "steps": steps, "outcome": Outcome.SUBMITTED}
    return Trajectory(**(known | fields))


@pytest.mark.parametrize("protocol", SCRIPTS)
async def test_a_row_is_what_the_endpoint_received_and_what_it_answered(
    protocol: str, endpoint: FaultServer, tmp_path: Path
) -> None:
    trajectory, requests = await conversation(endpoint, protocol)
    assert trajectory.outcome is Outcome.SUBMITTED
    done = export(store_run(tmp_path / "run", [StoredTrial(trajectory)]), "-o", tmp_path / "out")
    assert done.exit_code == 0, done.output
    (row,) = rows(tmp_path / "out", "messages-with-tools" if protocol == "bash-tool" else "messages")
    *sent, last = map(as_sent, row["messages"])
    assert sent == requests[-1]["messages"]
    assert last["role"] == "assistant" and last["content"] == trajectory.steps[-1].reply.content
    assert row.get("tools") == requests[-1].get("tools")
    learnt = [message["content"] for message in row["messages"] if message["train"]]
    assert learnt == [step.reply.content for step in trajectory.steps if step.format_error is None]
    assert "no" not in learnt and len(learnt) == len(trajectory.steps) - 1
    assert (row["task"], row["seed"], row["reward"], row["model"], row["run"]) == ("list-notes", 0, 1.0, "m", "nightly")
    assert (row["context"], row["contexts"], row["is_whole"]) == (1, 1, True)


async def test_llama_factory_finds_both_files_and_turns_that_it_accepts(endpoint: FaultServer, tmp_path: Path) -> None:
    runs = []
    for name in ("keystrokes-json", "bash-tool"):
        trajectory, _ = await conversation(endpoint, name)
        runs.append(store_run(tmp_path / name, [StoredTrial(trajectory)], name=name))
    done = export(*runs, "-o", tmp_path / "out")
    assert done.output.splitlines() == [f"2 trials, 2 rows with 5 replies to train on written to {tmp_path / 'out'}"]
    info = json.loads((tmp_path / "out" / "dataset_info.json").read_text())
    assert {name: (entry["file_name"], entry["formatting"]) for name, entry in info.items()} == {
        "tbench-messages": ("messages.jsonl", "sharegpt"),
        "tbench-messages-with-tools": ("messages-with-tools.jsonl", "openai"),
    }
    for entry in info.values():
        (row,) = rows(tmp_path / "out", entry["file_name"].removesuffix(".jsonl"))
        tags = entry["tags"]
        roles = [message[tags["role_tag"]] for message in row[entry["columns"]["messages"]]]
        assert roles[0] != "system" or roles.pop(0)
        assert set(roles[::2]) <= {tags["user_tag"], tags["observation_tag"]}
        assert set(roles[1::2]) == {tags["assistant_tag"]} and len(roles) % 2 == 0
    assert isinstance(row["messages"][2]["tool_calls"][0]["function"]["arguments"], dict)
    assert all(isinstance(m["tool_calls"], list) for m in row["messages"] if m["role"] == "assistant")


THOUGHT = {"content": keys("ls\n"), "reasoning_content": "The notes are here."}
TAGGED = f"<think>Done.</think>\n{keys(done=True)}"


@pytest.mark.parametrize(
    ("how", "first", "last"),
    [
        ("keep", {"content": keys("ls\n"), "reasoning_content": "The notes are here."}, {"content": TAGGED}),
        ("inline", {"content": f"<think>\nThe notes are here.\n</think>\n\n{keys(chr(108) + 's' + chr(10))}"}, {}),
        ("drop", {"content": keys("ls\n")}, {"content": keys(done=True)}),
    ],
)
async def test_thinking_is_kept_joined_or_dropped(
    how: str, first: Fields, last: Fields, endpoint: FaultServer, tmp_path: Path
) -> None:
    trajectory, _ = await conversation(endpoint, "keystrokes-json", [THOUGHT, keys(done=True), TAGGED])
    export(store_run(tmp_path / "run", [StoredTrial(trajectory)]), "-o", tmp_path / "out", "--thinking", how)
    (row,) = rows(tmp_path / "out")
    said = [message for message in row["messages"] if message["role"] == "assistant"]
    assert said[0] == {"role": "assistant", **first, "train": True}
    assert said[-1] == {"role": "assistant", **({"content": TAGGED} | last), "train": True}


async def test_reasoning_that_was_sent_back_is_in_the_row_as_it_was_sent(endpoint: FaultServer, tmp_path: Path) -> None:
    script = [THOUGHT, keys(done=True), keys(done=True)]
    trajectory, requests = await conversation(
        endpoint, "keystrokes-json", script, rendering=Rendering(send_reasoning="on")
    )
    export(store_run(tmp_path / "run", [StoredTrial(trajectory)]), "-o", tmp_path / "out")
    (row,) = rows(tmp_path / "out")
    assert [as_sent(message) for message in row["messages"][:-1]] == requests[-1]["messages"]


# -- which trials ----------------------------------------------------------------------------------


REPLAYED = WentOn(at_step=3, how="replayed", differs="step 2: a / b", counts=False)


def flagged(sign: str) -> Fields:
    return {"integrity": {"tamper": (sign,)}}


def many(tmp_path: Path) -> Path:
    trials = [
        StoredTrial(talk("u", "passed"), task="a"),
        StoredTrial(talk("u", "half"), task="b", reward=0.5),
        StoredTrial(talk("u", "failed"), task="c", reward=0.0),
        StoredTrial(talk("u", "no verdict"), task="d", reward=None),
        StoredTrial(talk("u", "tampered"), task="e", fields=flagged("tests-replaced: /tests/test.sh")),
        StoredTrial(talk("u", "touched tests"), task="f", fields=flagged("tests-touched: x")),
        StoredTrial(talk("u", "by hand"), task="g", fields={"human_touched": True}),
        StoredTrial(talk("u", "first try"), task="h", fields={"final": False}),
        StoredTrial(None, task="i"),
        StoredTrial(talk("u", "useless", error="no_json"), task="j"),
        StoredTrial(talk("u", "differed"), task="k", fields={"went_on": (REPLAYED,)}),
    ]
    return store_run(tmp_path / "run", trials)


@pytest.mark.parametrize(
    ("options", "replies"),
    [
        ([], ["passed", "touched tests"]),
        (["--with-flagged", "--with-human"], ["passed", "tampered", "touched tests", "by hand"]),
        (["--only", "all"], ["passed", "half", "failed", "no verdict", "touched tests", "differed"]),
        (["--only", "scored", "--min-reward", "0.5"], ["passed", "half", "touched tests"]),
        (["--only", "failed"], ["half", "failed"]),
        (["-t", "[ab]"], ["passed"]),
    ],
)
def test_passes_without_signs_of_tampering_are_taken_unless_something_else_is_said(
    options: list[str], replies: list[str], tmp_path: Path
) -> None:
    done = export(many(tmp_path), "-o", tmp_path / "out", *options)
    assert done.exit_code == 0, done.output
    assert [row["messages"][-1]["content"] for row in rows(tmp_path / "out")] == replies


def test_what_is_left_out_is_said_with_the_reason(tmp_path: Path) -> None:
    done = export(many(tmp_path), "-o", tmp_path / "out")
    *said, last = done.output.splitlines()
    assert said == [
        "left out: 2 trials not passed",
        "left out: 1 trial without a verdict",
        "left out: 1 trial flagged for tampering",
        "left out: 1 trial in which a person intervened",
        "left out: 1 trial without a trajectory: tbench:keystrokes-json writes none, or never began",
        "left out: 1 trial without a reply to train on",
        "left out: 1 trial whose reward does not count, because a replay after a cut differed",
    ]
    assert last == f"2 trials, 2 rows with 2 replies to train on written to {tmp_path / 'out'}"


def test_a_row_says_how_its_trial_went_on_after_cuts(tmp_path: Path) -> None:
    cuts = (WentOn(at_step=1, how="attached"), WentOn(at_step=2, how="replayed"))
    trials = [StoredTrial(talk("u", "a"), fields={"went_on": cuts}), StoredTrial(talk("u", "b"), seed=1)]
    export(store_run(tmp_path / "run", trials), "-o", tmp_path / "out")
    assert [row["went_on"] for row in rows(tmp_path / "out")] == [["attached", "replayed"], []]


def test_steps_of_a_task_are_rows_of_their_own(tmp_path: Path) -> None:
    parts = {"one": talk("u", "a"), "two": talk("u", "b")}
    export(store_run(tmp_path / "run", [StoredTrial(steps=parts)]), "-o", tmp_path / "out")
    assert [(row["task_step"], row["messages"][-1]["content"]) for row in rows(tmp_path / "out")] == [
        ("one", "a"),
        ("two", "b"),
    ]


def test_a_trial_that_lacks_a_step_of_its_task_is_left_out(tmp_path: Path) -> None:
    steps = tuple(TaskStepResult(name=name, reward=1.0, steps=1) for name in ("one", "two"))
    half = StoredTrial(steps={"one": talk("u", "a")}, fields={"task_steps": steps, "steps": 2})
    run = store_run(tmp_path / "run", [half, StoredTrial(talk("u", "b"), task="whole")])
    assert export(run, "-o", tmp_path / "out").output.startswith("left out: 1 trial with a trajectory.json missing\n")
    assert [row["task"] for row in rows(tmp_path / "out")] == ["whole"]


def test_user_messages_in_a_row_become_one_and_what_follows_the_last_reply_goes(tmp_path: Path) -> None:
    messages = tuple(
        Message(role=role, content=text)  # type: ignore[arg-type]
        for role, text in [("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d")]
    )
    own = talk("u", "c").model_copy(update={"protocol": "mine:Agent", "messages": messages})
    export(store_run(tmp_path / "run", [StoredTrial(own)]), "-o", tmp_path / "out")
    (row,) = rows(tmp_path / "out")
    assert [(m["role"], m["content"], m["train"]) for m in row["messages"]] == [
        ("user", "a\n\nb", False),
        ("assistant", "c", True),
    ]


def test_text_that_steers_a_terminal_stays_within_its_line(tmp_path: Path) -> None:
    run = store_run(tmp_path / "run", [StoredTrial(talk("u\x1b[31m\u2028", "x"))])
    export(run, "-o", tmp_path / "out")
    raw = (tmp_path / "out" / "messages.jsonl").read_text()
    assert "\x1b" not in raw and "\u2028" not in raw
    assert rows(tmp_path / "out")[0]["messages"][0]["content"] == "u\x1b[31m\u2028"


async def test_functions_that_are_not_known_any_more_are_said(endpoint: FaultServer, tmp_path: Path) -> None:
    trajectory, _ = await conversation(endpoint, "bash-tool")
    done = export(store_run(tmp_path / "run", [StoredTrial(trajectory)], prompt_hash="other"), "-o", tmp_path / "out")
    assert "note: the definitions of called functions are unknown for 1 trial" in done.output
    (row,) = rows(tmp_path / "out", "messages-with-tools")
    assert "tools" not in row


# -- what cannot be done ----------------------------------------------------------------------------


def going_on(tmp_path: Path) -> Path:
    run = store_run(tmp_path / "run", [StoredTrial(talk("u", "a"))])
    document = json.loads((run / "run.json").read_text()) | {"status": "running"}
    (run / "run.json").write_text(json.dumps(document))
    return run


def test_of_a_run_that_goes_on_what_is_finished_is_taken(tmp_path: Path) -> None:
    run = going_on(tmp_path)
    done = export(run, "-o", tmp_path / "out")
    assert done.output.splitlines()[0] == f"note: {run}: not finished; trials without a result are not exported"
    assert len(rows(tmp_path / "out")) == 1


def imported(tmp_path: Path) -> Path:
    (tmp_path / "import.jsonl").write_text('{"task": "a", "seed": 0, "reward": 1}\n')
    return tmp_path / "import.jsonl"


def without_files(tmp_path: Path) -> Path:
    run = store_run(tmp_path / "run", [StoredTrial(talk("u", "a"))])
    for path in (run / "trials" / "list-notes" / "seed-0").rglob("trajectory.json"):
        path.unlink()
    return run


def cut(tmp_path: Path) -> Path:
    run = store_run(tmp_path / "run", [StoredTrial(talk("u", "a"))])
    file = run / "trials" / "list-notes" / "seed-0" / "trajectory.json"
    file.write_bytes(file.read_bytes()[:100])
    return run


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (imported, "nothing to export: left out: 1 trial without a trajectory: only results were imported"),
        (without_files, "nothing to export: left out: 1 trial with a trajectory.json missing"),
        (cut, "trajectory.json: file: Invalid JSON: "),
        (lambda tmp_path: tmp_path / "nowhere", "no such run directory; check the path"),
    ],
)
def test_what_cannot_be_exported_is_said_in_one_line_and_leaves_nothing(
    make: Callable[[Path], Path], said: str, tmp_path: Path
) -> None:
    run = make(tmp_path)
    done = export(run, "-o", tmp_path / "out")
    assert done.exit_code != 0
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)
    assert [path for path in tmp_path.iterdir() if "out" in path.name] == []


def test_a_cut_trajectory_costs_its_own_trial(tmp_path: Path) -> None:
    run = store_run(tmp_path / "run", [StoredTrial(talk("u", "a")), StoredTrial(talk("u", "b"), seed=1)])
    file = run / "trials" / "list-notes" / "seed-0" / "trajectory.json"
    file.write_bytes(file.read_bytes()[:100])
    done = export(run, "-o", tmp_path / "out")
    assert done.exit_code == 0
    assert done.output.startswith(f"left out: {file}: file: Invalid JSON")
    assert [row["seed"] for row in rows(tmp_path / "out")] == [1]


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").write_text("")
    done = export(store_run(tmp_path / "run", [StoredTrial(talk("u", "a"))]), "-o", tmp_path / "out")
    assert "out: not empty; name a new directory with --output (nothing is overwritten)" in str(done.exception)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


def test_several_runs_need_an_output_and_names_of_their_own(tmp_path: Path) -> None:
    one = store_run(tmp_path / "one", [StoredTrial(talk("u", "a"))])
    two = store_run(tmp_path / "two", [StoredTrial(talk("u", "a"))])
    assert "several runs need a new directory" in str(export(one, two).exception)
    assert "two: has the same name as" in str(export(one, two, "-o", tmp_path / "out").exception)


def test_without_an_output_the_files_go_beside_the_run(tmp_path: Path) -> None:
    run = store_run(tmp_path / "one", [StoredTrial(talk("u", "a"))])
    assert export(run).exit_code == 0
    assert len(rows(tmp_path / "one-sft")) == 1


async def test_a_call_of_an_agent_of_ones_own_stays_as_it_was_sent(endpoint: FaultServer, tmp_path: Path) -> None:
    trajectory, _ = await conversation(endpoint, "bash-tool", [called("ls"), called("ls", number=2)], steps=1)
    own = trajectory.model_copy(update={"protocol": "mine:Agent"})
    export(store_run(tmp_path / "run", [StoredTrial(own)]), "-o", tmp_path / "out")
    (row,) = rows(tmp_path / "out", "messages-with-tools")
    assert row["messages"][-1]["tool_calls"][0]["function"]["arguments"] == '{"command": "ls"}'


def test_each_conversation_of_an_agent_with_a_loop_of_its_own_is_a_row_with_its_own_replies(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
    call = ToolCall(id="c", name="bash", arguments='{"command": "ls"}')
    steps = tuple(
        Step(index=index, reply=Reply(content=text, tool_calls=calls))
        for index, text, calls in [
            (1, "", (call,)),
            (2, "Title", ()),
            (3, "Notes", ()),
            (4, "", (call,)),
            (5, "Done", ()),
        ]
    )
    said = Message(role="assistant", content="", tool_calls=(call,))
    ask, saw = Message(role="user", content="Do it."), Message(role="tool", content="files", tool_call_id="c")

    def says(text: str) -> Message:
        return Message(role="assistant", content=text)

    def asks(text: str) -> Message:
        return Message(role="user", content=text)

    trajectory = Trajectory(
        protocol="some-agent@1.0",
        messages=(asks("Go on from: Notes"), said, saw, says("Done")),
        branches=(
            Branch(replies=(1,), has_tools=True, messages=(ask, said)),
            Branch(replies=(2,), has_tools=False, messages=(asks("A title?"), says("Title"))),
            Branch(replies=(3,), has_tools=True, kept=0, messages=(ask, said, saw, asks("Summarise."), says("Notes"))),
        ),
        tools=(tool,),
        steps=steps,
        outcome=Outcome.FINISHED,
    )
    export(store_run(tmp_path / "run", [StoredTrial(trajectory)]), "-o", tmp_path / "out")
    acting, title = rows(tmp_path / "out", "messages-with-tools"), rows(tmp_path / "out")
    learnt = [[m["content"] or "call" for m in row["messages"] if m["train"]] for row in acting]
    assert learnt == [["call"], ["Notes"], ["call", "Done"]]
    assert all(row["tools"] == [tool] and row["is_whole"] for row in acting)
    assert [[m["content"] for m in row["messages"] if m["train"]] for row in title] == [["Title"]]
    assert "tools" not in title[0]
    assert [row["context"] for row in acting] == [1, 3, 4]
