"""Steps of a stored trial as lines for a terminal: what was thought, typed and shown."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

import click

from harness.trajectory import Step
from tbench.storage.stored_trial import StoredTrial
from tbench.text import unseen_as

_SHORT_LINES = 12
"""Lines of a text in the list of all steps; the rest is left out, and said."""
Styled = str
"""A line with the escapes of its style, which a terminal that shows no colours is spared."""


def head_lines(trial: StoredTrial) -> Iterator[Styled]:
    """Which trial it is, and what became of it."""
    result = trial.result
    yield click.style(trial.name, bold=True)
    if result is None:
        yield "no result: it is under way, or was cut short"
        return
    model = f", {result.model}" if result.model else ""
    yield f"{result.agent}{model}; {outcome_words(trial)}"


def outcome_words(trial: StoredTrial) -> str:
    """What became of it, how it ended, and how long that took."""
    result = trial.result
    if result is None:
        return f"no result after {len(trial.steps)} steps"
    if result.error is not None:
        what = f"no verdict ({result.error.type})"
    elif result.reward is None:
        what = "no verdict"
    else:
        what = f"{'passed' if result.passed else 'failed'}, reward {result.reward:g}"
    touched = ", touched by a person" if result.human_touched else ""
    ended = f"{result.outcome}, " if result.outcome else ""
    return f"{what}{touched} ({ended}{result.steps} steps, {result.timings.wall_sec:.0f} s)"


def step_lines(step: Step, count: int, *, whole: bool = False) -> Iterator[Styled]:
    """One step; with `whole` all of its texts."""
    code = "" if step.exit_code is None else f", exit {step.exit_code}"
    usage = step.reply.usage
    tokens = f", {usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens" if usage.completion_tokens else ""
    tokens = ", tokens not counted" if usage.uncounted else tokens
    yield click.style(
        f"step {step.index} of {count}: model {step.model_sec:.1f} s, commands {step.command_sec:.1f} s{code}{tokens}",
        bold=True,
    )
    if step.reply.reasoning:
        yield from _text(step.reply.reasoning, "  ", whole, italic=True, dim=True)
    if whole or not step.actions:
        yield from _text(step.reply.content, "  ", whole, dim=True)
    if step.format_error:
        yield click.style(f"  format error: {step.format_error}", fg="red")
    for action in step.actions:
        yield from _text(action.rstrip("\n"), "  > ", whole, fg="green")
    for warning in step.warnings:
        yield click.style(f"  warning: {_safe(warning)}", fg="yellow")
    if step.observation:
        yield from _text(step.observation.rstrip("\n"), "  | ", whole)


def _text(text: str, lead: str, whole: bool, **style: object) -> Iterator[Styled]:
    lines = text.split("\n")
    shown = lines if whole else _shortened(lines)
    for line in shown:
        styled = click.style(_safe(line), **style) if style and line else _safe(line)  # type: ignore[arg-type]
        yield f"{lead}{styled}"


def _shortened(lines: Sequence[str]) -> list[str]:
    """The first lines and the last ones, with a line between them that tells how many are left out."""
    if len(lines) <= _SHORT_LINES:
        return list(lines)
    half = _SHORT_LINES // 2
    return [*lines[:half], f"… {len(lines) - 2 * half} lines …", *lines[-half:]]


def _safe(line: str) -> str:
    """What a model or a container wrote: nothing in it is obeyed by a terminal."""
    return unseen_as(line.replace("\t", "    "), "·")


def matches(step: Step, pattern: re.Pattern[str]) -> bool:
    """Whether anything of a step matches."""
    texts = (step.reply.content, step.reply.reasoning or "", step.observation, *step.actions, *step.warnings)
    return any(pattern.search(text) for text in texts)
