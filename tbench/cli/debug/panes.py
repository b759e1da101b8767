"""The panes of the debugger as styled lines: the terminal, the steps, samples side by side, and what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tbench.cli.attach import crop
from tbench.cli.debug.keys import LineEditor
from tbench.control.wire import DebugEnd, Debugged, DraftSeen, Screen, StepSeen, VerdictSeen
from tbench.text import unseen_as, visible

# Styled lines: those of a terminal, and texts of others, in a room of so many columns and rows.

_TEXT_LINES = 400
"""Most lines of one text that are wrapped: nobody reads more of a step here."""
_WRAPPING = Console(width=80, color_system=None)
"""Rich wants one to wrap text; nothing is printed on it."""


class Size(NamedTuple):
    """Columns and rows."""

    columns: int
    rows: int


class Corner(NamedTuple):
    """A column and a row, from 0."""

    column: int
    row: int


def from_screen(line: str) -> Text:
    """A line of a terminal's screen, whose colours are escapes; nothing else in it is obeyed."""
    text = Text.from_ansi(line)
    text.no_wrap = True
    text.plain = unseen_as(text.plain, "·")
    return text


def wrapped(text: str, width: int, style: str) -> list[Text]:
    """A text of others in lines of this width, as it is: no escape in it is obeyed."""
    lines = list[Text]()
    for line in visible(text).expandtabs(4).split("\n")[:_TEXT_LINES]:
        lines += Text(line, style=style).wrap(_WRAPPING, max(1, width), overflow="fold") or [Text()]
    return lines


def filled(lines: Sequence[Text], room: Size) -> list[Text]:
    """So many lines of so many columns."""
    shown = [line.copy() for line in lines[: room.rows]]
    shown += [Text() for _ in range(room.rows - len(shown))]
    for line in shown:
        line.end = ""
        line.truncate(room.columns, overflow="crop", pad=True)
    return shown


# What the debugger shows: what is known of the trial, and what its user looks at and writes.

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


_SAMPLE_COLUMNS = 26
"""Least width of a sample among others."""


def terminal_pane(shown: Shown, room: Size) -> tuple[list[Text], Corner | None]:
    """The trial's terminal, or the part of it around its cursor; and where the cursor is in the pane."""
    screen = shown.screen
    if screen is None:
        words = "its terminal is gone" if shown.debug.ended else "no terminal yet: its container is being made"
        return filled([Text(words, style="dim")], room), None
    found = crop(screen, room.columns, room.rows)
    lines = [from_screen(line) for line in found.lines]
    return filled(lines, room), Corner(*found.cursor) if screen.cursor_visible else None


def steps_pane(shown: Shown, room: Size) -> list[Text]:
    """The steps that were done, from which one can scroll back."""
    lines = [line for step in shown.steps for line in _step(step, shown.debug.verdicts, room.columns)]
    if not lines:
        lines = [Text("no step was done yet", style="dim")]
    shown.back = max(0, min(shown.back, len(lines) - room.rows))
    end = len(lines) - shown.back
    return filled(lines[max(0, end - room.rows) : end], room)


def _step(step: StepSeen, verdicts: Sequence[VerdictSeen], width: int) -> Iterator[Text]:
    head = f"{step.index}  model {step.model_sec:.1f} s, commands {step.command_sec:.1f} s"
    code = "" if step.exit_code is None else f", exit {step.exit_code}"
    yield Text(f"{head}{code}", style="bold")
    yield from _said(step.reasoning, step.format_error, width)
    if step.format_error is None:
        yield from _actions(step.actions, width)
    for warning in step.warnings:
        yield from wrapped(warning, width, "yellow")
    for verdict in verdicts:
        if verdict.step == step.index:
            yield from wrapped(verdict_words(verdict), width, "magenta")


def _said(reasoning: str | None, error: str | None, width: int) -> Iterator[Text]:
    if reasoning:
        yield from wrapped(reasoning, width, "italic dim")
    if error:
        yield from wrapped(error, width, "red")


def _actions(actions: Iterable[str], width: int) -> Iterator[Text]:
    for action in actions:
        for at, line in enumerate(wrapped(action.rstrip("\n"), width - 2, "green")):
            yield Text.assemble(("> " if at == 0 else "  ", "green"), line)


def samples_pane(shown: Shown, room: Size) -> list[Text]:
    """The samples side by side, as many as fit, with the chosen one among them."""
    samples = shown.debug.samples
    fitting = max(1, min(len(samples), room.columns // _SAMPLE_COLUMNS))
    chosen = next((at for at, each in enumerate(samples) if each.chosen), 0)
    first = max(0, min(chosen - fitting // 2, len(samples) - fitting))
    width = (room.columns - (fitting - 1)) // fitting
    some = list(enumerate(samples))[first : first + fitting]
    columns = [filled(list(_sample(at, each, width)), Size(width, room.rows)) for at, each in some]
    rule = Text("│", style="dim")
    rows = (Text(end="").join([rule]).join(row) for row in zip(*columns, strict=True))
    return filled(list(rows), room)


def _sample(at: int, sample: DraftSeen, width: int) -> Iterator[Text]:
    seed = "" if sample.seed is None else f" seed {sample.seed}"
    style = "bold reverse" if sample.chosen else "bold"
    yield Text(f"{at + 1}{seed}{' *' if sample.chosen else ''}", style=style)
    yield from _actions(sample.actions, width)
    yield from _said(sample.reasoning or _beside(sample), sample.error, width)


def _beside(sample: DraftSeen) -> str:
    """What a reply says where its reasoning is not apart from it; nothing where that is only its actions."""
    return "" if sample.actions else sample.content


# -- what comes next -------------------------------------------------------------------------------------


def draft_pane(shown: Shown, room: Size) -> list[Text]:
    """A rule with a title, and under it what would be done."""
    draft = shown.debug.draft
    if draft is None:
        lines = [Text(_nothing_waits(shown), style="dim")]
        title = "next"
    else:
        number = next((at + 1 for at, each in enumerate(shown.debug.samples) if each.chosen), 1)
        many = f", sample {number} of {len(shown.debug.samples)}" if len(shown.debug.samples) > 1 else ""
        asked = ", which has to be approved" if draft.needs_word else ""
        title = f"next: step {draft.step}{many}{asked}"
        actions = list(_actions(draft.actions, room.columns))
        said = list(_said(draft.reasoning, draft.error, room.columns))
        if not actions and not draft.error:
            said += wrapped(draft.content, room.columns, "")
        lines = _cut(said, max(1, room.rows - 1 - max(1, len(actions)))) + actions
    rule = Text(f"── {title} ", style="bold")
    rule.append("─" * (room.columns - cell_len(rule.plain)), style="not bold dim")
    return [rule, *filled(_cut(lines, room.rows - 1), Size(room.columns, room.rows - 1))]


def _nothing_waits(shown: Shown) -> str:
    if shown.debug.ended is not None:
        return "nothing: the trial has ended; q leaves"
    if shown.debug.rewinding is not None:
        return f"done again up to step {shown.debug.rewinding}"
    if shown.debug.waits_for == "person":
        return "held before the next model call; p lets it go on"
    return "nothing waits for a decision"


def _cut(lines: list[Text], room: int) -> list[Text]:
    """The first lines; the last one says how many more there are."""
    if len(lines) <= room:
        return lines
    return [*lines[: max(0, room - 1)], Text(f"… {len(lines) - room + 1} more lines", style="dim")]


def verdict_words(verdict: VerdictSeen) -> str:
    """How a verification in a copy stands, in a few words."""
    reward = "no reward" if verdict.reward is None else f"reward {verdict.reward:g}"
    what = {"running": "runs", "failed": f"failed: {verdict.words}"}.get(verdict.state, reward)
    return f"verify at {verdict.step}: {what}"


def end_words(ended: DebugEnd) -> str:
    """How a trial has ended, in one line."""
    reward = f", reward {ended.reward:g}" if ended.reward is not None else ""
    error = f", {ended.error}" if ended.error else ""
    return f"ended: {ended.outcome or 'without an outcome'}{reward}{error}"
