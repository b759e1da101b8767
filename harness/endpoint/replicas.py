"""Several servers of one model as one endpoint: a trial stays at one server, and moves to another if that fails."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from harness.endpoint.answers import RawReply
from harness.endpoint.chat import ChatModel
from harness.endpoint.outage import EndpointState
from harness.errors import EndpointError, EndpointUnavailable, ReplyTimeout, RequestRefused
from harness.model import Model, Rendering, Sampling, ServedModel
from harness.trajectory import Message, Reply

__all__ = ["MOVE_ON_SEC", "Endpoint", "Replica", "Replicas", "WaitNotice"]

MAX_STRIKES = 3
"""A server gets no more requests after so many failures in a row, if another server answered each of them."""
MAX_MOVES = 5
"""Maximum number of servers that may go away during one request; more may mean that the request crashes them."""
MOVE_ON_SEC = 60.0
"""A request's retry budget at one of several servers."""
CHECK_EVERY_SEC = 15.0
"""Interval of checks of servers with pending requests, as one that hangs reports nothing."""
_NOTICE_EVERY_SEC = 5.0
_ABOUT_THE_SERVER = {401, 403, 404, 405}
"""Statuses of refusals that are caused by the server rather than the request."""

T = TypeVar("T")


class WaitNotice:
    """Reports why requests wait, but only every few seconds, as many wait for the same reason."""

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
    """One of several servers, and its state."""

    chat: ChatModel
    weight: float = 1.0
    """The server's share of the trials, relative to the weights of the others; above 0."""
    trials: int = 0
    """Number of current trials."""
    strikes: int = 0
    retired: bool = False
    connected: bool = False

    @property
    def is_excluded(self) -> bool:
        """Whether it gets no more requests."""
        return self.retired or self.chat.outage.gave_up is not None

    @property
    def is_available(self) -> bool:
        return not self.is_excluded and not self.chat.outage.is_away


@dataclass(frozen=True)
class _Answered(Generic[T]):
    """The answer of one of the servers."""

    value: T
    replica: Replica
    lost_sec: float
    """Wall seconds spent at other servers before."""
    moves: int


@dataclass
class _RoutedRequest:
    """State of one request that moves from server to server."""

    began: float = field(default_factory=time.monotonic)
    tried: set[Replica] = field(default_factory=set)
    failed: list[tuple[Replica, EndpointError]] = field(default_factory=list)
    away: int = 0
    """Number of servers that went away during the request."""
    last_began: float = 0.0
    """Time at which the request was sent to the current server."""


class Replicas:
    """The servers of one run, which serve the same model; a request that fails at one goes to another.

    It is a Model itself, whose requests are distributed. `say` receives a message when a server is excluded.
    `retry_budget_sec` is one request's total budget; each chat has a budget of its own as well.
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
        self._checking: asyncio.Task[None] | None = None
        self.outage = Outages(self._replicas)
        versions: set[str] = set()
        for chat in chats:  # fingerprints differ with paths, and names with gateways
            chat.model_identity.known["weights"] = versions

    @property
    def chats(self) -> list[ChatModel]:
        return [each.chat for each in self._replicas]

    @property
    def connected(self) -> list[ChatModel]:
        """The servers that answered `connect`."""
        return [each.chat for each in self._replicas if each.connected]

    @property
    def url(self) -> str:
        """URLs of all servers, for display."""
        return ", ".join(self.urls)

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(chat.url for chat in self.chats)

    @property
    def gave_up(self) -> str | None:
        """Reason why no server is left; None while there is one."""
        return self.outage.gave_up

    async def connect(self, budget_sec: float, *, same_context: bool = True) -> ServedModel:
        """Query the servers for their model; one that does not answer is tried again when its turn comes.

        Raises EndpointError if none answers or one refuses, and RequestRefused if they serve different models. With
        `same_context`, their contexts must be equally long; without it, the shortest counts.
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
        _check_same(served, same_context, same_weights=all(chat.model_identity.is_strict for chat in self.chats))
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
        """The shortest of all contexts, so that the server of a trial does not affect its score."""
        return min((each for chat in self.chats if (each := chat.context_tokens) is not None), default=None)

    @property
    def most_tokens(self) -> int | None:
        """Lowest limit of max_tokens that a server's refusal has stated; None without one."""
        return min((each for chat in self.chats if (each := chat.most_tokens) is not None), default=None)

    @property
    def sampling(self) -> Sampling:
        return self._replicas[0].chat.sampling

    @property
    def rendering(self) -> Rendering:
        return self._replicas[0].chat.rendering

    @property
    def patience_sec(self) -> float:
        """A request's total budget, plus the time that each server may take beyond it."""
        return self._retry_budget_sec + sum(chat.patience_sec for chat in self.chats)

    def request(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[str, dict[str, Any]]:
        """Return ChatModel.request, which is the same for all servers."""
        return self._replicas[0].chat.request(messages, seed=seed, max_tokens=max_tokens, tools=tools)

    async def query(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        """Return one reply of the least loaded server. Raises like ChatModel.query."""
        with self.bind_trial() as one:
            return await one.query(messages, seed=seed, max_tokens=max_tokens, tools=tools)

    def at_temperature(self, temperature: float) -> Model:
        """Return the model at another temperature, at the least loaded server."""
        return _TrialModel(self, self.least_loaded(), temperature)

    async def complete(self, fields: Mapping[str, Any], *, seed: int | None = None) -> RawReply:
        """Return one reply from the next server or, if it fails, from another. Raises the last server's error."""
        if len(self._replicas) == 1:
            return await self._replicas[0].chat.complete(fields, seed=seed)
        return (
            await self.ask(lambda chat: chat.complete(fields, seed=seed, has_alternative=True), self._round_robin)
        ).value

    @contextlib.contextmanager
    def bind_trial(self) -> Iterator[Model]:
        """Bind one trial to the server with the fewest trials for its weight, as long as that answers.

        The server has the beginnings of the trial's requests in its prefix cache.
        """
        one = _TrialModel(self, self.least_loaded())
        one.home.trials += 1
        try:
            yield one
        finally:
            one.home.trials -= 1

    def least_loaded(self, among: Sequence[Replica] = ()) -> Replica:
        """Return the server with the fewest trials for its weight; an available one, if there is any."""
        choice = among or [each for each in self._replicas if each.is_available] or self._replicas
        return min(choice, key=lambda each: (each.trials + 1) / each.weight)

    def _round_robin(self, available: Sequence[Replica]) -> Replica:
        self._turn += 1
        return available[self._turn % len(available)]

    # -- failover --------------------------------------------------------------------------------

    async def ask(
        self, call: Callable[[ChatModel], Awaitable[T]], choose: Callable[[Sequence[Replica]], Replica]
    ) -> _Answered[T]:
        """Return the answer of one server; `choose` selects it among available servers not tried yet. Raises the last
        server's error if all fail until the budget is spent.
        """
        routed = _RoutedRequest()
        self._start_checks()
        while True:
            replica = await self._next(routed, choose)
            try:
                value = await call(replica.chat)
            except EndpointUnavailable as error:
                if replica.chat.outage.is_away and routed.away < MAX_MOVES:
                    routed.away += 1
                    continue
                routed.failed.append((replica, error))
            except ReplyTimeout as error:
                if any(isinstance(why, ReplyTimeout) for _, why in routed.failed):
                    raise  # a third would take as long
                routed.failed.append((replica, error))
            except RequestRefused as error:
                if error.status not in _ABOUT_THE_SERVER:
                    raise
                routed.failed.append((replica, error))
            else:
                replica.strikes = 0
                for failing, why in routed.failed:
                    self._strike(failing, why)
                lost_sec = routed.last_began - routed.began
                return _Answered(value, replica, lost_sec, routed.away + len(routed.failed))
            routed.tried.add(replica)

    async def _next(self, routed: _RoutedRequest, choose: Callable[[Sequence[Replica]], Replica]) -> Replica:
        """Return the next server; waits if all remaining ones are down. Raises an EndpointError if none is left."""
        while True:
            left = [each for each in self._replicas if each not in routed.tried and not each.is_excluded]
            if available := [each for each in left if not each.chat.outage.is_away]:
                routed.last_began = time.monotonic()
                return choose(available)
            if left:
                await _wait_until_one_is_back(left)
                continue
            last = routed.failed[-1][1] if routed.failed else EndpointUnavailable(self.gave_up or "no server is left")
            in_time = time.monotonic() - routed.began < self._retry_budget_sec
            if not (in_time and isinstance(last, EndpointUnavailable) and self.gave_up is None):
                raise last
            routed.tried.clear()

    def _strike(self, replica: Replica, error: EndpointError) -> None:
        """Count a request that failed at this server and was answered by another one."""
        replica.strikes += 1
        if replica.strikes == MAX_STRIKES and not replica.is_excluded:
            replica.retired = True
            self._say(f"{error}; {MAX_STRIKES} requests in a row failed there: the others take its requests")

    def _start_checks(self) -> None:
        """Start checking the servers while requests are pending."""
        if self._checking is None or self._checking.done():
            self._checking = asyncio.create_task(self._check(), name="check the replicas")

    async def _check(self) -> None:
        while any(each.chat.outage.has_pending for each in self._replicas):
            await asyncio.sleep(CHECK_EVERY_SEC)
            busy = [each.chat.outage for each in self._replicas if each.is_available and each.chat.outage.has_pending]
            await asyncio.gather(*(outage.check() for outage in busy))

    async def close(self) -> None:
        if self._checking is not None:
            self._checking.cancel()
            await asyncio.wait({self._checking})
        for chat in self.chats:
            await chat.close()


class Outages:
    """The outage of several servers: it lasts while all of them are away."""

    def __init__(self, replicas: Sequence[Replica]) -> None:
        self._replicas = replicas
        self.on_change: Callable[[EndpointState], None] = lambda _: None
        for each in replicas:
            each.chat.outage.on_change = self._changed

    @property
    def is_away(self) -> bool:
        return not any(each.is_available for each in self._replicas)

    @property
    def gave_up(self) -> str | None:
        """Reason why no server is left; None while there is one."""
        if not all(each.is_excluded for each in self._replicas):
            return None
        return next(filter(None, (each.chat.outage.gave_up for each in self._replicas)), "all of them failed")

    async def wait(self) -> None:
        """Wait until a server is available, or all have been given up."""
        while self.is_away and self.gave_up is None:
            await _wait_until_one_is_back([each for each in self._replicas if not each.is_excluded])

    def _changed(self, state: EndpointState) -> None:
        available = sum(each.is_available for each in self._replicas)
        # A server that comes back reports it while it still counts as away.
        if (state == "back" and available == 0) or (state != "back" and self.is_away):
            self.on_change("given_up" if self.gave_up is not None else state)


class _TrialModel:
    """The model of one trial, at one server (its home) until that fails."""

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
        """Return the same model and server at another temperature."""
        return _TrialModel(self._replicas, self.home, temperature)

    def request(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> tuple[str, dict[str, Any]]:
        """Return ChatModel.request of the home server."""
        return self._at(self.home.chat).request(messages, seed=seed, max_tokens=max_tokens, tools=tools)

    async def query(
        self, messages: Sequence[Message], *, seed: int | None, max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        """Return one reply of the home server or, if that fails, of another one, which becomes the new home."""

        def call(chat: ChatModel) -> Awaitable[Reply]:
            return self._at(chat).query(messages, seed=seed, max_tokens=max_tokens, tools=tools, has_alternative=True)

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

    def _choose(self, available: Sequence[Replica]) -> Replica:
        return self.home if self.home in available else self._replicas.least_loaded(available)

    def _move_to(self, replica: Replica) -> None:
        if replica is not self.home and self._temperature is None:
            self.home.trials -= 1
            replica.trials += 1
            self.home = replica


async def _wait_until_one_is_back(replicas: Sequence[Replica]) -> None:
    waiting = [asyncio.create_task(each.chat.outage.wait()) for each in replicas]
    try:
        await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in waiting:
            task.cancel()


def _check_same(served: Mapping[str, ServedModel], same_context: bool, *, same_weights: bool) -> None:
    """Raise RequestRefused if the servers, by URL, have different models, weights or context lengths."""
    if len(ids := sorted({each.id for each in served.values()})) > 1:
        raise RequestRefused(
            f"they serve different models ({', '.join(ids)}): name the one to use, or all to compare them", status=404
        )
    if same_weights and (found := _differing({url: each.root for url, each in served.items()})):
        raise RequestRefused(
            f"they serve different weights under one name ({found}): serve the same weights everywhere, or, if these "
            "are copies of the same weights, set --other-weights take",
            status=400,
        )
    if same_context and (found := _differing({url: each.context_tokens for url, each in served.items()})):
        raise RequestRefused(
            f"they have different context lengths ({found}), so a trial's score would depend on its server; serve all "
            "with one --max-model-len",
            status=400,
        )


def _differing(values: Mapping[str, object]) -> str:
    """Return the servers' known values, by URL, if they differ; else an empty text."""
    known = {url: value for url, value in values.items() if value is not None}
    return ", ".join(f"{url} {value}" for url, value in known.items()) if len(set(known.values())) > 1 else ""


Endpoint = ChatModel | Replicas
"""Client of a model: one server, or several."""
