"""What a model answered, raw, so that it can be scored again: the files of an extraction, and how they are read.

`extraction.json` (ExtractionManifest), `extraction.jsonl` (one ReplyRecord per line, appended as they come; of several
for one task and seed the last without an error counts), and `result.json`, which is made of these two and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pydantic import Field, ValidationError

from harness.trajectory import Frozen, ToolCall
from tbench.errors import UsageError
from tbench.files import write_json
from tbench.storage.lines import first_problem, read_lines
from tbench.storage.record_directory import writable

SCHEMA_VERSION = 1
MANIFEST_NAME, REPLIES_NAME, RESULT_NAME = "extraction.json", "extraction.jsonl", "result.json"


class TaskEntry(Frozen):
    """A task of the plan."""

    name: str
    hash: str | None = None
    instruction: str = ""
    """What was asked: the rewards compare it with the reply."""
    invalid: str | None = None
    """Why it could not be asked at all; it counts as failed."""


class ExtractionManifest(Frozen):
    """What the replies are replies to; stored before the first request."""

    schema_version: int = SCHEMA_VERSION
    source: str
    tasks: tuple[TaskEntry, ...]
    seeds: tuple[int, ...]
    protocol: str
    prompt_hash: str
    sampling: dict[str, Any]
    rendering: dict[str, Any]
    model: str
    base_url: str
    """Without user name and password."""
    served: dict[str, Any] | None = None
    tbench_version: str = ""
    created_at: str = ""

    def semantic(self) -> dict[str, Any]:
        """What decides the replies, by name: all of it has to be equal where an extraction goes on."""
        parts = {key: getattr(self, key) for key in ("model", "protocol", "prompt_hash", "sampling", "rendering")}
        return parts | {"tasks": {task.name: task.hash for task in self.tasks}, "seeds": list(self.seeds)}


class ReplyRecord(Frozen):
    """One reply, or why there is none."""

    schema_version: int = SCHEMA_VERSION
    task: str
    seed: int
    content: str | None = None
    """The reply as it came; None where there is none (`error` says why)."""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    cut: bool = False
    """Cut at max_tokens or at the end of the context. It is read all the same."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    latency_sec: float = 0.0
    error: str | None = Field(default=None)
    """`overflow: …`, `refused: …`, `unavailable: …`."""

    @property
    def key(self) -> tuple[str, int]:
        return self.task, self.seed


def read_manifest(directory: Path) -> ExtractionManifest:
    """Raises UsageError for a directory without a readable one."""
    path = directory / MANIFEST_NAME
    try:
        return ExtractionManifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give the directory of an extraction") from None
    except ValidationError as error:
        raise UsageError(f"{path}: {first_problem(error, 'file')}; it is not of this version of tbench") from None


def read_replies(directory: Path) -> tuple[dict[tuple[str, int], ReplyRecord], list[str]]:
    """The reply that counts for each task and seed, and `FILE:LINE: what is wrong` for lines that were left out.

    Raises UsageError where there is a file that cannot be read.
    """
    path = directory / REPLIES_NAME
    try:
        raw = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    problems: list[str] = []
    return _that_count(record for _, record in read_lines(path, raw, ReplyRecord, problems)), problems


def write_result(directory: Path, result: Mapping[str, Any]) -> None:
    """Raises UsageError where it cannot be written."""
    with writable(directory / RESULT_NAME):
        write_json(directory / RESULT_NAME, result)


def _that_count(records: Iterable[ReplyRecord]) -> dict[tuple[str, int], ReplyRecord]:
    counting: dict[tuple[str, int], ReplyRecord] = {}
    for record in records:
        if record.error is None or record.key not in counting or counting[record.key].error is not None:
            counting[record.key] = record
    return counting
