"""The number of trials at once, found against a simulated server."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.pacing.controller import REST_SEC, PaceController, first_number
from tbench.pacing.load import ServerLoad

POLL_SEC = 5.0


def a_load(usage: float = 0.5, waiting: int = 0, preemptions: int = 0) -> ServerLoad:
    return ServerLoad(usage, 1, waiting, preemptions)


@dataclass
class SimulatedServer:
    """A KV cache, and trials whose contexts grow while they go on; what does not fit is preempted, and waits."""

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
    """The number after each look."""
    rng, numbers, now = random.Random(seed), list[int](), 0.0
    while now < minutes * 60:
        load = server.pass_time(POLL_SEC, controller.number, rng)
        now += POLL_SEC
        controller.observe(now, load, under_way=len(server.trials), ended=server.ended)
        numbers.append(controller.number)
    return numbers


@pytest.mark.parametrize("first", [1, 8, 200])
@pytest.mark.parametrize("fitting", [10, 60])
def test_it_finds_what_a_server_can_take_from_below_and_from_above(first: int, fitting: int) -> None:
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
def test_it_is_cut_at_once_and_then_has_time_to_show(load: ServerLoad, number: int) -> None:
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


def test_a_cut_goes_from_what_is_under_way() -> None:
    controller = PaceController(100, most=100)
    controller.observe(0, a_load(preemptions=1), under_way=20, ended=0)
    assert controller.number == 16


def test_without_metrics_nothing_changes_and_growth_begins_anew() -> None:
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


def test_it_begins_with_what_fits_the_cache() -> None:
    assert first_number(320_000, 32_000, 512, 16) == 10
    assert first_number(10_000, 32_000, 512, 16) == 1
    assert first_number(10**9, 1000, 512, 16) == 512
    assert first_number(None, 32_000, 512, 16) == first_number(320_000, None, 512, 16) == 16
