"""The number of concurrent trials, found against a simulated server."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lost_cancellations import moments_lost

from harness.errors import EndpointUnavailable
from tbench import pacing as module
from tbench.config.document import PacedConcurrency
from tbench.pacing import REST_SEC, NoMetrics, Pace, PaceController, ServerLoad, combined_load, initial_number

# vLLM's metrics: real answers, several engines, and impossible values.

RECORDED = Path(__file__).parents[2] / "shared" / "data" / "vllm-wire" / "A_metrics.json"
TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.25
vllm:num_preemptions_total{engine="0",model_name="tiny"} 7.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.79e+09
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000",note="a \\"quoted\\" word"} 1.0
"""


def test_a_server_s_engines_are_taken_together() -> None:
    assert ServerLoad.read(TEXT, "tiny") == ServerLoad(0.375, 4, 2, 7, 16000)


def test_the_reported_cache_size_is_used() -> None:
    body = TEXT.replace('block_size="16"', 'block_size="16",kv_cache_size_tokens="12345"')
    assert ServerLoad.read(body, "tiny").cache_tokens == 12345


def test_other_models_of_a_server_are_left_out() -> None:
    both = TEXT + 'vllm:kv_cache_usage_perc{engine="0",model_name="large"} 0.9\n'
    assert ServerLoad.read(both, "large").usage == 0.9
    assert ServerLoad.read(TEXT, "an adapter").usage == 0.375


def test_a_recorded_answer_is_read() -> None:
    if not RECORDED.exists():
        pytest.skip(f"no recorded answers at {RECORDED.parent}")
    recorded = json.loads(RECORDED.read_text())
    text = recorded["response"]["text"]
    load = ServerLoad.read(text, "tiny")
    assert 0.0 <= load.usage <= 1.0 and load.running >= 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "not a text"), ({"error": "x"}, "not a text"),
        ("<html>nginx</html>", "no vllm:kv_cache_usage_perc"),
        ("vllm:kv_cache_usage_perc 37", "impossible KV usage 37"),
        ("vllm:kv_cache_usage_perc NaN", "impossible value nan"),
        ("vllm:kv_cache_usage_perc -0.1", "impossible value -0.1"),
        ("vllm:kv_cache_usage_perc abc", "impossible value nan"),
        ("vllm:kv_cache_usage_perc 0.1\nvllm:num_requests_waiting +Inf", "impossible value inf"),
        ("x" * 5_000_000, "not a text"),
    ],
)  # fmt: skip
def test_missing_or_impossible_metrics_are_rejected(text: object, said: str) -> None:
    with pytest.raises(NoMetrics, match=said):
        ServerLoad.read(text)


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    for each in (text, TEXT + text, f"vllm:kv_cache_usage_perc{{{text}}} {text}"):
        try:
            load = ServerLoad.read(each)
        except NoMetrics:
            continue
        assert 0.0 <= load.usage <= 1.0 and min(load.running, load.waiting, load.preemptions) >= 0


def test_servers_are_taken_together() -> None:
    one, other = ServerLoad(0.2, 1, 2, 3, 100), ServerLoad(0.6, 10, 20, 30, 200)
    assert combined_load([one, other]) == ServerLoad(0.4, 11, 22, 33, 300)
    assert combined_load([one, ServerLoad(0.6, 0, 0, 0)]).cache_tokens is None


POLL_SEC = 5.0


def a_load(usage: float = 0.5, waiting: int = 0, preemptions: int = 0) -> ServerLoad:
    return ServerLoad(usage, 1, waiting, preemptions)


@dataclass
class SimulatedServer:
    """A KV cache, and trials whose contexts grow over time; what does not fit is preempted, and waits."""

    cache_tokens: float
    tokens_per_sec: float = 40.0
    longest_sec: float = 600.0
    trials: list[tuple[float, float]] = field(default_factory=list)
    """Age and length of life of each, in seconds."""
    ended: int = 0

    def pass_time(self, seconds: float, number: int, rng: random.Random) -> ServerLoad:
        grown = [(age + seconds, life) for age, life in self.trials]
        self.trials = [each for each in grown if each[0] < each[1]]
        self.ended += len(grown) - len(self.trials)
        while len(self.trials) < number:
            self.trials.append((0.0, rng.uniform(0.3, 1.0) * self.longest_sec))
        held, running = 0.0, 0
        for age, _ in self.trials:
            if held + age * self.tokens_per_sec > self.cache_tokens:
                break
            held, running = held + age * self.tokens_per_sec, running + 1
        over = len(self.trials) - running
        return ServerLoad(min(1.0, held / self.cache_tokens), running, over, over // 2)


def driven(server: SimulatedServer, controller: PaceController, minutes: float, seed: int = 1) -> list[int]:
    """The number after each reading."""
    rng, numbers, now = random.Random(seed), list[int](), 0.0
    while now < minutes * 60:
        load = server.pass_time(POLL_SEC, controller.number, rng)
        now += POLL_SEC
        controller.observe(now, load, under_way=len(server.trials), ended=server.ended)
        numbers.append(controller.number)
    return numbers


@pytest.mark.parametrize("first", [1, 8, 200])
@pytest.mark.parametrize("fitting", [10, 60])
def test_the_number_converges_from_below_and_from_above(first: int, fitting: int) -> None:
    # A trial holds 40 tokens/s for 390 s in the mean: half of that at a time.
    server = SimulatedServer(cache_tokens=fitting * 40 * 390 / 2)
    numbers = driven(server, PaceController(first, most=512), minutes=120)
    settled = sorted(numbers[len(numbers) // 2 :])
    assert 0.45 * fitting <= settled[len(settled) // 2] <= 1.2 * fitting


def test_a_server_with_room_for_all_gets_all() -> None:
    server = SimulatedServer(cache_tokens=1e9)
    assert driven(server, PaceController(4, most=64), minutes=60)[-1] == 64


def test_it_grows_after_a_turnover_and_only_where_the_number_binds() -> None:
    controller = PaceController(8, most=100)
    assert controller.observe(0, a_load(), under_way=8, ended=0) == ""
    assert controller.observe(5, a_load(), under_way=8, ended=7) == ""
    assert controller.observe(10, a_load(), under_way=8, ended=8) == "KV cache 50% full" and controller.number == 10
    for now in range(15, 600, 5):
        controller.observe(now, a_load(), under_way=10, ended=17)
        assert controller.number == 10
    assert controller.observe(605, a_load(), under_way=10, ended=18) and controller.number == 12
    for now in range(610, 900, 5):
        controller.observe(now, a_load(), under_way=11, ended=8 + now)
    assert controller.number == 12, "what does not bind is no limit"


@pytest.mark.parametrize(
    ("load", "number"),
    [(a_load(usage=0.7), 100), (a_load(usage=0.9), 77), (a_load(preemptions=3), 80), (a_load(usage=1.0), 70)],
)
def test_the_number_is_cut_at_once_and_then_rests(load: ServerLoad, number: int) -> None:
    controller = PaceController(100, most=100)
    controller.observe(0, load, under_way=100, ended=0)
    assert controller.number == number
    controller.observe(REST_SEC - 1, load, under_way=100, ended=0)
    assert controller.number == number
    controller.observe(REST_SEC, load, under_way=100, ended=0)
    assert controller.number == number, "those under way have to end first"
    controller.observe(REST_SEC + 1, load, under_way=number, ended=0)
    assert controller.number < number or number == 100


def test_a_queue_counts_when_it_is_seen_twice() -> None:
    controller = PaceController(100, most=100)
    assert controller.observe(0, a_load(waiting=5), under_way=100, ended=0) == ""
    assert controller.observe(5, a_load(waiting=5), under_way=100, ended=0) == "5 requests wait"
    assert controller.number == 90


def test_a_cut_is_relative_to_the_running_trials() -> None:
    controller = PaceController(100, most=100)
    controller.observe(0, a_load(preemptions=1), under_way=20, ended=0)
    assert controller.number == 16


def test_without_metrics_nothing_changes_and_growth_starts_over() -> None:
    controller = PaceController(8, most=100)
    controller.observe(0, a_load(), under_way=8, ended=0)
    for now in range(5, 100, 5):
        assert controller.observe(now, None, under_way=8, ended=50) == ""
    assert controller.observe(100, a_load(), under_way=8, ended=50) == "", "a turn begins with what is known now"
    assert controller.number == 8
    controller.observe(105, a_load(), under_way=8, ended=58)
    assert controller.number == 10


looks = st.lists(
    st.tuples(
        st.floats(0, 60),
        st.none() | st.builds(ServerLoad, st.floats(0, 1), st.integers(0, 99), st.integers(0, 9), st.integers(0, 3)),
        st.integers(0, 600),
        st.integers(0, 5),
    ),
    max_size=60,
)


@given(st.integers(1, 512), looks)
def test_it_stays_within_its_bounds_and_changes_only_with_a_reason(first: int, drawn: list[Any]) -> None:
    controller, now, ended = PaceController(first, most=512), 0.0, 0
    for seconds, load, under_way, more in drawn:
        now, ended, before = now + seconds, ended + more, controller.number
        why = controller.observe(now, load, under_way=under_way, ended=ended)
        assert 1 <= controller.number <= 512
        assert bool(why) or controller.number == before
        assert controller.number <= max(before * 2, before + 1)


def test_the_initial_number_fits_the_cache() -> None:
    assert initial_number(320_000, 32_000, 512, 16) == 10
    assert initial_number(10_000, 32_000, 512, 16) == 1
    assert initial_number(10**9, 1000, 512, 16) == 512
    assert initial_number(None, 32_000, 512, 16) == initial_number(320_000, None, 512, 16) == 16


# Pacing a run: it adapts, reports why, and stops when a person has set a number.


def metrics(usage: float = 0.1, waiting: int = 0, preempted: int = 0, blocks: int = 1000) -> str:
    config = f'block_size="16",num_gpu_blocks="{blocks}"'
    return (
        f"vllm:kv_cache_usage_perc {usage}\nvllm:num_requests_waiting {waiting}\nvllm:num_requests_running 1\n"
        f"vllm:num_preemptions_total {preempted}\nvllm:cache_config_info{{{config}}} 1\n"
    )


@dataclass
class Server:
    """A server with the given metrics."""

    body: Callable[[], object]
    url: str = "http://gpu1:8000/v1"
    model: str | None = "m"
    context_tokens: int | None = 2000

    async def metrics(self) -> object:
        body = self.body()
        if isinstance(body, Exception):
            raise body
        if body is None:
            await asyncio.Future()
        return body


@dataclass
class Run:
    """A run as the pacing sees it."""

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
    monkeypatch.setattr(module, "_METRICS_SEC", 0.05)


def a_pace(said: list[str], *servers: Server) -> Pace:
    return Pace(servers, most=64, otherwise=16, say=said.append)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110 - whatever the watcher does next
            await asyncio.sleep(0.005)


async def test_the_initial_number_is_cut_when_the_server_preempts() -> None:
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
        "-n auto: begins with 8 concurrent trials; KV cache 10% full",
        "-n auto: 8 → 6 concurrent trials: 2 requests were preempted",
    ]
    assert pace.recorded.first == 8 and pace.recorded.min == 6 and pace.recorded.max == 8


async def test_a_configured_context_fits_more_often() -> None:
    assert await a_pace([], Server(metrics)).begin(context_tokens=1000) == 16
    assert await a_pace([], Server(metrics), Server(metrics, url="http://gpu2/v1")).begin() == 16


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (EndpointUnavailable("HTTP 404"), "http://gpu1:8000/metrics: HTTP 404"),
        (None, "http://gpu1:8000/metrics: no answer within 0.05 s"),
        ("vllm:kv_cache_usage_perc 55", "http://gpu1:8000/metrics: impossible KV usage 55"),
        ("<html>", "http://gpu1:8000/metrics: has no vllm:kv_cache_usage_perc"),
    ],
)
async def test_without_metrics_the_number_is_fixed_and_reported_once(body: object, words: str) -> None:
    said = list[str]()
    pace = a_pace(said, Server(lambda: body))
    run = Run(await pace.begin())
    async with pace.keeping(run):
        await asyncio.sleep(0.05)
    assert run.number == 16 and run.paced == []
    assert (
        len(said) == 2
        and said[0].startswith(f"-n auto: {words}")
        and said[1] == "-n auto: stays at 16 concurrent trials"
    )
    assert pace.recorded == PacedConcurrency(first=16, min=16, median=16, max=16)


async def test_metrics_that_vanish_are_reported_once_and_keep_the_number() -> None:
    said, body = list[str](), [metrics()]
    pace = a_pace(said, Server(lambda: body[0]))
    run = Run(await pace.begin())
    async with pace.keeping(run):
        body[0] = "gone"
        await until(lambda: len(said) == 2)
        await asyncio.sleep(0.05)
    assert run.paced == [] and said[1:] == ["-n auto: http://gpu1:8000/metrics: has no vllm:kv_cache_usage_perc"]


async def test_without_one_server_the_others_decide() -> None:
    said, usage = list[str](), [0.1]
    gone = Server(lambda: EndpointUnavailable("cannot connect"), url="http://gpu2:8000/v1")
    pace = a_pace(said, Server(lambda: metrics(usage[0])), gone)
    run = Run(await pace.begin())
    async with pace.keeping(run):
        usage[0] = 1.0
        await until(lambda: bool(run.paced))
    assert run.paced[0] == 5 and len(said) == 2


async def test_a_number_set_by_a_person_stays() -> None:
    said = list[str]()
    pace = a_pace(said, Server(lambda: metrics(usage=1.0)))
    run = Run(await pace.begin())
    async with pace.keeping(run):
        run.number, run.was_resized = 40, True
        await until(lambda: len(said) == 2)
        await asyncio.sleep(0.05)
    assert run.number == 40 and run.paced == []
    assert said[1] == "-n auto: stays at 40, which a person has set" and pace.recorded.max == 40


async def test_a_run_without_a_model_has_a_fixed_number() -> None:
    said = list[str]()
    assert await a_pace(said).begin() == 16 and said == ["-n auto: stays at 16 concurrent trials"]


async def test_no_cancellation_is_lost_at_the_end_of_a_run_that_was_paced() -> None:
    async def keep() -> None:
        async with pace.keeping(Run(number)):
            await asyncio.sleep(0)

    pace = a_pace([], Server(metrics))
    number = await pace.begin()
    assert await moments_lost(keep) == []
