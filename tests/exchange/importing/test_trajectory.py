"""Conversion of trajectories of Harbor's agents to steps: ATIF, lists of chat messages, and other files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from harbor_jobs import atif, did, said, write

from harness.trajectory import Trajectory
from tbench.exchange.importing.foreign_files import UnusableFile
from tbench.exchange.importing.harbor.trajectory import is_submission, read_trajectory


def read(folder: Path, content: Any) -> Trajectory:
    write(folder / "trajectory.json", content)
    found = read_trajectory(folder, "an-agent")
    assert found is not None
    return found


def complaint(folder: Path, content: Any) -> str:
    with pytest.raises(UnusableFile) as caught:
        read(folder, content)
    return str(caught.value)


def test_an_agents_steps_are_replies_with_what_was_typed_and_shown(tmp_path: Path) -> None:
    metrics = {"prompt_tokens": 50, "completion_tokens": 5, "cached_tokens": None}
    more = {"reasoning_content": "hm", "model_name": "openai/m", "metrics": metrics}
    found = read(tmp_path, atif(said("Do it."), did("Plan: look", "ls\n", "pwd\n", shown="a.txt", **more)))
    (step,) = found.steps
    assert (step.index, step.actions, step.observation) == (1, ("ls\n", "pwd\n"), "a.txt")
    assert (step.reply.content, step.reply.reasoning, step.reply.model) == ("Plan: look", "hm", "openai/m")
    assert (step.reply.usage.prompt_tokens, found.usage.completion_tokens) == (50, 5)
    assert [message.role for message in found.messages] == ["user", "assistant", "user"]
    assert not is_submission(step)


def test_what_atif_has_no_place_for_is_taken_from_where_an_export_put_it(tmp_path: Path) -> None:
    aside = {"metrics": {"extra": {"model_sec": 1.5}}, "extra": {"command_sec": 2, "exit_code": 1}}
    found = read(tmp_path, atif(did("", "ls\n", shown="", **aside), did("", extra={"command_sec": "x"})))
    assert [(step.model_sec, step.command_sec, step.exit_code) for step in found.steps] == [(1.5, 2, 1), (0, 0, None)]
    assert (found.model_sec, found.command_sec) == (1.5, 2)


def test_a_reply_that_could_not_be_read_is_a_format_error(tmp_path: Path) -> None:
    wrong = did("no json", shown="Previous response had parsing errors:\nERROR: no JSON")
    found = read(tmp_path, atif(said("Do it."), wrong, did("", done=True, shown="")))
    assert [step.format_error for step in found.steps] == ["unreadable_reply", None]
    assert found.warnings == {"format_error:unreadable_reply": 1}
    assert is_submission(found.steps[-1])


def test_a_continued_trajectory_is_read_to_its_end_without_copies(tmp_path: Path) -> None:
    write(
        tmp_path / "trajectory.cont-1.json",
        atif(said("Do it."), did("1", "a\n", is_copied_context=True), said("Go on."), did("2", "b\n")),
    )
    found = read(tmp_path, atif(did("1", "a\n", shown="x"), continued_trajectory_ref="trajectory.cont-1.json"))
    assert [step.actions for step in found.steps] == [("a\n",), ("b\n",)]
    assert "continues in 'gone.json', which is missing" in complaint(
        tmp_path, atif(did("1"), continued_trajectory_ref="gone.json")
    )
    endless = atif(did("1"), continued_trajectory_ref="trajectory.json")
    assert len(read(tmp_path, endless).steps) == 2
    assert len(read(tmp_path, atif(did("1"), continued_trajectory_ref="../x.json")).steps) == 1


def chat(*calls: str, call_id: str = "c1") -> dict[str, Any]:
    made = [
        {"id": f"c{n}", "function": {"name": "bash", "arguments": f'{{"command": "{call}"}}'}}
        for n, call in enumerate(calls, start=1)
    ]
    return {"role": "assistant", "content": "", "tool_calls": made}


def answer(text: str, call_id: str = "c1") -> dict[str, str]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def test_a_list_of_chat_messages_is_a_trajectory_too(tmp_path: Path) -> None:
    start = [{"role": "system", "content": "You are."}, {"role": "user", "content": "Do it."}]
    talk = {"role": "assistant", "content": "I think."}
    again = {"role": "user", "content": "Call the tool."}
    end = [chat("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"), answer("")]
    messages = [*start, chat("ls", "pwd"), answer("a.txt"), talk, again, *end]
    found = read(tmp_path, messages)
    assert [step.actions for step in found.steps] == [("ls",), (), ("echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT",)]
    assert [step.format_error for step in found.steps] == [None, "no_tool_call", None]
    assert found.warnings == {"calls_not_run": 1, "format_error:no_tool_call": 1}
    assert [message.role for message in found.messages] == [
        *("system", "user", "assistant", "tool", "assistant", "user", "assistant", "tool")
    ]
    assert is_submission(found.steps[-1])
    assert len(read(tmp_path, {"info": {}, "messages": messages}).steps) == 3


def test_a_last_command_without_an_answer_was_typed(tmp_path: Path) -> None:
    found = read(tmp_path, [{"role": "user", "content": "Do it."}, chat("sleep 900")])
    assert found.steps[0].actions == ("sleep 900",)


def test_parts_and_half_characters_are_text(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "see"}, {"type": "image", "source": {"path": "x.png"}}]
    step = {"source": "agent", "message": parts, "observation": {"results": [{"content": None}, {"content": "b"}]}}
    found = read(tmp_path, atif(step))
    assert (found.steps[0].reply.content, found.steps[0].observation) == ("see\n[image]", "b")
    halved = read(tmp_path, '[{"role": "assistant", "content": "a\\ud83d"}]')
    assert halved.steps[0].reply.content == "a?"
    assert "a?" in halved.model_dump_json()


def test_what_is_no_trajectory_is_reported(tmp_path: Path) -> None:
    assert read_trajectory(tmp_path, "x") is None
    assert "is neither ATIF nor a list of chat messages" in complaint(tmp_path, {"steps": 3})
    assert "has a message that is not an object" in complaint(tmp_path, ["x"])
    assert "is not valid JSON or is incomplete" in complaint(tmp_path, '{"steps": [')
    assert "is not valid JSON or is incomplete" in complaint(tmp_path, "[" * 200_000)
    assert "is empty" in complaint(tmp_path, "")
    (tmp_path / "trajectory.json").unlink()
    (tmp_path / "trajectory.json").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnusableFile, match="is a link"):
        read_trajectory(tmp_path, "x")
