"""What replies say beside their actions, in the forms of all protocols."""

from __future__ import annotations

import json

from harness.trajectory import Reply, Step
from reports.trial.steps import Said, words_of


def a_step(content: str, *actions: str, reasoning: str | None = None, format_error: str | None = None) -> Step:
    reply = Reply(content=content, reasoning=reasoning)
    return Step(index=1, reply=reply, actions=actions, format_error=format_error)


def test_the_texts_of_a_json_object_are_said() -> None:
    content = {"analysis": "All is there.", "plan": "Look.", "commands": [{"keystrokes": "ls\n"}]}
    said = words_of(a_step(f"```json\n{json.dumps(content)}\n```", "ls\n")).parts
    assert said == (Said("analysis", "All is there."), Said("plan", "Look."))


def test_the_texts_between_tags_are_said() -> None:
    content = "<response><analysis>a</analysis><commands><keystrokes>ls\n</keystrokes></commands></response>"
    assert words_of(a_step(content, "ls\n")).parts == (Said("analysis", "a"),)


def test_a_block_that_was_executed_is_not_said_again_and_others_are() -> None:
    content = "THOUGHT: look\n\n```bash\nls\n```\n\n```python\nx\n```"
    assert words_of(a_step(content, "ls")).parts == (Said("", "THOUGHT: look\n\n\n\n```python\nx\n```"),)
    assert words_of(a_step("ls", "ls")).parts == ()


def test_thinking_is_reasoning_wherever_it_stands() -> None:
    assert words_of(a_step("<think>hm</think>done", reasoning="first")).reasoning == "first\n\nhm"
    assert words_of(a_step("begun by the prompt</think>done")).reasoning == "begun by the prompt"
    assert words_of(a_step("<think>never ends")).parts == ()


def test_a_reply_that_could_not_be_used_is_said_whole() -> None:
    content = '{"analysis": "a", "commands": 1}'
    assert words_of(a_step(content, format_error="invalid_json")).parts == (Said("", content),)
    assert words_of(a_step('{"analysis": "a')).parts == (Said("", '{"analysis": "a'),)
