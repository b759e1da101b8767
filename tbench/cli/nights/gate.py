"""`tbench gate`: is the last night lower than the nights before it, by more than chance?"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench import exit_codes
from tbench.cli.common import json_option, runs_argument
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.parsing.values import Integer, Number
from tbench.cli.printing import print_line, print_text

if TYPE_CHECKING:
    from tbench.api.nights import StoredNight

_DIFFERENCES_SHOWN = 3


@click.command(cls=TbenchCommand)
@runs_argument("Runs of one benchmark, or directories of runs; the one that began last is judged.")
@click.option("--base-nights", type=Integer(min=2), default=10, help="Nights that the baseline begins with.")
@click.option("--base-from", metavar="NIGHT", help="Name or date (YYYY-MM-DD) of the night at which it begins.")
@click.option(
    "--k", type=Number(min=0, min_open=True), default=0.5, help="Half of the drop to look for, in sd of a night."
)
@click.option("--h", type=Number(min=0, min_open=True), default=5.0, help="The alarm is where C is above it.")
@click.option(
    "--min-se",
    type=Number(min=0),
    default=3.0,
    help="Standard errors by which the nights since the change have to be below the baseline.",
)
@click.option(
    "--min-coverage",
    type=Number(min=0, max=1, min_open=True),
    default=0.9,
    help="Share of a night's trials that need a verdict for the night to count.",
)
@click.option(
    "--min-shared",
    type=Number(min=0, max=1, min_open=True),
    default=0.8,
    help="Share of tasks that a night needs in common with the last one.",
)
@json_option
def gate(
    runs: tuple[Path, ...],
    base_nights: int,
    base_from: str | None,
    k: float,
    h: float,
    min_se: float,
    min_coverage: float,
    min_shared: float,
    as_json: bool,
) -> None:
    """Judge whether the last of many runs lies below those before it, by more than chance; exit with 5 if it does."""
    import json
    from dataclasses import replace

    from tbench.api.nights import read_nights
    from tbench.scores.gate.judge import judge
    from tbench.scores.gate.nights import GateRule

    rule = GateRule(base_nights, k, h, min_se, base_from, min_coverage, min_shared)
    nights, left_out = read_nights(runs)
    verdict = judge([each.night for each in nights], rule)
    verdict = replace(verdict, notes=(*verdict.notes, *_differences(nights), *_models(nights), *left_out))
    if as_json:
        print_text(json.dumps(verdict.as_json(), indent=2, ensure_ascii=False))
    else:
        for line in verdict.lines():
            print_line(line)
    if verdict.alarm:
        raise click.exceptions.Exit(exit_codes.ALARM)


def _differences(nights: list[StoredNight]) -> list[str]:
    """How nights with other settings differ from the last one: one line for each way to be other."""
    from tbench.storage.comparable import differing_keys
    from tbench.text import names_shown

    last = nights[-1]
    others = {each.night.fingerprint: each for each in nights if each.night.fingerprint != last.night.fingerprint}
    return [
        f"{each.night.name}: {names_shown(differing_keys(each.run, last.run)) or 'other settings'}"
        for each in list(others.values())[-_DIFFERENCES_SHOWN:]
    ]


def _models(nights: list[StoredNight]) -> list[str]:
    """A line where the nights are of several models: of one that is trained on, or of what does not belong together."""
    from tbench.text import names_shown

    models = sorted({each.run.model for each in nights if each.run.model is not None})
    return [f"nights of {len(models)} models: {names_shown(models)}"] if len(models) > 1 else []
