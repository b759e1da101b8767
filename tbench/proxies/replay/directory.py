"""The directory of a replay run while it is being written: the manifest, and responses as they come."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Self

from tbench.errors import UsageError
from tbench.files import is_unused, write_json
from tbench.proxies.replay.responses import PromptReport, ReplayManifest, ReplayResponse
from tbench.proxies.replay.run_files import (
    MANIFEST_NAME,
    PROMPTS_NAME,
    RESPONSES_NAME,
    TIMING_NAME,
    json_object,
    read_manifest,
)
from tbench.storage.lines import LineFile, read_lines

_MAY_DIFFER = {
    *("created_at", "tbench_version", "schema_version", "base_urls", "dataset", "problems", "served.context_tokens"),
    *("prompt.prompt_options.tokenizer_path", "prompt.max_tokens"),
}
"""Of two starts of one run: nothing that changes what is asked, or whom, or is compared under another name."""
_ABSENT = "nothing"


class RunDirectory:
    """Open for appending by one process at a time; a line that a killed process left torn is mended."""

    def __init__(self, path: Path, file: LineFile, answered: Mapping[str, ReplayResponse]) -> None:
        self.path = path
        self.answered = answered
        """What earlier starts brought, without errors, by `ReplayResponse.key`."""
        self._file = file

    @classmethod
    def open(cls, path: Path, manifest: ReplayManifest) -> Self:
        """A new run, or the one in `path` again. Raises UsageError, also for one of other settings."""
        try:
            new = is_unused(path) or _is_barely_begun(path)
            if new:
                path.mkdir(parents=True, exist_ok=True)
            else:
                _check_same(path, manifest)
            file = LineFile(path / RESPONSES_NAME, locked=True)
            if new:
                write_json(path / MANIFEST_NAME, manifest.model_dump(mode="json"))
        except BlockingIOError:
            raise UsageError(f"{path}: this run is still going on; wait for its end, or end it first") from None
        except OSError as error:
            raise UsageError(f"{path}: cannot be written: {error.strerror or error}") from None
        return cls(path, file, read_answered(path / RESPONSES_NAME))

    def append(self, response: ReplayResponse) -> None:
        """Raises OSError; then nothing was appended."""
        self._file.append(response.model_dump_json())

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
        self._file.close()


def read_answered(path: Path) -> dict[str, ReplayResponse]:
    """The steps of a responses.jsonl that have an answer; lines that are none are left to whoever scores them."""
    lines = read_lines(path, path.read_bytes(), ReplayResponse, [])
    return {response.key: response for _, response in lines if response.error is None}


def _is_barely_begun(path: Path) -> bool:
    """A start was killed before it had a manifest: the lock comes first."""
    if not path.is_dir() or [each.name for each in path.iterdir()] != [RESPONSES_NAME]:
        return False
    return (path / RESPONSES_NAME).stat().st_size == 0


def _check_same(path: Path, manifest: ReplayManifest) -> None:
    before = dict(_flat(read_manifest(path).model_dump(mode="json")))
    now = dict(_flat(manifest.model_dump(mode="json")))
    differing = [
        f"{key} is {_shown(before.get(key, _ABSENT))} there and {_shown(now.get(key, _ABSENT))} here"
        for key in sorted(before.keys() | now.keys())
        if before.get(key) != now.get(key) and key not in _MAY_DIFFER
    ]
    if differing:
        words = "; ".join(differing)
        raise UsageError(f"{path}: holds a run of other settings: {words}; use the same, or name a new directory")


def _flat(value: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for key, each in value.items():
        if isinstance(each, dict) and each:
            yield from _flat(each, f"{prefix}{key}.")
        else:
            yield prefix + key, each


def _shown(value: Any) -> str:
    text = value if value == _ABSENT else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:77] + "…"
