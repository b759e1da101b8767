"""The files of an extraction, written and read: raw answers, so that they can be scored again.

`extraction.json` (ExtractionManifest), `extraction.jsonl` (one ReplyRecord per line, appended as they come; of several
for one task and seed the last without an error counts), and `result.json`, which is made of these two and nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Self

from pydantic import Field, ValidationError

from harness.trajectory import Frozen, ToolCall
from tbench.errors import UsageError
from tbench.files import write_json
from tbench.storage.comparable import differences
from tbench.storage.record_directory import Layout, RecordDirectory, first_problem, read_lines, writable

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


# The directory of an extraction while it is being written: the manifest, and replies as they come.

EXTRACTION = Layout("extraction", MANIFEST_NAME, (REPLIES_NAME,))


class ExtractionDirectory:
    """Open for adding replies to it, by one process at a time."""

    def __init__(self, records: RecordDirectory) -> None:
        """Raises UsageError where replies of earlier starts cannot be read."""
        self.path = records.path
        self.answered = {key for key, record in read_replies(records.path)[0].items() if record.error is None}
        """Tasks and seeds that earlier starts brought a reply for."""
        self._records = records

    @classmethod
    def open(cls, path: Path, manifest: ExtractionManifest) -> Self:
        """A new extraction, or the one in `path` again, whose manifest has the seeds of both then.

        Raises UsageError, also where what decides the replies differs.
        """
        if EXTRACTION.is_new(path):
            return cls(RecordDirectory.create(path, EXTRACTION, manifest.model_dump(mode="json")))
        before = read_manifest(path)
        check_same(before, manifest, path)
        now = manifest.model_copy(update={"created_at": before.created_at})
        return cls(RecordDirectory.go_on(path, EXTRACTION, now.model_dump(mode="json")))

    def append(self, record: ReplyRecord) -> None:
        """Add a line of ASCII. Raises OSError; then nothing was added."""
        self._records.append(REPLIES_NAME, line(record))

    def close(self) -> None:
        self._records.close()


def line(record: ReplyRecord) -> str:
    """A record as a line of ASCII."""
    return json.dumps(record.model_dump(mode="json"), separators=(",", ":"))


def check_same(before: ExtractionManifest, now: ExtractionManifest, where: Path) -> None:
    """Raises UsageError that names what differs from the extraction that is to go on; further seeds do not."""
    old, new = before.semantic(), now.semantic()
    if set(old["seeds"]) <= set(new["seeds"]):
        new["seeds"] = old["seeds"]
    if words := differences(old, new):
        raise UsageError(f"{where}: cannot be resumed with another configuration: {words}; start a new extraction")
