"""Reads one score per model from results of proxies, tables and run directories.

A model with two scores on one side is an error, as it is ambiguous which one counts.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from tbench.errors import UsageError
from tbench.files import read_json, read_object_or_none
from tbench.scores.statistics import score as score_of
from tbench.scores.summarise import reward_table
from tbench.storage.read_run import StoredRun, read_run
from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME
from tbench.text import one_line

By = Literal["model", "name"]
DEFAULT_FIELDS = ("aggregate.avg_command_f1", "levels.extractable.mean")
"""Keys of the published score, a fraction, of a replay and of an extraction."""
_PROVENANCE = ("metric_revision", "dataset_sha256", "protocol", "tasks_sha256")
"""Keys that say how a result was made; results that differ in them are not comparable."""


@dataclass(frozen=True)
class ModelScore:
    """A model's score by a proxy or by execution."""

    model: str
    score: float
    where: str
    notes: tuple[str, ...] = ()
    provenance: tuple[tuple[str, str], ...] = ()
    """(key, value) pairs in which comparable scores agree."""


def proxy_scores(paths: Iterable[Path], *, by: By = "model", field: str | None = None) -> list[ModelScore]:
    """Read scores from result files, directories of them, and tables (CSV, JSONL) of model and score.

    `field` is a dotted path in a result file, or a table's column. Raises UsageError for a path without scores.
    """
    return [score for path in paths for score in _scores_of_proxy(path, by, field)]


def executed_scores(paths: Iterable[Path], *, by: By = "model") -> list[ModelScore]:
    """Read scores of run directories and imported results, and from tables of model and score.

    Scores of runs are percentages; a trial without a verdict counts as 0. Raises UsageError.
    """
    return [score for path in paths for score in _scores_of_executed(path, by)]


def read_names(path: Path) -> dict[str, str]:
    """Read a mapping of names in files to names to use: a JSON object or a CSV of two columns. Raises UsageError."""
    text = _text(path)
    try:
        pairs = json.loads(text).items() if text.lstrip().startswith("{") else list(csv.reader(io.StringIO(text)))
        names = {str(name).strip(): str(other).strip() for name, other in pairs if name or other}
    except (ValueError, csv.Error) as error:
        raise UsageError(
            f"{path}: must be a JSON object or lines `name,other name` ({one_line(str(error), 120)})"
        ) from None
    if not names:
        raise UsageError(f"{path}: contains no names")
    return names


def by_model(scores: Sequence[ModelScore], names: Mapping[str, str], side: str) -> dict[str, ModelScore]:
    """Return the score of each model, renamed by `names`. Raises UsageError for a model that occurs twice."""
    found: dict[str, ModelScore] = {}
    for score in scores:
        model = names.get(score.model, score.model)
        if model in found:
            raise UsageError(
                f"{score.where}: a second {side} score of {model!r}, after {found[model].where}; give one per model, "
                "or distinguish them with --by name or --names"
            )
        found[model] = score
    return found


def differences(scores: Iterable[ModelScore]) -> list[str]:
    """Return the differences in provenance of these scores, one phrase each."""
    values: dict[str, set[str]] = {}
    for score in scores:
        for key, value in score.provenance:
            values.setdefault(key, set()).add(value)
    return [f"{key} {' and '.join(sorted(found))}" for key, found in sorted(values.items()) if len(found) > 1]


# -- proxies ---------------------------------------------------------------------------------------


def _scores_of_proxy(path: Path, by: By, field: str | None) -> list[ModelScore]:
    if path.is_dir():
        own = path / "result.json"
        files = [own] if own.is_file() else sorted({*path.glob("*/result.json"), *path.glob("*.json")})
        results = [each for each in files if own.is_file() or "model" in (read_object_or_none(each) or {})]
        found = [_score_of_result(file, by, field) for file in results]
        if not found:
            raise UsageError(f"{path}: contains no result.json of a proxy, nor does a directory in it")
        return found
    if path.suffix in (".csv", ".jsonl"):
        return _scores_of_table(path, field or "score")
    return [_score_of_result(path, by, field)]


def _score_of_result(file: Path, by: By, field: str | None) -> ModelScore:
    data = read_json(file, "check the path")
    if not isinstance(data, dict):
        raise UsageError(f"{file}: not a JSON object; give the result of a proxy")
    used = field or next((known for known in DEFAULT_FIELDS if _is_number(_value_at(data, known))), DEFAULT_FIELDS[0])
    value = _value_at(data, used)
    if not _is_number(value):
        hint = "" if field else "; name another score with --field, such as aggregate.valid_json_pct"
        raise UsageError(f"{file}: {used} is not a number{hint}")
    name = data.get("model") if by == "model" else data.get("model_short") or file.parent.name
    if not isinstance(name, str) or not name:
        raise UsageError(f"{file}: has no `model`")
    template = data.get("prompt_template")
    notes = ["not complete"] if data.get("complete") is False else []
    if isinstance(template, dict) and template.get("rank_eligible") is False:
        notes.append("not eligible for ranking (some prompts without the model's template)")
    settings = tuple((key, str(data[key])) for key in _PROVENANCE if data.get(key) is not None)
    provenance = (("score", used), *settings)
    return ModelScore(name, value if field else 100 * value, str(file), tuple(notes), provenance)


def _value_at(data: Any, dotted: str) -> Any:
    for key in dotted.split("."):
        data = data.get(key) if isinstance(data, dict) else None
    return data


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


# -- executed --------------------------------------------------------------------------------------


def _scores_of_executed(path: Path, by: By) -> list[ModelScore]:
    if path.is_file() and (path.suffix == ".csv" or _is_score_table(path)):
        return _scores_of_table(path, "score")
    if path.is_dir() and not (path / CONFIG_NAME).is_file() and not (path / RESULTS_NAME).is_file():
        runs = sorted(each.parent for each in path.glob(f"*/{CONFIG_NAME}"))
        if not runs:
            raise UsageError(f"{path}: is not a run directory and contains none")
        return [score for run in runs for score in _scores_of_run(read_run(run), by)]
    return _scores_of_run(read_run(path), by)


def _is_score_table(path: Path) -> bool:
    """Whether the first line has a score and no reward: a table of models, not results of trials."""
    first = next((line for line in _text(path).split("\n") if line.strip()), "")
    try:
        keys = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(keys, dict) and "score" in keys and "reward" not in keys


def _scores_of_run(run: StoredRun, by: By) -> list[ModelScore]:
    models = sorted({str(result.model or run.model or run.name) for result in run.results})
    scores = []
    if not run.planned_tasks or not run.planned_seeds:
        raise UsageError(f"{run.path}: its plan is empty, so it has no score")
    for model in models or [str(run.model or run.name)]:
        results = [each for each in run.results if str(each.model or run.model or run.name) == model]
        table = reward_table(results, run.planned_tasks, run.planned_seeds)
        scored, planned = len(table.scored_rewards()), len(table.tasks) * len(table.seeds)
        if not scored:
            raise UsageError(f"{run.path}: no trial of {model!r} has a verdict, so it has no score")
        notes = () if scored == planned else (f"coverage {scored}/{planned}; unscored = 0",)
        name = run.name if by == "name" and len(models) == 1 else model
        scores.append(ModelScore(name, 100 * score_of(table), str(run.path), notes))
    return scores


# -- tables ----------------------------------------------------------------------------------------


def _scores_of_table(path: Path, column: str) -> list[ModelScore]:
    scores = []
    for where, row in _rows(path):
        model, value = row.get("model"), row.get(column)
        if isinstance(value, str):
            value = _number(value)
        if not isinstance(model, str) or not model.strip():
            raise UsageError(f"{where}: no `model`; each line needs model and {column}")
        if not _is_number(value):
            raise UsageError(f"{where}: `{column}` is not a number; correct or remove the line")
        assert isinstance(value, int | float)
        provenance = tuple((key, str(row[key])) for key in _PROVENANCE if row.get(key) not in (None, ""))
        scores.append(ModelScore(model.strip(), float(value), where, (), provenance))
    if not scores:
        raise UsageError(f"{path}: contains no scores; each line needs model and {column}")
    return scores


def _rows(path: Path) -> Iterable[tuple[str, dict[str, Any]]]:
    text = _text(path)
    if path.suffix == ".csv":
        reader = csv.DictReader(io.StringIO(text), strict=True)
        try:
            yield from ((f"{path}:{reader.line_num}", row) for row in reader)
        except csv.Error as error:
            raise UsageError(f"{path}:{reader.line_num}: not CSV ({error})") from None
        return
    for number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise UsageError(f"{path}:{number}: not JSON ({one_line(str(error), 120)})") from None
        if not isinstance(row, dict):
            raise UsageError(f"{path}:{number}: not a JSON object")
        yield f"{path}:{number}", row


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


def _text(path: Path) -> str:
    try:
        return path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror or error}; check the path") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path}: not UTF-8 text") from None
