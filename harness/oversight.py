"""The seam for somebody who watches an agent: who may hold it, speak to it, and decide about what it wants to do.

The time that this takes is charged to nobody. Everything that was done to an agent stands in its trajectory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from harness.errors import FormatError
from harness.model import Model
from harness.protocols.base import Parsed
from harness.trajectory import Message, Reply


@dataclass(frozen=True, slots=True)
class Query:
    """A question to a model that has not been asked yet."""

    model: Model
    messages: Sequence[Message]
    """The history, which grows later on: copy what is to be kept."""
    seed: int | None
    max_tokens: int
    tools: Sequence[Mapping[str, Any]] = ()

    async def ask(self) -> Reply:
        """Ask the model. Raises EndpointError, and ContextLimitReached."""
        return await self.model.query(self.messages, seed=self.seed, max_tokens=self.max_tokens, tools=self.tools)


@dataclass(frozen=True, slots=True)
class Draft:
    """A reply of which nothing has been done yet."""

    step: int
    reply: Reply
    parsed: Parsed | FormatError
    """What would be done, or what is wrong with its form."""
    sample: Callable[[int | None, float | None], Awaitable[Reply]]
    """Ask the model for another reply to the same conversation, with this seed and temperature.

    None is what the agent has. Raises EndpointError, and ContextLimitReached.
    """
    read: Callable[[Reply], Parsed | FormatError]
    """What would be done of another reply, or what is wrong with its form."""
    needs_word: bool = False
    """Whether it is followed only if somebody says so (Approved), as no rule allows it."""


@dataclass(frozen=True, slots=True)
class Declined:
    """The decision that nothing of a reply is done."""

    why: str
    """What the model gets instead of an observation."""


@dataclass(frozen=True, slots=True)
class Approved:
    """The decision that a reply is followed, where none is without somebody's word."""

    reply: Reply
    by: str
    """Who has said yes: a person, or a rule."""


Decided = Reply | Declined | Approved
"""What becomes of a reply: it is followed, or another one, or nothing is done."""


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The terminal comes back from a person who has typed into it."""

    text: str
    """What was typed, and what is to be seen now."""


class Oversight(Protocol):
    """Who watches one agent."""

    async def before_query(self, step: int) -> Sequence[str | HandedBack]:
        """Return when the model may be asked for this step; what is returned is told to it beside its observation.

        Raises what the terminal does where a person has typed into it.
        """

    async def reply(self, query: Query) -> Reply:
        """The reply to a query: what the model answers, or what it has answered to the same one before.

        Raises what the model does.
        """

    async def review(self, draft: Draft) -> Decided:
        """The reply to follow, which may be another one or an edited one; or that nothing is done."""
