"""The leaderboard of replay results: eligibility and ranking, and output as Markdown, CSV or JSON.

The rule is that of the published table (TB2-lite's summarize_corrected_results.py), with one addition: results of
different datasets or metric revisions are not ranked together, unless requested.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from tbench.errors import UsageError
from tbench.proxies.replay.directory import MANIFEST_NAME, RESULT_NAME
from tbench.proxies.replay.scoring.result import read_result, scored_revision
from tbench.scores.tables import escaped

UNKNOWN = "unknown"
"""Value of fields that upstream's results do not store."""


@dataclass(frozen=True)
class RankedResult:
    """One result. Percentages and scores are out of 100; None for values that the file does not have."""

    rank: int | None
    """Rank; None if the result is not eligible."""
    model: str
    score: float
    """100 x mean F1, two digits."""
    command_f1: float
    precision: float
    recall: float
    first_cmd_exact_pct: float
    valid_json_pct: float
    template: str
    sec_per_step: float | None
    load_s: float | None
    steps: int
    answered_pct: float | None
    tolerant_score: float | None
    metric_revision: str
    dataset: str
    """First digits of the dataset's sha256; for upstream's results `unknown` with the file's name."""
    timestamp: str
    source: str


COLUMNS = tuple(RankedResult.__dataclass_fields__)


@dataclass(frozen=True)
class Leaderboard:
    """Ranked rows first, then the excluded ones."""

    rows: tuple[RankedResult, ...]
    unreadable: tuple[str, ...] = field(default=())
    """Problems of files without a result."""
    notes: tuple[str, ...] = field(default=())
    """Notes on the comparability of rows."""


def leaderboard(paths: Sequence[Path], *, mixed: bool = False) -> Leaderboard:
    """Rank result files and directories of them: their JSON files, and the result.json of runs in them.

    Raises UsageError if there is no result, or if results differ in dataset or revision, unless `mixed`.
    """
    rows: list[tuple[RankedResult, bool]] = []
    unreadable: list[str] = []
    for path in _files(paths):
        try:
            rows.append(_row(path))
        except UsageError as error:
            unreadable.append(str(error))
    if not rows:
        why = f"; {unreadable[0]}" if unreadable else ""
        raise UsageError(
            f"{', '.join(map(str, paths))}: no result of a replay{why}; create one with tbench replay score, or list "
            f"runs with tbench history"
        )
    # Before older results are dropped: a newer shard or dev run must not silently replace a complete one.
    notes = _comparability_notes([row for row, _ in rows], mixed=mixed)
    return Leaderboard(tuple(_rank(_newest(rows))), tuple(unreadable), tuple(notes))


def _files(paths: Sequence[Path]) -> Iterable[Path]:
    """Yield every file once, sorted by name within a directory. Raises UsageError."""
    seen: set[Path] = set()
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: does not exist; give directories with results")
        try:
            files = [path]
            if path.is_dir() and (path / MANIFEST_NAME).exists():
                files = [path / RESULT_NAME]
            elif path.is_dir():
                runs = (child / RESULT_NAME for child in path.iterdir() if (child / MANIFEST_NAME).exists())
                files = sorted([*path.glob("*.json"), *runs])
        except OSError as error:
            raise UsageError(f"{path}: {error.strerror or error}") from None
        for found in files:
            if found.resolve() not in seen:
                seen.add(found.resolve())
                yield found


def _row(path: Path) -> tuple[RankedResult, bool]:
    """Read a row without its rank, and whether it is eligible. Raises UsageError."""
    document = read_result(path)
    figures = document["aggregate"]
    template = _section(document, "prompt_template")
    tolerant, coverage = _section(document, "tolerant"), _section(document, "coverage")
    try:
        row = RankedResult(
            rank=None,
            model=display_name(document, path.stem),
            score=round(100 * _figure(figures, "avg_command_f1"), 2),
            command_f1=_figure(figures, "avg_command_f1"),
            precision=_figure(figures, "avg_command_precision"),
            recall=_figure(figures, "avg_command_recall"),
            first_cmd_exact_pct=_figure(figures, "first_cmd_exact_pct"),
            valid_json_pct=_figure(figures, "valid_json_pct"),
            template=str(template.get("template_status", UNKNOWN)),
            sec_per_step=_number(document.get("avg_sec_per_step")),
            load_s=_number(document.get("load_time_sec")),
            steps=int(_figure(figures, "steps")),
            answered_pct=_number(coverage.get("answered_pct")),
            tolerant_score=round(100 * _figure(tolerant, "avg_command_f1"), 2) if tolerant else None,
            metric_revision=scored_revision(document) or UNKNOWN,
            dataset=_dataset(document),
            timestamp=_text(document, "timestamp"),
            source=str(path),
        )
    except KeyError as error:
        raise UsageError(f"{path}: {error.args[0]}: is missing or not a number") from None
    return row, bool(template.get("rank_eligible", True))


def display_name(document: dict[str, Any], fallback: str) -> str:
    """Return the model's name in the table: its path; if on disk the last part (with the parent of `checkpoint-…`).

    A chosen short name takes precedence: an adapter's, and in results of tbench any that is not the default.
    """
    short, path = _text(document, "model_short") or fallback, _text(document, "model_path")
    default = path.rstrip("/").rpartition("/")[2].replace(" ", "-")
    chosen = bool(document.get("lora_path")) or (scored_revision(document) is not None and short != default)
    if not path or chosen:
        return short
    if not path.startswith("/"):
        return path
    name, parent = Path(path).name, Path(path).parent.name
    return f"{parent} ({name})" if name.startswith("checkpoint-") else name


def _section(document: dict[str, Any], key: str) -> dict[str, Any]:
    value = document.get(key)
    return value if isinstance(value, dict) else {}


def _figure(figures: dict[str, Any], key: str) -> float:
    """Return the number `key`. Raises KeyError if it is missing or not finite."""
    value = _number(figures[key])
    if value is None:
        raise KeyError(key)
    return value


def _text(document: dict[str, Any], key: str) -> str:
    value = document.get(key)
    return value if isinstance(value, str) else ""


def _number(value: object) -> float | None:
    try:
        return float(value) if isinstance(value, int | float) and math.isfinite(value) else None
    except OverflowError:  # an integer too large for a float
        return None


def _dataset(document: dict[str, Any]) -> str:
    digest = _text(document, "dataset_sha256")
    return digest[:12] if digest else f"{UNKNOWN} ({_text(document, 'eval_path').rpartition('/')[2] or '-'})"


def _newest(rows: Sequence[tuple[RankedResult, bool]]) -> list[tuple[RankedResult, bool]]:
    """Keep the newest row of each name, where its first row was. Of equally old rows, the later is kept."""
    chosen: dict[str, tuple[RankedResult, bool]] = {}
    for row, eligible in rows:
        if row.model not in chosen or row.timestamp >= chosen[row.model][0].timestamp:
            chosen[row.model] = row, eligible
    return list(chosen.values())


def _rank(rows: Sequence[tuple[RankedResult, bool]]) -> Iterable[RankedResult]:
    rank = 0
    for row, eligible in sorted(rows, key=lambda pair: (not pair[1], -pair[0].command_f1)):
        rank += eligible
        yield replace(row, rank=rank if eligible else None)


def _comparability_notes(rows: Sequence[RankedResult], *, mixed: bool) -> Iterable[str]:
    """Return notes on differences between rows. Raises UsageError for incomparable rows unless `mixed`."""
    differing = []
    for subject, values in (
        ("metric revisions", [row.metric_revision for row in rows]),
        ("datasets", [row.dataset for row in rows]),
        ("numbers of steps", [str(row.steps) for row in rows]),
    ):
        if len(set(values)) > 1:
            examples = (f"{value} ({rows[values.index(value)].source})" for value in dict.fromkeys(values))
            differing.append(f"{subject}: {', '.join(examples)}")
    if differing and not mixed:
        raise UsageError(
            f"results that cannot be ranked together: different {'; '.join(differing)}; "
            "leave some out, score them again with one revision, or rank them anyway with --mixed"
        )
    notes = [f"Mixed: different {text}." for text in differing]
    unknown = sum(row.metric_revision == UNKNOWN for row in rows)
    if unknown:
        notes.append(
            f"{unknown} of {len(rows)} results do not contain their metric revision and dataset (sha256): "
            "they may differ in both."
        )
    return notes


_HEADERS = {
    "rank": "Rank",
    "model": "Model",
    "score": "Score",
    "precision": "Precision",
    "recall": "Recall",
    "first_cmd_exact_pct": "First exact",
    "valid_json_pct": "Valid JSON",
    "tolerant_score": "Tolerant score",
    "template": "Template",
    "steps": "Steps",
    "answered_pct": "Answered",
    "metric_revision": "Metric",
    "dataset": "Dataset",
    "sec_per_step": "s/step",
}
_DIGITS = {
    "score": "{:.2f}",
    "command_f1": "{:.4f}",
    "precision": "{:.4f}",
    "recall": "{:.4f}",
    "first_cmd_exact_pct": "{:.1f}",
    "valid_json_pct": "{:.1f}",
    "tolerant_score": "{:.2f}",
    "answered_pct": "{:.1f}",
    "sec_per_step": "{:.3f}",
    "load_s": "{:.1f}",
}
_PERCENT = ("first_cmd_exact_pct", "valid_json_pct", "answered_pct")


def as_markdown(board: Leaderboard) -> str:
    """Return the board as a Markdown table, followed by its notes."""
    lines = [
        f"| {' | '.join(_HEADERS.values())} |",
        f"| {' | '.join('---' if name in ('model', 'template', 'dataset') else '---:' for name in _HEADERS)} |",
    ]
    for row in board.rows:
        cells = ((name, _cell(row, name)) for name in _HEADERS)
        texts = (escaped(f"{text}%" if text and name in _PERCENT else text) for name, text in cells)
        lines.append(f"| {' | '.join(texts)} |")
    remarks = [*board.notes, *(f"Not read: {problem}" for problem in board.unreadable)]
    lines += ["", *(f"- {escaped(remark)}" for remark in remarks)] if remarks else []
    return "\n".join(lines) + "\n"


def as_csv(board: Leaderboard) -> str:
    """Return the board as CSV: published columns by name, and additional ones. Ineligible rows have rank `excluded`."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    writer.writerows([_cell(row, name) for name in COLUMNS] for row in board.rows)
    return out.getvalue()


def as_json(board: Leaderboard) -> str:
    """Return the board as JSON: rows, notes, and unreadable files. An ineligible row's rank is null."""
    document = {
        "rows": [asdict(row) for row in board.rows],
        "notes": list(board.notes),
        "unreadable": list(board.unreadable),
    }
    return json.dumps(document, ensure_ascii=False, indent=2) + "\n"


def _cell(row: RankedResult, name: str) -> str:
    value = getattr(row, name)
    if name == "rank" and value is None:
        return "excluded"
    if value is None:
        return ""
    return _DIGITS[name].format(value) if name in _DIGITS else str(value)
