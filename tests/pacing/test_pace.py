"""Watching servers while a run goes on: it adapts, tells why, and leaves it where a person has said a number."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest
from lost_cancellations import moments_lost

from harness.errors import EndpointUnavailable
from tbench.config.document import PacedConcurrency
from tbench.pacing import pace as module
from tbench.pacing.pace import Pace


def metrics(usage: float = 0.1, waiting: int = 0, preempted: int = 0, blocks: int = 1000) -> str:
    config = f'block_size="16",num_gpu_blocks="{blocks}"'
    return (
        f"vllm:kv_cache_usage_perc {usage}\nvllm:num_requests_waiting {waiting}\nvllm:num_requests_running 1\n"
        f"vllm:num_preemptions_total {preempted}\nvllm:cache_config_info{{{config}}} 1\n"
    )


@dataclass
class Server:
    """A server that says what it is told to."""

    tell: Callable[[], object]
    url: str = "http://gpu1:8000/v1"
    model: str | None = "m"
    context_tokens: int | None = 2000

    async def metrics(self) -> object:
        told = self.tell()
        if isinstance(told, Exception):
            raise told
        if told is None:
            await asyncio.Future()
        return told


@dataclass
class Run:
    """A run as its pace sees it."""

    number: int
    was_resized: bool = False
    ended: int = 0
    paced: list[int] = field(default_factory=list)

    @property
    def under_way(self) -> int:
        return self.number

    def pace(self, number: int) -> None:
        self.number = number
        self.paced.append(number)


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL_SEC", 0.01)
    monkeypatch.setattr(module, "_LOOK_SEC", 0.05)


def a_pace(said: list[str], *servers: Server) -> Pace:
    return Pace(servers, most=64, otherwise=16, say=said.append)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - whatever the watcher does next
            await asyncio.sleep(0.005)


async def test_it_begins_with_what_fits_and_is_cut_when_the_server_preempts() -> None:
    said, state = list[str](), {"preempted": 5}
    pace = a_pace(said, Server(lambda: metrics(preempted=state["preempted"])))
    run = Run(await pace.begin())
    assert run.number == 8  # 16,000 tokens of cache, 2,000 of context
    async with pace.keeping(run):
        await asyncio.sleep(0.05)
        assert run.paced == [], "what was preempted before is no concern of this run"
        state["preempted"] += 2
        await until(lambda: bool(run.paced))
    assert run.number == 6
    assert said == [
        "-n auto: begins with 8 trials at once; KV cache 10% full",
        "-n auto: 8 → 6 trials at once: 2 requests were preempted",
    ]
    assert pace.recorded.first == 8 and pace.recorded.min == 6 and pace.recorded.max == 8


async def test_a_configured_context_fits_more_often() -> None:
    assert await a_pace([], Server(metrics)).begin(context_tokens=1000) == 16
    assert await a_pace([], Server(metrics), Server(metrics, url="http://gpu2/v1")).begin() == 16


@pytest.mark.parametrize(
    ("told", "words"),
    [
        (EndpointUnavailable("HTTP 404"), "http://gpu1:8000/metrics: HTTP 404"),
        (None, "http://gpu1:8000/metrics: no answer within 0.05 s"),
        ("vllm:kv_cache_usage_perc 55", "http://gpu1:8000/metrics: a KV usage of 55 cannot be"),
        ("<html>", "http://gpu1:8000/metrics: no vllm:kv_cache_usage_perc in it"),
    ],
)
async def test_without_metrics_it_stays_at_a_fixed_number_and_says_so_once(told: object, words: str) -> None:
    said = list[str]()
    pace = a_pace(said, Server(lambda: told))
    run = Run(await pace.begin())
    async with pace.keeping(run):
        await asyncio.sleep(0.05)
    assert run.number == 16 and run.paced == []
    assert (
        len(said) == 2 and said[0].startswith(f"-n auto: {words}") and said[1] == "-n auto: stays at 16 trials at once"
    )
    assert pace.recorded == PacedConcurrency(first=16, min=16, median=16, max=16)


async def test_metrics_that_go_away_on_the_way_are_said_once_and_hold_the_number() -> None:
    said, told = list[str](), [metrics()]
    pace = a_pace(said, Server(lambda: told[0]))
    run = Run(await pace.begin())
    async with pace.keeping(run):
        told[0] = "gone"
        await until(lambda: len(said) == 2)
        await asyncio.sleep(0.05)
    assert run.paced == [] and said[1:] == ["-n auto: http://gpu1:8000/metrics: no vllm:kv_cache_usage_perc in it"]


async def test_a_server_that_is_gone_leaves_the_word_to_the_others() -> None:
    said, usage = list[str](), [0.1]
    gone = Server(lambda: EndpointUnavailable("cannot connect"), url="http://gpu2:8000/v1")
    pace = a_pace(said, Server(lambda: metrics(usage[0])), gone)
    run = Run(await pace.begin())
    async with pace.keeping(run):
        usage[0] = 1.0
        await until(lambda: bool(run.paced))
    assert run.paced[0] == 5 and len(said) == 2


async def test_a_person_s_word_holds() -> None:
    said = list[str]()
    pace = a_pace(said, Server(lambda: metrics(usage=1.0)))
    run = Run(await pace.begin())
    async with pace.keeping(run):
        run.number, run.was_resized = 40, True
        await until(lambda: len(said) == 2)
        await asyncio.sleep(0.05)
    assert run.number == 40 and run.paced == []
    assert said[1] == "-n auto: a person has said 40; it stays there" and pace.recorded.max == 40


async def test_a_run_without_a_model_has_a_fixed_number() -> None:
    said = list[str]()
    assert await a_pace(said).begin() == 16 and said == ["-n auto: stays at 16 trials at once"]


async def test_no_cancellation_is_lost_at_the_end_of_a_run_that_was_paced() -> None:
    async def keep() -> None:
        async with pace.keeping(Run(number)):
            await asyncio.sleep(0)

    pace = a_pace([], Server(metrics))
    number = await pace.begin()
    assert await moments_lost(keep) == []
