"""The records of a replay dataset, one assistant turn each with what went before it, and how they are made.

Two forms: corrected records carry `messages`, legacy ones only the current user message as `prompt`.
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

from harness.text import without_lone_surrogates
from tbench.errors import UsageError
from tbench.storage.record_directory import read_lines

ROLES = ("system", "user", "assistant", "tool")
WAIT = "<WAIT>"
"""The unit of a command that types nothing."""


class Record(BaseModel):
    """One step to be continued. Unknown keys are kept: the file is somebody else's."""

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
        """The step's name within its dataset."""
        return f"{self.task_id}/{self.step_idx}"

    @property
    def bucket(self) -> str:
        """The part of the conversation that the step is in, see `bucket_of`."""
        return bucket_of(self.step_idx)

    @property
    def usable_messages(self) -> list[dict[str, str]]:
        """The messages of a known role with text; without any, the prompt as one user message."""
        found = [
            {"role": message["role"], "content": message["content"]}
            for message in self.messages or ()
            if message.get("role") in ROLES and isinstance(message.get("content"), str)
        ]
        return found or [{"role": "user", "content": self.prompt}]


def bucket_of(step_idx: int) -> str:
    """The part of a conversation: `early` for the first two steps, `mid` for the next three, else `late`."""
    return "early" if step_idx <= 1 else "mid" if step_idx <= 4 else "late"


def transcript(messages: Iterable[Mapping[str, str]]) -> str:
    """The messages as one text: the `prompt` of a corrected record."""
    return "\n\n".join(f"{message['role'].upper()}:\n{message['content']}" for message in messages)


def lines_of(text: str) -> list[str]:
    """The lines of `text` (ended by LF, CRLF or CR), stripped, without empty ones."""
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    return [stripped for line in lines if (stripped := line.strip())]


@dataclass(frozen=True)
class Dataset:
    """Records that can be used, and what was wrong with the other lines."""

    path: Path
    sha256: str
    """The digest of the file's bytes."""
    records: tuple[Record, ...]
    problems: tuple[str, ...] = field(default=())
    """`FILE:LINE: what is wrong`, one per line that was left out."""


def read_dataset(path: Path) -> Dataset:
    """Read a dataset, whose bad lines become problems. Raises UsageError for a file without a readable record."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give the dataset's JSONL file") from None
    problems: list[str] = []
    records = tuple(_records(path, raw, problems))
    if not records:
        why = f"; first: {problems[0]}" if problems else ""
        raise UsageError(f"{path}: holds no record of a replay dataset{why}")
    return Dataset(path, hashlib.sha256(raw).hexdigest(), records, tuple(problems))


def _records(path: Path, raw: bytes, problems: list[str]) -> Iterator[Record]:
    seen: set[str] = set()
    for where, record in read_lines(path, raw, Record, problems):
        if record.messages is None and not record.prompt:
            problems.append(f"{where}: neither messages nor prompt")
        elif record.task_id != without_lone_surrogates(record.task_id):
            problems.append(f"{where}: task_id: half a surrogate pair, which no file can hold")
        elif record.key in seen:
            problems.append(f"{where}: step {record.key} occurs a second time")
        else:
            seen.add(record.key)
            yield record


# The records of one recorded conversation: which turns become steps, and what is stored of each reference.
#
# Rules and keys are those of LLM-OS-Models' corrected replay set (`cumulative_messages`), so that the same
# conversations give the same records. A reference is read as that set's builder does it, not as the metric reads
# replies: from the first `{` to the last `}`, and units from `commands` only. Scores rest on `ref_raw` alone.


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
