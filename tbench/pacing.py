"""Adapts the number of concurrent trials to the load that the model's servers report in their metrics."""

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

from harness.concurrency import cancel
from harness.errors import EndpointError
from tbench.config.document import PacedConcurrency

# vLLM's load in its `/metrics`, in Prometheus' text format.

_LINE = re.compile(r"^(?P<name>[A-Za-z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$", re.MULTILINE)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
"""Names of the metric in current versions, and before 0.10."""
_LONGEST_CHARS = 4_000_000


class NoMetrics(ValueError):
    """An answer without usable metrics about a server's load."""


@dataclass(frozen=True)
class ServerLoad:
    """Load of a server at one moment."""

    usage: float
    """Used share of the KV cache, 0 to 1."""
    running: int
    waiting: int
    preemptions: int
    """Preemptions since the server's start."""
    cache_tokens: int | None = None
    """Capacity of the KV cache in tokens; None if the server does not report it."""

    @classmethod
    def read(cls, text: object, model: str | None = None) -> ServerLoad:
        """Parse an answer's body, for this model if it reports several. Raises NoMetrics."""
        if not isinstance(text, str) or len(text) > _LONGEST_CHARS:
            raise NoMetrics("not a text in Prometheus format")
        samples = _Samples(text, model)
        usages = next((found for name in _USAGE if (found := samples.values(name))), [])
        if not usages:
            raise NoMetrics("has no vllm:kv_cache_usage_perc")
        counts = {name: samples.values(f"vllm:{name}") for name in ("num_requests_running", "num_requests_waiting")}
        preempted = samples.values("vllm:num_preemptions_total") or samples.values("vllm:num_preemptions")
        every = [*usages, *counts["num_requests_running"], *counts["num_requests_waiting"], *preempted]
        if bad := [each for each in every if not math.isfinite(each) or each < 0 or each > 1e15]:
            raise NoMetrics(f"impossible value {bad[0]:g}")
        if (highest := max(usages)) > 1.0:
            raise NoMetrics(f"impossible KV usage {highest:g}: must be from 0 to 1")
        return cls(
            usage=sum(usages) / len(usages),
            running=round(sum(counts["num_requests_running"])),
            waiting=round(sum(counts["num_requests_waiting"])),
            preemptions=round(sum(preempted)),
            cache_tokens=samples.cache_tokens(),
        )


def combined_load(loads: Sequence[ServerLoad]) -> ServerLoad:
    """Combine the loads of several servers that share the trials."""
    tokens = [each.cache_tokens for each in loads if each.cache_tokens is not None]
    return ServerLoad(
        usage=sum(each.usage for each in loads) / len(loads),
        running=sum(each.running for each in loads),
        waiting=sum(each.waiting for each in loads),
        preemptions=sum(each.preemptions for each in loads),
        cache_tokens=sum(tokens) if len(tokens) == len(loads) else None,
    )


class _Samples:
    """Metric samples of a text by name, with their labels."""

    def __init__(self, text: str, model: str | None) -> None:
        self._found: dict[str, list[tuple[Mapping[str, str], float]]] = {}
        for match in _LINE.finditer(text):
            if match["name"].startswith("vllm:"):
                labels = dict(_LABEL.findall(match["labels"] or ""))
                self._found.setdefault(match["name"], []).append((labels, _number(match["value"])))
        self._model = model

    def values(self, name: str) -> list[float]:
        """Return the values of a metric: the model's if it has any, else all."""
        found = self._found.get(name, [])
        own = [value for labels, value in found if labels.get("model_name") == self._model]
        return own or [value for _, value in found]

    def cache_tokens(self) -> int | None:
        return sum(self._blocks()) or None

    def _blocks(self) -> Iterator[int]:
        for labels, _ in self._found.get("vllm:cache_config_info", []):
            # Newer versions report the capacity; the product is too high where groups of layers share blocks.
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


# Controller of the number of concurrent trials: grows it in steps while there is room, and cuts it at once.
#
# AIMD on vLLM's KV cache usage, queue and preemptions, with the thresholds of prime-rl's
# ConcurrencyController (src/prime_rl/orchestrator/concurrency.py). A pure state machine: no clock, no I/O.

GROWTH, STRIDE = 1.25, 2.0
"""Smallest and largest growth factor per turnover: the more room there is, the larger."""
ROOMY, FULL, AIM = 0.6, 0.8, 0.7
"""KV usage below which the number grows, above which it is cut, and the target of the cut."""
QUEUE_CUT, PREEMPTION_CUT = 0.9, 0.8
REST_SEC = 30.0
"""Shortest time between two cuts, in seconds."""
STALE_SEC = 15.0
"""Age in seconds after which earlier metrics are ignored, and a turnover begins again."""


@dataclass
class PaceController:
    """The number of concurrent trials, updated with each reading of the metrics."""

    number: int
    most: int
    least: int = 1
    _cut_at: float | None = field(default=None, init=False)
    _ended_then: int = field(default=0, init=False)
    _seen_at: float | None = field(default=None, init=False)
    _queued: bool = field(default=False, init=False)

    def observe(self, now: float, load: ServerLoad | None, *, under_way: int, ended: int) -> str:
        """Process a reading; None if no server reported one. Return why the number changed, or an empty string.

        The load has the preemptions since the last reading. `now` is in seconds of any clock, `ended` the total of
        finished trials.
        """
        if load is None:
            return ""
        is_stale = self._seen_at is None or now - self._seen_at > STALE_SEC
        self._seen_at = now
        was_queued, self._queued = self._queued and not is_stale, load.waiting > 0
        if is_stale:
            self._ended_then = ended
        why, number = self._wanted(load, was_queued, under_way)
        if number < self.number:
            return self._cut(now, number, why, under_way, ended)
        # Grow only after a turnover: when all running trials began at the current number.
        if number > self.number and ended - self._ended_then >= self.number:
            self._ended_then = ended
            self.number = number
            return why
        return ""

    def _wanted(self, load: ServerLoad, was_queued: bool, under_way: int) -> tuple[str, int]:
        # Trials that do not run yet did not cause the load: cut from the running ones.
        base = min(self.number, max(under_way, self.least))
        if load.preemptions > 0:
            return f"{load.preemptions} requests were preempted", self._bounded(base * PREEMPTION_CUT)
        if load.usage > FULL:
            return f"KV cache {load.usage:.0%} full", self._bounded(base * AIM / load.usage)
        if load.waiting > 0:
            # A single reading may see requests that have just arrived.
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
        # Running trials are not stopped, so a cut takes effect only when enough of them have ended.
        if self._cut_at is not None and (now - self._cut_at < REST_SEC or under_way > self.number):
            return ""
        self._cut_at = now
        self._ended_then = ended
        self.number = number
        return why


def initial_number(cache_tokens: int | None, context_tokens: int | None, most: int, otherwise: int) -> int:
    """Return the initial number: as many full contexts as fit the cache, or `otherwise` if that is unknown."""
    if cache_tokens is None or not context_tokens:
        return max(1, min(otherwise, most))
    return max(1, min(cache_tokens // context_tokens, most))


# Applies the controller to a run.

POLL_SEC = 5.0
_METRICS_SEC = 4.0
"""Time limit of one reading from all servers."""


class MetricsSource(Protocol):
    """A model's server that may report metrics."""

    @property
    def url(self) -> str: ...

    @property
    def model(self) -> str | None: ...

    @property
    def context_tokens(self) -> int | None: ...

    async def metrics(self) -> object:
        """Return the body of its `/metrics`. Raises EndpointError."""
        ...


class PacedRun(Protocol):
    """A running run, as the pacing needs it."""

    @property
    def number(self) -> int:
        """Number of concurrent trials."""

    @property
    def under_way(self) -> int: ...

    @property
    def ended(self) -> int: ...

    @property
    def was_resized(self) -> bool:
        """Whether a person has set the number."""

    def pace(self, number: int) -> None:
        """Change the number of concurrent trials."""


class Pace:
    """Adapts the number of concurrent trials of one run to the load of its servers."""

    def __init__(
        self, servers: Sequence[MetricsSource], *, most: int, otherwise: int, say: Callable[[str], None]
    ) -> None:
        """`otherwise` is the number without metrics; `say` is called with messages about missing metrics and
        changes."""
        self._servers, self._most, self._otherwise, self._say = servers, most, otherwise, say
        self._numbers: list[int] = []
        self._has_metrics = False
        self._reported_missing = False
        self._preemptions: dict[str, int] = {}

    async def begin(self, context_tokens: int | None = None) -> int:
        """Return the initial number; without metrics it stays. A context has at most `context_tokens`."""
        load = await self._poll()
        if load is None:
            number = max(1, min(self._otherwise, self._most))
            self._say(f"-n auto: stays at {number} concurrent trials")
        else:
            self._has_metrics = True
            lengths = [each for each in (context_tokens, *(one.context_tokens for one in self._servers)) if each]
            number = initial_number(load.cache_tokens, min(lengths, default=None), self._most, self._otherwise)
            self._say(f"-n auto: begins with {number} concurrent trials; KV cache {load.usage:.0%} full")
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
        """Summary of the numbers so far."""
        numbers = self._numbers
        return PacedConcurrency(
            first=numbers[0], min=min(numbers), median=statistics.median_low(numbers), max=max(numbers)
        )

    async def _watch(self, run: PacedRun) -> None:
        controller = PaceController(run.number, self._most)
        while True:
            await asyncio.sleep(POLL_SEC)
            if run.was_resized:
                self._say(f"-n auto: stays at {run.number}, which a person has set")
                self._numbers.append(run.number)
                return
            load = await self._poll()
            before = controller.number
            why = controller.observe(time.monotonic(), load, under_way=run.under_way, ended=run.ended)
            if why and controller.number != before and not run.was_resized:
                run.pace(controller.number)
                self._say(f"-n auto: {before} → {controller.number} concurrent trials: {why}")
            self._numbers.append(run.number)

    async def _poll(self) -> ServerLoad | None:
        """Return the combined load of the servers that report one; None if none does. The first failure is reported."""
        answers = await asyncio.gather(*map(self._read_load, self._servers))
        loads = [each for each in answers if isinstance(each, ServerLoad)]
        if loads:
            self._reported_missing = False
            return combined_load(loads)
        if answers and not self._reported_missing:
            self._reported_missing = True
            url = self._servers[0].url.removesuffix("/v1")
            self._say(f"-n auto: {url}/metrics: {answers[0]}")
        return None

    async def _read_load(self, server: MetricsSource) -> ServerLoad | str:
        """Return a server's load, with preemptions since the last reading; or the problem with its metrics."""
        try:
            async with asyncio.timeout(_METRICS_SEC):
                load = ServerLoad.read(await server.metrics(), server.model)
        except TimeoutError:
            return f"no answer within {_METRICS_SEC:g} s"
        except (EndpointError, NoMetrics) as error:
            return str(error)
        before = self._preemptions.get(server.url, load.preemptions)
        self._preemptions[server.url] = load.preemptions
        # A restarted server counts from 0.
        return replace(load, preemptions=max(0, load.preemptions - before))
