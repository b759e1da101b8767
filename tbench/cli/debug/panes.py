"""Panes of the debugger as styled lines: the terminal, the steps, samples side by side, and the pending reply."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

from rich.cells import cell_len
from rich.console import Console
from rich.text import Text

from tbench.cli.attach import crop
from tbench.cli.debug.keys import LineEditor
from tbench.cli.printing import failed_test_lines, last_lines
from tbench.control.wire import DebugEnd, DebugState, DraftSeen, Screen, StepSeen, VerdictSeen
from tbench.errors import ABORTED
from tbench.text import counted, escape_invisible, replace_unseen, visible_line

_FILE_LINES = 8
"""Maximum number of changed files that are listed for a step."""
_MARKS = {"added": "+", "changed": "~", "removed": "-"}
_TEXT_LINES = 400
"""Maximum number of lines of one text to wrap."""
_WRAPPING = Console(width=80, color_system=None)
"""Console that rich needs for wrapping; nothing is printed on it."""


class Size(NamedTuple):
    """Columns and rows."""

    columns: int
    rows: int


class Corner(NamedTuple):
    """A column and a row, from 0."""

    column: int
    row: int


def from_screen(line: str) -> Text:
    """Convert a line of a terminal's screen, keeping its colours and escaping all other controls."""
    text = Text.from_ansi(line)
    text.no_wrap = True
    text.plain = replace_unseen(text.plain, "·")
    return text


def wrap_text(text: str, width: int, style: str) -> list[Text]:
    """Wrap an untrusted text to a width, escaping all controls."""
    lines = list[Text]()
    for line in escape_invisible(text).expandtabs(4).split("\n")[:_TEXT_LINES]:
        lines += Text(line, style=style).wrap(_WRAPPING, max(1, width), overflow="fold") or [Text()]
    return lines


def fit_to_size(lines: Sequence[Text], room: Size) -> list[Text]:
    """Crop or pad lines to exactly this size."""
    shown = [line.copy() for line in lines[: room.rows]]
    shown += [Text() for _ in range(room.rows - len(shown))]
    for line in shown:
        line.end = ""
        line.truncate(room.columns, overflow="crop", pad=True)
    return shown


Pane = Literal["terminal", "steps", "samples"]


@dataclass(frozen=True)
class Question:
    """A prompt whose answer is appended to a command."""

    question: str
    prefix: str
    """The command; empty if the answer itself is a command."""
    text: LineEditor = field(default_factory=LineEditor)
    default: str = ""
    """The answer used for empty input; if empty, empty input cancels."""

    is_question: bool = False
    """Whether the prompt is a yes/no question."""

    @property
    def command(self) -> str:
        """The complete command; empty if cancelled."""
        answer = self.text.text or self.default
        if self.is_question:
            return self.prefix if answer.strip().lower() in ("", "y", "yes") else ""
        return f"{self.prefix} {answer}".lstrip() if answer.strip() else ""


@dataclass
class PaneState:
    """State of the debugger's screen: the trial, the visible pane, the prompt and the message."""

    trial: str
    columns: int = 80
    rows: int = 24
    debug: DebugState = field(default_factory=lambda: DebugState(version=0))
    steps: list[StepSeen] = field(default_factory=list)
    screen: Screen | None = None
    pane: Pane = "terminal"
    scrolled: int = 0
    """Number of lines by which the steps are scrolled back."""
    prompt: Question | None = None
    is_typing: bool = False
    """Whether key presses go to the trial's terminal."""
    shows_help: bool = False
    """Whether the help page is shown."""
    message: str = ""
    is_error: bool = False
    """Whether the message is an error."""
    awaits_steps: bool = False
    """Whether an attempt has just begun and its steps have not been received yet."""

    def update(self, debug: DebugState) -> None:
        """Apply a newer state of the trial, and add its steps."""
        self.awaits_steps = debug.attempt != self.debug.attempt
        if self.awaits_steps:
            self.steps, debug = [], debug.model_copy(update={"steps": ()})
        kept = [step for step in self.steps if step.index < debug.steps[0].index] if debug.steps else self.steps
        self.steps = [step for step in (*kept, *debug.steps) if step.index <= max(debug.step, 0)]
        if self.debug.draft is not None and debug.draft is None and self.pane == "samples":
            self.pane = "terminal"
        if debug.stopped and debug.stopped != self.debug.stopped:
            self.show_message(f"stopped: {debug.stopped}")
        if any(verdict.state != "running" and verdict not in self.debug.verdicts for verdict in debug.verdicts):
            self.pane, self.scrolled = self.pane if self.is_wide else "steps", 0
        self.debug = debug.model_copy(update={"steps": ()})

    def show_message(self, message: str, *, is_error: bool = False) -> None:
        """Show a message until the next one."""
        self.message, self.is_error = message, is_error

    @property
    def version(self) -> int | None:
        """Version after which to request updates; None to request the full state."""
        return None if self.awaits_steps else self.debug.version or None

    @property
    def known(self) -> int:
        """Index of the last step already received."""
        return self.steps[-1].index if self.steps else 0

    @property
    def is_wide(self) -> bool:
        """Whether the steps fit beside the terminal."""
        return self.columns >= WIDE_COLUMNS

    @property
    def panes(self) -> Sequence[Pane]:
        """The panes that one key cycles through, in order."""
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
        self.pane, self.scrolled = panes[(at + 1) % len(panes)], 0


WIDE_COLUMNS = 120


_SAMPLE_COLUMNS = 26
"""Minimum width of a sample in the samples pane."""


def terminal_pane(state: PaneState, room: Size) -> tuple[list[Text], Corner | None]:
    """Return the trial's terminal, or the part around its cursor, and the cursor's position in the pane."""
    screen = state.screen
    if screen is None:
        words = "the terminal is gone" if state.debug.ended else "no terminal yet: the container is being created"
        return fit_to_size([Text(words, style="dim")], room), None
    found = crop(screen, room.columns, room.rows)
    lines = [from_screen(line) for line in found.lines]
    return fit_to_size(lines, room), Corner(*found.cursor) if screen.cursor_visible else None


def steps_pane(state: PaneState, room: Size) -> list[Text]:
    """Return the finished steps, scrolled to the end or back from it."""
    lines, left = list[Text](), list(state.debug.verdicts)
    for step in state.steps:
        # A verdict before a step is about the result of the earlier steps.
        for verdict in [each for each in left if each.step <= step.index]:
            left.remove(verdict)
            lines += _verdict(verdict, room.columns)
        lines += _step(step, room.columns)
    lines += [line for verdict in left for line in _verdict(verdict, room.columns)]
    if not lines:
        lines = [Text("no step done yet", style="dim")]
    state.scrolled = max(0, min(state.scrolled, len(lines) - room.rows))
    end = len(lines) - state.scrolled
    return fit_to_size(lines[max(0, end - room.rows) : end], room)


def _step(step: StepSeen, width: int) -> Iterator[Text]:
    head = f"{step.index}  model {step.model_sec:.1f} s, commands {step.command_sec:.1f} s"
    code = "" if step.exit_code is None else f", exit {step.exit_code}"
    yield Text(f"{head}{code}", style="bold")
    yield from _reply_text(step.thoughts, step.format_error, width)
    if step.format_error is None:
        yield from _actions(step.actions, width)
    for warning in step.warnings:
        yield from wrap_text(warning, width, "yellow")
    for line in file_lines(step):
        yield from wrap_text(line, width, "cyan")


def _verdict(verdict: VerdictSeen, width: int) -> Iterator[Text]:
    yield from wrap_text(verdict_words(verdict), width, "magenta")
    for line in verdict_lines(verdict):
        yield from Text.from_ansi(line).wrap(_WRAPPING, max(1, width), overflow="fold")


def _reply_text(thoughts: Iterable[str], error: str | None, width: int) -> Iterator[Text]:
    for thought in thoughts:
        yield from wrap_text(thought, width, "italic dim")
    if error:
        yield from wrap_text(error, width, "red")


def _actions(actions: Iterable[str], width: int) -> Iterator[Text]:
    for action in actions:
        for at, line in enumerate(wrap_text(action.rstrip("\n"), width - 2, "green")):
            yield Text.assemble(("> " if at == 0 else "  ", "green"), line)


def samples_pane(state: PaneState, room: Size) -> list[Text]:
    """Return the samples side by side, as many as fit, including the chosen one."""
    samples = state.debug.samples
    fitting = max(1, min(len(samples), room.columns // _SAMPLE_COLUMNS))
    chosen = next((at for at, each in enumerate(samples) if each.chosen), 0)
    first = max(0, min(chosen - fitting // 2, len(samples) - fitting))
    width = (room.columns - (fitting - 1)) // fitting
    some = list(enumerate(samples))[first : first + fitting]
    columns = [fit_to_size(list(_sample(at, each, width)), Size(width, room.rows)) for at, each in some]
    rule = Text("│", style="dim")
    rows = (Text(end="").join([rule]).join(row) for row in zip(*columns, strict=True))
    return fit_to_size(list(rows), room)


def _sample(at: int, sample: DraftSeen, width: int) -> Iterator[Text]:
    seed = "" if sample.seed is None else f" seed {sample.seed}"
    style = "bold reverse" if sample.chosen else "bold"
    yield Text(f"{at + 1}{seed}{' *' if sample.chosen else ''}", style=style)
    yield from _actions(sample.actions, width)
    yield from _reply_text(sample.thoughts, sample.error, width)


# -- the pending reply -----------------------------------------------------------------------------------


def draft_pane(state: PaneState, room: Size) -> list[Text]:
    """Return a titled rule, and below it the pending reply."""
    draft = state.debug.draft
    if draft is None:
        lines = [Text(_idle_text(state), style="dim")]
        title = "next"
    else:
        title = draft_title(draft, state.debug.samples)
        actions = list(_actions(draft.actions, room.columns))
        reply = list(_reply_text(draft.thoughts, draft.error, room.columns))
        lines = _cut(reply, max(2, room.rows - 1 - max(1, len(actions)))) + actions
    rule = Text(f"── {title} ", style="bold")
    rule.append("─" * (room.columns - cell_len(rule.plain)), style="not bold dim")
    return [rule, *fit_to_size(_cut(lines, room.rows - 1), Size(room.columns, room.rows - 1))]


def draft_title(draft: DraftSeen, samples: Sequence[DraftSeen]) -> str:
    """Describe which reply waits for a decision."""
    chosen = next((at for at, each in enumerate(samples, 1) if each.chosen), 1)
    many = f", sample {chosen} of {len(samples)}" if len(samples) > 1 else ""
    return f"next: step {draft.step}{many}{', needs approval' if draft.needs_approval else ''}"


def _idle_text(state: PaneState) -> str:
    if state.debug.ended is not None:
        return "nothing: the trial has ended; q leaves"
    if state.debug.rewinding is not None:
        return f"replaying up to step {state.debug.rewinding}"
    if state.debug.waits_for == "person":
        return "held before the next model call; p continues"
    return "nothing waits for a decision"


def _cut(lines: list[Text], room: int) -> list[Text]:
    """Return the first lines; if some are cut off, the last line says how many."""
    if len(lines) <= room:
        return lines
    return [*lines[: max(0, room - 1)], Text(f"… {len(lines) - room + 1} more lines", style="dim")]


def verdict_words(verdict: VerdictSeen) -> str:
    """Describe a verification in a copy of the container."""
    reward = "no reward" if verdict.reward is None else f"reward {verdict.reward:g}"
    what = {"running": "running", "failed": f"failed: {verdict.words}"}.get(verdict.state, reward)
    tests = f", {verdict.failures} of {verdict.tests} tests failed" if verdict.tests else ""
    return f"verify at {verdict.step}: {what}{tests}"


def verdict_lines(verdict: VerdictSeen) -> Iterator[str]:
    """Yield the failed tests and their errors, like `tbench why`, or else the end of the output; may have styles."""
    if verdict.tests:
        yield from failed_test_lines(verdict.failed, verdict.failures)
    else:
        yield from (f"  | {escape_invisible(line)}" for line in last_lines(verdict.output))


def file_lines(step: StepSeen) -> Iterator[str]:
    """Yield the files that a step has changed."""
    found = list(step.files.items())
    for path, kind in found[:_FILE_LINES]:
        yield f"{_MARKS[kind]} {visible_line(path)}"
    if more := len(found[_FILE_LINES:]) + step.more_files:
        yield f"… and {counted(more, 'more file')}"


def end_words(ended: DebugEnd) -> str:
    """Describe the end of a trial in one line."""
    if ended.error == ABORTED:
        return "ended by hand"
    reward = f", reward {ended.reward:g}" if ended.reward is not None else ""
    error = f", {ended.error}" if ended.error else ""
    return f"ended: {ended.outcome or 'without an outcome'}{reward}{error}"
