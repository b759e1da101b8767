"""The directory of a replay run while it is being written: the manifest, and responses as they come."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Self

from tbench.errors import UsageError
from tbench.files import write_json
from tbench.proxies.replay.responses import PromptReport, ReplayManifest, ReplayResponse
from tbench.proxies.replay.run_files import (
    MANIFEST_NAME,
    PROMPTS_NAME,
    RESPONSES_NAME,
    TIMING_NAME,
    json_object,
    read_manifest,
)
from tbench.storage.differences import differences
from tbench.storage.lines import read_lines
from tbench.storage.record_directory import Layout, RecordDirectory

_MAY_DIFFER = {
    *("created_at", "tbench_version", "schema_version", "base_urls", "dataset", "problems", "served.context_tokens"),
    *("prompt.prompt_options.tokenizer_path", "prompt.max_tokens"),
}
"""Keys of the manifest that may differ between two starts of one run: they change neither what is asked nor whom."""
REPLAY = Layout("run", MANIFEST_NAME, (RESPONSES_NAME,))


class ReplayDirectory:
    """Open for adding replies to it, by one process at a time."""

    def __init__(self, records: RecordDirectory) -> None:
        self.path = records.path
        self.answered: Mapping[str, ReplayResponse] = read_answered(records.path / RESPONSES_NAME)
        """What earlier starts brought, without errors, by `ReplayResponse.key`."""
        self._records = records

    @classmethod
    def open(cls, path: Path, manifest: ReplayManifest) -> Self:
        """A new run, or the one in `path` again. Raises UsageError, also for one of other settings."""
        if REPLAY.is_new(path):
            return cls(RecordDirectory.create(path, REPLAY, manifest.model_dump(mode="json")))
        _check_same(path, manifest)
        return cls(RecordDirectory.go_on(path, REPLAY))

    def append(self, response: ReplayResponse) -> None:
        """Raises OSError; then nothing was appended."""
        self._records.append(RESPONSES_NAME, response.model_dump_json())

    def write_report(self, report: PromptReport) -> None:
        """prompt_template.json: how the prompts were made, and how long they are. Raises OSError."""
        write_json(self.path / PROMPTS_NAME, report.model_dump(mode="json"))

    def add_time(self, seconds: float) -> None:
        """timing.json: how long all starts of the run asked for replies. Raises OSError."""
        path = self.path / TIMING_NAME
        before = json_object(path)
        spent, starts = before.get("gen_time_sec", 0.0), before.get("starts", 0)
        write_json(path, {"gen_time_sec": round(spent + seconds, 3), "starts": starts + 1})

    def close(self) -> None:
        self._records.close()


def read_answered(path: Path) -> dict[str, ReplayResponse]:
    """The steps of a responses.jsonl that have an answer; lines that are none are left to whoever scores them."""
    lines = read_lines(path, path.read_bytes(), ReplayResponse, [])
    return {response.key: response for _, response in lines if response.error is None}


def _check_same(path: Path, manifest: ReplayManifest) -> None:
    before, now = (each.model_dump(mode="json") for each in (read_manifest(path), manifest))
    if words := differences(before, now, apart_from=_MAY_DIFFER):
        raise UsageError(f"{path}: holds a run of other settings: {words}; use the same, or name a new directory")
