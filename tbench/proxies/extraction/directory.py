"""The directory of an extraction while it is being written: the manifest, and replies as they come."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Self

from tbench.errors import UsageError
from tbench.proxies.extraction.records import (
    MANIFEST_NAME,
    REPLIES_NAME,
    ExtractionManifest,
    ReplyRecord,
    read_manifest,
    read_replies,
)
from tbench.storage.differences import differences
from tbench.storage.record_directory import Layout, RecordDirectory

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
