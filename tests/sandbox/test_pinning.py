"""Cpus by number: sandboxes beside each other have different ones as far as there are enough."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tbench.sandbox.pinning import Lease, UnitPool, parse_ranges


def test_whole_cpus_are_different_until_there_are_no_more() -> None:
    shares = UnitPool([0, 1, 4, 5])
    assert [shares.take(2), shares.take(1), shares.take(1)] == [(0, 1), (4,), (5,)]
    assert shares.take(1) == (0,)


def test_what_was_given_back_is_taken_again() -> None:
    shares = UnitPool(range(3))
    first = shares.take(2)
    assert shares.take(1) == (2,)
    shares.give_back(first, 2)
    assert shares.take(2) == first


def test_parts_of_a_cpu_share_one_so_that_whole_ones_stay_free() -> None:
    shares = UnitPool(range(3))
    assert [shares.take(0.5), shares.take(0.25), shares.take(0.25)] == [(0,), (0,), (0,)]
    assert shares.take(2) == (1, 2)


def test_more_than_there_are_is_all_of_them_and_none_is_none() -> None:
    assert UnitPool([2, 3]).take(64) == (2, 3)
    assert UnitPool([]).take(4) == UnitPool([1]).take(0) == ()


@given(st.lists(st.floats(0.05, 6), max_size=20), st.integers(1, 8))
def test_when_all_is_given_back_nothing_is_left_in_use(amounts: list[float], cpus: int) -> None:
    shares = UnitPool(range(cpus))
    for taken, amount in [(shares.take(amount), amount) for amount in amounts]:
        shares.give_back(taken, amount)
    assert shares.take(cpus) == tuple(range(cpus))
    assert shares.take(1) == (0,)


def test_a_lease_is_given_back_once() -> None:
    released: list[int] = []
    lease = Lease((0,), (), lambda: released.append(1))
    lease.release()
    lease.release()
    assert released == [1]


def test_ranges_are_read_as_linux_writes_them() -> None:
    assert parse_ranges("0-2,8,10-11\n") == [0, 1, 2, 8, 10, 11]
