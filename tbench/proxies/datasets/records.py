"""The records of a replay dataset (an assistant turn with its preceding context), read and made from conversations.

There are two forms: corrected records have `messages`, legacy ones only the current user message as `prompt`.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from harness.model_text import without_lone_surrogates
from tbench.errors import UsageError
from tbench.storage.record_directory import read_lines

ROLES = ("system", "user", "assistant", "tool")
WAIT = "<WAIT>"
"""Unit of a command without keystrokes."""


class Record(BaseModel):
    """One step to be continued. Unknown keys are kept, as other programs write such files."""

    model_config = ConfigDict(frozen=True, extra="allow")

    task_id: str
    sample_idx: int = 0
    step_idx: int
    total_steps: int = 0
    is_final_step: bool = False
    source: str = ""
    source_group: str = ""
    prompt: str = ""
    messages: tuple[dict[str, Any], ...] | None = None
    ref_raw: str

    @property
    def key(self) -> str:
        """Name of the step within its dataset."""
        return f"{self.task_id}/{self.step_idx}"

    @property
    def bucket(self) -> str:
        """Part of the conversation, see `step_bucket`."""
        return step_bucket(self.step_idx)

    @property
    def usable_messages(self) -> list[dict[str, str]]:
        """Messages with text and a known role; if there are none, the prompt as one user message."""
        found = [
            {"role": message["role"], "content": message["content"]}
            for message in self.messages or ()
            if message.get("role") in ROLES and isinstance(message.get("content"), str)
        ]
        return found or [{"role": "user", "content": self.prompt}]


def step_bucket(step_idx: int) -> str:
    """Return the part of a conversation: `early` for the first two steps, `mid` for the next three, else `late`."""
    return "early" if step_idx <= 1 else "mid" if step_idx <= 4 else "late"


def transcript(messages: Iterable[Mapping[str, str]]) -> str:
    """Join messages to one text, the `prompt` of a corrected record."""
    return "\n\n".join(f"{message['role'].upper()}:\n{message['content']}" for message in messages)


def stripped_lines(text: str) -> list[str]:
    """Return the lines of `text` (ended by LF, CRLF or CR), stripped, without empty ones."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [stripped for line in lines if (stripped := line.strip())]


@dataclass(frozen=True)
class Dataset:
    """Usable records, and problems of the other lines."""

    path: Path
    sha256: str
    """Digest of the file's bytes."""
    records: tuple[Record, ...]
    problems: tuple[str, ...] = field(default=())
    """`FILE:LINE: problem`, one per skipped line."""


def read_dataset(path: Path) -> Dataset:
    """Read a dataset; bad lines become problems. Raises UsageError for a file without a readable record."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give the dataset's JSONL file") from None
    problems: list[str] = []
    records = tuple(_records(path, raw, problems))
    if not records:
        why = f"; first: {problems[0]}" if problems else ""
        raise UsageError(f"{path}: contains no record of a replay dataset{why}")
    return Dataset(path, hashlib.sha256(raw).hexdigest(), records, tuple(problems))


def _records(path: Path, raw: bytes, problems: list[str]) -> Iterator[Record]:
    seen: set[str] = set()
    for where, record in read_lines(path, raw, Record, problems):
        if record.messages is None and not record.prompt:
            problems.append(f"{where}: neither messages nor prompt")
        elif record.task_id != without_lone_surrogates(record.task_id):
            problems.append(f"{where}: task_id: contains a lone surrogate")
        elif record.key in seen:
            problems.append(f"{where}: step {record.key} is a duplicate")
        else:
            seen.add(record.key)
            yield record


# Rules and keys are those of LLM-OS-Models' corrected replay set (`cumulative_messages`), so that the same
# conversations give the same records. References are parsed like that set's builder does, not like the metric parses
# replies: from the first `{` to the last `}`, and units from `commands` only. Scores depend on `ref_raw` only.


@dataclass(frozen=True, slots=True)
class Turn:
    """One recorded message of a conversation."""

    role: object
    content: object
    is_copy: bool = False
    """Whether an assistant turn is only history, never a step."""
    fault: str = ""
    """Why an assistant turn is not a reference; it stays in the history."""

    @property
    def is_usable(self) -> bool:
        return self.role in ROLES and isinstance(self.content, str)


@dataclass(frozen=True)
class RecordedConversation:
    """The known beginning of a conversation."""

    turns: tuple[Turn, ...]
    source: str = ""
    """Origin as a path whose last part is the group."""
    total_steps: int | None = None
    """Number of assistant turns in the whole conversation, if `turns` are only its beginning."""
    cut: str = ""
    """Why the rest is missing; empty for a complete conversation."""
    rebuilt: int = 0
    """Number of assistant turns whose text was reconstructed from recorded actions."""

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
    """Which references without comparable commands are kept."""

    invalid: bool = False
    """Keep references without a JSON object."""
    empty: bool = False
    """Keep references without a command."""


def read_reference(text: str) -> dict[str, Any]:
    """Return the JSON object between the first `{` and the last `}` of a reference; empty if there is none."""
    start, end = text.find("{"), text.rfind("}")
    try:
        value = json.loads(text[start : end + 1] if 0 <= start < end else text.strip())
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def command_units(commands: list[Any]) -> list[str]:
    """Return one unit per line typed, stripped, and WAIT for commands without keystrokes; skips non-objects."""
    units: list[str] = []
    for command in commands:
        if not isinstance(command, dict):
            continue
        units += stripped_lines(str(command.get("keystrokes", "") or "")) or [WAIT]
    return units


def make_records(
    conversation: RecordedConversation, sample_idx: int, include: Inclusion, dropped: Counter[str]
) -> Iterator[dict[str, Any]]:
    """Yield the conversation's steps as records, keys in stored order; `dropped` counts other turns by reason."""
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
            reason = _drop_reason(turn, record, include)
            if reason:
                dropped[reason] += 1
            elif record is not None:
                yield record
        context.append(message)


def _drop_reason(turn: Turn, record: dict[str, Any] | None, include: Inclusion) -> str:
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
        "ref_command_units": command_units(commands),
    }
