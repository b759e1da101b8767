"""The records of one recorded conversation: which turns become steps, and what is stored of each reference.

Rules and keys are those of LLM-OS-Models' corrected replay set (`cumulative_messages`), so that the same conversations
give the same records. A reference is read as that set's builder does it, not as the metric reads replies: from the
first `{` to the last `}`, and units from `commands` only. Scores rest on `ref_raw` alone.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tbench.proxies.datasets.records import ROLES, WAIT, lines_of, transcript


@dataclass(frozen=True, slots=True)
class Turn:
    """One message of a conversation, as it was recorded."""

    role: object
    content: object
    is_copy: bool = False
    """An assistant turn that belongs to the history only, never a step."""
    fault: str = ""
    """Why an assistant turn is no reference although it may look like one; it stays in the history."""

    @property
    def is_usable(self) -> bool:
        return self.role in ROLES and isinstance(self.content, str)


@dataclass(frozen=True)
class RecordedConversation:
    """A conversation from its beginning, as far as what the model was shown is known."""

    turns: tuple[Turn, ...]
    source: str = ""
    """Where it comes from, as a path whose last part is the group."""
    total_steps: int | None = None
    """Number of assistant turns in the whole conversation, where `turns` are only its beginning."""
    cut: str = ""
    """Why the rest is missing; empty for a whole conversation."""
    rebuilt: int = 0
    """Number of assistant turns whose text was put together again from recorded actions."""

    @property
    def source_group(self) -> str:
        return self.source.split("/")[-1] if self.source else "unknown"

    @property
    def assistant_turns(self) -> int:
        if self.total_steps is not None:
            return self.total_steps
        return sum(turn.role == "assistant" for turn in self.turns)


@dataclass(frozen=True)
class Inclusion:
    """Which references are kept although they ask for nothing that can be compared."""

    invalid: bool = False
    """Keep references without a JSON object."""
    empty: bool = False
    """Keep references without a command."""


def read_reference(text: str) -> dict[str, Any]:
    """The JSON object between the first `{` and the last `}` of a reference; empty where there is none."""
    start, end = text.find("{"), text.rfind("}")
    try:
        value = json.loads(text[start : end + 1] if 0 <= start < end else text.strip())
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def units_of(commands: list[Any]) -> list[str]:
    """One unit per line typed, stripped; WAIT for a command that types nothing; none for what is no object."""
    units: list[str] = []
    for command in commands:
        if not isinstance(command, dict):
            continue
        units += lines_of(str(command.get("keystrokes", "") or "")) or [WAIT]
    return units


def records_of(
    conversation: RecordedConversation, sample_idx: int, include: Inclusion, dropped: Counter[str]
) -> Iterator[dict[str, Any]]:
    """The conversation's steps as records, keys in stored order; `dropped` counts why other turns are none."""
    context: list[dict[str, str]] = []
    step_idx = -1
    for turn in conversation.turns:
        if not turn.is_usable:
            dropped["message_ignored"] += 1
            continue
        message = {"role": str(turn.role), "content": str(turn.content)}
        if turn.role == "assistant":
            if not context:
                dropped["before_any_context"] += 1
                continue
            step_idx += 1
            record = None if turn.is_copy else _record(conversation, sample_idx, step_idx, context, message["content"])
            why_not = _why_not(turn, record, include)
            if why_not:
                dropped[why_not] += 1
            elif record is not None:
                yield record
        context.append(message)


def _why_not(turn: Turn, record: dict[str, Any] | None, include: Inclusion) -> str:
    if record is None:
        return "copied_context"
    if turn.fault:
        return turn.fault
    if not record["ref_parse_ok"] and not include.invalid:
        return "reference_invalid"
    if not record["ref_command_units"] and not include.empty:
        return "reference_without_commands"
    return ""


def _record(
    conversation: RecordedConversation, sample_idx: int, step_idx: int, context: list[dict[str, str]], text: str
) -> dict[str, Any]:
    reference = read_reference(text)
    commands = reference.get("commands", [])
    commands = commands if isinstance(commands, list) else []
    return {
        "task_id": f"task-{sample_idx:03d}",
        "sample_idx": sample_idx,
        "step_idx": step_idx,
        "total_steps": conversation.assistant_turns,
        "is_final_step": step_idx == conversation.assistant_turns - 1,
        "source": conversation.source,
        "source_group": conversation.source_group,
        "prompt": transcript(context),
        "messages": list(context),
        "ref_raw": text,
        "ref_parse_ok": bool(reference),
        "ref_analysis": reference.get("analysis", ""),
        "ref_plan": reference.get("plan", ""),
        "ref_task_complete": bool(reference.get("task_complete", False)),
        "ref_commands": commands,
        "ref_command_units": units_of(commands),
    }
