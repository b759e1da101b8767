"""How many attempts a trial has, and where the next one is."""

from __future__ import annotations

import pytest

from tbench.config.retrying import RetryChoice
from tbench.errors import TrialError
from tbench.results import ErrorInfo
from tbench.runs.scheduling.admission import NodeBudget
from tbench.runs.scheduling.tries import MOST_LOSSES, Tries
from tbench.sandbox.fake import FakeBackend
from tbench.sandbox.node import Node


def an_error(type_: str) -> ErrorInfo:
    return TrialError(type_, "as told").info()


def a_node(name: str = "") -> Node:
    return Node(name, FakeBackend())


def test_without_a_loss_there_are_as_many_attempts_as_were_allowed() -> None:
    tries, node = Tries(2), a_node()
    seen = []
    for _ in range(2):
        tries.begins_on(node)
        seen.append(tries.is_last(an_error("terminal_failed")))
    assert seen == [False, True]


def test_a_machine_that_was_lost_costs_nothing_for_a_while() -> None:
    tries, seen = Tries(1), []
    for number in range(MOST_LOSSES + 1):
        node = a_node(str(number))
        tries.begins_on(node)
        node.lose("unplugged")
        seen.append(tries.is_last(an_error("engine_unreachable")))
    assert seen == [False] * MOST_LOSSES + [True]


@pytest.mark.parametrize(("name", "is_last"), [("one of several", False), ("", True)])
def test_an_engine_that_does_not_answer_is_a_loss_where_there_are_others(name: str, is_last: bool) -> None:
    tries = Tries(1)
    tries.begins_on(a_node(name))
    assert tries.is_last(an_error("engine_unreachable")) is is_last
    # It may be asked twice: the result may be unwritable besides.
    assert tries.is_last(an_error("result_unwritable")) is is_last


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
    tries, node = Tries(2), a_node("a")
    tries.begins_on(node)
    tries.ended(an_error(type_))
    assert (tries.avoided is node) is is_avoided
    tries.begins_on(a_node("b"))
    tries.ended(None)
    assert tries.avoided is None


def test_another_machine_is_liked_more_than_an_image_that_is_there() -> None:
    node, other = a_node("a"), a_node("b")
    node.backend.image_ids["task"] = "sha256:1"  # type: ignore[index]
    first, second = (NodeBudget(1, 1, node=each) for each in (node, other))
    tries = Tries(2)
    assert tries.likes("task")(first) > tries.likes("task")(second)
    tries.begins_on(node)
    assert tries.likes("task")(first) + 1 < tries.likes("task")(second)


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
        tries = Tries(2, RetryChoice(frozenset(only), frozenset(never)))
        tries.begins_on(a_node())
        if not tries.is_last(an_error(type_)):
            found.append(type_)
    assert found == again


def test_what_was_rewound_goes_on_whatever_is_tried_again() -> None:
    tries = Tries(2, RetryChoice(frozenset({"sandbox_failed"})))
    tries.begins_on(a_node())
    assert not tries.is_last(an_error("rewound"))
