"""Watches the servers of a run's model, and gives the run the number of trials at once that they can take."""

from __future__ import annotations

import asyncio
import contextlib
import statistics
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from typing import Protocol

from harness.errors import EndpointError
from harness.turns import cancel
from tbench.config.document import PacedConcurrency
from tbench.pacing.controller import PaceController, first_number
from tbench.pacing.load import NoMetrics, ServerLoad, of_all

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
