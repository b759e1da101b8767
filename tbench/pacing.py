"""Finds how many trials at once a model's servers can take, by their metrics, while they work."""

from __future__ import annotations

import asyncio
import contextlib
import math
import re
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from harness.errors import EndpointError
from harness.turns import cancel
from tbench.config.document import PacedConcurrency

# What a vLLM says about its load on its `/metrics`, in Prometheus' text format.

_LINE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""The name of today's versions, and that of those before 0.10."""
_LONGEST_CHARS = 4_000_000


class NoMetrics(ValueError):
    """An answer that says nothing usable about a server's load."""


@dataclass(frozen=True)
class ServerLoad:
    """The load of one server at one moment."""

    usage: float
    """Share of the KV cache that is in use, 0 to 1."""
    running: int
    waiting: int
    preemptions: int
    """Since the server began."""
    cache_tokens: int | None = None
    """Tokens that the KV cache holds; None where the server does not say."""

    @classmethod
    def read(cls, text: object, model: str | None = None) -> ServerLoad:
        """The load in the body of an answer, of this model where several are told. Raises NoMetrics."""
        if not isinstance(text, str) or len(text) > _LONGEST_CHARS:
            raise NoMetrics("no text in Prometheus' format")
        samples = _Samples(text, model)
        usages = next((found for name in _USAGE if (found := samples.values(name))), [])
        if not usages:
            raise NoMetrics("no vllm:kv_cache_usage_perc in it")
        counts = {name: samples.values(f"vllm:{name}") for name in ("num_requests_running", "num_requests_waiting")}
        preempted = samples.values("vllm:num_preemptions_total") or samples.values("vllm:num_preemptions")
        every = [*usages, *counts["num_requests_running"], *counts["num_requests_waiting"], *preempted]
        if bad := [each for each in every if not math.isfinite(each) or each < 0 or each > 1e15]:
            raise NoMetrics(f"a value of {bad[0]:g} cannot be")
        if (highest := max(usages)) > 1.0:
            raise NoMetrics(f"a KV usage of {highest:g} cannot be: it is a share from 0 to 1")
        return cls(
            usage=sum(usages) / len(usages),
            running=round(sum(counts["num_requests_running"])),
            waiting=round(sum(counts["num_requests_waiting"])),
            preemptions=round(sum(preempted)),
            cache_tokens=samples.cache_tokens(),
        )


def of_all(loads: Sequence[ServerLoad]) -> ServerLoad:
    """The load of several servers among which trials are spread."""
    tokens = [each.cache_tokens for each in loads if each.cache_tokens is not None]
    return ServerLoad(
        usage=sum(each.usage for each in loads) / len(loads),
        running=sum(each.running for each in loads),
        waiting=sum(each.waiting for each in loads),
        preemptions=sum(each.preemptions for each in loads),
        cache_tokens=sum(tokens) if len(tokens) == len(loads) else None,
    )


class _Samples:
    """The samples of a text by name, with their labels."""

    def __init__(self, text: str, model: str | None) -> None:
        self._found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for match in _LINE.finditer(text):
            if match["name"].startswith("vllm:"):
                labels = dict(_LABEL.findall(match["labels"] or ""))
                self._found.setdefault(match["name"], []).append((labels, _number(match["value"])))
        self._model = model

    def values(self, name: str) -> list[float]:
        """The values of a metric: those of the model where it has any, else all."""
        found = self._found.get(name, [])
        own = [value for labels, value in found if labels.get("model_name") == self._model]
        return own or [value for _, value in found]

    def cache_tokens(self) -> int | None:
        return sum(self._blocks()) or None

    def _blocks(self) -> Iterator[int]:
        for labels, _ in self._found.get("vllm:cache_config_info", []):
            # Newer versions tell it outright; blocks hold less where several groups of layers share them.
            names = ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
            tokens, blocks, size = (labels.get(name, "") for name in names)
            if tokens.isdecimal():
                yield int(tokens)
            elif blocks.isdecimal() and size.isdecimal():
                yield int(blocks) * int(size)


def _number(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan


# Finds the number of trials at once that a server can take: it grows in steps while there is room, and is cut at once.
#
# AIMD on what vLLM says of its KV cache, its queue and its preemptions, with the thresholds of prime-rl's
# ConcurrencyController (src/prime_rl/orchestrator/concurrency.py). A pure state machine: no clock, no I/O.

GROWTH, STRIDE = 1.25, 2.0
"""Growth per turnover near the aim, and at the most where there is more room than that."""
ROOMY, FULL, AIM = 0.6, 0.8, 0.7
"""KV usage below which it grows, above which it is trimmed, and to which."""
QUEUE_CUT, PREEMPTION_CUT = 0.9, 0.8
REST_SEC = 30.0
"""Shortest time between two cuts."""
STALE_SEC = 15.0
"""Without metrics for so long, what was seen before says nothing, and a turnover begins anew."""


@dataclass
class PaceController:
    """The number of trials at once, as it stands after each look at the servers."""

    number: int
    most: int
    least: int = 1
    _cut_at: float | None = field(default=None, init=False)
    _ended_then: int = field(default=0, init=False)
    _seen_at: float | None = field(default=None, init=False)
    _queued: bool = field(default=False, init=False)

    def observe(self, now: float, load: ServerLoad | None, *, under_way: int, ended: int) -> str:
        """Take in a look at the servers, None where they told nothing; gives why the number changed, or nothing.

        The load has the preemptions since the look before. `now` is in seconds of any clock, `ended` the trials that
        have ended since the beginning.
        """
        if load is None:
            return ""
        is_stale = self._seen_at is None or now - self._seen_at > STALE_SEC
        self._seen_at = now
        was_queued, self._queued = self._queued and not is_stale, load.waiting > 0
        if is_stale:
            self._begin_turn(ended)
        why, number = self._wanted(load, was_queued, under_way)
        if number < self.number:
            return self._cut(now, number, why, under_way, ended)
        # As many trials have ended as go at once: those under way show what the number costs.
        if number > self.number and ended - self._ended_then >= self.number:
            self._begin_turn(ended)
            self.number = number
            return why
        return ""

    def _wanted(self, load: ServerLoad, was_queued: bool, under_way: int) -> tuple[str, int]:
        # What is not under way did not cause it: a cut goes from what is.
        base = min(self.number, max(under_way, self.least))
        if load.preemptions > 0:
            return f"{load.preemptions} requests were preempted", self._bounded(base * PREEMPTION_CUT)
        if load.usage > FULL:
            return f"KV cache {load.usage:.0%} full", self._bounded(base * AIM / load.usage)
        if load.waiting > 0:
            # One look may meet requests that have just come.
            return (
                (f"{load.waiting} requests wait", self._bounded(base * QUEUE_CUT)) if was_queued else ("", self.number)
            )
        if load.usage < ROOMY and under_way >= self.number:
            growth = max(GROWTH, min(STRIDE, ROOMY / max(load.usage, 0.01)))
            return f"KV cache {load.usage:.0%} full", self._bounded(max(self.number * growth, self.number + 1))
        return "", self.number

    def _bounded(self, number: float) -> int:
        return max(self.least, min(self.most, int(number)))

    def _cut(self, now: float, number: int, why: str, under_way: int, ended: int) -> str:
        # Trials under way are not ended: until they are, the cut before has not shown what it does.
        if self._cut_at is not None and (now - self._cut_at < REST_SEC or under_way > self.number):
            return ""
        self._cut_at = now
        self._begin_turn(ended)
        self.number = number
        return why

    def _begin_turn(self, ended: int) -> None:
        self._ended_then = ended


def first_number(cache_tokens: int | None, context_tokens: int | None, most: int, otherwise: int) -> int:
    """How many trials begin: as many as fit the cache with full contexts, or `otherwise` where that is not known."""
    if cache_tokens is None or not context_tokens:
        return max(1, min(otherwise, most))
    return max(1, min(cache_tokens // context_tokens, most))


# Watches the servers of a run's model, and gives the run the number of trials at once that they can take.

POLL_SEC = 5.0
_LOOK_SEC = 4.0
"""Time limit of one look at all servers."""


class TellsMetrics(Protocol):
    """A server of a model."""

    @property
    def url(self) -> str: ...

    @property
    def model(self) -> str | None: ...

    @property
    def context_tokens(self) -> int | None: ...

    async def metrics(self) -> object:
        """The body of its `/metrics`. Raises EndpointError."""
        ...


class PacedRun(Protocol):
    """A run that is under way."""

    @property
    def number(self) -> int:
        """Trials at once."""

    @property
    def under_way(self) -> int: ...

    @property
    def ended(self) -> int: ...

    @property
    def was_resized(self) -> bool:
        """Whether a person has said how many."""

    def pace(self, number: int) -> None:
        """Have another number from now on."""


class Pace:
    """The number of trials at once of one run, by the load of its servers."""

    def __init__(
        self, servers: Sequence[TellsMetrics], *, most: int, otherwise: int, say: Callable[[str], None]
    ) -> None:
        """`otherwise` is the number where no server tells anything; `say` is told of that, and of changes."""
        self._servers, self._most, self._otherwise, self._say = servers, most, otherwise, say
        self._numbers: list[int] = []
        self._has_metrics = False
        self._complained = False
        self._preemptions: dict[str, int] = {}

    async def begin(self, context_tokens: int | None = None) -> int:
        """The number to begin with; without metrics it stays. A trial may have `context_tokens`, or the server's."""
        load = await self._look()
        if load is None:
            number = max(1, min(self._otherwise, self._most))
            self._say(f"-n auto: stays at {number} trials at once")
        else:
            self._has_metrics = True
            lengths = [each for each in (context_tokens, *(one.context_tokens for one in self._servers)) if each]
            number = first_number(load.cache_tokens, min(lengths, default=None), self._most, self._otherwise)
            self._say(f"-n auto: begins with {number} trials at once; KV cache {load.usage:.0%} full")
        self._numbers.append(number)
        return number

    @contextlib.asynccontextmanager
    async def keeping(self, run: PacedRun) -> AsyncIterator[None]:
        """Adapt the run during the block."""
        watching = asyncio.create_task(self._watch(run), name="pace") if self._has_metrics else None
        try:
            yield
        finally:
            if watching is not None:
                await cancel(watching)

    @property
    def recorded(self) -> PacedConcurrency:
        """The numbers at which the run went."""
        numbers = self._numbers
        return PacedConcurrency(
            first=numbers[0], min=min(numbers), median=statistics.median_low(numbers), max=max(numbers)
        )

    async def _watch(self, run: PacedRun) -> None:
        controller = PaceController(run.number, self._most)
        while True:
            await asyncio.sleep(POLL_SEC)
            if run.was_resized:
                self._say(f"-n auto: a person has said {run.number}; it stays there")
                self._numbers.append(run.number)
                return
            load = await self._look()
            before = controller.number
            why = controller.observe(time.monotonic(), load, under_way=run.under_way, ended=run.ended)
            if why and controller.number != before and not run.was_resized:
                run.pace(controller.number)
                self._say(f"-n auto: {before} → {controller.number} trials at once: {why}")
            self._numbers.append(run.number)

    async def _look(self) -> ServerLoad | None:
        """The load of the servers that tell theirs; None where none does. The first silence is said."""
        answers = await asyncio.gather(*map(self._load_of, self._servers))
        loads = [each for each in answers if isinstance(each, ServerLoad)]
        if loads:
            self._complained = False
            return of_all(loads)
        if answers and not self._complained:
            self._complained = True
            url = self._servers[0].url.removesuffix("/v1")
            self._say(f"-n auto: {url}/metrics: {answers[0]}")
        return None

    async def _load_of(self, server: TellsMetrics) -> ServerLoad | str:
        """The load of a server, with the preemptions since the look before; else what is wrong with its metrics."""
        try:
            async with asyncio.timeout(_LOOK_SEC):
                load = ServerLoad.read(await server.metrics(), server.model)
        except TimeoutError:
            return f"no answer within {_LOOK_SEC:g} s"
        except (EndpointError, NoMetrics) as error:
            return str(error)
        before = self._preemptions.get(server.url, load.preemptions)
        self._preemptions[server.url] = load.preemptions
        # A server that was started anew counts from 0.
        return replace(load, preemptions=max(0, load.preemptions - before))
