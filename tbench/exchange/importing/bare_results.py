"""Imports bare results of any program as runs: lines with task, seed and reward, in JSON or CSV.

Lines may contain everything that tbench/storage/read_run.py accepts, and additionally an error as a word, token counts
at the top level, and repeats without seeds.
"""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from tbench.errors import KINDS, UsageError
from tbench.exchange.importing.common import (
    ImportChoice,
    Imported,
    NewRun,
    directories,
    mean_score,
    now,
    select_by_model,
    size_line,
    write_runs,
)
from tbench.results import UNKNOWN_AGENT, UNKNOWN_TIME, Blame, Stage, TrialResult
from tbench.storage.imported_plan import ImportedPlan, ImportedTask, ImportOrigin
from tbench.storage.read_run import JsonLine, json_lines, read_result_lines
from tbench.text import one_line

_TOKENS = ("prompt_tokens", "completion_tokens", "cached_tokens")
_REWARD = "reward"
"""The only column in which an empty cell has a meaning: no verdict."""
_LONGEST_FIELD = 10_000_000
"""Maximum characters in a cell of a CSV file."""


def import_results(
    file: Path, output: Path | None, choice: ImportChoice, *, number_seeds: bool = False
) -> list[Imported]:
    """Import a file of results as one run, or as one per model. If it raises UsageError, nothing has been written.

    With `number_seeds`, lines have no seeds; the lines of each task are numbered from 0 in the order of the file.
    """
    if not file.is_file():
        raise UsageError(f"{file}: no such file; give JSON lines or CSV with task, seed and reward")
    notes: list[str] = []
    name = file.stem
    lines = list(_csv_lines(file) if file.suffix.lower() == ".csv" else json_lines(file, notes))
    results = read_result_lines(_convert_lines(lines, number_seeds=number_seeds), name, notes)
    if not results:
        raise UsageError(f"{file}: no results; each line needs task, seed and reward")
    if number_seeds:
        notes.append("seeds were numbered from 0 in the order of the lines")
    by_model = select_by_model(results, choice, lambda each: each.model, _agent, str(file))
    places = directories([f"{name}-{model}" for model in by_model] if len(by_model) > 1 else [name], output)
    runs = [
        (_plan(file, place, of_model), place, of_model)
        for place, of_model in zip(places, by_model.values(), strict=True)
    ]
    write_runs([NewRun(place, plan, partial(_under_name, plan.run, of_model)) for plan, place, of_model in runs])
    return [Imported(place, _report_lines(plan, of_model), tuple(notes)) for plan, place, of_model in runs]


def _under_name(run: str, results: Iterable[TrialResult], _: Path) -> Iterator[TrialResult]:
    """Yield the results under the name of their run; the trials have no files."""
    return (result.model_copy(update={"run": run}) for result in results)


def _agent(result: TrialResult) -> str | None:
    return None if result.agent == UNKNOWN_AGENT else result.agent


def _plan(file: Path, place: Path, results: list[TrialResult]) -> ImportedPlan:
    begun = [result.started_at for result in results if result.started_at != UNKNOWN_TIME]
    ended = [result.finished_at for result in results if result.finished_at != UNKNOWN_TIME]
    return ImportedPlan(
        run=place.resolve().name,
        imported=ImportOrigin(format="results", source=file.name, at=now()),
        model=results[0].model,
        agent=_agent(results[0]),
        seeds=tuple(sorted({result.seed for result in results})),
        tasks=tuple(ImportedTask(name=task) for task in sorted({result.task for result in results})),
        created_at=min(begun).isoformat() if begun else "",
        ended_at=max(ended).isoformat() if ended else None,
    )


def _report_lines(plan: ImportedPlan, results: list[TrialResult]) -> tuple[str, ...]:
    planned = len(plan.tasks) * len(plan.seeds)
    missing = f"; {planned - len(results):,} planned trials have no line and count as 0" * (len(results) < planned)
    return size_line(plan, results), f"score {mean_score(plan, results):.6f}{missing}"


# -- lines ---------------------------------------------------------------------------------------


def _csv_lines(file: Path) -> Iterator[JsonLine]:
    """Yield the rows of a CSV file with a header as objects; empty cells become null. Raises UsageError."""
    csv.field_size_limit(_LONGEST_FIELD)
    try:
        with file.open(encoding="utf-8-sig", newline="") as opened:
            rows = csv.reader(opened)
            head = [name.strip() for name in next(rows, [])]
            if "task" not in head:
                raise UsageError(f"{file}:1: no column `task`; the first row names the columns: task, seed, reward, …")
            for row in rows:
                where = f"{file}:{rows.line_num}"
                if not any(cell.strip() for cell in row):
                    continue
                if len(row) != len(head):
                    raise UsageError(f"{where}: {len(row)} cells under {len(head)} columns; repair this line")
                values = ((name, _value(name, cell)) for name, cell in zip(head, row, strict=True))
                yield JsonLine(where, {name: value for name, value in values if value is not None or name == _REWARD})
    except (csv.Error, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not CSV in UTF-8 ({one_line(str(error))}); repair it") from None
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror or error}; check the path and its permissions") from None


def _value(name: str, cell: str) -> Any:
    """Parse the value of a cell; columns that are text elsewhere stay text, so that task `007` keeps its name."""
    cell = cell.strip()
    if not cell:
        return None
    if name in ("task", "model", "agent", "outcome", "trial"):
        return cell
    try:
        return json.loads(cell)
    except ValueError:
        return cell


def _convert_lines(lines: Iterable[JsonLine], *, number_seeds: bool) -> Iterator[JsonLine]:
    """Convert lines to the keys of tbench's results. Raises UsageError."""
    seen: Counter[tuple[str, ...]] = Counter()
    for where, data in lines:
        row = dict(data)
        row.pop("schema_version", None)
        if number_seeds:
            if row.get("seed") is not None:
                raise UsageError(f"{where}: a seed is given; leave out --number-seeds")
            key = (str(row.get("model")), str(row.get("agent")), str(row.get("task")))
            row["seed"] = seen[key]
            seen[key] += 1
        elif row.get("seed") is None:
            raise UsageError(f"{where}: no seed; number the lines of each task with --number-seeds")
        if isinstance(word := row.get("error"), str):
            row["error"] = _error(word)
        if tokens := {name: row.pop(name) for name in _TOKENS if name in row}:
            row.setdefault("usage", {name: count for name, count in tokens.items() if count is not None})
        if "wall_sec" in row and "timings" not in row:
            row["timings"] = {"wall_sec": row.pop("wall_sec")}
        yield JsonLine(where, row)


def _error(word: str) -> dict[str, Any]:
    """Convert an error given as a bare word: one of tbench's error types, or any other name."""
    if (kind := KINDS.get(word)) is not None:
        return {
            "stage": kind.stage,
            "type": word,
            "blame": kind.blame,
            "retryable": kind.retryable,
            "message": kind.meaning,
        }
    type_ = word.partition(":")[0].strip()[:80] or "error"
    return {
        "stage": Stage.RESULT,
        "type": one_line(type_),
        "blame": Blame.INFRA,
        "retryable": False,
        "message": one_line(word),
    }
