"""Scripted model and terminal for tests of agents and protocols without an endpoint or a container."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.model import Sampling
from harness.protocols.base import CommandResult, Keys, ScreenView, View
from harness.terminal import Settled
from harness.trajectory import Message, Reply


class ScriptExhausted(AssertionError):
    """Raised when a fake is called more often than its script allows."""


@dataclass(frozen=True)
class Request:
    """A query received by a ScriptedModel."""

    messages: tuple[Message, ...]
    seed: int | None
    max_tokens: int
    tools: tuple[Mapping[str, Any], ...] = ()


class ScriptedModel:
    """A `harness.model.Model` that answers with `script`, in order.

    A string is a reply with that content, an exception is raised, None is a reply that never comes.
    """

    def __init__(
        self,
        script: Iterable[Reply | str | Exception | None],
        *,
        context_tokens: int | None = None,
        sampling: Sampling | None = None,
        patience_sec: float = 0.0,
    ) -> None:
        self._script = deque(script)
        self.context_tokens = context_tokens
        self.sampling = sampling or Sampling()
        self.patience_sec = patience_sec
        self.requests: list[Request] = []

    async def query(
        self,
        messages: Sequence[Message],
        *,
        seed: int | None,
        max_tokens: int,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> Reply:
        self.requests.append(Request(tuple(messages), seed, max_tokens, tuple(tools)))
        if not self._script:
            raise ScriptExhausted(f"query {len(self.requests)} has no reply in the script")
        entry = self._script.popleft()
        await _raise_or_hang(entry)
        reply = Reply(content=entry) if isinstance(entry, str) else entry
        assert isinstance(reply, Reply)
        return reply


class FakeTerminal:
    """A `harness.agent.AgentTerminal` whose views follow `script`, in order; then the screen is empty.

    A string is a screen, an exception is raised, None never returns. `typed` records all keys and commands; every send
    returns `settled` at once.
    """

    def __init__(
        self,
        script: Iterable[View | str | Exception | None] = (),
        *,
        settled: Settled = Settled(at_prompt=True, exit_code=0),  # noqa: B008 -- frozen
    ) -> None:
        self._script = deque(script)
        self._settled = settled
        self.typed: list[Keys | str] = []

    async def send(self, keys: Keys) -> Settled:
        self.typed.append(keys)
        return self._settled

    async def run(self, command: str, limit_sec: float) -> View:
        self.typed.append(command)
        return await self._view()

    async def view(self) -> ScreenView:
        view = await self._view()
        if not isinstance(view, ScreenView):
            raise TypeError(f"the script holds {view!r} where a screen was asked for")
        return view

    async def _view(self) -> View:
        entry = self._script.popleft() if self._script else ""
        await _raise_or_hang(entry)
        view = ScreenView(screen=entry, new_output=None) if isinstance(entry, str) else entry
        assert isinstance(view, ScreenView | CommandResult)
        return view


async def _raise_or_hang(entry: object) -> None:
    if isinstance(entry, Exception):
        raise entry
    if entry is None:
        await asyncio.get_running_loop().create_future()
