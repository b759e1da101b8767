"""Which run, and which of its trials, a command speaks to."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.common import Command
from tbench.cli.parsing.commands import Argument
from tbench.cli.parsing.values import A_NAME
from tbench.errors import UsageError

if TYPE_CHECKING:
    from tbench.control.wire import Request

_RUNS = Path("runs")
_THE_ONE = "Without it, the one run that is under way in runs."


def _where(metavar: str, help: str) -> Callable[[Command], Command]:
    """The run or trial that is meant, as `where`; in brackets it may be left out."""
    required = not metavar.startswith("[")
    return click.argument("where", cls=Argument, metavar=metavar, required=required, type=A_NAME, help=help)


trial_argument = _where("TRIAL", "RUN/TASK/SEED; TASK/SEED, or the task alone, where one run is under way in runs.")
run_or_trial_argument = _where("[WHERE]", f"A run directory, or a trial of it: RUN/TASK/SEED. {_THE_ONE}")
run_argument = _where("[RUN]", f"A run directory. {_THE_ONE}")


def run_and_trial(where: str | None) -> tuple[Path, str | None]:
    """The run directory and the trial that are meant. Raises UsageError."""
    from tbench.storage.run_files import CONFIG_NAME

    if where is None:
        return the_run(), None
    path = Path(where)
    for above in (path, *path.parents):
        if (above / CONFIG_NAME).is_file():
            trial = str(path.relative_to(above))
            return above, None if trial == "." else trial
    if path.is_absolute() or path.is_dir():
        raise UsageError(f"{where}: no run directory; give one, or RUN/TASK/SEED")
    return the_run(), where


def a_trial(where: str, instead: str = "name a trial") -> tuple[Path, str]:
    """The run directory and the trial that are meant. Raises UsageError for a whole run."""
    run, trial = run_and_trial(where)
    if trial is None:
        raise UsageError(f"{where}: is a whole run; {instead}: RUN/TASK/SEED")
    return run, trial


def the_run() -> Path:
    """The one run that is under way in runs. Raises UsageError where there is none, or more than one."""
    from tbench.control.client import runs_under_way

    found = runs_under_way(_RUNS)
    if not found:
        raise UsageError(f"{_RUNS}: no run is under way here; name its directory")
    if len(found) > 1:
        raise UsageError(f"{len(found)} runs are under way; name one: {', '.join(map(str, found))}")
    return found[0]


def ask_and_print(run: Path, request: Request) -> None:
    """Send a request, and print what came of it. Raises UsageError."""
    from tbench.cli.printing import print_line
    from tbench.control.client import ask

    print_line(ask(run, request).words)
