"""Several servers of one model as one endpoint: requests go round, and past servers that fail."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from harness.endpoint.chat import ChatModel, RawReply
from harness.errors import EndpointError, EndpointUnavailable, RequestRefused
from harness.model import ServedModel

STRIKES = 3
"""A server gets no more requests after failing this many in a row that another one then answered."""
MOST_MOVES = 5
"""Most servers that may go away under one request: beyond that, the request may be what brings them down."""
MOVE_ON_SEC = 60.0
"""A request's retry budget at one of several servers."""
_NOTICE_EVERY_SEC = 5.0
_ABOUT_THE_SERVER = {401, 403, 404, 405}
"""Statuses of refusals that are about the server rather than about the request."""


class WaitNotice:
    """Says why requests wait, but only every few seconds: many of them wait for the same reason."""

    def __init__(self, name: str, say: Callable[[str], None]) -> None:
        self._name = name
        self._say = say
        self._last = float("-inf")

    def __call__(self, reason: str, seconds: float) -> None:
        if time.monotonic() - self._last < _NOTICE_EVERY_SEC:
            return
        self._last = time.monotonic()
        self._say(f"{self._name}: {reason.rstrip('.')}; trying again in {seconds:.1f} s")


class _Seat:
    """One server's place in the round, and how it has done so far."""

    def __init__(self, chat: ChatModel) -> None:
        self.chat = chat
        self.strikes = 0
        self.retired = False
        self.connected = False

    @property
    def gone(self) -> bool:
        return self.retired or self.chat.outage.gave_up is not None


class Endpoints:
    """The servers of one run. `say` is told in words when one is left out."""

    def __init__(
        self,
        chats: Sequence[ChatModel],
        say: Callable[[str], None] = lambda _: None,
        *,
        retry_budget_sec: float = 900.0,
    ) -> None:
        """`retry_budget_sec` is one request's at all servers together; each chat has its own budget besides."""
        self._retry_budget_sec = retry_budget_sec
        self._seats = [_Seat(chat) for chat in chats]
        self._say = say
        self._turn = 0

    @property
    def chats(self) -> list[ChatModel]:
        return [seat.chat for seat in self._seats]

    @property
    def connected(self) -> list[ChatModel]:
        """The servers that answered `connect`."""
        return [seat.chat for seat in self._seats if seat.connected]

    @property
    def gave_up(self) -> str | None:
        """Why there is nobody left to ask; None while there is."""
        reasons = [seat.chat.outage.gave_up for seat in self._seats if seat.gone]
        return next(filter(None, reasons), "all of them failed") if len(reasons) == len(self._seats) else None

    async def connect(self, budget_sec: float) -> ServedModel:
        """Ask the servers for the model they serve; one that does not answer is tried again when its turn comes.

        Raises EndpointError where none answers or one refuses, RequestRefused where they serve different models.
        """
        asked = (seat.chat.connect(budget_sec=budget_sec) for seat in self._seats)
        found = await asyncio.gather(*asked, return_exceptions=True)
        served: list[ServedModel] = []
        for each in found:
            if isinstance(each, ServedModel):
                served.append(each)
            elif not isinstance(each, EndpointUnavailable):
                raise each
        if not served:
            raise next(each for each in found if isinstance(each, EndpointUnavailable))
        if len(ids := sorted({each.id for each in served})) > 1:
            raise RequestRefused(f"they serve different models ({', '.join(ids)}): name the one to use", status=404)
        for seat, each in zip(self._seats, found, strict=True):
            seat.connected = isinstance(each, ServedModel)
            if isinstance(each, EndpointUnavailable):
                seat.chat.model = served[0].id
                self._say(f"{each}; the others take its steps until it answers")
        lengths = [each.context_tokens for each in served if each.context_tokens is not None]
        return served[0].model_copy(update={"context_tokens": min(lengths, default=None)})

    async def complete(self, fields: Mapping[str, Any], *, seed: int | None = None) -> RawReply:
        """One reply, from the next server or another. Raises the last server's error as `ChatModel.complete` does."""
        if len(self._seats) == 1:
            return await self._seats[0].chat.complete(fields, seed=seed)
        began, tried, moves = time.monotonic(), set[int](), 0
        failed: list[tuple[_Seat, EndpointError]] = []
        while True:
            number = await self._next(tried)
            if number is None:
                last = failed[-1][1] if failed else EndpointUnavailable(self.gave_up or "no server is left to ask")
                if self._may_go_round_again(last, began):
                    tried.clear()
                    continue
                raise last
            seat = self._seats[number]
            try:
                reply = await seat.chat.complete(fields, seed=seed, elsewhere=True)
            except EndpointUnavailable as error:
                if seat.chat.outage.is_away and moves < MOST_MOVES:
                    moves += 1
                    continue
                failed.append((seat, error))
            except RequestRefused as error:
                if error.status not in _ABOUT_THE_SERVER:
                    raise
                failed.append((seat, error))
            else:
                seat.strikes = 0
                for failing, why in failed:
                    self._strike(failing, why)
                return reply
            tried.add(number)

    def _may_go_round_again(self, last: EndpointError, began: float) -> bool:
        in_time = time.monotonic() - began < self._retry_budget_sec
        return in_time and isinstance(last, EndpointUnavailable) and self.gave_up is None

    async def _next(self, tried: set[int]) -> int | None:
        """The number of the next server that is there; waits where all that are left are away."""
        while True:
            left = [n for n, seat in enumerate(self._seats) if n not in tried and not seat.gone]
            if not left:
                return None
            there = [n for n in left if not self._seats[n].chat.outage.is_away]
            if there:
                self._turn += 1
                return there[self._turn % len(there)]
            await self._until_one_is_back(left)

    async def _until_one_is_back(self, numbers: list[int]) -> None:
        waiting = [asyncio.create_task(self._seats[n].chat.outage.wait()) for n in numbers]
        try:
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in waiting:
                task.cancel()

    def _strike(self, seat: _Seat, error: EndpointError) -> None:
        """Count a request that this server failed and another one answered."""
        seat.strikes += 1
        if seat.strikes == STRIKES and not seat.gone:
            seat.retired = True
            self._say(f"{error}; {STRIKES} requests in a row failed there: the others take its steps")

    async def close(self) -> None:
        for seat in self._seats:
            await seat.chat.close()
