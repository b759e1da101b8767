"""Texts of replies apart from their actions, in the formats of all protocols."""

from __future__ import annotations

import json

from harness.trajectory import Reply, Step
from reports.trial.steps import ReplyPart, reply_texts


def a_step(content: str, *actions: str, reasoning: str | None = None, format_error: str | None = None) -> Step:
    reply = Reply(content=content, reasoning=reasoning)
    return Step(index=1, reply=reply, actions=actions, format_error=format_error)


def test_the_texts_of_a_json_object_are_parts() -> None:
    content = {"analysis": "All is there.", "plan": "Look.", "commands": [{"keystrokes": "ls\n"}]}
    parts = reply_texts(a_step(f"```json\n{json.dumps(content)}\n```", "ls\n")).parts
    assert parts == (ReplyPart("analysis", "All is there."), ReplyPart("plan", "Look."))


def test_the_texts_between_tags_are_parts() -> None:
    content = "<response><analysis>a</analysis><commands><keystrokes>ls\n</keystrokes></commands></response>"
    assert reply_texts(a_step(content, "ls\n")).parts == (ReplyPart("analysis", "a"),)


def test_executed_blocks_are_dropped_and_others_kept() -> None:
    content = "THOUGHT: look\n\n```bash\nls\n```\n\n```python\nx\n```"
    assert reply_texts(a_step(content, "ls")).parts == (ReplyPart("", "THOUGHT: look\n\n\n\n```python\nx\n```"),)
    assert reply_texts(a_step("ls", "ls")).parts == ()


def test_thinking_is_reasoning_wherever_it_stands() -> None:
    assert reply_texts(a_step("<think>hm</think>done", reasoning="first")).reasoning == "first\n\nhm"
    assert reply_texts(a_step("begun by the prompt</think>done")).reasoning == "begun by the prompt"
    assert reply_texts(a_step("<think>never ends")).parts == ()


def test_a_reply_that_could_not_be_parsed_is_kept_whole() -> None:
    content = '{"analysis": "a", "commands": 1}'
    assert reply_texts(a_step(content, format_error="invalid_json")).parts == (ReplyPart("", content),)
    assert reply_texts(a_step('{"analysis": "a')).parts == (ReplyPart("", '{"analysis": "a'),)
