"""`tbench nightly` and `gate`: run a night that one file describes, and judge whether the latest night is worse."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench import exit_codes
from tbench.cli.common import choose_endpoint, json_option, runs_argument, write_new
from tbench.cli.parsing.commands import TbenchCommand, argument, flag, option
from tbench.cli.parsing.values import Integer, Number, OneOf
from tbench.cli.printing import print_json, print_line, print_lines
from tbench.errors import UsageError

if TYPE_CHECKING:
    from tbench.api.stored_runs import StoredNight
    from tbench.nightly.configuration import Benchmark
    from tbench.nightly.journal import NightRecord

# `tbench nightly`

_STOPPING = "stopping: ending what is running; the same command continues the night; Ctrl-C again exits at once"


@click.command(cls=TbenchCommand)
@argument("file", "FILE", "A TOML file; with --demo, a directory for the demo.")
@option("--night NAME", "The night to start or resume.  [default: today's date]")
@flag("--check", "Check the file, print what would be done, and start nothing.")
@flag("--init", "Write FILE with every setting, and the endpoint that is found.")
@flag("--demo", "Simulate nights with a scripted model that changes in the seventh night.")
@option(
    "--scenario",
    "What changes in --demo: the model gets worse, half the context, a short request timeout, a template that "
    "drops thinking, a busy machine, images built again, or nothing.  [default: model]",
    OneOf("model", "context", "request-timeout", "thinking", "load", "image", "nothing"),
)
@option("--nights", "Number of nights of --demo.  [default: 10]", Integer(min=1))
@option(
    "--engine ADDRESS", "Engine address for the demo, as for tbench run; repeatable.", name="engines", multiple=True
)
def nightly(
    file: Path,
    night: str | None,
    check: bool,
    init: bool,
    demo: bool,
    scenario: str | None,
    nights: int | None,
    engines: tuple[str, ...],
) -> None:
    """Run one night of a nightly benchmark: serve, run, index, compare, judge, notify; resume it if interrupted."""
    if check + init + demo > 1:
        raise UsageError("--check, --init and --demo: give only one of them")
    if nights is not None and not demo:
        raise UsageError("--nights: only works with --demo; otherwise one night runs at a time")
    if scenario is not None and not demo:
        raise UsageError("--scenario: only works with --demo")
    if engines and not demo:
        raise UsageError("--engine: only works with --demo; otherwise set engines under [run.sandbox] in the file")
    if night is not None and (init or demo):
        raise UsageError("--night: has no effect with --init or --demo; leave it out")
    if init:
        from tbench.nightly.dry_run import config_template

        base_url, model = choose_endpoint(None, None)
        write_new(file, config_template(base_url, model))
        missing = "" if base_url else "; no endpoint was found: set [run.model] base_url and name, or [serve] command"
        print_line(f"written: {file}{missing}")
        return
    if demo:
        from tbench.nightly.demo import DEMO_NIGHTS

        _play_demo(file, nights or DEMO_NIGHTS, scenario or "model", engines)
        return
    benchmark = _read(file)
    if check:
        from tbench.nightly.dry_run import dry_run_lines

        print_lines(dry_run_lines(benchmark, night or today()))
        return
    _end(_run(benchmark, night or today()))


def today() -> str:
    """Return the name of a night that begins now."""
    from datetime import datetime

    return f"{datetime.now():%Y-%m-%d}"


def _read(file: Path) -> Benchmark:
    from tbench.nightly.configuration import read_benchmark
    from tbench.proxies.extraction.settings import ExtractConfig
    from tbench.proxies.replay.generation.settings import ReplayConfig

    return read_benchmark(file, os.environ, {"replay": ReplayConfig, "extract": ExtractConfig})


def _run(benchmark: Benchmark, name: str) -> NightRecord:
    """Run a night, and print its findings on stdout."""
    from tbench.cli.interruption import run_interruptibly
    from tbench.nightly.explained import news_lines
    from tbench.nightly.night import run_night
    from tbench.nightly.summary import headline

    record = run_interruptibly(run_night(benchmark, name, _say), stopping=_STOPPING)
    evidence = [
        line for lane, gate in record.gates.items() for line in (lane, *(f"  {line}" for line in news_lines(gate)))
    ]
    try:
        print_lines((headline(benchmark.name, record), *evidence))
    except OSError:
        # A reader that has gone must not change the exit code: discard what is still to be flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return record


def _say(text: str) -> None:
    with contextlib.suppress(OSError):  # a reader that has gone must not fail a night
        print_line(text, err=True)


def _write_site(benchmark: Benchmark) -> Path:
    """Update the site, even if all nights were done before and another version wrote it."""
    from tbench.nightly.pages import write_pages

    directory = Path(benchmark.config.nightly.directory)
    return write_pages([directory], directory / benchmark.config.nightly.site).overview


def _end(record: NightRecord) -> None:
    if record.exit_code:
        raise click.exceptions.Exit(record.exit_code)


def _play_demo(directory: Path, nights: int, name: str, engines: tuple[str, ...]) -> None:
    from tbench.nightly.demo import SCENARIOS, night_names, prepare, set_checkpoint

    scenario, record = SCENARIOS[name], None
    for night in night_names(nights):
        benchmark = _read(prepare(directory, scenario, night, engines))
        set_checkpoint(directory, night, scenario)
        record = _run(benchmark, night)
    if record is not None:
        print_line(f"site: {_write_site(benchmark)}")
        _end(record)


# `tbench gate`

_DIFFERENCES_SHOWN = 3


@click.command(cls=TbenchCommand)
@runs_argument("Runs of one benchmark, or directories of runs; the latest one is judged.")
@option("--base-nights", "Number of nights in the initial baseline.", Integer(min=2), default=10)
@option("--base-from NIGHT", "Name or date (YYYY-MM-DD) of the baseline's first night.")
@option(
    "--k", "Half of the drop to detect, in standard deviations of a night.", Number(min=0, min_open=True), default=0.5
)
@option("--h", "Threshold of the CUSUM statistic C for an alarm.", Number(min=0, min_open=True), default=5.0)
@option(
    "--min-se",
    "Alarm only if the nights since the change are this many standard errors below the baseline.",
    Number(min=0),
    default=3.0,
)
@option(
    "--min-coverage",
    "Minimum share of a night's trials with a verdict.",
    Number(min=0, max=1, min_open=True),
    default=0.9,
)
@option(
    "--min-shared",
    "Minimum share of tasks that a night has in common with the latest one.",
    Number(min=0, max=1, min_open=True),
    default=0.8,
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
    """Judge if the latest run is worse by more than chance; an alarm exits with 5."""
    from dataclasses import replace

    from tbench.api.stored_runs import read_nights
    from tbench.scores.gate.judge import judge
    from tbench.scores.gate.nights import GateRule

    rule = GateRule(base_nights, k, h, min_se, base_from, min_coverage, min_shared)
    nights, left_out = read_nights(runs)
    verdict = judge([each.night for each in nights], rule)
    verdict = replace(verdict, notes=(*verdict.notes, *_differences(nights), *_models(nights), *left_out))
    if as_json:
        print_json(verdict.as_json())
    else:
        print_lines(verdict.lines())
    if verdict.alarm:
        raise click.exceptions.Exit(exit_codes.ALARM)


def _differences(nights: list[StoredNight]) -> list[str]:
    """Describe how nights with other settings differ from the latest one, one line per distinct configuration."""
    from tbench.storage.comparable import differing_keys
    from tbench.text import names_text

    last = nights[-1]
    others = {each.night.fingerprint: each for each in nights if each.night.fingerprint != last.night.fingerprint}
    return [
        f"{each.night.name}: {names_text(differing_keys(each.run, last.run)) or 'other settings'}"
        for each in list(others.values())[-_DIFFERENCES_SHOWN:]
    ]


def _models(nights: list[StoredNight]) -> list[str]:
    """Return a line that names the models, if the nights have several (checkpoints, or a mistake)."""
    from tbench.text import names_text

    models = sorted({each.run.model for each in nights if each.run.model is not None})
    return [f"nights of {len(models)} models: {names_text(models)}"] if len(models) > 1 else []
