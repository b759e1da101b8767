"""Progress while a run runs: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from tbench.cli.printing import print_line
from tbench.config.document import RunPlan
from tbench.events import (
    Event,
    Note,
    RunEnded,
    RunStarted,
    Subscriber,
    TrialFinished,
    TrialPhase,
    TrialStep,
    TrialVerdict,
)
from tbench.results import TrialResult
from tbench.tasks.sources import TaskSet
from tbench.text import visible_line

_SHOWN_NOTES = 4


@contextlib.contextmanager
def progress(plan: RunPlan, tasks: TaskSet) -> Iterator[Subscriber]:
    """A subscriber that shows what happens, for the duration of the block.

    `RunStarted` says how many trials are to be done: fewer than the plan where a run is resumed.
    """
    console = Console(stderr=True, highlight=False)
    planned, locked = len(plan.seeds) * len(tasks.names), plan.locked
    words = (
        f"{plan.run}: {counted(len(tasks.names), 'task')} × {counted(len(plan.seeds), 'seed')} = "
        f"{counted(planned, 'trial')}, {plan.config.schedule.concurrency} at once; agent {locked.agent}"
        + (f", model {locked.model}" if locked.model else "")
    )
    console.print(_shown(words), soft_wrap=True)
    if not console.is_terminal:
        yield PlainLines()
        return
    view = LiveTable()
    with Live(get_renderable=view.render, console=console, refresh_per_second=8, transient=True):
        yield view


def _shown(text: str, **options: Any) -> Text:
    """One line for rich, which shows it as it is: markup and escapes in it are only text."""
    return Text(visible_line(text), **options)


def counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def verdict_words(result: TrialResult) -> str:
    if result.error is not None:
        again = "" if result.final else f" (attempt {result.attempt}; trying again)"
        return f"error {result.error.type}: {result.error.message}{again}"
    reward = "none" if result.reward is None else f"{result.reward:g}"
    return f"reward {reward} ({result.outcome}, {result.steps} steps)"


class PlainLines:
    """Prints one line per event, with the time: for logs and pipes."""

    def __init__(self) -> None:
        self._planned = 0
        self._done = 0
        self._names: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._planned = event.trials
            case TrialPhase(phase="agent" | "verifier"):
                self._names[event.trial] = f"{event.task} seed {event.seed}"
                self._say(f"{event.task} seed {event.seed}: {event.phase}")
            case TrialStep():
                self._say(f"{self._names.get(event.trial, event.trial)}: step {event.step}  {event.line[:80]}")
            case TrialVerdict():
                result = event.result
                self._done += result.final
                self._say(
                    f"{result.task} seed {result.seed}: {verdict_words(result)}, "
                    f"{result.timings.wall_sec:.1f} s  [{self._done}/{self._planned}]"
                )
            case Note():
                self._say(event.text)
            case _:
                pass

    def _say(self, text: str) -> None:
        # A reader that went away (`2>&1 | head`) must not cost a trial.
        with contextlib.suppress(OSError):
            print_line(f"{datetime.now():%H:%M:%S} {text}", err=True)


@dataclass
class _Row:
    name: str
    phase: str = "queued"
    step: int = 0
    line: str = ""
    since: float = field(default_factory=time.monotonic)


class LiveTable:
    """A table of the trials under way (phase, step, seconds, last line); below it the count and the latest notes."""

    def __init__(self) -> None:
        self._planned = 0
        self._rows: dict[str, _Row] = {}
        self._notes: list[str] = []
        self._rewards: list[float] = []
        self._errors = 0
        self._started = time.monotonic()

    def __call__(self, event: Event) -> None:
        match event:
            case TrialPhase(phase="done") | TrialPhase(phase="teardown"):
                self._rows.pop(event.trial, None)
            case TrialPhase():
                self._rows.setdefault(event.trial, _Row(f"{event.task} · {event.seed}")).phase = event.phase
            case TrialStep():
                if event.trial in self._rows:
                    self._rows[event.trial].step, self._rows[event.trial].line = event.step, event.line
            case TrialVerdict():
                self._note(f"{event.result.task} seed {event.result.seed}: {verdict_words(event.result)}")
                self._errors += event.result.final and event.result.error is not None
                if event.result.reward is not None:
                    self._rewards.append(event.result.reward)
            case Note():
                self._note(event.text)
            case RunStarted():
                self._planned = event.trials
            case RunEnded() | TrialFinished():
                pass

    def _note(self, text: str) -> None:
        self._notes = [*self._notes, text][-_SHOWN_NOTES:]

    def render(self) -> RenderableType:
        table = Table(box=None, pad_edge=False, expand=True)
        for name, width in (("trial", 34), ("phase", 9), ("step", 5), ("sec", 6)):
            table.add_column(name, width=width, no_wrap=True, justify="right" if name in ("step", "sec") else "left")
        table.add_column("last line of the terminal", ratio=1, no_wrap=True, overflow="ellipsis")
        now = time.monotonic()
        for row in self._rows.values():
            step = str(row.step) if row.step else ""
            table.add_row(_shown(row.name), row.phase, step, f"{now - row.since:.0f}", _shown(row.line))
        done = len(self._rewards) + self._errors
        passed = sum(reward >= 1.0 for reward in self._rewards)
        count = f"{done}/{self._planned} done, {passed} passed, {self._errors} errors, {now - self._started:.0f} s"
        notes = [_shown(note, style="dim", no_wrap=True, overflow="ellipsis") for note in self._notes]
        return Group(table, Text(count, style="bold"), *notes)
