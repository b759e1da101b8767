"""`tbench replay`, `leaderboard`, `correlate`: build datasets of recorded steps, score replies, rank models."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbench import exit_codes
from tbench.cli.common import json_option, runs_argument
from tbench.cli.parsing.commands import LazyGroup, TbenchCommand, argument, flag, option
from tbench.cli.parsing.values import PATH_TYPE, Integer, OneOf
from tbench.cli.printing import print_json, print_line, print_lines, print_text
from tbench.text import counted

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tbench.proxies.correlation import Correlation, Estimate
    from tbench.proxies.datasets.build import BuildReport
    from tbench.proxies.datasets.conversations import Only
    from tbench.proxies.model_scores import By, ModelScore
    from tbench.proxies.replay.scoring.parser import Revision
    from tbench.proxies.replay.scoring.result import Recomputed

COMMANDS = {
    "run": "tbench.cli.proxies.extract:replay_run",
    "score": "tbench.cli.proxies.replay:score",
    "merge": "tbench.cli.proxies.replay:merge",
    "build": "tbench.cli.proxies.replay:build",
}


@click.group(cls=LazyGroup, table=COMMANDS)
def replay() -> None:
    """Score a model's next commands; none is executed."""


# `tbench replay build`

_SHOWN = 10


@click.command(cls=TbenchCommand)
@argument(
    "conversations",
    "CONVERSATIONS...",
    "Run directories, trajectory.json files (tbench or ATIF), or JSONL with one conversation per line.",
    required=True,
)
@option("--output -o DATASET.jsonl", "The dataset to write.", PATH_TYPE, required=True)
@option(
    "--only", "Which trials of a run, by the verdict in their result.json.", OneOf("passed", "all"), default="passed"
)
@flag("--include-invalid-refs", "Also make steps of replies without a JSON object.")
@flag("--include-empty-command-refs", "Also make steps of replies without a command.")
@option("--dev N", "Also write a development set with the records of N conversations.", Integer(min=0), default=0)
@option("--seed", "Random seed for choosing these conversations.", Integer(), default=42)
def build(
    conversations: tuple[Path, ...],
    output: Path,
    only: Only,
    include_invalid_refs: bool,
    include_empty_command_refs: bool,
    dev: int,
    seed: int,
) -> None:
    """Build a replay dataset from recorded conversations."""
    from tbench.proxies.datasets.build import build as build_dataset
    from tbench.proxies.datasets.records import Inclusion

    built = build_dataset(
        conversations,
        output,
        only=only,
        include=Inclusion(include_invalid_refs, include_empty_command_refs),
        dev=dev,
        seed=seed,
    )
    _print(built)


def _print(built: BuildReport) -> None:
    from harness.model_text import without_lone_surrogates

    for title, lines in (("problem", built.problems), ("note", built.notes)):
        for line in lines[:_SHOWN]:
            print_line(f"{title}: {without_lone_surrogates(line)}", err=True)
        if len(lines) > _SHOWN:
            print_line(f"{title}: {len(lines) - _SHOWN} more, in {built.manifest_path}", err=True)
    print_line(f"{counted(built.records, 'step')} of {counted(len(built.tasks), 'conversation')}: {built.path}")
    if built.dev_path is not None:
        conversations = counted(len(built.dev_task_ids), "conversation")
        print_line(f"{counted(built.dev_records, 'step')} of {conversations}: {built.dev_path}")
    print_line(f"manifest: {built.manifest_path}")
    for reason, count in sorted(built.dropped.items()):
        print_line(f"{count} turns left out: {reason}")
    if built.rebuilt:
        print_line(f"{built.rebuilt} replies reconstructed from recorded actions; their wording is not the model's")
    if built.repaired:
        print_line(f"{built.repaired} records with lone surrogates replaced by U+FFFD")
    if built.problems or built.filtered:
        print_line(f"{len(built.problems)} conversations unusable, {len(built.filtered)} left out by --only")


# `tbench replay score`

dataset_option = option("--dataset RECORDS.jsonl", "The dataset; default: the one named in replay.json.", PATH_TYPE)
metric_revision_option = option("--metric-revision", "Revision of the metric; default: v2.", OneOf("v0", "v1", "v2"))


@click.command(cls=TbenchCommand)
@argument("path", "PATH", "A replay directory, its responses.jsonl, or a result file.")
@dataset_option
@metric_revision_option
@option("--output -o RESULT.json", "Where to write the result; default: beside the replies.", PATH_TYPE)
@json_option
def score(
    path: Path, dataset: Path | None, metric_revision: Revision | None, output: Path | None, as_json: bool
) -> None:
    """Score stored replies, or recompute a result file."""
    if _is_result(path):
        _recompute(path, metric_revision, dataset, output, as_json=as_json)
    else:
        score_and_show(path, metric_revision, dataset, output, as_json=as_json)


def score_and_show(
    path: Path,
    revision: Revision | None,
    dataset: Path | None = None,
    output: Path | None = None,
    *,
    as_json: bool = False,
) -> None:
    """Score stored replies, write the result and print it."""
    from tbench.proxies.replay.directory import RESULT_NAME
    from tbench.proxies.replay.scoring.parser import DEFAULT_REVISION
    from tbench.proxies.replay.scoring.result import replace_result
    from tbench.proxies.replay.scoring.score_run import score_path

    result = score_path(path, dataset, revision or DEFAULT_REVISION)
    target = output or (path if path.is_dir() else path.parent) / RESULT_NAME
    replace_result(target, result)
    show(result, target, as_json=as_json)


def show(result: Mapping[str, Any], target: Path, *, as_json: bool) -> None:
    """Print a result and its path."""
    if as_json:
        short = {key: value for key, value in result.items() if key != "per_step"}
        print_json({**short, "result": str(target)})
        return
    from tbench.proxies.replay.scoring.result import result_lines

    for line in result_lines(result):
        print_text(line)
    print_line(f"written: {target}")


def _is_result(path: Path) -> bool:
    """Whether `path` is a JSON file other than a manifest."""
    return path.is_file() and path.suffix == ".json" and path.name != "replay.json"


def _recompute(
    path: Path, revision: Revision | None, dataset: Path | None, output: Path | None, *, as_json: bool
) -> None:
    from tbench.errors import UsageError
    from tbench.proxies.replay.scoring.result import read_result, recompute, recomputed_lines

    if dataset or output:
        raise UsageError(f"{path}: is recomputed from its own data; leave out --dataset and --output")
    document = read_result(path)
    found = recompute(path, document, revision)
    if as_json:
        print_json({"path": str(path), "revisions": [_as_json(each) for each in found]})
    else:
        for line in recomputed_lines(document["aggregate"], found):
            print_text(line)
    _exit_unless_identical(found)


def _as_json(each: Recomputed) -> dict[str, Any]:
    return {
        "metric_revision": each.revision,
        "identical": each.identical,
        "aggregate": dict(each.aggregate),
        "differing": {key: {"stored": old, "recomputed": new} for key, (old, new) in each.differing.items()},
        "absent": list(each.absent),
        "differing_steps": list(each.differing_steps),
    }


def _exit_unless_identical(found: Sequence[Recomputed]) -> None:
    if not any(each.identical for each in found):
        raise click.exceptions.Exit(exit_codes.TOO_FEW_VERDICTS)


# `tbench replay merge`


@click.command(cls=TbenchCommand)
@runs_argument("The directories of all shards (--shard I/N).")
@option("--output -o DIR", "A new directory for the whole replay.", PATH_TYPE, required=True)
@dataset_option
@metric_revision_option
@json_option
def merge(
    runs: tuple[Path, ...], output: Path, dataset: Path | None, metric_revision: Revision | None, as_json: bool
) -> None:
    """Merge the shards of a replay and score the whole."""
    from tbench.errors import UsageError
    from tbench.proxies.replay.scoring.parser import DEFAULT_REVISION
    from tbench.proxies.replay.scoring.score_run import merge as put_together

    try:
        result = put_together(runs, output, dataset, metric_revision or DEFAULT_REVISION)
    except OSError as error:
        raise UsageError(f"{error.filename or output}: {error.strerror or error}") from None
    show(result, output / "result.json", as_json=as_json)


# `tbench leaderboard`


@click.command(cls=TbenchCommand)
@argument("paths", "DIR...", "Replay directories, or folders with such directories or result files.", required=True)
@option("--format", "Output format.", OneOf("markdown", "csv", "json"), name="form", default="markdown")
@flag("--mixed", "Rank results of different datasets or metric revisions together.")
def leaderboard(paths: tuple[Path, ...], form: str, mixed: bool) -> None:
    """Rank replay results: 100 x mean F1, one row per model with its newest result."""
    from tbench.proxies.replay.scoring.leaderboard import as_csv, as_json, as_markdown
    from tbench.proxies.replay.scoring.leaderboard import leaderboard as rank

    board = rank(paths, mixed=mixed)
    if form == "csv":
        print_lines((*board.notes, *(f"Not read: {problem}" for problem in board.unreadable)), err=True)
    write = {"markdown": as_markdown, "csv": as_csv, "json": as_json}[form]
    print_text(write(board), nl=False)


# `tbench correlate`

Side = Mapping[str, "ModelScore"]


@click.command(cls=TbenchCommand)
@argument("proxies", "PROXY...", "Results of a proxy: directories, CSV or JSONL.", required=True)
@option(
    "--executed RUN", "A run directory, or CSV or JSONL of scores; repeatable.", PATH_TYPE, multiple=True, required=True
)
@option(
    "--by",
    "Match scores by the model's id, or by the name of the run or result.",
    OneOf("model", "name"),
    default="model",
)
@option("--names FILE", "Map names to other names: a JSON object or a CSV.", PATH_TYPE)
@option("--field PATH", "Field with the proxy's score: a dotted path, or a column of a table.")
@flag("--mixed", "Combine proxies of different datasets or metric revisions.")
@flag("--json", "Print one JSON object.", name="as_json")
def correlate(
    proxies: tuple[Path, ...],
    executed: tuple[Path, ...],
    by: By,
    names: Path | None,
    field: str | None,
    mixed: bool,
    as_json: bool,
) -> None:
    """Correlate proxy scores with executed scores, by rank."""
    from tbench.errors import UsageError
    from tbench.proxies.correlation import correlate as correlation_of
    from tbench.proxies.model_scores import by_model, differences, executed_scores, proxy_scores, read_names

    mapping = read_names(names) if names is not None else {}
    left = by_model(proxy_scores(proxies, by=by, field=field), mapping, "proxy")
    right = by_model(executed_scores(executed, by=by), mapping, "executed")
    paired = sorted(left.keys() & right.keys(), key=lambda model: (-right[model].score, model))
    not_one_scale = differences(left[model] for model in paired)
    if not_one_scale and not mixed:
        raise UsageError(
            f"the proxies have {'; '.join(not_one_scale)}: not on the same scale; score them alike, or use --mixed"
        )
    result = correlation_of([left[model].score for model in paired], [right[model].score for model in paired])
    report = _report(paired, left, right, result, not_one_scale)
    if as_json:
        print_json(report)
    else:
        _print_correlation(report)


def _report(
    paired: list[str], left: Side, right: Side, result: Correlation, not_one_scale: list[str]
) -> dict[str, Any]:
    from tbench.proxies.correlation import BOOTSTRAP_RESAMPLES

    notes = [*result.notes, *(f"proxies differ in {what}" for what in not_one_scale)]
    for model in paired:
        sides = (("proxy", left[model]), ("executed", right[model]))
        notes += [f"{model}: {side} {note}" for side, score in sides for note in score.notes]
    return {
        "schema_version": 1,
        "n": result.n,
        "spearman": _estimate(result.spearman),
        "kendall_tau_b": _estimate(result.kendall),
        "bootstrap": {"resamples": BOOTSTRAP_RESAMPLES, "seed": 0, "level": 0.95},
        "models": [{"model": model, "proxy": left[model].score, "executed": right[model].score} for model in paired],
        "only_proxy": sorted(left.keys() - right.keys()),
        "only_executed": sorted(right.keys() - left.keys()),
        "notes": notes,
    }


def _estimate(estimate: Estimate) -> dict[str, Any]:
    drawn = estimate.bootstrap
    return {
        "value": estimate.value,
        "bootstrap_95": None if drawn is None else [drawn.low, drawn.high],
        "resamples_defined": 0 if drawn is None else drawn.resamples,
        "fisher_95": None if estimate.fisher is None else list(estimate.fisher),
    }


def _print_correlation(report: dict[str, Any]) -> None:
    rows = report["models"]
    width = max([len("model"), *(len(row["model"]) for row in rows)])
    if rows:
        print_line(f"{'model':{width}}  {'proxy':>8}  {'executed':>8}")
    for row in rows:
        print_line(f"{row['model']:{width}}  {row['proxy']:8.2f}  {row['executed']:8.2f}")
    print_line(f"{report['n']} model{'s' * (report['n'] != 1)} on both sides")
    print_line(_line("Spearman rho", report["spearman"]))
    print_line(_line("Kendall tau-b", report["kendall_tau_b"]))
    for key, side in (("only_proxy", "proxies"), ("only_executed", "executed scores")):
        if report[key]:
            print_line(f"only among the {side}: {', '.join(report[key])}")
    print_lines(f"note: {note}" for note in report["notes"])


def _line(title: str, estimate: dict[str, Any]) -> str:
    if estimate["value"] is None:
        return f"{title:13}  undefined"
    parts = [f"{title:13}  {estimate['value']:+.3f}"]
    if estimate["bootstrap_95"] is not None:
        low, high = estimate["bootstrap_95"]
        parts.append(f"95 % {low:+.3f} to {high:+.3f} (resampling models, {estimate['resamples_defined']} times)")
    if estimate["fisher_95"] is not None:
        low, high = estimate["fisher_95"]
        parts.append(f"95 % {low:+.3f} to {high:+.3f} (Fisher's z)")
    return "; ".join(parts) if len(parts) > 1 else f"{parts[0]}; no interval"
