"""The panes of the debugger: the terminal, the steps, samples side by side, and what comes next."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from rich.cells import cell_len
from rich.text import Text

from tbench.cli.debug.shown import Shown
from tbench.cli.debug.styled import Corner, Size, filled, from_screen, wrapped
from tbench.cli.live.crop import crop
from tbench.control.debugging import DebugEnd, DraftSeen, StepSeen, VerdictSeen

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
