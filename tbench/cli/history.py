"""`tbench history`: list the runs of a folder, or one task's results, from an index that is updated first."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbench.cli.common import json_option
from tbench.cli.parsing.commands import TbenchCommand, argument, flag, option
from tbench.cli.parsing.values import PATH_TYPE, Integer
from tbench.cli.printing import print_json, print_line, print_lines, print_notes, print_table
from tbench.errors import UsageError
from tbench.scores.cost import Cost

if TYPE_CHECKING:
    from tbench.history.index import RunHistory
    from tbench.history.rows import Changes, ProxyRow, RunRow, TaskPoint

_SCHEMA_VERSION = 1
_TELL_EVERY_SEC = 5.0
_HASH_SHOWN = 12
_REMARKS_SHOWN = 10
_PROXY_HEADS = ("proxy", "begun", "model", "kind", ">score", ">answered", "measure")


@click.command(cls=TbenchCommand)
@argument("folders", "RUNS_DIR...", "Folders of run directories, at any depth; default: runs.")
@option("--task -t NAME", "Show the history of this task instead of a list of runs.")
@option("--model -m NAME", "Only runs of this model.")
@option("--dataset -d NAME", "Only runs of this dataset, NAME or NAME@VERSION.")
@option("--limit -n N", "Only the newest N runs.", Integer(min=1))
@option("--index FILE", "Index of runs; default: RUNS_DIR/.tbench-history.sqlite.", PATH_TYPE)
@flag("--rebuild", "Rebuild the index: read every run again, and forget runs in other folders.")
@json_option
def history(
    folders: tuple[Path, ...],
    task: str | None,
    model: str | None,
    dataset: str | None,
    limit: int | None,
    index: Path | None,
    rebuild: bool,
    as_json: bool,
) -> None:
    """List the runs of a folder, or one task's results. Newest runs come first."""
    from tbench.history.database import default_index
    from tbench.history.index import RunHistory

    roots = folders or (Path("runs"),)
    file = index or default_index(roots)
    _require_folders(roots, index, rebuild)
    with RunHistory.open(file) as opened:
        if rebuild:
            opened.clear()
        changes = opened.update(*roots, progress=_progress_printer())
        print_notes((*opened.notes, *changes.notes))
        rows = opened.runs(model=model, dataset=dataset, under=roots, limit=limit, unscored=task is None)
        if task is None:
            proxies = opened.proxies(model=model, under=roots)[:limit] if dataset is None else ()
            _show_runs(opened, rows, proxies, roots, changes, as_json)
        else:
            _show_task(opened, task, rows, as_json)


def _require_folders(roots: Sequence[Path], index: Path | None, rebuild: bool) -> None:
    """Raise UsageError if a folder is missing, unless a given index may still know its runs."""
    for root in roots:
        if not root.is_dir() and (rebuild or index is None or not index.exists()):
            raise UsageError(f"{root}: no such folder; give the folder of the run directories")


def _progress_printer() -> Callable[[int, int], None]:
    """Return a callback that prints the progress of reading many runs every few seconds, if stderr is a terminal."""
    last = time.monotonic()

    def print_progress(read: int, of: int) -> None:
        nonlocal last
        if sys.stderr.isatty() and time.monotonic() - last > _TELL_EVERY_SEC:
            last = time.monotonic()
            print_line(f"read {read:,} of {of:,} new or changed run directories", err=True)

    return print_progress


# -- runs ----------------------------------------------------------------------------------------


def _show_runs(
    history: RunHistory,
    rows: Sequence[RunRow],
    proxies: Sequence[ProxyRow],
    roots: Sequence[Path],
    changes: Changes,
    as_json: bool,
) -> None:
    from tbench.history.rows import run_remarks

    remarks = run_remarks([row for row in rows if row.purpose == "score"], lambda row: history.tasks(row.path))
    if as_json:
        counts = {name: value for name, value in asdict(changes).items() if name != "notes"}
        runs = [{**_plain(row), "coverage": row.coverage} for row in rows]
        of_proxies = [_plain(row) for row in proxies]
        document = {"schema_version": _SCHEMA_VERSION, "index": str(history.file), "changes": counts, "runs": runs}
        print_json({**document, "proxies": of_proxies, "remarks": list(remarks)})
        return
    costs = ("cost",) if any(row.cost is not None for row in rows) else ()
    heads = ("run", "begun", "model", "dataset", ">score", ">coverage", ">k", ">tokens", ">wall", *costs, "")
    print_table(heads, [_cells(row, roots, has_cost=bool(costs)) for row in rows])
    if not rows:
        print_line("no runs")
    if proxies:
        print_line("")
        print_table(_PROXY_HEADS, [_proxy_cells(row, roots) for row in proxies])
    _print_remarks(remarks)


def _cells(row: RunRow, roots: Sequence[Path], *, has_cost: bool) -> tuple[str, ...]:
    from tbench.cli.progress import duration

    return (
        _short(row.path, roots),
        _minute(row.begun_at),
        row.model or "-",
        row.dataset_title or "-",
        _score(row),
        f"{row.scored}/{row.planned}",
        str(len(row.seeds)),
        _tokens(row),
        "-" if row.wall_sec is None else duration(row.wall_sec),
        *(("-" if row.cost is None else row.cost.words,) if has_cost else ()),
        _state(row),
    )


def _tokens(row: RunRow) -> str:
    tokens = row.prompt_tokens + row.completion_tokens
    return f"{'≥' if row.uncounted else ''}{_rounded(tokens)}" if tokens else "-"


def _proxy_cells(row: ProxyRow, roots: Sequence[Path]) -> tuple[str, ...]:
    from tbench.scores.summary import percent

    return (
        _short(row.path, roots),
        _minute(row.begun_at),
        row.model or "-",
        row.kind,
        "-" if row.score is None else f"{percent(row.score)} %",
        "-" if row.planned is None else f"{row.answered}/{row.planned}",
        row.measure,
    )


def _score(row: RunRow) -> str:
    from tbench.scores.summary import percent

    if row.score is None or row.purpose != "score":
        return "-"
    spread = "" if row.score_std is None else f" ± {percent(row.score_std)}"
    return f"{percent(row.score)}{spread} %"


def _state(row: RunRow) -> str:
    """Describe a run's state; empty for a finished one without peculiarities."""
    purpose = "" if row.purpose == "score" else row.purpose
    flagged = f"{row.flagged} flagged" if row.flagged else ""
    status = "" if row.status == "finished" else row.status
    return ", ".join(filter(None, (purpose, "imported" if row.imported else "", status, flagged)))


def _short(path: Path, roots: Iterable[Path]) -> str:
    """Return a path relative to the given folders."""
    for root in roots:
        if path.is_relative_to(root.resolve()) and path != root.resolve():
            return str(path.relative_to(root.resolve()))
    return path.name


def _minute(time: str | None) -> str:
    return "-" if time is None else time[:16].replace("T", " ")


def _rounded(number: int) -> str:
    """Format a number with three digits: 950, 1.23M."""
    for unit, name in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= 0.9995 * unit:
            return f"{number / unit:.3g}{name}" if number < 999.5 * unit else f"{number / unit:.0f}{name}"
    return str(number)


# -- one task ------------------------------------------------------------------------------------


def _show_task(history: RunHistory, task: str, rows: Sequence[RunRow], as_json: bool) -> None:
    from tbench.history.rows import task_remarks

    chosen = {row.path for row in rows}
    points = [point for point in history.task(task) if point.run in chosen]
    if not points:
        raise UsageError(f"{task}: not a task of any run{_nearest(task, history.task_names())}")
    names = history.names_by_hash(point.hash for point in points if point.hash is not None)
    remarks = task_remarks(task, points, names, len(rows))
    if as_json:
        document = {"schema_version": _SCHEMA_VERSION, "task": task, "points": [_plain(point) for point in points]}
        print_json({**document, "remarks": list(remarks)})
        return
    heads = ("run", "begun", "model", "content", ">mean", ">solved", ">steps", "by seed")
    print_table(heads, [_task_cells(point) for point in points])
    _print_remarks(remarks)


def _task_cells(point: TaskPoint) -> tuple[str, ...]:
    from tbench.reward import reward_text
    from tbench.scores.summary import percent

    rewards = ("ERR" if reward is None else reward_text(reward) for _, reward in sorted(point.rewards.items()))
    return (
        point.name,
        _minute(point.begun_at),
        point.model or "-",
        (point.hash or "-")[:_HASH_SHOWN],
        "-" if point.mean_reward is None else f"{percent(point.mean_reward)} %",
        f"{point.solved}/{point.planned}",
        "-" if point.mean_steps is None else f"{point.mean_steps:.1f}",
        " ".join(rewards) + " -" * (point.planned - len(point.rewards)),
    )


def _nearest(name: str, known: Sequence[str]) -> str:
    import difflib

    near = difflib.get_close_matches(name, known, n=3)
    return f"; did you mean {' or '.join(near)}?" if near else ""


# -- both ----------------------------------------------------------------------------------------


def _print_remarks(remarks: Sequence[str]) -> None:
    """Print the newest remarks on the scores."""
    print_lines(f"note: {remark}" for remark in remarks[-_REMARKS_SHOWN:])
    if len(remarks) > _REMARKS_SHOWN:
        print_line(f"note: {len(remarks) - _REMARKS_SHOWN:,} more for earlier runs; --json prints all of them")


def _plain(row: RunRow | ProxyRow | TaskPoint) -> dict[str, Any]:
    """Return the fields of a row for JSON."""
    return {name: _json_value(value) for name, value in asdict(row).items()}


def _json_value(value: Any) -> Any:
    if isinstance(value, Cost):
        return value.model_dump(mode="json")
    return str(value) if isinstance(value, Path) else value
