"""What a run shows of itself while it runs: the live view on a terminal, lines elsewhere, or what was asked for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.live import Live
from rich.text import Text

from tbench.cli.printing import print_line
from tbench.cli.progress.lines import JsonLines, PlainLines
from tbench.cli.progress.live import LiveView
from tbench.config.document import RunPlan
from tbench.config.settings import OutputConfig
from tbench.events import Event, Note, RunStarted, Subscriber
from tbench.tasks.sources import TaskSet
from tbench.text import counted, visible_line


@contextlib.contextmanager
def progress(
    plan: RunPlan,
    tasks: TaskSet,
    output: OutputConfig,
    *,
    hide: Callable[[str], str] = str,
    is_away: Callable[[], bool] = lambda: False,
    remark: str = "",
) -> Iterator[Subscriber]:
    """A subscriber that shows what happens, for the duration of the block.

    `RunStarted` says how many trials are to be done: fewer than the plan where a run is resumed. `hide` takes secrets
    out of JSON, `is_away` says whether the endpoint is away, `remark` is printed with the first line.
    """
    if output.json_lines:
        yield JsonLines(hide)
        return
    if output.verbosity == "quiet":
        yield _nothing
        return
    console = Console(stderr=True, highlight=False)
    headline = f"{_headline(plan, tasks)}{remark}"
    if output.verbosity == "verbose" or not console.is_terminal:
        print_line(headline, err=True)
        yield PlainLines(verbose=output.verbosity == "verbose")
        return
    console.print(Text(visible_line(headline)))  # which breaks it between words
    view = LiveView(is_away=is_away)
    begun = False

    def show(event: Event) -> None:
        nonlocal begun
        begun = begun or isinstance(event, RunStarted)
        if isinstance(event, Note) and not begun:
            # What is told before the first trial stays: the view has room for the last few notes only.
            console.print(Text(visible_line(event.text)))
        else:
            view(event)

    with Live(get_renderable=lambda: view.render(*console.size), console=console, refresh_per_second=8, transient=True):
        yield show


def _headline(plan: RunPlan, tasks: TaskSet) -> str:
    at_once = plan.config.schedule.concurrency or "as many as fit"
    planned, locked = len(plan.seeds) * len(tasks.names), plan.locked
    part = f", of which shard {plan.shard.name} has {len(plan.shard.trials)}" if plan.shard is not None else ""
    return (
        f"{plan.run}: {counted(len(tasks.names), 'task')} × {counted(len(plan.seeds), 'seed')} = "
        f"{counted(planned, 'trial')}{part}, {at_once} at once; agent {locked.agent}"
        + (f", model {locked.model}" if locked.model else "")
    )


def _nothing(event: Event) -> None:
    """Nothing is shown."""
