"""The seam for somebody who watches an agent: who may hold it, speak to it, and decide about what it wants to do.

The time that this takes is charged to nobody. Everything that was done to an agent stands in its trajectory.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from harness.errors import FormatError
from harness.protocols.base import Parsed
from harness.trajectory import Reply


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


@dataclass(frozen=True, slots=True)
class Declined:
    """The decision that nothing of a reply is done."""

    why: str
    """What the model gets instead of an observation."""


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

    async def review(self, draft: Draft) -> Reply | Declined:
        """The reply to follow, which may be another one or an edited one; or that nothing is done."""
