"""`tbench nightly`: a whole night from one file, for cron and CI."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.common import write_new
from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_PATH, Integer
from tbench.cli.printing import print_line
from tbench.errors import UsageError

if TYPE_CHECKING:
    from tbench.nightly.journal import NightRecord
    from tbench.nightly.reading import Benchmark

_STOPPING = "stopping: what runs is being ended, what is finished is kept; Ctrl-C again does not wait for it"


@click.command(cls=TbenchCommand)
@click.argument(
    "file", cls=Argument, metavar="FILE", type=A_PATH, help="A TOML file; with --demo, a directory for the demo."
)
@click.option("--night", metavar="NAME", help="The night to begin, or to go on with.  [default: today's date]")
@click.option("--check", is_flag=True, help="Check the file, say what would be done, and start nothing.")
@click.option("--init", is_flag=True, help="Write FILE with every setting, its help and its default.")
@click.option("--demo", is_flag=True, help="Play nights with a scripted model that gets worse in the seventh.")
@click.option("--nights", type=Integer(min=1), help="How many nights --demo plays.  [default: 10]")
def nightly(file: Path, night: str | None, check: bool, init: bool, demo: bool, nights: int | None) -> None:
    """Run a benchmark every night: serve, run, index, compare, judge, notify; goes on where it was cut."""
    if check + init + demo > 1:
        raise UsageError("--check, --init and --demo: give one of them")
    if nights is not None and not demo:
        raise UsageError("--nights: belongs to --demo; a file's nights come one by one")
    if night is not None and (init or demo):
        raise UsageError("--night: has no effect here; leave it out")
    if init:
        from tbench.nightly.words import first_file

        write_new(file, first_file())
        print_line(f"written: {file}")
        return
    if demo:
        from tbench.nightly.demo import DEMO_NIGHTS

        _play_demo(file, nights or DEMO_NIGHTS)
        return
    benchmark = _read(file)
    if check:
        from tbench.nightly.words import what_would_be_done

        for line in what_would_be_done(benchmark, night or today()):
            print_line(line)
        return
    _end(_run(benchmark, night or today()))


def today() -> str:
    """The name of the night that begins now."""
    from datetime import datetime

    return f"{datetime.now():%Y-%m-%d}"


def _read(file: Path) -> Benchmark:
    from tbench.nightly.reading import read_benchmark
    from tbench.proxies.extraction.settings import ExtractConfig
    from tbench.proxies.replay.asking.settings import ReplayConfig

    return read_benchmark(file, os.environ, {"replay": ReplayConfig, "extract": ExtractConfig})


def _run(benchmark: Benchmark, name: str) -> NightRecord:
    """Do a night, and print what it found on stdout."""
    from tbench.cli.interruption import run_interruptibly
    from tbench.nightly.night import run_night
    from tbench.nightly.summary import headline

    record = run_interruptibly(run_night(benchmark, name, _say), stopping=_STOPPING)
    evidence = [
        line for lane, gate in record.gates.items() for line in (lane, *(f"  {line}" for line in gate["lines"]))
    ]
    try:
        for line in (headline(benchmark.name, record), *evidence):
            print_line(line)
    except OSError:
        # A reader that went away must not cost the exit code: what is still to be flushed goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return record


def _say(words: str) -> None:
    with contextlib.suppress(OSError):  # a reader that went away must not cost a night
        print_line(words, err=True)


def _write_site(benchmark: Benchmark) -> Path:
    """Bring the site up to date, also where all nights were over, and another version has written it."""
    from tbench.nightly.pages import write_pages

    directory = Path(benchmark.config.nightly.directory)
    return write_pages([directory], directory / benchmark.config.nightly.site).overview


def _end(record: NightRecord) -> None:
    if record.exit_code:
        raise click.exceptions.Exit(record.exit_code)


def _play_demo(directory: Path, nights: int) -> None:
    from tbench.nightly.demo import night_names, prepare, set_checkpoint

    file = prepare(directory)
    benchmark = _read(file)
    record = None
    for name in night_names(nights):
        set_checkpoint(directory, name)
        record = _run(benchmark, name)
    if record is not None:
        print_line(f"site: {_write_site(benchmark)}")
        _end(record)
