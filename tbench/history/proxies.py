"""Reads what a directory of a replay or an extraction says of itself: its manifest, and its result once scored."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.history.records import Row, utc
from tbench.text import one_line

RESULT_NAME = "result.json"
_ADVICE = "restore it or delete the directory"


@dataclass(frozen=True, slots=True)
class ProxyKind:
    """Where a kind of proxy has what a history tells of it. Keys are dotted paths."""

    name: str
    measure: str
    """The published score in its result, a fraction."""
    planned: str
    answered: str
    data: str
    """The hash of what it was asked about."""
    figures: tuple[str, ...]
    """The further figures of its result."""


PROXIES = {
    "replay.json": ProxyKind(
        name="replay",
        measure="aggregate.avg_command_f1",
        planned="total_steps",
        answered="generated_steps",
        data="dataset_sha256",
        figures=("aggregate", "tolerant", "coverage"),
    ),
    "extraction.json": ProxyKind(
        name="extraction",
        measure="levels.extractable.mean",
        planned="planned",
        answered="replies",
        data="tasks_sha256",
        figures=("levels", "rewards"),
    ),
}
"""Kind by the name of the manifest."""


@dataclass(frozen=True, slots=True)
class ProxyRecord:
    """The row about one proxy; who stores it adds path and ids."""

    row: Row
    model: str | None


def read_proxy(directory: Path, manifest_name: str) -> ProxyRecord:
    """Read a directory of a replay or an extraction. Raises UsageError."""
    kind = PROXIES[manifest_name]
    manifest = _object(directory / manifest_name)
    result = _object(directory / RESULT_NAME) if (directory / RESULT_NAME).exists() else {}
    model = manifest.get("model")
    figures = {key: result[key] for key in kind.figures if key in result}
    row = {
        "name": str(manifest.get("model_short") or directory.name),
        "kind": kind.name,
        "measure": kind.measure,
        "score": _number(result, kind.measure),
        "planned": _whole(result, kind.planned),
        "answered": _whole(result, kind.answered),
        "metric_revision": _text(result.get("metric_revision")),
        "data": _text(result.get(kind.data)),
        "protocol": _text(result.get("protocol")),
        "begun_at": utc(_text(manifest.get("created_at"))),
        "tbench_version": _text(manifest.get("tbench_version")),
        "figures": json.dumps(figures, ensure_ascii=False, separators=(",", ":")),
    }
    return ProxyRecord(row, _text(model))


def _object(file: Path) -> dict[str, Any]:
    try:
        value = json.loads(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}; check the path and its permissions") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{file}: not JSON ({one_line(str(error), 120)}); {_ADVICE}") from None
    if not isinstance(value, dict):
        raise UsageError(f"{file}: not a JSON object; {_ADVICE}")
    return value


def _number(data: Mapping[str, Any], dotted: str) -> float | None:
    value: Any = data
    for key in dotted.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    is_number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None


def _whole(data: Mapping[str, Any], dotted: str) -> int | None:
    value = _number(data, dotted)
    return None if value is None else int(value)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
