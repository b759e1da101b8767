"""Several servers of one model as one endpoint: a trial stays at one of them, and goes on at another if that fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from harness.endpoint.chat import ChatModel, RawReply
from harness.endpoint.outage import Presence
from harness.errors import EndpointError, EndpointUnavailable, ReplyTimeout, RequestRefused
from harness.model import Model, Rendering, Sampling, ServedModel
from harness.trajectory import Message, Reply

__all__ = ["MOVE_ON_SEC", "Endpoint", "Replica", "Replicas", "WaitNotice"]

STRIKES = 3
"""A server gets no more requests after failing this many in a row that another one then answered."""
MOST_MOVES = 5
"""Most servers that may go away under one request: beyond that, the request may be what brings them down."""
MOVE_ON_SEC = 60.0
"""A request's retry budget at one of several servers."""
LOOK_EVERY_SEC = 15.0
"""Pause between two looks at servers that have requests: one that hangs tells nobody."""
_NOTICE_EVERY_SEC = 5.0
_ABOUT_THE_SERVER = {401, 403, 404, 405}
"""Statuses of refusals that are about the server rather than about the request."""

T = TypeVar("T")


class WaitNotice:
    """Says why requests wait, but only every few seconds: many of them wait for the same reason."""

    def __init__(self, name: str, say: Callable[[str], None], every_sec: float = _NOTICE_EVERY_SEC) -> None:
        self._name = name
        self._say = say
        self._every_sec = every_sec
        self._last = float("-inf")

    def __call__(self, reason: str, seconds: float) -> None:
        if time.monotonic() - self._last < self._every_sec:
            return
        self._last = time.monotonic()
        self._say(f"{self._name}: {reason.rstrip('.')}; trying again in {seconds:.1f} s")


@dataclass(eq=False)
class Replica:
    """One of several servers, and how it has done so far."""

    chat: ChatModel
    weight: float = 1.0
    """Its share of the trials, beside the weights of the others; above 0."""
    trials: int = 0
    """Those that are there now."""
    strikes: int = 0
    retired: bool = False
    connected: bool = False

    @property
    def gone(self) -> bool:
        """Whether it is asked no more."""
        return self.retired or self.chat.outage.gave_up is not None

    @property
    def there(self) -> bool:
        return not self.gone and not self.chat.outage.is_away


@dataclass(frozen=True)
class _Answered(Generic[T]):
    """What one of the servers answered."""

    value: T
    replica: Replica
    lost_sec: float
    """Wall seconds that were spent at others before."""
    moves: int


@dataclass
class _Journey:
    """One request on its way from server to server."""

    began: float = field(default_factory=time.monotonic)
    tried: set[Replica] = field(default_factory=set)
    failed: list[tuple[Replica, EndpointError]] = field(default_factory=list)
    away: int = 0
    """How many servers went away under it."""
    last_began: float = 0.0

    @property
    def lost_sec(self) -> float:
        """Wall seconds until the server was asked that is asked now."""
        return self.last_began - self.began


class Replicas:
    """The servers of one run, which serve the same model; a request that one of them fails goes to another.

    It is a Model itself, whose requests go round. `say` is told in words when a server is left out.
    `retry_budget_sec` is one request's at all servers together; each chat has its own budget besides.
    """

    def __init__(
        self,
        chats: Sequence[ChatModel],
        say: Callable[[str], None] = lambda _: None,
        *,
        weights: Sequence[float] = (),
        retry_budget_sec: float = 900.0,
    ) -> None:
        self._retry_budget_sec = retry_budget_sec
        shares = weights or [1.0] * len(chats)
        self._replicas = [Replica(chat, weight) for chat, weight in zip(chats, shares, strict=True)]
        self._say = say
        self._turn = 0
        self._looking: asyncio.Task[None] | None = None
        self.outage = Outages(self._replicas)
        versions: set[str] = set()
        for chat in chats:  # fingerprints differ with paths, and names with gateways
            chat.replier.known["weights"] = versions

    @property
    def chats(self) -> list[ChatModel]:
        return [each.chat for each in self._replicas]

    @property
    def connected(self) -> list[ChatModel]:
        """The servers that answered `connect`."""
        return [each.chat for each in self._replicas if each.connected]

    @property
    def url(self) -> str:
        """The URLs of all servers, as they are shown."""
        return ", ".join(self.urls)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(chat.url for chat in self.chats)

    @property
    def gave_up(self) -> str | None:
        """Why there is nobody left to ask; None while there is."""
        return self.outage.gave_up

    async def connect(self, budget_sec: float, *, same_context: bool = True) -> ServedModel:
        """Ask the servers for the model they serve; one that does not answer is tried again when its turn comes.

        Raises EndpointError where none answers or one refuses, RequestRefused where they serve different models, or
        with `same_context` contexts of different lengths; without it the shortest counts.
        """
        asked = (each.chat.connect(budget_sec=budget_sec) for each in self._replicas)
        found = await asyncio.gather(*asked, return_exceptions=True)
        served: dict[str, ServedModel] = {}
        for chat, each in zip(self.chats, found, strict=True):
            if isinstance(each, ServedModel):
                served[chat.url] = each
            elif not isinstance(each, EndpointUnavailable):
                raise each
        if not served:
            raise next(each for each in found if isinstance(each, EndpointUnavailable))
        _check_same(served, same_context, same_weights=all(chat.replier.is_strict for chat in self.chats))
        lengths = [each.context_tokens for each in served.values() if each.context_tokens is not None]
        first = next(iter(served.values())).model_copy(update={"context_tokens": min(lengths, default=None)})
        for replica, each in zip(self._replicas, found, strict=True):
            replica.connected = isinstance(each, ServedModel)
            if isinstance(each, EndpointUnavailable):
                replica.chat.expect(first)
                self._say(f"{each}; the others take its requests until it answers")
        return first

    # -- as a model ------------------------------------------------------------------------------

    @property
    def model(self) -> str | None:
        return self._replicas[0].chat.model

    @property
    def context_tokens(self) -> int | None:
        """The shortest of all: where a trial is must not move its score."""
        return min((each for chat in self.chats if (each := chat.context_tokens) is not None), default=None)

    @property
    def most_tokens(self) -> int | None:
        """The least of what they take as max_tokens; None where no refusal has told."""
        return min((each for chat in self.chats if (each := chat.most_tokens) is not None), default=None)

    @property
    def sampling(self) -> Sampling:
        return self._replicas[0].chat.sampling

    @property
    def rendering(self) -> Rendering:
        return self._replicas[0].chat.rendering

    @property
    def patience_sec(self) -> float:
        """The budget of a request at all servers, and what each of them may take beyond it."""
        return self._retry_budget_sec + sum(chat.patience_sec for chat in self.chats)

    def request(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[str, dict[str, Any]]:
        """As ChatModel.request: it is the same for all servers."""
        return self._replicas[0].chat.request(messages, seed=seed, max_tokens=max_tokens, tools=tools)

    async def query(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        """One reply, of whichever server's turn it is. Raises as ChatModel.query does."""
        with self.bound() as one:
            return await one.query(messages, seed=seed, max_tokens=max_tokens, tools=tools)

    def at_temperature(self, temperature: float) -> Model:
        """The same model, asked at another temperature, at the server that has least to do now."""
        return _OfOneTrial(self, self.least_loaded(), temperature)

    async def complete(self, fields: Mapping[str, Any], *, seed: int | None = None) -> RawReply:
        """One reply, from the next server or another. Raises the last server's error as `ChatModel.complete` does."""
        if len(self._replicas) == 1:
            return await self._replicas[0].chat.complete(fields, seed=seed)
        return (await self.ask(lambda chat: chat.complete(fields, seed=seed, elsewhere=True), self._round)).value

    @contextlib.contextmanager
    def bound(self) -> Iterator[Model]:
        """A model for one trial, whose requests go to the same server as long as that answers: it has their beginnings
        in its prefix cache. It is the one with the fewest trials for its weight."""
        one = _OfOneTrial(self, self.least_loaded())
        one.home.trials += 1
        try:
            yield one
        finally:
            one.home.trials -= 1

    def least_loaded(self, among: Sequence[Replica] = ()) -> Replica:
        """The server with the fewest trials for its weight, of those that are there, if there is one."""
        choice = among or [each for each in self._replicas if each.there] or self._replicas
        return min(choice, key=lambda each: (each.trials + 1) / each.weight)

    def _round(self, there: Sequence[Replica]) -> Replica:
        self._turn += 1
        return there[self._turn % len(there)]

    # -- from server to server -------------------------------------------------------------------

    async def ask(
        self, call: Callable[[ChatModel], Awaitable[T]], choose: Callable[[Sequence[Replica]], Replica]
    ) -> _Answered[T]:
        """What one of the servers answers; `choose` says which, of those that are there and were not asked yet.

        Raises the last server's error where all failed, for as long as the budget lasts.
        """
        asking = _Journey()
        self._look_on()
        while True:
            replica = await self._next(asking, choose)
            try:
                value = await call(replica.chat)
            except EndpointUnavailable as error:
                if replica.chat.outage.is_away and asking.away < MOST_MOVES:
                    asking.away += 1
                    continue
                asking.failed.append((replica, error))
            except ReplyTimeout as error:
                if any(isinstance(why, ReplyTimeout) for _, why in asking.failed):
                    raise  # a third would take as long
                asking.failed.append((replica, error))
            except RequestRefused as error:
                if error.status not in _ABOUT_THE_SERVER:
                    raise
                asking.failed.append((replica, error))
            else:
                replica.strikes = 0
                for failing, why in asking.failed:
                    self._strike(failing, why)
                return _Answered(value, replica, asking.lost_sec, asking.away + len(asking.failed))
            asking.tried.add(replica)

    async def _next(self, asking: _Journey, choose: Callable[[Sequence[Replica]], Replica]) -> Replica:
        """The next server to ask; waits where all that are left are away. Raises where none is left."""
        while True:
            left = [each for each in self._replicas if each not in asking.tried and not each.gone]
            if there := [each for each in left if not each.chat.outage.is_away]:
                asking.last_began = time.monotonic()
                return choose(there)
            if left:
                await _until_one_is_back(left)
                continue
            last = asking.failed[-1][1] if asking.failed else EndpointUnavailable(self.gave_up or "no server is left")
            in_time = time.monotonic() - asking.began < self._retry_budget_sec
            if not (in_time and isinstance(last, EndpointUnavailable) and self.gave_up is None):
                raise last
            asking.tried.clear()

    def _strike(self, replica: Replica, error: EndpointError) -> None:
        """Count a request that this server failed and another one answered."""
        replica.strikes += 1
        if replica.strikes == STRIKES and not replica.gone:
            replica.retired = True
            self._say(f"{error}; {STRIKES} requests in a row failed there: the others take its requests")

    def _look_on(self) -> None:
        """See to it that servers are looked at while requests are under way."""
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look(), name="look at the replicas")

    async def _look(self) -> None:
        while any(each.chat.outage.has_requests for each in self._replicas):
            await asyncio.sleep(LOOK_EVERY_SEC)
            busy = [each.chat.outage for each in self._replicas if each.there and each.chat.outage.has_requests]
            await asyncio.gather(*(outage.look() for outage in busy))

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.wait({self._looking})
        for chat in self.chats:
            await chat.close()


class Outages:
    """Those of several servers: they are away together only where each of them is."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self.on_change: Callable[[Presence], None] = lambda _: None
        for each in replicas:
            each.chat.outage.on_change = self._changed

    @property
    def is_away(self) -> bool:
        return not any(each.there for each in self._replicas)

    @property
    def gave_up(self) -> str | None:
        """Why there is nobody left to ask; None while there is."""
        if not all(each.gone for each in self._replicas):
            return None
        return next(filter(None, (each.chat.outage.gave_up for each in self._replicas)), "all of them failed")

    async def wait(self) -> None:
        """Wait until one of them is there, or all have been given up."""
        while self.is_away and self.gave_up is None:
            await _until_one_is_back([each for each in self._replicas if not each.gone])

    def _changed(self, presence: Presence) -> None:
        there = sum(each.there for each in self._replicas)
        # A server that comes back tells so while it still counts as away.
        if (presence == "back" and there == 0) or (presence != "back" and self.is_away):
            self.on_change("given_up" if self.gave_up is not None else presence)


class _OfOneTrial:
    """The model of one trial: at one server, its home, until that fails."""

    def __init__(self, replicas: Replicas, home: Replica, temperature: float | None = None) -> None:
        self.home = home
        self._replicas = replicas
        self._temperature = temperature

    @property
    def model(self) -> str | None:
        return self._replicas.model

    @property
    def context_tokens(self) -> int | None:
        return self._replicas.context_tokens

    @property
    def most_tokens(self) -> int | None:
        return self._replicas.most_tokens

    @property
    def sampling(self) -> Sampling:
        return self._at(self.home.chat).sampling

    @property
    def patience_sec(self) -> float:
        return self._replicas.patience_sec

    def at_temperature(self, temperature: float) -> Model:
        """The same model at the same server, asked at another temperature."""
        return _OfOneTrial(self._replicas, self.home, temperature)

    def request(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[str, dict[str, Any]]:
        """As ChatModel.request."""
        return self._at(self.home.chat).request(messages, seed=seed, max_tokens=max_tokens, tools=tools)

    async def query(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        """One reply, of its home or, where that fails, of the server that is its home from then on."""

        def call(chat: ChatModel) -> Awaitable[Reply]:
            return self._at(chat).query(messages, seed=seed, max_tokens=max_tokens, tools=tools, elsewhere=True)

        answered = await self._replicas.ask(call, self._choose)
        self._move_to(answered.replica)
        reply = answered.value
        return reply.model_copy(
            update={
                "base_url": answered.replica.chat.url,
                "waited_sec": reply.waited_sec + answered.lost_sec,
                "attempts": reply.attempts + answered.moves,
            }
        )

    def _at(self, chat: ChatModel) -> ChatModel:
        return chat if self._temperature is None else chat.at_temperature(self._temperature)

    def _choose(self, there: Sequence[Replica]) -> Replica:
        return self.home if self.home in there else self._replicas.least_loaded(there)

    def _move_to(self, replica: Replica) -> None:
        if replica is not self.home and self._temperature is None:
            self.home.trials -= 1
            replica.trials += 1
            self.home = replica


async def _until_one_is_back(replicas: Sequence[Replica]) -> None:
    waiting = [asyncio.create_task(each.chat.outage.wait()) for each in replicas]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _check_same(served: Mapping[str, ServedModel], same_context: bool, *, same_weights: bool) -> None:
    """Raise RequestRefused where servers, by URL, have different models or weights, or contexts of other lengths."""
    if len(ids := sorted({each.id for each in served.values()})) > 1:
        raise RequestRefused(f"they serve different models ({', '.join(ids)}): name the one to use", status=404)
    if same_weights and (told := _differing({url: each.root for url, each in served.items()})):
        raise RequestRefused(
            f"they serve different weights under one name ({told}): serve the same everywhere, or, where these are the "
            "same at several places, give --other-weights take",
            status=400,
        )
    if same_context and (told := _differing({url: each.context_tokens for url, each in served.items()})):
        raise RequestRefused(
            f"they have different context lengths ({told}): where a trial is would move its score; serve all with one "
            "--max-model-len",
            status=400,
        )


def _differing(said: Mapping[str, object]) -> str:
    """What each server says, by URL, where those that say something do not say the same; empty where they do."""
    known = {url: value for url, value in said.items() if value is not None}
    return ", ".join(f"{url} {value}" for url, value in known.items()) if len(set(known.values())) > 1 else ""


Endpoint = ChatModel | Replicas
"""Where a model is asked: one server, or several."""
