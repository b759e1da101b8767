"""replay build from trials: trajectories as written by the agent, and ATIF."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from harness.agent import Agent, Limits
from harness.fakes import FakeTerminal, ScriptedModel
from harness.protocols import PROTOCOLS, load_protocol
from harness.trajectory import Compaction, Trajectory
from tbench.errors import UsageError
from tbench.proxies.datasets.build import BuildReport, build
from tbench.results import Integrity, TrialResult
from tbench.storage.run_files import trial_directory
from tbench.storage.run_store import write_files, write_trial

HARBOR = Path(__file__).parents[4] / "shared" / "data" / "harbor-trials"
TIME = datetime(2026, 1, 1, tzinfo=UTC)
LS = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\\n", "duration": 0.1}]}'
PWD = LS.replace("ls", "pwd")
CLAIM = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'
HALF = '{"analysis": "a", "commands": [{"keystrokes": "rm x\\n"}]}'
"""JSON with a command that the protocol rejects, so that nothing is typed."""


async def trajectory(*replies: str, protocol: str = "keystrokes-json") -> Trajectory:
    spoken = load_protocol(protocol, None, 10_000)
    agent = Agent(ScriptedModel(replies), FakeTerminal(), spoken, Limits(steps=len(replies)))
    return await agent.run("Make the tests pass.")


def trial(task: str, reward: float | None, seed: int = 0, **more: Any) -> TrialResult:
    known = {"run": "nightly", "trial": f"{task}-{seed}", "agent": "a", "started_at": TIME, "finished_at": TIME}
    return TrialResult(task=task, seed=seed, reward=reward, **(known | more))


def store(tmp_path: Path, result: TrialResult, recorded: Trajectory | None) -> None:
    directory = trial_directory(tmp_path / "nightly", result.task, result.seed, result.attempt)
    write_trial(directory, result, recorded, {})


def made(tmp_path: Path, *inputs: Path, **options: Any) -> tuple[BuildReport, list[dict[str, Any]]]:
    built = build(inputs or [tmp_path / "nightly"], tmp_path / "out.jsonl", **options)
    return built, [json.loads(line) for line in built.path.read_text(encoding="utf-8").splitlines()]


# -- our own ---------------------------------------------------------------------------------------


async def test_of_a_conversation_that_goes_on_only_the_new_replies_are_steps(tmp_path: Path) -> None:
    spoken, script = load_protocol("keystrokes-json", None, 10_000), ScriptedModel((LS, CLAIM, CLAIM, PWD))
    before = Agent(script, FakeTerminal(), spoken, Limits(steps=3))
    await before.run("Make the tests pass.")
    recorded = await Agent(script, FakeTerminal(), spoken, Limits(steps=1), earlier=before).run("Now write them.")
    store(tmp_path, trial("fix-git", 1.0), recorded)
    built, records = made(tmp_path)
    assert [record["ref_raw"] for record in records] == [PWD]
    shown = [{"role": message.role, "content": message.content} for message in recorded.messages]
    assert records[0]["messages"] == shown[: recorded.inherited]
    assert built.dropped["earlier_step"] == 3


async def test_a_passed_trial_becomes_steps_with_what_the_model_was_shown(tmp_path: Path) -> None:
    recorded = await trajectory(LS, PWD, CLAIM, CLAIM)
    store(tmp_path, trial("fix-git", 1.0), recorded)
    store(tmp_path, trial("hello", 0.0), recorded)
    built, records = made(tmp_path)
    assert [record["step_idx"] for record in records] == [0, 1]
    assert [record["ref_raw"] for record in records] == [LS, PWD]
    shown = [{"role": message.role, "content": message.content} for message in recorded.messages]
    assert records[1]["messages"] == shown[:3]
    assert records[0]["total_steps"] == 4
    assert {record["source"] for record in records} == {"nightly/seed-0/fix-git"}
    assert {record["source_group"] for record in records} == {"fix-git"}
    assert len(built.filtered) == 1 and "did not pass" in built.filtered[0]
    assert built.dropped == {"reference_without_commands": 2}


async def test_only_all_takes_failed_trials_and_keeps_the_ids(tmp_path: Path) -> None:
    recorded = await trajectory(LS)
    for task, reward in (("a", 0.0), ("b", 1.0), ("c", None)):
        store(tmp_path, trial(task, reward), recorded)
    _, everything = made(tmp_path, only="all")
    assert [(record["task_id"], record["source_group"]) for record in everything] == [
        ("task-000", "a"), ("task-001", "b"), ("task-002", "c")
    ]  # fmt: skip
    built = build([tmp_path / "nightly"], tmp_path / "passed.jsonl")
    (record,) = map(json.loads, built.path.read_text().splitlines())
    assert record["task_id"] == "task-001"


async def test_of_several_attempts_the_last_final_one_counts(tmp_path: Path) -> None:
    store(tmp_path, trial("a", None, final=False), await trajectory(LS))
    store(tmp_path, trial("a", 1.0, attempt=2), await trajectory(PWD))
    (tmp_path / "nightly/trials/a/seed-0/attempt-3").mkdir()
    (tmp_path / "nightly/trials/a/seed-0/attempt-3/trajectory.json").write_text("{")
    built, records = made(tmp_path)
    assert [record["ref_raw"] for record in records] == [PWD]
    assert records[0]["source"] == "nightly/seed-0/a"
    assert (built.problems, built.filtered) == ([], [])


async def test_each_step_of_a_task_is_a_conversation_of_the_last_attempt(tmp_path: Path) -> None:
    for attempt, commands in ((1, (LS, LS)), (2, (LS, PWD))):
        result = trial("a", 1.0, attempt=attempt, final=attempt == 2)
        directory = trial_directory(tmp_path / "nightly", "a", 0, attempt)
        for name, command in zip(("one", "two"), commands, strict=True):
            write_files(directory / "steps" / name, await trajectory(command), {})
        store(tmp_path, result, None)
    built, records = made(tmp_path)
    assert [(record["ref_raw"], record["source"]) for record in records] == [
        (LS, "nightly/seed-0/a"), (PWD, "nightly/seed-0/a")
    ]  # fmt: skip
    assert (built.problems, built.filtered) == ([], [])


async def test_a_reply_that_was_refused_is_history_and_no_reference(tmp_path: Path) -> None:
    store(tmp_path, trial("a", 1.0), await trajectory(HALF, LS))
    built, (record,) = made(tmp_path)
    assert record["step_idx"] == 1 and record["messages"][1]["content"] == HALF
    assert built.dropped == {"format_error": 1}


@pytest.mark.parametrize("protocol", sorted(set(PROTOCOLS) - {"keystrokes-json"}))
async def test_other_protocols_are_refused_because_their_prompt_asks_for_something_else(
    tmp_path: Path, protocol: str
) -> None:
    store(tmp_path, trial("a", 1.0), await trajectory(LS, protocol=protocol))
    with pytest.raises(UsageError, match=f"protocol {protocol}: its replies are not the JSON"):
        made(tmp_path)


async def test_a_compacted_history_is_used_up_to_the_compaction(tmp_path: Path) -> None:
    recorded = await trajectory(LS, PWD, LS)
    done = Compaction(
        step=2, policy="drop-oldest-outputs", messages_before=3, messages_after=3, tokens_before=9, tokens_after=5
    )
    shorter = recorded.messages[:2] + recorded.messages[3:]
    store(tmp_path, trial("a", 1.0), recorded.model_copy(update={"compactions": (done,), "messages": shorter}))
    built, records = made(tmp_path)
    assert [(record["step_idx"], record["total_steps"]) for record in records] == [(0, 3)]
    assert "used up to step 2: the context was full" in built.notes[0]


async def test_messages_that_differ_from_the_steps_are_refused(tmp_path: Path) -> None:
    recorded = await trajectory(LS, PWD)
    store(tmp_path, trial("a", 1.0), recorded.model_copy(update={"messages": recorded.messages[:-1]}))
    with pytest.raises(UsageError, match="messages and steps are different conversations"):
        made(tmp_path)


async def test_signs_of_tampering_are_noted(tmp_path: Path) -> None:
    store(tmp_path, trial("a", 1.0, integrity=Integrity(tamper=("tests: written",))), await trajectory(LS))
    assert "signs of tampering" in made(tmp_path)[0].notes[0]


async def test_a_trajectory_of_another_version_or_with_unknown_fields_is_refused(tmp_path: Path) -> None:
    recorded = json.loads((await trajectory(LS)).model_dump_json())
    for name, change in (("new", {"schema_version": 99}), ("odd", {"surprise": 1})):
        (tmp_path / f"{name}.json").write_text(json.dumps(recorded | change))
    with pytest.raises(UsageError, match=r"2 conversations unusable.*another version of tbench"):
        made(tmp_path, tmp_path / "new.json", tmp_path / "odd.json", only="all")


# -- ATIF ------------------------------------------------------------------------------------------


def atif(*steps: dict[str, Any], **agent: Any) -> dict[str, Any]:
    """As Terminus-2 writes it: its prompt, then `steps`."""
    first = {"source": "user", "message": 'Answer in JSON: "commands": [{"keystrokes": …'}
    known = {"name": "terminus-2", "version": "2.0.0", "extra": {"parser": "json"}}
    numbered = [{"step_id": number, **step} for number, step in enumerate((first, *steps), start=1)]
    return {"schema_version": "ATIF-v1.5", "session_id": "s", "agent": known | agent, "steps": numbered}


def acted(*keystrokes: str, text: str = "Analysis: a\nPlan: p", shown: str = "$ ", **more: Any) -> dict[str, Any]:
    calls = [
        {"tool_call_id": f"c{at}", "function_name": "bash_command", "arguments": {"keystrokes": keys, "duration": 0.1}}
        for at, keys in enumerate(keystrokes)
    ]
    observation = {"results": [{"content": shown}]}
    return {"source": "agent", "message": text, "tool_calls": calls or None, "observation": observation, **more}


def raw(text: str, shown: str = "$ ", **more: Any) -> dict[str, Any]:
    return acted(text=text, shown=shown, **more)


def from_atif(tmp_path: Path, root: dict[str, Any], **options: Any) -> tuple[BuildReport, list[dict[str, Any]]]:
    directory = tmp_path / "job" / "fix-git__aB3" / "agent"
    directory.mkdir(parents=True)
    (directory / "trajectory.json").write_text(json.dumps(root))
    result = {"task_name": "fix-git", "source": "terminal-bench", "verifier_result": {"rewards": {"reward": 1.0}}}
    (directory.parent / "result.json").write_text(json.dumps(result))
    return made(tmp_path, tmp_path / "job", **options)


def test_raw_replies_are_taken_as_they_are(tmp_path: Path) -> None:
    built, records = from_atif(tmp_path, atif(raw(f"<think>x</think>{LS}", "file"), raw(PWD)))
    assert [record["ref_raw"] for record in records] == [f"<think>x</think>{LS}", PWD]
    assert records[1]["messages"][2] == {"role": "user", "content": "file"}
    assert records[0]["source"] == "terminal-bench/fix-git"
    assert built.rebuilt == 0


def test_parsed_replies_are_put_together_as_the_json_that_the_prompt_asks_for(tmp_path: Path) -> None:
    complete = {"tool_call_id": "t", "function_name": "mark_task_complete", "arguments": {}}
    last = acted("make\n", text="Plan: only")
    last["tool_calls"].append(complete)
    built, (first, second) = from_atif(tmp_path, atif(acted("ls\n", ""), last))
    assert json.loads(first["ref_raw"]) == {
        "analysis": "a",
        "plan": "p",
        "commands": [{"keystrokes": "ls\n", "duration": 0.1}, {"keystrokes": "", "duration": 0.1}],
        "task_complete": False,
    }
    assert first["ref_command_units"] == ["ls", "<WAIT>"]
    assert (second["ref_analysis"], second["ref_plan"], second["ref_task_complete"]) == ("", "only", True)
    assert built.rebuilt == json.loads(built.manifest_path.read_text())["rebuilt_replies"] == 2


@pytest.mark.parametrize(
    ("step", "reason"),
    [
        (acted("x\n", text="Analysis: a\nPlan: b\nPlan: c"), "it is ambiguous where"),
        (acted("x\n", text="Hello"), "neither a reply nor"),
        (acted(shown="Previous response had parsing errors:\nERROR: no"), "is not recorded"),
        (
            {**acted("x\n"), "tool_calls": [{"function_name": "edit", "arguments": {}}]},
            "is not a command of Terminus-2",
        ),
        ({**acted("x\n"), "tool_calls": 5}, "is not a command of Terminus-2"),
        ({**acted("x\n"), "observation": {"results": [{"content": "a"}, {"content": "b"}]}}, "several observations"),
        ({**acted("x\n"), "observation": {"results": [{"content": [{"type": "image"}]}]}}, "not text"),
        ({"source": "user", "message": [{"type": "image"}]}, "not text"),
        (
            {"source": "system", "message": "m", "observation": {"results": [{"subagent_trajectory_ref": [{}]}]}},
            "the context was summarised",
        ),
        ({"source": ["agent"], "message": "m"}, "unknown source"),
    ],
)
def test_an_ambiguous_step_ends_the_conversation(tmp_path: Path, step: dict[str, Any], reason: str) -> None:
    built, (record,) = from_atif(tmp_path, atif(acted("ls\n"), step, acted("pwd\n")))
    assert record["ref_command_units"] == ["ls"] and not record["is_final_step"]
    assert "used up to step 3: " in built.notes[0] and reason in built.notes[0]


def test_copied_context_is_history_only(tmp_path: Path) -> None:
    built, (record,) = from_atif(tmp_path, atif(raw(LS, is_copied_context=True, observation=None), raw(PWD)))
    assert (record["step_idx"], record["messages"][1]["content"]) == (1, LS)
    assert built.dropped == {"copied_context": 1}


def test_a_raw_reply_with_a_parsing_error_is_no_reference(tmp_path: Path) -> None:
    shown = "Previous response had parsing errors:\nERROR: no plan"
    built, (record,) = from_atif(tmp_path, atif(raw(HALF, shown), raw(LS)))
    assert record["step_idx"] == 1 and built.dropped == {"format_error": 1}


@pytest.mark.parametrize(
    ("agent", "reason"),
    [
        ({"name": "claude-code", "extra": None}, "'claude-code' acts by tool calls"),
        ({"extra": {"parser": "xml"}}, "replies in 'xml'"),
    ],
)
def test_agents_that_were_not_asked_for_json_are_refused(tmp_path: Path, agent: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        from_atif(tmp_path, atif(acted("ls\n"), **agent))


def test_a_trial_without_a_verdict_is_not_taken_for_passed(tmp_path: Path) -> None:
    (tmp_path / "trajectory.json").write_text(json.dumps(atif(raw(LS))))
    with pytest.raises(UsageError, match=r"--only all also takes.*no result\.json with a reward"):
        made(tmp_path, tmp_path / "trajectory.json")
    assert len(made(tmp_path, tmp_path / "trajectory.json", only="all")[1]) == 1


@pytest.mark.skipif(not HARBOR.is_dir(), reason="the sample trials are not here")
def test_real_trials_of_a_tool_calling_agent_are_refused_one_by_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"6 conversations unusable.*replies are tool calls"):
        made(tmp_path, HARBOR, only="all")
