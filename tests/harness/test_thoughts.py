"""Texts of replies apart from their actions, in the formats of all protocols."""

from __future__ import annotations

import json

import pytest

from harness.thoughts import ReplyPart, step_texts
from harness.trajectory import Reply, Step


def a_step(content: str, *actions: str, reasoning: str | None = None, format_error: str | None = None) -> Step:
    reply = Reply(content=content, reasoning=reasoning)
    return Step(index=1, reply=reply, actions=actions, format_error=format_error)


def test_the_texts_of_a_json_object_are_parts() -> None:
    content = {"analysis": "All is there.", "plan": "Look.", "commands": [{"keystrokes": "ls\n"}]}
    parts = step_texts(a_step(f"```json\n{json.dumps(content)}\n```", "ls\n")).parts
    assert parts == (ReplyPart("analysis", "All is there."), ReplyPart("plan", "Look."))


def test_the_texts_between_tags_are_parts() -> None:
    content = "<response><analysis>a</analysis><commands><keystrokes>ls\n</keystrokes></commands></response>"
    assert step_texts(a_step(content, "ls\n")).parts == (ReplyPart("analysis", "a"),)


def test_executed_blocks_are_dropped_and_others_kept() -> None:
    content = "THOUGHT: look\n\n```bash\nls\n```\n\n```python\nx\n```"
    assert step_texts(a_step(content, "ls")).parts == (ReplyPart("", "THOUGHT: look\n\n\n```python\nx\n```"),)
    assert step_texts(a_step("ls", "ls")).parts == ()


def test_thinking_is_reasoning_wherever_it_stands() -> None:
    assert step_texts(a_step("<think>hm</think>done", reasoning="first")).reasoning == "first\n\nhm"
    assert step_texts(a_step("begun by the prompt</think>done")).reasoning == "begun by the prompt"
    assert step_texts(a_step("<think>never ends")).parts == ()


def test_a_reply_that_could_not_be_parsed_is_kept_whole() -> None:
    content = '{"analysis": "a", "commands": 1}'
    assert step_texts(a_step(content, format_error="invalid_json")).parts == (ReplyPart("", content),)
    assert step_texts(a_step('{"analysis": "a')).parts == (ReplyPart("", '{"analysis": "a'),)


@pytest.mark.parametrize(
    ("content", "action", "thoughts"),
    [
        ('{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\\n"}]}', "ls\n", ("analysis: a", "plan: p")),
        (
            "<response><analysis>a</analysis><commands><keystrokes>ls</keystrokes></commands></response>",
            "ls",
            ("analysis: a",),
        ),
        ("THOUGHT: look\n```bash\nls\n```", "ls", ("THOUGHT: look",)),
        ("I look.", "ls", ("I look.",)),
        ("<thinking>I look.</thinking>\n```bash\nls\n```", "ls", ("I look.",)),
    ],
    ids=["keystrokes-json", "keystrokes-xml", "bash-block", "bash-tool", "thinking-bash"],
)
def test_each_protocol_s_thoughts_are_shown_without_its_actions(
    content: str, action: str, thoughts: tuple[str, ...]
) -> None:
    assert step_texts(a_step(content, action)).thoughts == thoughts
    assert "\n\n".join(step_texts(a_step(content, action, reasoning="hm")).thoughts) == "\n\n".join(("hm", *thoughts))


@pytest.mark.parametrize(
    "content",
    ["I look.\n  ls -l\n", '{"thought": "I look.", "run": "ls -l"}', "<why>I look.</why><do>ls -l</do>"],
)
def test_of_a_format_nobody_knows_the_text_outside_of_the_actions_is_shown(content: str) -> None:
    assert step_texts(a_step(content, "ls -l")).parts[0].text == "I look."
    assert not any("ls -l" in thought for thought in step_texts(a_step(content, "ls -l")).thoughts)


@pytest.mark.parametrize("piece", ["<a>", "<a></b>", "```x\n", "<keystrokes", "<commands>", "</response><a>", '{"'])
def test_a_hostile_reply_of_a_megabyte_does_not_hang(piece: str) -> None:
    content = "</response>" + piece * (1_000_000 // len(piece))
    assert sum(map(len, step_texts(a_step(content, "ls")).thoughts)) <= len(content)
