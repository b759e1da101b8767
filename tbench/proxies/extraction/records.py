"""Reads and writes the files of an extraction: raw replies, which can be scored again.

The files are `extraction.json` (ExtractionManifest), `extraction.jsonl` (a ReplyRecord per line, in order of arrival),
and `result.json`, computed from these two. The last reply without an error counts for its task and seed.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from harness.trajectory import Frozen, ToolCall
from tbench.errors import UsageError
from tbench.storage.comparable import differences
from tbench.storage.record_directory import Layout, RecordDirectory, first_problem, read_lines

SCHEMA_VERSION = 1
MANIFEST_NAME, REPLIES_NAME, RESULT_NAME = "extraction.json", "extraction.jsonl", "result.json"


class TaskEntry(Frozen):
    """A task of the plan."""

    name: str
    hash: str | None = None
    instruction: str = ""
    """The request: rewards compare the reply with it."""
    invalid: str | None = None
    """Why the task could not be used; it counts as failed."""


class ExtractionManifest(Frozen):
    """Tasks, seeds, model and settings of an extraction; stored before the first request."""

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
        """Return the settings that affect replies, which must be equal to resume an extraction."""
        parts = {key: getattr(self, key) for key in ("model", "protocol", "prompt_hash", "sampling", "rendering")}
        return parts | {"tasks": {task.name: task.hash for task in self.tasks}, "seeds": list(self.seeds)}


class ReplyRecord(Frozen):
    """One reply, or the error instead of it."""

    schema_version: int = SCHEMA_VERSION
    task: str
    seed: int
    content: str | None = None
    """The raw reply; None if there is none (see `error`)."""
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()
    finish_reason: str | None = None
    cut: bool = False
    """Whether the reply was cut at max_tokens or the end of the context. It is scored anyway."""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    latency_sec: float = 0.0
    error: str | None = Field(default=None)
    """`overflow: …`, `refused: …`, `unavailable: …`."""

    @property
    def key(self) -> tuple[str, int]:
        return self.task, self.seed


def read_manifest(directory: Path) -> ExtractionManifest:
    """Read the manifest of an extraction. Raises UsageError."""
    path = directory / MANIFEST_NAME
    try:
        return ExtractionManifest.model_validate_json(path.read_bytes())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give the directory of an extraction") from None
    except ValidationError as error:
        raise UsageError(f"{path}: {first_problem(error, 'file')}; it is from another version of tbench") from None


def read_replies(directory: Path) -> tuple[dict[tuple[str, int], ReplyRecord], list[str]]:
    """Return the reply that counts for each task and seed, and `FILE:LINE: problem` for skipped lines.

    Raises UsageError if the file exists but cannot be read.
    """
    path = directory / REPLIES_NAME
    try:
        raw = path.read_bytes() if path.exists() else b""
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}") from None
    problems: list[str] = []
    counting: dict[tuple[str, int], ReplyRecord] = {}
    for _, record in read_lines(path, raw, ReplyRecord, problems):
        if record.error is None or record.key not in counting or counting[record.key].error is not None:
            counting[record.key] = record
    return counting, problems


EXTRACTION = Layout("extraction", MANIFEST_NAME, (REPLIES_NAME,))


class ExtractionDirectory:
    """An extraction's directory, open for adding replies by one process at a time."""

    def __init__(self, records: RecordDirectory) -> None:
        """Read earlier replies. Raises UsageError."""
        self.path = records.path
        self.answered = {key for key, record in read_replies(records.path)[0].items() if record.error is None}
        """Tasks and seeds that already have a reply."""
        self._records = records

    @classmethod
    def open(cls, path: Path, manifest: ExtractionManifest) -> Self:
        """Create an extraction, or resume the one in `path` with the new manifest, which may add seeds.

        Raises UsageError, also if settings that affect replies differ.
        """
        if EXTRACTION.is_new(path):
            return cls(RecordDirectory.create(path, EXTRACTION, manifest.model_dump(mode="json")))
        before = read_manifest(path)
        check_same(before, manifest, path)
        now = manifest.model_copy(update={"created_at": before.created_at})
        return cls(RecordDirectory.go_on(path, EXTRACTION, now.model_dump(mode="json")))

    def append(self, record: ReplyRecord) -> None:
        """Append a reply. Raises OSError; then nothing was appended."""
        self._records.append(REPLIES_NAME, line(record))

    def close(self) -> None:
        self._records.close()


def line(record: ReplyRecord) -> str:
    """Format a record as a line of ASCII JSON."""
    return json.dumps(record.model_dump(mode="json"), separators=(",", ":"))


def check_same(before: ExtractionManifest, now: ExtractionManifest, where: Path) -> None:
    """Raise UsageError with the differences from the extraction to be resumed; added seeds do not count."""
    old, new = before.semantic(), now.semantic()
    if set(old["seeds"]) <= set(new["seeds"]):
        new["seeds"] = old["seeds"]
    if differing := differences(old, new):
        raise UsageError(f"{where}: cannot be resumed with another configuration: {differing}; start a new extraction")
