"""The records of a replay dataset: one assistant turn of a recorded conversation each, with what went before it.

Two forms: corrected records carry `messages`, legacy ones only the current user message as `prompt`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict

from harness.text import without_lone_surrogates
from tbench.errors import UsageError
from tbench.storage.lines import read_lines

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
