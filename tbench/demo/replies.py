"""Writes a step as a reply, in the action protocol that a conversation's first messages ask for."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from typing import NamedTuple

from tbench.demo.scripts import ChatTurns, ScriptStep

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
BASH_TOOL = "bash"
"""The function that is called where a request offers it."""
TERMINAL_CONTROLLER = "You are a local OS Terminal Controller Agent"
"""The start of a first message that asks for `<thinking>` and a bash block."""

_KEY_NAMES = "Enter|Escape|Tab|BTab|BSpace|Space|Up|Down|Left|Right|Home|End|DC|IC|NPage|PPage|PageUp|PageDown|F[0-9]+"
_KEY = rf"(?:[CMS]-)*(?:[CMS]-\S|{_KEY_NAMES})"
_ONLY_KEYS = re.compile(rf"\s*{_KEY}(?:\s+{_KEY})*\s*")
_END = ScriptStep(analysis="The script has come to its end.", plan="Nothing is left to do.")


class ScriptedReply(NamedTuple):
    """A reply: its text, and the command of its tool call, if it makes one."""

    text: str
    command: str | None = None


def reply_doing(step: ScriptStep | None, messages: ChatTurns, functions: Collection[str] = ()) -> ScriptedReply:
    """The reply that does `step`; None claims that the task is complete."""
    if BASH_TOOL in functions:
        return ScriptedReply(_sentence(step), _shell_commands(step))
    return ScriptedReply(_writer(messages)(step))


def _writer(messages: ChatTurns) -> Callable[[ScriptStep | None], str]:
    """What writes a step in the protocol that these messages ask for."""
    first = dict(reversed(messages))
    asked = [first.get(role, "") for role in ("system", "user")]
    if any(text.startswith(TERMINAL_CONTROLLER) for text in asked):
        return _as_thinking_and_block
    if any("<keystrokes" in text for text in asked):
        return _as_xml
    return _as_json if any('"keystrokes"' in text for text in asked) else _as_block


def _as_json(step: ScriptStep | None) -> str:
    return json.dumps({**(step or _END).model_dump(), "task_complete": step is None}, indent=2, ensure_ascii=False)


def _as_xml(step: ScriptStep | None) -> str:
    shown = step or _END
    keys = [f'<keystrokes duration="{each.duration}">{each.keystrokes}</keystrokes>' for each in shown.commands]
    parts = [
        f"<analysis>{shown.analysis}</analysis>",
        f"<plan>{shown.plan}</plan>",
        "\n".join(["<commands>", *keys, "</commands>"]),
        *(["<task_complete>true</task_complete>"] if step is None else []),
    ]
    return "\n".join(["<response>", *parts, "</response>"])


def _as_block(step: ScriptStep | None) -> str:
    return f"{_sentence(step)}\n\n```bash\n{_shell_commands(step)}\n```"


def _as_thinking_and_block(step: ScriptStep | None) -> str:
    return f"<thinking>{_sentence(step)}</thinking>\n```bash\n{_shell_commands(step)}\n```"


def _sentence(step: ScriptStep | None) -> str:
    return _END.analysis if step is None else f"{step.analysis} {step.plan}"


def _shell_commands(step: ScriptStep | None) -> str:
    """What the step types, without keys and pauses."""
    if step is None:
        return SUBMIT
    typed = [each.keystrokes.rstrip("\n") for each in step.commands if not _ONLY_KEYS.fullmatch(each.keystrokes)]
    return "\n".join(text for text in typed if text.strip()) or "true"
