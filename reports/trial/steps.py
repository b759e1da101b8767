"""The steps of a trial as cards and as a timeline: texts of the model, what it typed and saw, problems."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from harness.protocols.reply_text import key_name
from harness.thoughts import ReplyTexts
from harness.trajectory import Step
from reports.charts import linked_picture, number
from reports.page_frame import seconds
from reports.trial.page_text import ShownText, coloured, keystrokes, shorten_at_lines, text_budget

FIRST_STEPS, LAST_STEPS = 400, 200
"""Number of first and last steps that have cards; those in between are left out."""
_MAX_ACTIONS = 40
_NO_TEXT = Markup()


@dataclass(frozen=True, slots=True)
class TypedText:
    """Action as it was sent to the terminal."""

    head: Markup
    left_out: str = ""
    tail: Markup = _NO_TEXT
    is_key: bool = False
    """Whether the action is the name of a key, which was pressed."""

    @property
    def is_one_line(self) -> bool:
        """Whether the action may share a line with others."""
        return self.is_key or (not self.left_out and len(self.head) <= 40 and "\n" not in self.head.rstrip("\n"))


@dataclass(frozen=True, slots=True)
class StepCard:
    """Step as the page shows it."""

    number: int
    anchor: str
    """Id of the card; it includes the number of the task step, if there are several."""
    model_sec: float
    command_sec: float
    waited_sec: float
    prompt_tokens: int
    completion_tokens: int
    reasoning: ShownText | None
    texts: tuple[tuple[str, ShownText], ...]
    """Texts of the reply, each with its label."""
    typed: tuple[TypedText, ...]
    more_typed: int
    """Number of actions left out."""
    observation: ShownText | None
    exit_code: int | None
    warnings: tuple[str, ...]
    format_error: str | None
    is_cut: bool
    """Whether the reply was cut."""

    @property
    def has_problem(self) -> bool:
        """Whether the step is shown when only problems are shown."""
        return bool(self.warnings or self.format_error or self.is_cut or self.exit_code)


def step_cards(
    steps: Sequence[Step], words: Sequence[ReplyTexts], section: int | None, *, types_keys: bool
) -> Iterator[StepCard]:
    """Yield a card for each step on the page; `words` are the texts of the steps' replies."""
    pairs = list(zip(steps, words, strict=True))
    limit = text_budget(len(text) for step, reply in pairs for text in _texts(step, reply))
    for step, reply in (*pairs[:FIRST_STEPS], *pairs[max(FIRST_STEPS, len(pairs) - LAST_STEPS) :]):
        yield _card(step, reply, limit, section, types_keys)


def omitted_steps(steps: Sequence[Step]) -> range:
    """Return the numbers of the steps without a card."""
    gap = range(FIRST_STEPS, max(FIRST_STEPS, len(steps) - LAST_STEPS))
    return range(steps[gap[0]].index, steps[gap[-1]].index + 1) if gap else gap


def _texts(step: Step, words: ReplyTexts) -> Iterator[str]:
    yield from (step.observation, words.reasoning, *step.actions[:_MAX_ACTIONS])
    yield from (part.text for part in words.parts)


def _card(step: Step, words: ReplyTexts, limit: int, section: int | None, types_keys: bool) -> StepCard:
    reply = step.reply
    return StepCard(
        number=step.index,
        anchor=f"step-{step.index}" if section is None else f"step-{section}.{step.index}",
        model_sec=max(0.0, step.model_sec - reply.waited_sec),
        command_sec=step.command_sec,
        waited_sec=reply.waited_sec,
        prompt_tokens=reply.usage.prompt_tokens,
        completion_tokens=reply.usage.completion_tokens,
        reasoning=shorten_at_lines(words.reasoning, limit) if words.reasoning else None,
        texts=tuple((part.label, shorten_at_lines(part.text, limit)) for part in words.parts),
        typed=tuple(_typed_text(action, limit, types_keys) for action in step.actions[:_MAX_ACTIONS]),
        more_typed=max(0, len(step.actions) - _MAX_ACTIONS),
        observation=_observation_text(step.observation, limit) if step.observation else None,
        exit_code=step.exit_code,
        warnings=step.warnings,
        format_error=step.format_error,
        is_cut=reply.cut,
    )


def _observation_text(observation: str, limit: int) -> ShownText:
    """Return an observation. Terminal escapes, which other harnesses leave in, become colours."""
    text = shorten_at_lines(observation, limit)
    if "\x1b" not in observation:
        return text
    return ShownText(coloured(text.head), text.left_out, coloured(text.tail))


def _typed_text(action: str, limit: int, types_keys: bool) -> TypedText:
    text = shorten_at_lines(action, limit)
    is_key = types_keys and key_name(action) is not None  # pressed by tmux instead of typed
    return TypedText(keystrokes(text.head), text.left_out, keystrokes(text.tail), is_key)


# The timeline: all steps of a trial, each as wide as its share of the time, with links.

_LEAST = 0.004
"""Smallest width of a step as a share of the timeline, so that it is visible."""


def timeline(cards: Sequence[StepCard], label: str) -> Markup:
    """Draw the steps side by side, each with the model's time before the commands' time; empty if no time is known."""
    total = sum(_seconds(card) for card in cards)
    if total <= 0:
        return Markup()
    widths = [max(_seconds(card) / total, min(_LEAST, 1 / len(cards))) for card in cards]
    scale, x = 100 / sum(widths), 0.0
    links = []
    for card, width in zip(cards, widths, strict=True):
        links.append(_step(card, x, width * scale))
        x += width * scale
    # Only numbers and fixed texts: joined without escaping, as a run may have hundreds of thousands of these pieces.
    return linked_picture("timeline", label, Markup("".join(links)))


def _seconds(card: StepCard) -> float:
    return card.model_sec + card.command_sec + card.waited_sec


def _step(card: StepCard, x: float, width: float) -> str:
    """Draw a step: model, waiting and commands from left to right, and a line on top if something went wrong."""
    words = f"step {card.number}: model {seconds(card.model_sec)}, commands {seconds(card.command_sec)}"
    problem = _rect("s-fail", x, width) if card.has_problem else ""
    words += ", something went wrong" if card.has_problem else ""
    pieces = "".join(_parts(card, x, width))
    return f'<a href="#{card.anchor}"><title>{words}</title>{pieces}{problem}{_rect("frame", x, width)}</a>'


def _parts(card: StepCard, x: float, width: float) -> Iterator[str]:
    own = _seconds(card)
    for name, sec in (("model", card.model_sec), ("waiting", card.waited_sec), ("command", card.command_sec)):
        if sec > 0:
            yield _rect(name, x, width * sec / own)
            x += width * sec / own


def _rect(kind: str, x: float, width: float) -> str:
    return f'<rect class="{kind}" x="{number(x)}%" width="{number(width)}%"/>'
