"""The three rewards of the thinking-bash checkpoint, computed from a completion's text, and GRPO advantages.

Every function takes a list of completions and returns one number for each. A completion is a string, or a list of chat
messages: then the last assistant message counts. Anything else (None, a number) gets 0. Further keyword arguments
(dataset columns, token ids, the trainer's state) are ignored.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from statistics import fmean, pstdev, stdev
from typing import Any, Literal, Protocol

from tbench.reward import canonical
from tbench.rewards.shell_words import command_words

FORMATTING = 1.5
PER_MATCH = 1.0
CONCISE, CONCISE_CHARACTERS = 0.2, 300
LONGEST_REPLY, MAX_LINES, LONGEST_COMMAND = 65_536, 2_048, 4_096
"""Limits that keep completions from stalling a training loop.

With more characters or lines, execution relevance is 0 unless it is `literal`; of a longer command, only the
beginning is read.
"""

VERBS: Mapping[str, str] = {
    "docker": r"docker|container|image",
    "find": r"find|locat(?:e|ing)|files? named",
    "grep": r"grep|search|contain(?!er)|pattern|match",
    "tar": r"tar(?:balls?)?\b|archiv|(?:de|un)?compress|extract",
    "wc": r"count(?:s|ed|ing)?\b|how many|number of (?:lines|words)",
}
"""Regular expression by verb for requests that ask for it; matches at the start of a word, ignoring case."""

Counting = Literal["distinct", "occurrences", "literal"]
Shape = Literal["step", "linear", "negative"]

_OPENING = "<thinking>"
_CLOSING = re.compile(r"</thinking>\s*+```bash\n")
_FENCE = "\n```"
_INSTRUCTION, _OUTPUT = "### Instruction:", "### Output:"


class RewardFunction(Protocol):
    """A reward function as trainers call it: one reward per completion, in order. Its name is logged."""

    __name__: str

    def __call__(self, completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any) -> list[float]:
        """Return one reward per completion. Raises ValueError if needed prompts are missing, or too few or many."""
        ...


def formatting(completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any) -> list[float]:
    """Reward R1: 1.5 for a completion of the strict form, else 0. Linear time."""
    return _score_each(completions, lambda text: FORMATTING if has_strict_form(text) else 0.0)


def has_strict_form(text: str) -> bool:
    r"""Whether ``^<thinking>\s*[\s\S]+?\s*</thinking>\s*```bash\n[\s\S]+?\n```$`` matches, found in linear time.

    The pattern itself takes cubic time. The text has to begin and end with the pattern's first and last parts (`$` also
    matches before a last newline). In between, the section and the command may not be empty, so it suffices to try the
    first end of the section that a fence follows: it leaves the most room for the command.
    """
    body = text.removesuffix("\n")
    if not (text.startswith(_OPENING) and body.endswith(_FENCE)):
        return False
    closing = _CLOSING.search(text, len(_OPENING) + 1)
    return closing is not None and closing.end() < len(body) - len(_FENCE)


def make_execution_relevance(
    counting: Counting = "distinct", verbs: Mapping[str, str] = VERBS, *, per_match: float = PER_MATCH
) -> RewardFunction:
    """Make the reward R2: `per_match` for each verb that the request asks for and the completion uses.

    - `distinct`: verbs that are a command word of the extracted block, each counted once.
    - `occurrences`: the same verbs, each counted as often as it occurs.
    - `literal`: verbs whose name is part of the request and of the whole completion, ignoring case; no patterns.

    The request is the prompt: a string (its last instruction, if it has `### Instruction:` headings), or the last user
    message. `verbs` maps a verb to the pattern of its requests, like VERBS. Raises re.error for a bad pattern,
    ValueError for another `counting`.
    """
    _check("counting", counting, ("distinct", "occurrences", "literal"))
    patterns = {verb: re.compile(rf"\b(?:{pattern})", re.IGNORECASE) for verb, pattern in verbs.items()}
    score = (
        _make_substring_scorer(verbs, per_match)
        if counting == "literal"
        else _make_command_scorer(patterns, per_match, counting)
    )

    def reward(completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any) -> list[float]:
        if prompts is None:
            raise ValueError("execution relevance compares a completion with its prompt: pass prompts")
        if len(prompts) != len(completions):
            raise ValueError(f"{len(completions)} completions, but {len(prompts)} prompts")
        texts = zip(map(completion_text, completions), map(request_text, prompts), strict=True)
        return [0.0 if text is None else score(text, request) for text, request in texts]

    return _with_name(reward, "execution_relevance" if counting == "distinct" else f"execution_relevance_{counting}")


def make_conciseness(
    shape: Shape = "step", *, limit: int = CONCISE_CHARACTERS, most: float = CONCISE
) -> RewardFunction:
    """Make the reward R3: `most` for a completion of at most `limit` code points, less for a longer one.

    - `step`: `most` up to the limit, else 0.
    - `linear`: most * max(0, 1 - (len - limit) / limit), and never above `most`.
    - `negative`: `most` up to the limit, else -`most`.

    An empty completion counts as short. Raises ValueError for another shape or a limit below 1.
    """
    _check("shape", shape, ("step", "linear", "negative"))
    if limit < 1:
        raise ValueError(f"limit must be at least 1 character, not {limit}")

    def score(text: str) -> float:
        if len(text) <= limit:
            return most
        if shape == "linear":
            return most * max(0.0, 1.0 - (len(text) - limit) / limit)
        return -most if shape == "negative" else 0.0

    def reward(completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any) -> list[float]:
        return _score_each(completions, score)

    return _with_name(reward, "conciseness" if shape == "step" else f"conciseness_{shape}")


def combine(*functions: RewardFunction, name: str = "combined") -> RewardFunction:
    """Return a reward function that is the sum of several."""

    def reward(completions: Sequence[Any], prompts: Sequence[Any] | None = None, **columns: Any) -> list[float]:
        each = [function(completions, prompts, **columns) for function in functions]
        return [sum(parts) for parts in zip(*each, strict=True)]

    return _with_name(reward, name)


def completion_text(completion: object) -> str | None:
    """Return a completion's text; None if it has none."""
    return completion if isinstance(completion, str) else _last_message_text(completion, "assistant")


def request_text(prompt: object) -> str:
    """Return the text of a prompt's request; empty if it has none."""
    if not isinstance(prompt, str):
        return _last_message_text(prompt, "user") or ""
    _, heading, instruction = prompt.rpartition(_INSTRUCTION)
    return instruction.partition(_OUTPUT)[0] if heading else prompt


def _last_message_text(messages: object, role: str) -> str | None:
    """Return the text of a role's last message; a message without a role, which TRL allows, matches any."""
    if not isinstance(messages, Sequence) or isinstance(messages, str | bytes):
        return None
    for message in reversed(messages):
        if isinstance(message, Mapping) and message.get("role", role) == role:
            text = _content(message.get("content"))
            if text is not None:
                return text
    return None


def _content(content: object) -> str | None:
    """Return the text of a message's content, which is a string or a list of parts; None if it has none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, Sequence) or isinstance(content, bytes):
        return None
    parts = [part.get("text") for part in content if isinstance(part, Mapping)]
    texts = [part for part in parts if isinstance(part, str)]
    return "".join(texts) if texts else None


def _score_each(completions: Sequence[Any], score: Callable[[str], float]) -> list[float]:
    return [0.0 if text is None else score(text) for text in map(completion_text, completions)]


def _make_command_scorer(
    patterns: Mapping[str, re.Pattern[str]], per_match: float, counting: Counting
) -> Callable[[str, str], float]:
    def score(text: str, request: str) -> float:
        if len(text) > LONGEST_REPLY or text.count("\n") > MAX_LINES:
            return 0.0
        asked = {verb for verb, pattern in patterns.items() if pattern.search(request)}
        if not asked:
            return 0.0
        used = [word for word in command_words(_command(text)[:LONGEST_COMMAND]) if word in asked]
        return per_match * len(set(used) if counting == "distinct" else used)

    return score


def _make_substring_scorer(verbs: Mapping[str, str], per_match: float) -> Callable[[str, str], float]:
    def score(text: str, request: str) -> float:
        said, asked = text.lower(), request.lower()
        return per_match * sum(verb in said and verb in asked for verb in map(str.lower, verbs))

    return score


def _command(text: str) -> str:
    # Imported late: the protocols import pydantic and jinja, which R1 and R3 do not need.
    from harness.errors import FormatError
    from harness.protocols.thinking_bash import extract

    try:
        return extract(text).command
    except FormatError:
        return ""


def _check(what: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{what} {value!r}: unknown; known: {', '.join(known)}")


def _with_name(function: Callable[..., list[float]], name: str) -> RewardFunction:
    function.__name__ = function.__qualname__ = name
    return function


execution_relevance = make_execution_relevance()
conciseness = make_conciseness()
combined = combine(formatting, execution_relevance, conciseness)
"""Reward R = R1 + R2 + R3, with the defaults of each."""


# GRPO advantages: how much better a completion is than the others for its prompt.

GROUP_SIZE = 4


def group_advantages(
    rewards: Sequence[float], group_size: int = GROUP_SIZE, *, ddof: int = 1, eps: float = 1e-8
) -> list[float]:
    """Return advantages A_i = (R_i - mean R) / (std R + eps) within each group of `group_size` successive rewards.

    std divides by n - ddof: 1 like TRL (torch's default), or 0. If all rewards of a group are equal, and in a group of
    one, every advantage is 0. Raises ValueError if the size does not divide the number of rewards, for a reward that is
    not finite, and for another ddof.
    """
    if ddof not in (0, 1):
        raise ValueError(f"ddof must be 0 or 1, not {ddof}")
    if group_size < 1 or len(rewards) % group_size:
        raise ValueError(f"{len(rewards)} rewards cannot be split into groups of {group_size}")
    if not all(math.isfinite(reward) for reward in rewards):
        raise ValueError("a reward is not a finite number, so advantages are undefined")
    advantages: list[float] = []
    for start in range(0, len(rewards), group_size):
        group = rewards[start : start + group_size]
        if len(set(map(canonical, group))) == 1:  # explicit: a rounding error divided by eps is not small
            advantages += [0.0] * len(group)
            continue
        mean, std = fmean(group), (stdev if ddof else pstdev)(group)
        advantages += ((reward - mean) / (std + eps) for reward in group)
    return advantages
