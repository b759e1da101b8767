"""`tbench correlate`: does a proxy order models as executed tasks do?"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH, OneOf
from tbench.cli.printing import print_line, print_text

if TYPE_CHECKING:
    from tbench.proxies.correlation import Correlation, Estimate
    from tbench.proxies.model_scores import By, ModelScore

Side = Mapping[str, "ModelScore"]


@click.command(cls=TbenchCommand)
@click.argument(
    "proxies",
    cls=Argument,
    metavar="PROXY...",
    type=A_PATH,
    nargs=-1,
    required=True,
    help="Results of a proxy, directories of them, CSV or JSONL.",
)
@click.option(
    "--executed",
    metavar="RUN",
    type=A_PATH,
    multiple=True,
    required=True,
    help="Run directory, or CSV or JSONL of scores (repeatable).",
)
@click.option(
    "--by",
    type=OneOf("model", "name"),
    default="model",
    help="What names a score: the model's id, or the run's or result's name.",
)
@click.option("--names", metavar="FILE", type=A_PATH, help="Other names: a JSON object or a CSV.")
@click.option("--field", metavar="PATH", help="The proxy's score: a dotted path, or a table's column.")
@click.option("--mixed", is_flag=True, help="Take proxies of different datasets or metric revisions together.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def correlate(
    proxies: tuple[Path, ...],
    executed: tuple[Path, ...],
    by: By,
    names: Path | None,
    field: str | None,
    mixed: bool,
    as_json: bool,
) -> None:
    """Rank correlation of proxy scores with executed scores of the same models."""
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
            f"the proxies have {'; '.join(not_one_scale)}: not on one scale; score them alike, or say --mixed"
        )
    result = correlation_of([left[model].score for model in paired], [right[model].score for model in paired])
    report = _report(paired, left, right, result, not_one_scale)
    if as_json:
        import json

        print_text(json.dumps(report, indent=2, ensure_ascii=False))
    else:
        _print(report)


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


def _print(report: dict[str, Any]) -> None:
    rows = report["models"]
    width = max([len("model"), *(len(row["model"]) for row in rows)])
    if rows:
        print_line(f"{'model':{width}}  {'proxy':>8}  {'executed':>8}")
    for row in rows:
        print_line(f"{row['model']:{width}}  {row['proxy']:8.2f}  {row['executed']:8.2f}")
    print_line(f"{report['n']} model{'s' * (report['n'] != 1)} on both sides")
    print_line(_line("Spearman rho", report["spearman"], report))
    print_line(_line("Kendall tau-b", report["kendall_tau_b"], report))
    for key, side in (("only_proxy", "proxies"), ("only_executed", "executed scores")):
        if report[key]:
            print_line(f"only among the {side}: {', '.join(report[key])}")
    for note in report["notes"]:
        print_line(f"note: {note}")


def _line(title: str, estimate: dict[str, Any], report: dict[str, Any]) -> str:
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
