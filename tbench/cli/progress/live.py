"""The live view of a run on a terminal: how it stands in one line, and under it as many trials as there is room."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from tbench.cli.progress.lines import verdict_words
from tbench.events import Event, Note, RunStarted, TrialPhase, TrialStep, TrialTaskStep, TrialVerdict
from tbench.reward import canonical, is_solved
from tbench.scores.summary import percent
from tbench.text import counted, visible_line

_SHOWN_NOTES = 4
_NAME_WIDTH = 34
_LINES_FROM = 64
"""Columns from which on there is room for the last line of each terminal."""
_WORKS = ("agent", "verifier")
"""Phases in which a trial is at work; before them it is being made ready, or waits."""


@dataclass
class _Row:
    task: str
    seed: int
    attempt: int
    phase: str = "queued"
    part: str = ""
    """The step of its task that is under way, of how many, where there are several."""
    step: int = 0
    line: str = ""
    since: float = 0.0
    """When it left the queue."""

    @property
    def name(self) -> str:
        return f"{visible_line(self.task)}{self.mark}"

    @property
    def mark(self) -> str:
        return f" · {self.seed}{self.part}"


class LiveView:
    """What has happened so far, and how it looks on a screen of a given size."""

    def __init__(self, *, is_away: Callable[[], bool] = lambda: False, clock: Callable[[], float] = time.monotonic):
        """`is_away` says whether the endpoint is known to be away."""
        self._planned = 0
        self._rows: dict[str, _Row] = {}
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
                    row = self._rows[event.trial] = _Row(event.task, event.seed, event.attempt)
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
        """Whether a later attempt at the trial has begun: an earlier one may still be being torn down."""
        return (row := self._rows.get(trial)) is not None and attempt < row.attempt

    def _note(self, text: str) -> None:
        self._notes = [*self._notes, text][-_SHOWN_NOTES:]

    def render(self, width: int, height: int) -> RenderableType:
        """The status, the trials at work, and the latest notes; the lower the screen, the fewer of the latter two."""
        status = Text("\n").join(_shown(line, style="bold") for line in _folded(self._status(), width))
        # The cursor stands on a line of its own.
        left = height - 1 - len(status.plain.split("\n"))
        notes = self._notes[-min(_SHOWN_NOTES, left // 3) :] if left >= 3 else []
        parts: list[RenderableType] = [status]
        if (room := left - len(notes)) >= 2:
            parts.append(self._table(width, room))
        parts += [_shown(note, style="dim", no_wrap=True, overflow="ellipsis") for note in notes]
        return Group(*parts)

    def _status(self) -> list[str]:
        """How the run stands, in pieces between which a line may be broken."""
        done, elapsed = len(self._rewards) + self._errors, self._clock() - self._started
        passed = sum(map(is_solved, self._rewards))
        pieces = [
            f"{duration(elapsed)}: {done}/{self._planned} done",
            f"{passed} passed",
            counted(self._errors, "error"),
        ]
        if self._is_away():
            pieces.append("ENDPOINT AWAY")
        if self._rewards:
            pieces.append(f"score so far {percent(sum(self._rewards) / len(self._rewards))} %")
        if 0 < done < self._planned:
            pieces.append(f"ETA {duration((self._planned - done) * elapsed / done)}")
        return pieces

    def _table(self, width: int, room: int) -> RenderableType:
        """The trials that have begun, those at work first, in `room` lines; a last one counts the others."""
        begun = [row for row in self._rows.values() if row.phase != "queued"]
        queued = len(self._rows) - len(begun)
        shown = sorted(begun, key=lambda row: row.phase not in _WORKS)
        if len(begun) + bool(queued) >= room:
            shown = shown[: room - 2]
        with_lines = width >= _LINES_FROM
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
            name = f"{shortened(visible_line(row.task), name_width - len(row.mark))}{row.mark}"
            cells = [name, row.phase, str(row.step) if row.step else "", f"{now - row.since:.0f}", row.line]
            table.add_row(*[_shown(cell) for cell in cells[: len(table.columns)]])
        if rest := _rest(len(begun) - len(shown), queued):
            return Group(table, _shown(rest, style="dim", no_wrap=True, overflow="ellipsis"))
        return table


def _rest(folded: int, queued: int) -> str:
    """How many trials are not shown although they have begun, and how many wait."""
    return ", ".join([*([f"and {folded} more"] if folded else []), *([f"{queued} queued"] if queued else [])])


def shortened(name: str, width: int) -> str:
    """A name within `width` columns, cut between its words, where it has some."""
    if len(name) <= width:
        return name
    end = max(name.rfind(mark, 0, width) for mark in "-_. ")
    return f"{name[: end if end > 0 else width - 1]}…"


def duration(seconds: float) -> str:
    """A time as people say it: 45 s, 12 min, 3 h 05 min."""
    if seconds < 60:
        return f"{seconds:.0f} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min"


def _folded(pieces: Iterable[str], width: int) -> list[str]:
    """The pieces in lines of at most `width` columns, with commas between them."""
    lines = [""]
    for piece in pieces:
        joined = f"{lines[-1]}, {piece}" if lines[-1] else piece
        if len(joined) <= width or not lines[-1]:
            lines[-1] = joined
        else:
            lines.append(piece)
    return lines


def _shown(text: str, **options: Any) -> Text:
    """One line for rich, which shows it as it is: markup and escapes in it are only text."""
    return Text(visible_line(text), **options)
