"""The steps of a trial as cards: what the model said and typed, what it saw, and what went wrong."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from harness.trajectory import Step
from reports.trial.colours import coloured
from reports.trial.reply import ReplyWords
from reports.trial.text import ShownText, keystrokes, room_of, shown

FIRST_STEPS, LAST_STEPS = 400, 200
"""Steps that have cards: of more, those in the middle are left out."""
_MOST_ACTIONS = 40
_KEY_NAMES = """Up Down Left Right Enter Escape Tab BTab BSpace Space Home End PageUp PageDown PgUp PgDn PPage NPage
    IC DC Insert Delete"""
_KEY = re.compile(rf"(?:[CMS]-)+\S|\^\S|F\d{{1,2}}|{'|'.join(_KEY_NAMES.split())}")
"""Names of keys, which tmux presses where they are all of an action."""
_NO_TEXT = Markup()


@dataclass(frozen=True, slots=True)
class TypedText:
    """An action as it was sent."""

    head: Markup
    left_out: str = ""
    tail: Markup = _NO_TEXT
    is_key: bool = False
    """Whether it is the name of a key, which was pressed."""

    @property
    def is_one_line(self) -> bool:
        """Whether it may stand beside others on a line."""
        return self.is_key or (not self.left_out and len(self.head) <= 40 and "\n" not in self.head.rstrip("\n"))


@dataclass(frozen=True, slots=True)
class SaidText:
    """A part of what the reply says, with the model's own word for it."""

    label: str
    text: ShownText


@dataclass(frozen=True, slots=True)
class StepCard:
    """A step as the page shows it."""

    number: int
    anchor: str
    model_sec: float
    command_sec: float
    waited_sec: float
    prompt_tokens: int
    completion_tokens: int
    reasoning: ShownText | None
    said: tuple[SaidText, ...]
    typed: tuple[TypedText, ...]
    more_typed: int
    """Actions that are left out."""
    observation: ShownText | None
    exit_code: int | None
    warnings: tuple[str, ...]
    format_error: str | None
    is_cut: bool
    """Whether the reply was cut."""

    @property
    def has_problem(self) -> bool:
        """Whether somebody who looks for what went wrong should see it."""
        return bool(self.warnings or self.format_error or self.is_cut or self.exit_code)


def anchor_of(number: int, section: int | None) -> str:
    """The id of a step's card; `section` counts the steps of the task, where it has several."""
    return f"step-{number}" if section is None else f"step-{section}.{number}"


def cards_of(
    steps: Sequence[Step], words: Sequence[ReplyWords], section: int | None, *, types_keys: bool
) -> Iterator[StepCard]:
    """A card for each step that the page holds; `words` are those of the steps' replies."""
    pairs = list(zip(steps, words, strict=True))
    limit = room_of(len(text) for step, said in pairs for text in _texts(step, said))
    for step, said in (*pairs[:FIRST_STEPS], *pairs[max(FIRST_STEPS, len(pairs) - LAST_STEPS) :]):
        yield _card(step, said, limit, section, types_keys)


def left_out_of(steps: Sequence[Step]) -> range:
    """The numbers of the steps without a card."""
    gap = range(FIRST_STEPS, max(FIRST_STEPS, len(steps) - LAST_STEPS))
    return range(steps[gap[0]].index, steps[gap[-1]].index + 1) if gap else gap


def _texts(step: Step, words: ReplyWords) -> Iterator[str]:
    yield from (step.observation, words.reasoning, *step.actions[:_MOST_ACTIONS])
    yield from (part.text for part in words.parts)


def _card(step: Step, words: ReplyWords, limit: int, section: int | None, types_keys: bool) -> StepCard:
    reply = step.reply
    return StepCard(
        number=step.index,
        anchor=anchor_of(step.index, section),
        model_sec=max(0.0, step.model_sec - reply.waited_sec),
        command_sec=step.command_sec,
        waited_sec=reply.waited_sec,
        prompt_tokens=reply.usage.prompt_tokens,
        completion_tokens=reply.usage.completion_tokens,
        reasoning=shown(words.reasoning, limit) if words.reasoning else None,
        said=tuple(SaidText(part.label, shown(part.text, limit)) for part in words.parts),
        typed=tuple(_typed(action, limit, types_keys) for action in step.actions[:_MOST_ACTIONS]),
        more_typed=max(0, len(step.actions) - _MOST_ACTIONS),
        observation=_seen(step.observation, limit) if step.observation else None,
        exit_code=step.exit_code,
        warnings=step.warnings,
        format_error=step.format_error,
        is_cut=reply.cut,
    )


def _seen(observation: str, limit: int) -> ShownText:
    """What the model saw. Terminal escapes, which other harnesses leave in it, are colours to a reader."""
    text = shown(observation, limit)
    if "\x1b" not in observation:
        return text
    return ShownText(coloured(text.head), text.left_out, coloured(text.tail))


def _typed(action: str, limit: int, types_keys: bool) -> TypedText:
    text = shown(action, limit)
    is_key = types_keys and _KEY.fullmatch(action) is not None
    return TypedText(keystrokes(text.head), text.left_out, keystrokes(text.tail), is_key)
