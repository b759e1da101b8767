"""What the debugger shows: what is known of the trial, and what its user looks at and writes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from tbench.cli.debug.line_editor import LineEditor
from tbench.control.debugging import Debugged, StepSeen
from tbench.control.wire import Screen

Pane = Literal["terminal", "steps", "samples"]


@dataclass(frozen=True)
class Question:
    """A question whose answer ends a command: `words` with the answer behind it."""

    asks: str
    words: str
    """The command; empty where the answer is a command by itself."""
    text: LineEditor = field(default_factory=LineEditor)
    default: str = ""
    """What an empty answer means; without it, an empty answer is none."""

    is_question: bool = False
    """Whether only yes is an answer."""

    @property
    def command(self) -> str:
        """The command in words; empty where nothing is to be done."""
        answer = self.text.text or self.default
        if self.is_question:
            return self.words if answer.strip().lower() in ("", "y", "yes") else ""
        return f"{self.words} {answer}".lstrip() if answer.strip() else ""


@dataclass
class Shown:
    """The state of the screen."""

    trial: str
    columns: int = 80
    rows: int = 24
    debug: Debugged = field(default_factory=lambda: Debugged(version=0))
    steps: list[StepSeen] = field(default_factory=list)
    screen: Screen | None = None
    pane: Pane = "terminal"
    back: int = 0
    """Lines that the steps are scrolled back from the last one."""
    prompt: Question | None = None
    types: bool = False
    """Whether keys go to the trial's terminal."""
    helps: bool = False
    """Whether the keys are explained instead of everything else."""
    message: str = ""
    is_bad: bool = False
    """Whether the message says that something went wrong."""
    is_behind: bool = False
    """Whether the steps of an attempt that has just begun are not known yet."""

    def hears(self, debug: Debugged) -> None:
        """Take over a newer state, and the steps that it brings."""
        self.is_behind = debug.attempt != self.debug.attempt
        if self.is_behind:
            self.steps, debug = [], debug.model_copy(update={"steps": ()})
        kept = [step for step in self.steps if step.index < debug.steps[0].index] if debug.steps else self.steps
        self.steps = [step for step in (*kept, *debug.steps) if step.index <= max(debug.step, 0)]
        if self.debug.draft is not None and debug.draft is None and self.pane == "samples":
            self.pane = "terminal"
        self.debug = debug.model_copy(update={"steps": ()})

    def says(self, message: str, *, is_bad: bool = False) -> None:
        """Show a message until the next one."""
        self.message, self.is_bad = message, is_bad

    @property
    def version(self) -> int | None:
        """What the next state is to be newer than; None where some of this one is missing."""
        return None if self.is_behind else self.debug.version or None

    @property
    def known(self) -> int:
        """The index of the last step that need not be told again."""
        return self.steps[-1].index if self.steps else 0

    @property
    def is_wide(self) -> bool:
        """Whether there is room for the steps beside the terminal."""
        return self.columns >= WIDE_COLUMNS

    @property
    def panes(self) -> Sequence[Pane]:
        """Those that one key shows one after the other."""
        some: list[Pane] = ["terminal"]
        if not self.is_wide:
            some.append("steps")
        if len(self.debug.samples) > 1:
            some.append("samples")
        return some

    def next_pane(self) -> None:
        """Show the next pane."""
        panes = self.panes
        at = panes.index(self.pane) if self.pane in panes else -1
        self.pane, self.back = panes[(at + 1) % len(panes)], 0


WIDE_COLUMNS = 120
