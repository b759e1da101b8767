"""Progress of a running run: a live view on a terminal, lines elsewhere, or JSON."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from tbench.cli.printing import print_line, print_text
from tbench.config.document import RunPlan
from tbench.config.settings import OutputConfig
from tbench.errors import ABORTED
from tbench.events import Event, Note, RunStarted, Subscriber, TrialPhase, TrialStep, TrialTaskStep, TrialVerdict
from tbench.results import TrialResult
from tbench.reward import canonical, is_solved
from tbench.tasks.sources import TaskSet
from tbench.text import counted, visible_line

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.text import Text

# Without a live view: a line per trial (with --verbose also per step), or JSON.


def verdict_words(result: TrialResult) -> str:
    """Describe a trial's result in a few words."""
    if result.error is not None:
        again = "" if result.final else f" (attempt {result.attempt}; retrying)"
        what = "" if result.error.type == ABORTED else f"error {result.error.type}: "
        return f"{what}{result.error.message}{again}"
    reward = "none" if result.reward is None else f"{result.reward:g}"
    return f"reward {reward} ({result.outcome}, {result.steps} steps)"


class EventText:
    """Describes events of trials and notes, in one line each that begins with the trial; other events are empty."""

    def __init__(self, line_columns: int | None = None) -> None:
        """`line_columns` limits the line of the terminal in the description of a step."""
        self._line_columns = line_columns
        self._names: dict[str, str] = {}

    def __call__(self, event: Event) -> str:
        match event:
            case TrialPhase():
                return f"{self._name(event)}: {event.phase}"
            case TrialTaskStep():
                return f"{self._name(event)}: task step {event.number} of {event.count}: {event.name}"
            case TrialStep():
                return f"{self._name(event)}: step {event.step}  {event.line[: self._line_columns]}"
            case TrialVerdict(result=result):
                return f"{result.task} seed {result.seed}: {verdict_words(result)}, {result.timings.wall_sec:.1f} s"
            case Note():
                return event.text
        return ""

    def _name(self, event: TrialPhase | TrialTaskStep | TrialStep) -> str:
        if not isinstance(event, TrialStep):
            self._names[event.trial] = f"{event.task} seed {event.seed}"
        attempt = "" if event.attempt == 1 else f", attempt {event.attempt}"
        return f"{self._names.get(event.trial, event.trial)}{attempt}"


class PlainLines:
    """Subscriber that prints a line per trial and note, with the time; with `verbose`, also phases and steps."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._planned = 0
        self._done = 0
        self._text = EventText(line_columns=80)

    def __call__(self, event: Event) -> None:
        text = self._text(event)
        match event:
            case RunStarted():
                self._planned = event.trials
            case TrialPhase(phase="agent" | "verifier") | TrialTaskStep() | TrialStep() if self._verbose:
                self._say(text)
            case TrialVerdict():
                self._done += event.result.final
                self._say(f"{text}  [{self._done}/{self._planned}]")
            case Note():
                self._say(text)
            case _:
                pass

    def _say(self, text: str) -> None:
        # A reader that has gone (`2>&1 | head`) must not fail a trial.
        with contextlib.suppress(OSError):
            print_line(f"{datetime.now():%H:%M:%S} {text}", err=True)


class JsonLines:
    """Subscriber that prints every event as a line of JSON on stdout, in the format of journal.jsonl."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        """`hide` removes secrets from a line."""
        self._hide = hide

    def __call__(self, event: Event) -> None:
        with contextlib.suppress(OSError):
            print_text(self._hide(event.model_dump_json()))


# The live view on a terminal: a status line, and below it as many trials as fit.

_SHOWN_NOTES = 4
_NAME_WIDTH = 34
_LAST_LINE_COLUMNS = 64
"""Minimum columns for showing the last line of each terminal."""
_ACTIVE_PHASES = ("agent", "verifier")
"""Phases in which a trial is active; before them it is being prepared, or waits."""


@dataclass
class _TrialRow:
    task: str
    seed: int
    attempt: int
    phase: str = "queued"
    part: str = ""
    """Number of the current task step and their total, such as ` (1/3)`, if the task has several."""
    step: int = 0
    line: str = ""
    since: float = 0.0
    """Time when the trial left the queue."""

    @property
    def name(self) -> str:
        return f"{visible_line(self.task)}{self.mark}"

    @property
    def mark(self) -> str:
        return f" · {self.seed}{self.part}"


class LiveView:
    """Subscriber that collects the state of a run and renders it for a screen of a given size."""

    def __init__(self, *, is_away: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic):
        """`is_away` tells whether the endpoint is known to be down."""
        self._planned = 0
        self._rows: dict[str, _TrialRow] = {}
        self._longest = 0
        self._notes: list[str] = []
        self._rewards: list[float] = []
        self._errors = 0
        self._is_away = is_away
        self._clock = clock
        self._started = clock()

    def __call__(self, event: Event) -> None:
        match event:
            case TrialPhase() | TrialTaskStep() | TrialStep() if self._is_past(event.trial, event.attempt):
                pass
            case TrialPhase(phase="done") | TrialPhase(phase="teardown"):
                self._rows.pop(event.trial, None)
            case TrialPhase():
                row = self._rows.get(event.trial)
                if row is None or row.attempt != event.attempt:
                    row = self._rows[event.trial] = _TrialRow(event.task, event.seed, event.attempt)
                if row.phase == "queued":
                    row.since = self._clock()
                row.phase = event.phase
                self._longest = max(self._longest, len(row.name))
            case TrialTaskStep():
                if (its := self._rows.get(event.trial)) is not None:
                    its.part, its.step = f" ({event.number}/{event.count})", 0
                    self._longest = max(self._longest, len(its.name))
            case TrialStep():
                if event.trial in self._rows:
                    self._rows[event.trial].step, self._rows[event.trial].line = event.step, event.line
            case TrialVerdict():
                self._note(f"{event.result.task} seed {event.result.seed}: {verdict_words(event.result)}")
                self._errors += event.result.final and event.result.error is not None
                if event.result.reward is not None:
                    self._rewards.append(canonical(event.result.reward))
            case Note():
                self._note(event.text)
            case RunStarted():
                self._planned = event.trials
            case _:
                pass

    def _is_past(self, trial: str, attempt: int) -> bool:
        """Whether a later attempt of the trial has begun; events of the earlier one's teardown may still arrive."""
        return (row := self._rows.get(trial)) is not None and attempt < row.attempt

    def _note(self, text: str) -> None:
        self._notes = [*self._notes, text][-_SHOWN_NOTES:]

    def render(self, width: int, height: int) -> RenderableType:
        """Render the status, the active trials and the latest notes, as many of them as fit."""
        from rich.console import Group
        from rich.text import Text

        status = Text("\n").join(_plain_text(line, style="bold") for line in _joined_lines(self._status(), width))
        # The cursor occupies one line.
        left = height - 1 - len(status.plain.split("\n"))
        notes = self._notes[-min(_SHOWN_NOTES, left // 3) :] if left >= 3 else []
        parts: list[RenderableType] = [status]
        if (room := left - len(notes)) >= 2:
            parts.append(self._table(width, room))
        parts += [_plain_text(note, style="dim", no_wrap=True, overflow="ellipsis") for note in notes]
        return Group(*parts)

    def _status(self) -> list[str]:
        """Return the status of the run, in pieces between which a line may be broken."""
        from tbench.scores.summary import percent

        done, elapsed = len(self._rewards) + self._errors, self._clock() - self._started
        passed = sum(map(is_solved, self._rewards))
        pieces = [
            f"{duration(elapsed)}: {done}/{self._planned} done",
            f"{passed} passed",
            counted(self._errors, "error"),
        ]
        if self._is_away():
            pieces.append("ENDPOINT DOWN")
        if self._rewards:
            pieces.append(f"score so far {percent(sum(self._rewards) / len(self._rewards))} %")
        if 0 < done < self._planned:
            pieces.append(f"ETA {duration((self._planned - done) * elapsed / done)}")
        return pieces

    def _table(self, width: int, room: int) -> RenderableType:
        """Render a table of the running trials in `room` lines, active ones first; a last line counts the others."""
        from rich.console import Group
        from rich.table import Table

        begun = [row for row in self._rows.values() if row.phase != "queued"]
        queued = len(self._rows) - len(begun)
        shown = sorted(begun, key=lambda row: row.phase not in _ACTIVE_PHASES)
        if len(begun) + bool(queued) >= room:
            shown = shown[: room - 2]
        with_lines = width >= _LAST_LINE_COLUMNS
        name_width = max(8, min(self._longest, _NAME_WIDTH, width - 26))
        table = Table(box=None, pad_edge=False, expand=with_lines)
        table.add_column("trial", width=name_width, no_wrap=True)
        table.add_column("phase", width=8, no_wrap=True)
        table.add_column("step", width=4, no_wrap=True, justify="right")
        table.add_column("sec", width=6, no_wrap=True, justify="right")
        if with_lines:
            table.add_column("last line of the terminal", ratio=1, no_wrap=True, overflow="ellipsis")
        now = self._clock()
        for row in shown:
            name = f"{shorten(visible_line(row.task), name_width - len(row.mark))}{row.mark}"
            cells = [name, row.phase, str(row.step) if row.step else "", f"{now - row.since:.0f}", row.line]
            table.add_row(*[_plain_text(cell) for cell in cells[: len(table.columns)]])
        if rest := _rest(len(begun) - len(shown), queued):
            return Group(table, _plain_text(rest, style="dim", no_wrap=True, overflow="ellipsis"))
        return table


def _rest(folded: int, queued: int) -> str:
    """Describe how many running trials are not shown, and how many are queued."""
    return ", ".join([*([f"and {folded} more"] if folded else []), *([f"{queued} queued"] if queued else [])])


def shorten(name: str, width: int) -> str:
    """Shorten a name to `width` columns, at a word boundary if possible."""
    if len(name) <= width:
        return name
    end = max(name.rfind(mark, 0, width) for mark in "-_. ")
    return f"{name[: end if end > 0 else width - 1]}…"


def duration(seconds: float) -> str:
    """Format a duration: 45 s, 12 min, 3 h 05 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def _joined_lines(pieces: Iterable[str], width: int) -> list[str]:
    """Join the pieces with commas into lines of at most `width` columns."""
    lines = [""]
    for piece in pieces:
        joined = f"{lines[-1]}, {piece}" if lines[-1] else piece
        if len(joined) <= width or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(piece)
    return lines


def _plain_text(text: str, **options: Any) -> Text:
    """Return one line of literal text for rich: markup and escapes in it have no effect."""
    from rich.text import Text

    return Text(visible_line(text), **options)


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
    """Yield a subscriber that shows the progress of a run for the block.

    `RunStarted` says how many trials are left, which for a resumed run is fewer than planned. `hide` removes secrets
    from JSON, `is_away` tells whether the endpoint is down, and `remark` is appended to the first line.
    """
    if output.json_lines:
        yield JsonLines(hide)
        return
    if output.verbosity == "quiet":
        yield _nothing
        return
    headline = f"{_headline(plan, tasks)}{remark}"
    console = None if output.verbosity == "verbose" else _terminal()
    if console is None:
        print_line(headline, err=True)
        yield PlainLines(verbose=output.verbosity == "verbose")
        return
    from rich.console import Group
    from rich.live import Live
    from rich.text import Text

    console.print(Text(visible_line(headline)))  # rich wraps it at words
    view = LiveView(is_away=is_away)
    begun = False

    def render() -> RenderableType:
        width, height = console.size
        # An empty line for the cursor: after a full line, an echoed ^C would wrap and shift the view.
        return Group(view.render(width, height - 1), "")

    def show(event: Event) -> None:
        nonlocal begun
        begun = begun or isinstance(event, TrialPhase)
        if isinstance(event, Note) and not (begun and live.is_started):
            # Print notes before the first trial permanently: the view only keeps the last few.
            console.print(Text(visible_line(event.text)))
        else:
            view(event)

    live = Live(get_renderable=render, console=console, refresh_per_second=8, transient=True)
    with live:
        yield show


def _terminal() -> Console | None:
    """Return a console for stderr; None if stderr is not a terminal."""
    if not sys.stderr.isatty() and not {"FORCE_COLOR", "TTY_COMPATIBLE"} & os.environ.keys():
        return None
    from rich.console import Console  # rich checks further variables

    console = Console(stderr=True, highlight=False)
    return console if console.is_terminal else None


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
    pass
