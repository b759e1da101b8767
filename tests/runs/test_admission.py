"""admission: a budget of CPUs and memory, first come, first served."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.config.values import RetryChoice
from tbench.errors import TrialError
from tbench.results import ErrorInfo
from tbench.runs.admission import MAX_LOST_MACHINES, Admission, Demand, MachineBudget, NoMachine, RetryBudget
from tbench.sandbox.backend import Capacity
from tbench.sandbox.fake import FakeBackend
from tbench.sandbox.run_machine import RunMachine

SMALL = Demand(1, 100)


class Guest:
    """A trial that stays until it is released."""

    def __init__(self, admission: Admission, demand: Demand, log: list[str], name: str) -> None:
        self.demand = demand
        self.name = name
        self.inside = False
        self.leave = asyncio.Event()
        self._log = log
        self.task = asyncio.create_task(self._stay(admission))

    async def _stay(self, admission: Admission) -> None:
        async with admission.admit(self.demand):
            self.inside = True
            self._log.append(self.name)
            try:
                await self.leave.wait()
            finally:
                self.inside = False


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def guests(admission: Admission, demands: list[Demand], log: list[str]) -> list[Guest]:
    made = [Guest(admission, demand, log, str(index)) for index, demand in enumerate(demands)]
    await settle()
    return made


async def all_leave(made: list[Guest]) -> None:
    for guest in made:
        guest.leave.set()
    async with asyncio.timeout(20):
        await asyncio.gather(*(guest.task for guest in made))


async def test_demands_that_fit_together_run_together() -> None:
    log: list[str] = []
    made = await guests(Admission([MachineBudget(2, 1000)]), [SMALL, SMALL, SMALL], log)
    assert [guest.inside for guest in made] == [True, True, False]
    await all_leave(made)
    assert log == ["0", "1", "2"]


async def test_memory_counts_as_cpus_do() -> None:
    made = await guests(Admission([MachineBudget(8, 250)]), [SMALL, SMALL, SMALL], [])
    assert [guest.inside for guest in made] == [True, True, False]
    await all_leave(made)


async def test_fractions_of_cpus_add_up_to_the_whole_budget() -> None:
    made = await guests(Admission([MachineBudget(1, 1000)]), [Demand(0.1, 1)] * 10, [])
    assert all(guest.inside for guest in made)
    await all_leave(made)


async def test_a_large_demand_is_not_starved_by_small_ones_behind_it() -> None:
    log: list[str] = []
    made = await guests(Admission([MachineBudget(2, 1000)]), [SMALL, Demand(2, 100), SMALL], log)
    assert [guest.inside for guest in made] == [True, False, False]
    made[0].leave.set()
    await settle()
    assert [guest.inside for guest in made] == [False, True, False]
    await all_leave(made)
    assert log == ["0", "1", "2"]


@pytest.mark.parametrize("big", [Demand(9, 100), Demand(1, 9999), Demand(9, 9999)])
async def test_a_demand_above_the_budget_runs_alone(big: Demand) -> None:
    made = await guests(Admission([MachineBudget(2, 1000)]), [SMALL, big, SMALL], [])
    assert [guest.inside for guest in made] == [True, False, False]
    made[0].leave.set()
    await settle()
    assert [guest.inside for guest in made] == [False, True, False]
    made[1].leave.set()
    await settle()
    assert [guest.inside for guest in made] == [False, False, True]
    await all_leave(made)


async def test_a_trial_cancelled_while_waiting_makes_room_for_the_next() -> None:
    made = await guests(Admission([MachineBudget(2, 1000)]), [SMALL, Demand(2, 1), SMALL], [])
    made[1].task.cancel()
    await settle()
    assert made[1].task.cancelled()
    assert [guest.inside for guest in made] == [True, False, True]
    await all_leave([made[0], made[2]])


async def test_a_trial_cancelled_just_when_admitted_gives_its_room_back() -> None:
    made = await guests(Admission([MachineBudget(1, 1000)]), [SMALL, SMALL, SMALL], [])
    made[0].leave.set()
    # The first has left and handed its place on, but the second has not run since.
    for _ in range(20):
        if made[0].task.done():
            break
        await asyncio.sleep(0)
    assert not made[1].inside
    made[1].task.cancel()
    await settle()
    assert made[2].inside
    await all_leave([made[0], made[2]])


async def test_room_freed_while_the_next_is_cancelled_goes_to_the_one_behind() -> None:
    made = await guests(Admission([MachineBudget(1, 1000)]), [SMALL, SMALL, SMALL], [])
    # Both in one turn of the loop, as when a run is interrupted.
    made[0].task.cancel()
    made[1].task.cancel()
    await settle()
    assert (made[0].task.cancelled(), made[1].task.cancelled(), made[2].inside) == (True, True, True)
    await all_leave([made[2]])


@pytest.mark.parametrize("closed_first", [True, False])
async def test_a_cancellation_just_as_admission_closes_is_a_cancellation(closed_first: bool) -> None:
    admission = Admission([MachineBudget(1, 1000)])
    made = await guests(admission, [SMALL, SMALL], [])
    acts = [admission.close, made[1].task.cancel]
    for act in acts if closed_first else acts[::-1]:
        act()
    await settle()
    assert made[1].task.cancelled()
    await all_leave(made[:1])


async def test_an_error_inside_gives_the_room_back() -> None:
    admission = Admission([MachineBudget(1, 1000)])
    with pytest.raises(ZeroDivisionError):
        async with admission.admit(SMALL):
            raise ZeroDivisionError
    async with admission.admit(SMALL):
        pass


class Busyness:
    """A load that a test sets, and whether it was read."""

    def __init__(self, load: float | None) -> None:
        self.load = load
        self.notes: list[str] = []
        self.looked = asyncio.Event()

    def look(self) -> float | None:
        self.looked.set()
        return self.load

    def admission(self, max_load: float | None) -> Admission:
        return Admission(
            [MachineBudget(4, 1000)], max_load=max_load, load=self.look, say=self.notes.append, check_every_sec=0.01
        )


async def test_on_a_busy_machine_all_but_the_first_wait_until_it_is_calm() -> None:
    busy = Busyness(3.0)
    made = await guests(busy.admission(2.0), [SMALL, SMALL, SMALL], [])
    assert [guest.inside for guest in made] == [True, False, False]
    busy.looked.clear()
    async with asyncio.timeout(20):
        await busy.looked.wait()  # by itself: no trial has left
    assert not made[1].inside
    busy.load = 1.0
    for guest in made[1:]:
        guest.leave.set()
    async with asyncio.timeout(20):
        await asyncio.gather(*(guest.task for guest in made[1:]))
    assert made[0].inside
    assert busy.notes == ["load 3.00 per cpu is above --max-load 2: trials wait"]
    await all_leave(made)


async def test_a_busy_machine_never_stops_a_run_altogether() -> None:
    busy = Busyness(99.0)
    made = await guests(busy.admission(2.0), [SMALL, SMALL], [])
    assert [guest.inside for guest in made] == [True, False]
    made[0].leave.set()
    await settle()
    assert made[1].inside
    await all_leave(made)


async def test_waiting_for_a_calm_machine_can_be_cancelled() -> None:
    made = await guests(Busyness(99.0).admission(2.0), [SMALL, SMALL, SMALL], [])
    made[1].task.cancel()
    await settle()
    assert made[1].task.cancelled()
    made[2].task.cancel()
    await settle()
    assert made[2].task.cancelled()
    await all_leave(made[:1])


@pytest.mark.parametrize(("load", "max_load"), [(99.0, None), (None, 2.0), (2.0, 2.0)])
async def test_without_a_limit_or_a_known_load_no_trial_waits_for_it(
    load: float | None, max_load: float | None
) -> None:
    made = await guests(Busyness(load).admission(max_load), [SMALL, SMALL], [])
    assert [guest.inside for guest in made] == [True, True]
    await all_leave(made)


DEMANDS = st.builds(Demand, st.sampled_from([0, 0.1, 0.5, 1, 2, 3, 9]), st.sampled_from([0, 1, 64, 500, 1000, 5000]))
MOVES = st.lists(st.tuples(st.sampled_from(["arrive", "leave", "cancel"]), st.integers(0, 30), DEMANDS), max_size=30)


@given(MOVES)
def test_the_budget_is_never_exceeded_unless_by_one_alone(moves: list[tuple[str, int, Demand]]) -> None:
    asyncio.run(play(moves))


async def play(moves: list[tuple[str, int, Demand]]) -> None:
    admission = Admission([MachineBudget(4, 1000)])
    made: list[Guest] = []
    log: list[str] = []
    for move, which, demand in moves:
        if move == "arrive":
            # The log is written when a guest's task runs on, which is later than its admission: let those come first.
            await settle()
            made.append(Guest(admission, demand, log, str(len(made))))
        elif made:
            guest = made[which % len(made)]
            guest.leave.set() if move == "leave" else guest.task.cancel()
        # Half of the moves happen within one turn of the loop.
        if which % 2:
            await settle()
        check([guest for guest in made if guest.inside])
    for guest in made:
        guest.leave.set()
    async with asyncio.timeout(20):
        ends: list[Any] = await asyncio.gather(*(guest.task for guest in made), return_exceptions=True)
    assert {type(end) for end in ends} <= {type(None), asyncio.CancelledError}
    assert log == sorted(log, key=int)
    async with admission.admit(Demand(99, 99999)):
        pass


def check(inside: list[Guest]) -> None:
    if len(inside) > 1:
        assert sum(guest.demand.cpus for guest in inside) <= 4 + 1e-6
        assert sum(guest.demand.memory_mb for guest in inside) <= 1000 + 1e-6


async def test_gpus_are_counted_where_their_number_is_known() -> None:
    on_a_gpu = Demand(1, 100, 1)
    made = await guests(Admission([MachineBudget(8, 1000, gpus=1)]), [on_a_gpu, on_a_gpu, SMALL], [])
    assert [each.inside for each in made] == [True, False, False]
    await all_leave(made)
    made = await guests(Admission([MachineBudget(8, 1000)]), [on_a_gpu, on_a_gpu], [])
    assert [each.inside for each in made] == [True, True]
    await all_leave(made)


def machines(*cpus: float) -> tuple[list[MachineBudget], Admission]:
    budgets = [MachineBudget(each, each * 1000, node=RunMachine(str(each), FakeBackend())) for each in cpus]
    return budgets, Admission(budgets)


def test_what_earlier_runs_left_takes_room_but_a_trial_alone_always_fits() -> None:
    backend = FakeBackend(capacity=Capacity(8, 1000, kept_mb=900))
    budget = MachineBudget.for_machine(RunMachine("", backend), 1.0)
    budget.measure(1.0)
    assert budget.used_memory_mb == 900
    assert budget.fits(Demand(1, 1000))
    budget.take(Demand(1, 50))
    assert budget.fits(Demand(1, 50))
    assert not budget.fits(SMALL)


async def test_of_several_machines_the_one_with_the_largest_share_left_is_taken() -> None:
    (small, large), admission = machines(2, 4)
    made = await guests(admission, [SMALL] * 7, [])
    assert [guest.inside for guest in made] == [True] * 6 + [False]
    assert (small.holders, large.holders) == (2, 4)
    await all_leave(made)
    assert (small.holders, large.holders) == (0, 0)


async def test_a_demand_waits_for_a_machine_that_is_large_enough_though_a_small_one_is_idle() -> None:
    (small, _large), admission = machines(1, 4)
    made = await guests(admission, [Demand(3, 10), Demand(2, 10)], [])
    assert [guest.inside for guest in made] == [True, False] and small.holders == 0
    await all_leave(made)


async def test_a_demand_too_large_for_every_machine_runs_alone_on_an_idle_one() -> None:
    budgets, admission = machines(1, 4)
    made = await guests(admission, [Demand(9, 10)] * 3, [])
    assert [guest.inside for guest in made] == [True, True, False]
    assert [budget.holders for budget in budgets] == [1, 1]
    await all_leave(made)


async def test_an_unavailable_machine_gets_nothing_and_a_new_one_takes_waiting_trials() -> None:
    (one,), admission = machines(1)
    assert one.node is not None
    one.node.lose("unplugged")
    made = await guests(admission, [SMALL, SMALL], [])
    assert [guest.inside for guest in made] == [False, False]
    admission.add(MachineBudget(1, 1000, node=RunMachine("late", FakeBackend())))
    admission.admit_waiting()
    await settle()
    assert [guest.inside for guest in made] == [True, False]
    one.node.come_back()
    admission.admit_waiting()
    await settle()
    assert [guest.inside for guest in made] == [True, True]
    await all_leave(made)


async def test_a_trial_that_waits_for_an_unavailable_machine_blocks_no_other() -> None:
    (small, large), admission = machines(1, 4)
    assert large.node is not None
    large.node.lose("unplugged")
    made = await guests(admission, [Demand(3, 10), SMALL, SMALL], [])
    assert [guest.inside for guest in made] == [False, True, False]
    large.node.come_back()
    admission.admit_waiting()
    await settle()
    assert [guest.inside for guest in made] == [True, True, True]
    assert (small.holders, large.holders) == (1, 2)
    await all_leave(made)


async def test_no_trial_waits_for_a_lost_machine() -> None:
    (small, large), admission = machines(1, 4)
    assert large.node is not None
    large.node.lose("unplugged")
    made = await guests(admission, [Demand(3, 10)], [])
    large.node.is_gone = True
    admission.admit_waiting()
    await settle()
    assert made[0].inside and small.holders == 1
    await all_leave(made)


async def test_a_machine_set_aside_keeps_its_trials_and_gets_no_more() -> None:
    (one,), admission = machines(2)
    assert one.node is not None
    made = await guests(admission, [SMALL], [])
    one.node.why_aside = "full"
    made += await guests(admission, [SMALL], [])
    assert [guest.inside for guest in made] == [True, False]
    one.node.why_aside = None
    admission.admit_waiting()
    await all_leave(made)


async def test_an_avoided_machine_is_used_only_without_an_alternative() -> None:
    (one, other), admission = machines(1, 1)
    assert one.node is not None and other.node is not None
    async with admission.admit(SMALL, avoided=one.node) as budget:
        assert budget is other
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(enter(admission, one.node))
            await settle()
            assert not waiting.done()
            other.node.lose("unplugged")
            admission.admit_waiting()
            assert await waiting is one


async def enter(admission: Admission, avoided: RunMachine) -> MachineBudget:
    async with admission.admit(SMALL, avoided=avoided) as budget:
        return budget


async def test_the_preference_decides_between_machines_with_equal_shares() -> None:
    (one, other), admission = machines(3, 3)
    async with admission.admit(SMALL, lambda budget: 0.1 * (budget is other)) as budget:
        assert budget is other
        async with admission.admit(SMALL, lambda budget: 0.1 * (budget is other)) as budget:
            assert budget is one


async def test_closed_admission_admits_no_trial_and_lets_none_wait() -> None:
    admission = Admission([MachineBudget(1, 1000)])
    made = await guests(admission, [SMALL, SMALL], [])
    admission.close()
    with pytest.raises(NoMachine):
        await made[1].task
    with pytest.raises(NoMachine):
        async with admission.admit(SMALL):
            pass
    made[0].leave.set()
    await made[0].task


# How many attempts a trial has, and where the next one is.


def an_error(type_: str) -> ErrorInfo:
    return ErrorInfo.of(TrialError(type_, "as told"))


def a_node(name: str = "") -> RunMachine:
    return RunMachine(name, FakeBackend())


def test_without_a_loss_there_are_as_many_attempts_as_were_allowed() -> None:
    retries, node = RetryBudget(2), a_node()
    seen = []
    for _ in range(2):
        retries.start_on(node)
        seen.append(retries.is_last(an_error("terminal_failed")))
    assert seen == [False, True]


def test_a_machine_that_was_lost_costs_nothing_for_a_while() -> None:
    retries, seen = RetryBudget(1), []
    for number in range(MAX_LOST_MACHINES + 1):
        node = a_node(str(number))
        retries.start_on(node)
        node.lose("unplugged")
        seen.append(retries.is_last(an_error("engine_unreachable")))
    assert seen == [False] * MAX_LOST_MACHINES + [True]


@pytest.mark.parametrize(("name", "is_last"), [("one of several", False), ("", True)])
def test_an_engine_that_does_not_answer_is_a_loss_where_there_are_others(name: str, is_last: bool) -> None:
    retries = RetryBudget(1)
    retries.start_on(a_node(name))
    assert retries.is_last(an_error("engine_unreachable")) is is_last
    # It may be asked twice: the result may be unwritable besides.
    assert retries.is_last(an_error("result_unwritable")) is is_last


@pytest.mark.parametrize(
    ("type_", "is_avoided"),
    [
        ("sandbox_failed", True),
        ("image_no_space", True),
        ("image_build_timeout", False),
        ("terminal_failed", False),
        ("endpoint_unavailable", False),
    ],
)
def test_a_machine_on_which_nothing_started_is_avoided_once(type_: str, is_avoided: bool) -> None:
    retries, node = RetryBudget(2), a_node("a")
    retries.start_on(node)
    retries.record(an_error(type_))
    assert (retries.avoided is node) is is_avoided
    retries.start_on(a_node("b"))
    retries.record(None)
    assert retries.avoided is None


def test_another_machine_is_preferred_to_one_that_has_the_image() -> None:
    node, other = a_node("a"), a_node("b")
    node.backend.image_ids["task"] = "sha256:1"  # type: ignore[index]
    first, second = (MachineBudget(1, 1, node=each) for each in (node, other))
    retries = RetryBudget(2)
    assert retries.preference("task")(first) > retries.preference("task")(second)
    retries.start_on(node)
    assert retries.preference("task")(first) + 1 < retries.preference("task")(second)


@pytest.mark.parametrize(
    ("only", "never", "again"),
    [
        ((), (), ["sandbox_failed", "terminal_failed"]),
        (("sandbox_failed",), (), ["sandbox_failed"]),
        ((), ("sandbox_failed",), ["terminal_failed"]),
        (("sandbox_failed",), ("terminal_failed",), ["sandbox_failed"]),
    ],
)
def test_only_errors_of_the_chosen_types_have_another_attempt(
    only: tuple[str, ...], never: tuple[str, ...], again: list[str]
) -> None:
    found = []
    for type_ in ("sandbox_failed", "terminal_failed", "verifier_timeout"):
        retries = RetryBudget(2, RetryChoice(frozenset(only), frozenset(never)))
        retries.start_on(a_node())
        if not retries.is_last(an_error(type_)):
            found.append(type_)
    assert found == again


def test_a_rewound_trial_goes_on_whatever_is_retried() -> None:
    retries = RetryBudget(2, RetryChoice(frozenset({"sandbox_failed"})))
    retries.start_on(a_node())
    assert not retries.is_last(an_error("rewound"))


def test_an_attempt_that_goes_on_with_a_lost_one_is_no_other_attempt() -> None:
    retries, lost = RetryBudget(1), an_error("sandbox_lost")
    for _ in range(5):
        retries.start_on(a_node())
        assert not retries.is_last(lost, goes_on=True)
        assert not retries.is_last(lost, goes_on=True), "asked twice about the same attempt"
    retries.start_on(a_node())
    assert retries.is_last(lost)
    never = RetryBudget(3, RetryChoice(never=frozenset({"sandbox_lost"})))
    never.start_on(a_node())
    assert never.is_last(lost, goes_on=True)
