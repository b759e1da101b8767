"""Reads directories of runs and proxies as rows of the index."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePath
from typing import Any

from tbench.errors import UsageError
from tbench.results import UNKNOWN_TIME, TrialResult
from tbench.scores.cost import token_price
from tbench.scores.summarise import final_results
from tbench.scores.summary import Cell, Score, Summary
from tbench.storage.comparable import fingerprint
from tbench.storage.read_run import RunUnreadable, StoredRun, read_run, text_or_none
from tbench.storage.summaries import make_summary, prices_of
from tbench.text import one_line

Row = dict[str, Any]
"""Values by column."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """All rows on one run, without path and ids, which are added when they are stored."""

    run: Row
    model: str | None
    dataset: Row | None
    tasks: list[Row]
    trials: list[Row]


class RunReader:
    """Reads and summarises runs for an index, like `tbench summary`."""

    def stored(self, path: Path) -> StoredRun:
        """Read a run directory. Raises RunUnreadable."""
        return read_run(path)

    def summary(self, run: StoredRun) -> Summary:
        """Summarise a run. Raises UsageError."""
        return make_summary(run, intervals=False)


def read_record(path: Path, reader: RunReader) -> RunRecord:
    """Read the rows on a run. Raises UsageError."""
    stored = reader.stored(path)
    if not stored.planned_tasks or not stored.planned_seeds:
        raise RunUnreadable(f"{path}: its plan has no tasks or no seeds")
    summary = reader.summary(stored)
    finals = final_results(stored.results)
    trials = list(_trials(stored, summary, finals))
    return RunRecord(
        run=_run_columns(stored, summary, trials),
        model=stored.model or summary.model,
        dataset=_dataset(stored),
        tasks=list(_tasks(stored, summary)),
        trials=trials,
    )


def _run_columns(stored: StoredRun, summary: Summary, trials: list[Row]) -> Row:
    document, dated, hashes = stored.document, stored.document or stored.plan, stored.task_hashes
    begun, ended = ([each[name] for each in trials if each[name]] for name in ("started_at", "finished_at"))
    begun_at = utc(dated.created_at if dated else None) or min(begun, default=None)
    ended_at = utc(dated.ended_at if dated else None) or max(ended, default=None)
    plan = _json(sorted((name, hashes.get(name)) for name in stored.planned_tasks))
    return {
        "name": stored.name,
        "agent": document.locked.agent if document else stored.plan.agent if stored.plan else summary.agent,
        "fingerprint": fingerprint(stored),
        "plan": hashlib.sha256(plan.encode("utf-8", "replace")).hexdigest()[:16],
        "imported": stored.document is None,
        "purpose": document.purpose if document else "score",
        "status": dated.status if dated else None,
        "stopped": document.stopped if document else None,
        "tbench_version": document.tbench_version if document else None,
        "begun_at": begun_at,
        "ended_at": ended_at,
        "wall_sec": _seconds_between(begun_at, ended_at),
        "cost": None if summary.cost is None else summary.cost.model_dump_json(),
        "overrides": _json(summary.overrides),
        "broken_rules": _json(summary.broken_rules),
        "notes": _json(stored.notes),
        "seeds": _json(summary.seeds),
        "tasks": len(summary.tasks),
        **summary.counts.model_dump(),
        "went_on": _json(summary.counts.went_on),
        **_score_columns(summary.score),
        **summary.usage.model_dump(),
        **summary.time.model_dump(),
        "metrics": _json([each.model_dump() for each in summary.metrics]),
        "outcomes": _json(summary.outcomes),
        "error_groups": _json([each.model_dump(mode="json") for each in summary.errors]),
        "flags": _json([each.model_dump() for each in summary.flags]),
    }


def _score_columns(score: Score | None) -> Row:
    if score is None:
        return {}
    return {
        "score": score.mean,
        "score_std": score.std,
        "score_se": score.se_over_tasks,
        "per_seed": _json(score.per_seed),
        "scored_per_seed": _json(score.scored_per_seed),
        "completed": None if score.completed is None else _json(score.completed.model_dump()),
        "scored_only": score.scored_only,
        "scored_only_std": score.scored_only_std,
        "worst": score.worst,
        "best": score.best,
        "expected_std": score.expected_std,
        "solved_rate": score.solved_rate,
        "pass_at_k": _json(score.pass_at_k),
        "pass_hat_k": _json(score.pass_hat_k),
    }


def _dataset(stored: StoredRun) -> Row | None:
    """Return the dataset of a run, or the folder of tasks that have no dataset."""
    origin = stored.dataset
    if origin is not None:
        known = {"name": origin.name, "version": origin.version, "source": origin.source, "url": origin.url}
        return known | {"commit": origin.commit, "digest": origin.digest, "tasks": origin.tasks}
    if stored.document is None:
        return None
    source = stored.document.config.tasks.source
    return {"name": PurePath(source).name or source, "source": source}


def _tasks(stored: StoredRun, summary: Summary) -> Iterator[Row]:
    hashes = stored.task_hashes
    for position, row in enumerate(summary.tasks):
        yield {
            "task": row.task,
            "position": position,
            "hash": hashes.get(row.task),
            "mean_reward": row.mean_reward,
            "scored": row.scored,
            "solved": row.solved,
            "mean_steps": row.mean_steps,
            "mean_wall_sec": row.mean_wall_sec,
        }


def _trials(stored: StoredRun, summary: Summary, finals: Mapping[tuple[str, int], TrialResult]) -> Iterator[Row]:
    prices, tags = prices_of(stored), stored.tags
    for row in summary.tasks:
        for cell in row.cells:
            if (result := finals.get((row.task, cell.seed))) is None:
                continue
            given = sorted(tags.get((row.task, cell.seed), ()))
            notes = [note.words for note in stored.trial_notes if note.is_about(row.task, cell.seed)]
            yield _trial(result, cell) | {
                "cost": token_price(result.usage, prices),
                "tags": _json(given) if given else None,
                "notes": _json(notes) if notes else None,
            }


def _trial(result: TrialResult, cell: Cell) -> Row:
    error = result.error if result.reward is None else None
    return {
        "task": result.task,
        "seed": result.seed,
        "trial": result.trial,
        "attempt": result.attempt,
        "status": str(cell.status),
        "reward": cell.reward,
        "reward_all_steps": cell.reward_all_steps,
        "error_stage": error and str(error.stage),
        "error": cell.error,
        "error_blame": error and str(error.blame),
        "outcome": result.outcome and str(result.outcome),
        "steps": result.steps,
        "prompt_tokens": result.usage.prompt_tokens,
        "completion_tokens": result.usage.completion_tokens,
        "cached_tokens": result.usage.cached_tokens,
        "uncounted": result.usage.uncounted,
        "wall_sec": result.timings.wall_sec,
        "model_sec": result.timings.model_sec,
        "agent_sec": result.timings.agent_sec,
        "started_at": utc(result.started_at),
        "finished_at": utc(result.finished_at),
        "human_touched": result.human_touched,
        "out_of_memory": result.out_of_memory,
        "tamper": _json(result.integrity.tamper) if result.integrity.tamper else None,
        "metrics": _json(result.metrics) if result.metrics else None,
    }


def utc(time: datetime | str | None) -> str | None:
    """Format a time as ISO 8601 in UTC with milliseconds, so that times sort as text; None if unknown."""
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            return None
    if time is None:
        return None
    try:
        aware = time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)
    except OverflowError:  # before the year 1 in UTC
        return None
    if aware == UNKNOWN_TIME:
        return None
    return aware.replace(tzinfo=None).isoformat(timespec="milliseconds") + "Z"


def _seconds_between(begin: str | None, end: str | None) -> float | None:
    if begin is None or end is None:
        return None
    return max(0.0, (datetime.fromisoformat(end) - datetime.fromisoformat(begin)).total_seconds())


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


RESULT_NAME = "result.json"
_ADVICE = "restore it or delete the directory"


@dataclass(frozen=True, slots=True)
class ProxyKind:
    """Keys of a proxy's result that the index stores, as dotted paths."""

    name: str
    measure: str
    """Key of the published score, a fraction."""
    planned: str
    answered: str
    data: str
    """Key of the hash of its input."""
    figures: tuple[str, ...]
    """Keys of further figures."""


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
"""Proxy kinds by the name of their manifest."""


@dataclass(frozen=True, slots=True)
class ProxyRecord:
    """The row on one proxy, without path and ids, which are added when it is stored."""

    row: Row
    model: str | None


def read_proxy(directory: Path, manifest_name: str) -> ProxyRecord:
    """Read manifest and result, if any, of a replay or an extraction. Raises UsageError."""
    kind = PROXIES[manifest_name]
    manifest = _read_object(directory / manifest_name)
    result = _read_object(directory / RESULT_NAME) if (directory / RESULT_NAME).exists() else {}
    model = manifest.get("model")
    figures = {key: result[key] for key in kind.figures if key in result}
    row = {
        "name": str(manifest.get("model_short") or directory.name),
        "kind": kind.name,
        "measure": kind.measure,
        "score": _number(result, kind.measure),
        "planned": _integer(result, kind.planned),
        "answered": _integer(result, kind.answered),
        "metric_revision": text_or_none(result.get("metric_revision")),
        "data": text_or_none(result.get(kind.data)),
        "protocol": text_or_none(result.get("protocol")),
        "begun_at": utc(text_or_none(manifest.get("created_at"))),
        "tbench_version": text_or_none(manifest.get("tbench_version")),
        "figures": _json(figures),
    }
    return ProxyRecord(row, text_or_none(model))


def _read_object(file: Path) -> dict[str, Any]:
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


def _integer(data: Mapping[str, Any], dotted: str) -> int | None:
    value = _number(data, dotted)
    return None if value is None else int(value)
