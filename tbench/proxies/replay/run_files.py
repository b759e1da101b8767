"""Reads what a replay run has left behind: its manifest, its replies, and which steps it was about."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.text import without_lone_surrogates
from tbench.errors import UsageError
from tbench.proxies.datasets.records import Record
from tbench.proxies.replay.responses import ReplayManifest, ReplayResponse
from tbench.storage.lines import first_problem, read_lines
from tbench.text import one_line

MANIFEST_NAME, RESPONSES_NAME, RESULT_NAME = "replay.json", "responses.jsonl", "result.json"
TIMING_NAME, PROMPTS_NAME = "timing.json", "prompt_template.json"
"""Written beside them while a run goes on: how long it has generated, how its prompts were made."""


@dataclass(frozen=True)
class Responses:
    """The reply that counts for each step, and what was wrong with other lines."""

    by_step: Mapping[str, ReplayResponse]
    problems: tuple[str, ...] = field(default=())
    """`FILE:LINE: what is wrong`."""


def read_manifest(directory: Path) -> ReplayManifest:
    """Raises UsageError."""
    path = directory / MANIFEST_NAME
    try:
        return ReplayManifest.model_validate(json.loads(path.read_bytes()))
    except FileNotFoundError:
        words = f"is no replay run ({MANIFEST_NAME} is missing); give the directory of one, or name a new directory"
        raise UsageError(f"{directory}: {words}") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give the directory of a replay run") from None
    except ValidationError as error:
        raise UsageError(f"{path}: {first_problem(error)}; it is no manifest of a replay run of this version") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: not JSON ({one_line(str(error))})") from None


def read_responses(path: Path) -> Responses:
    """Read the reply that counts for each step: the last without an error, else the last. Raises UsageError.

    Lines that are no reply (a torn last one, say) are reported, not fatal.
    """
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; give a file of replies (responses.jsonl)") from None
    problems: list[str] = []
    by_step: dict[str, ReplayResponse] = {}
    for _, response in read_lines(path, raw, ReplayResponse, problems, clean):
        if response.error is None or by_step.get(response.key, response).error is not None:
            by_step[response.key] = response
    if problems and not by_step:
        raise UsageError(f"{path}: holds no reply of a replay run; first: {problems[0]}")
    return Responses(by_step, tuple(problems))


def clean(value: Any) -> Any:
    """The strings of an object without halves of surrogate pairs, which no file can hold."""
    if not isinstance(value, dict):
        return value
    return {key: without_lone_surrogates(item) if isinstance(item, str) else item for key, item in value.items()}


def json_object(path: Path) -> dict[str, Any]:
    """The JSON object in a file; empty where there is none: these files only add to what is known."""
    try:
        value = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def generation_seconds(directory: Path) -> float | None:
    """Seconds of generation as the run has timed itself, else as an earlier result says; None where neither does."""
    for name in (TIMING_NAME, RESULT_NAME):
        seconds = json_object(directory / name).get("gen_time_sec")
        if isinstance(seconds, int | float):
            return float(seconds)
    return None


def planned(records: Sequence[Record], manifest: ReplayManifest) -> tuple[Record, ...]:
    """The records a run is about: the first `limit`, of those every `shard_count`-th from `shard_index` on."""
    return tuple(records[: manifest.limit][manifest.shard_index :: manifest.shard_count])
