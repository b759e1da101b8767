"""The state of live pages, and the changes that a browser has not seen yet."""

from __future__ import annotations

import json
import threading
from typing import Any

from tbench.view import live_state
from tbench.view.live_state import LiveState


def update(state: LiveState, known: int = 0, most: int = 100) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(state.update_since(known, most).data)
    return found


def test_a_new_reader_gets_everything_and_then_the_changes() -> None:
    state = LiveState()
    state.put("a", {"n": 1})
    state.put("b", {"n": 1})
    assert update(state) == {"anew": True, "set": {"a": {"n": 1}, "b": {"n": 1}}, "gone": []}
    known = state.update_since(0, 100).change
    state.put("a", {"n": 2})
    state.put("a", {"n": 3})
    state.remove("b")
    assert update(state, known) == {"set": {"a": {"n": 3}}, "gone": ["b"]}


def test_an_unchanged_entry_is_no_change() -> None:
    state = LiveState()
    state.put("a", {"n": 1})
    known = state.update_since(0, 100).change
    state.put("a", {"n": 1})
    state.remove("nothing")
    assert not state.wait(known, 0)
    assert update(state, known) == {"set": {}, "gone": []}


def test_many_changes_come_in_several_messages_oldest_first() -> None:
    state = LiveState()
    for number in range(10):
        state.put(str(number), {})
    seen, known, messages = set[str](), 0, 0
    while True:
        news = state.update_since(known, 4)
        seen |= json.loads(news.data)["set"].keys()
        known, messages = news.change, messages + 1
        if news.is_all:
            break
    assert seen == set("0123456789") and messages == 3


def test_the_id_of_a_last_message_is_valid_for_this_state_only() -> None:
    mine, other = LiveState(), LiveState()
    mine.put("a", {})
    assert mine.last_seen(f"{mine.epoch}-1") == 1
    for mark in (None, "", "x", f"{other.epoch}-1", f"{mine.epoch}-2", f"{mine.epoch}-{'9' * 30}", f"{mine.epoch}--1"):
        assert mine.last_seen(mark) == 0


def test_a_reader_that_missed_forgotten_removals_starts_again() -> None:
    mine = LiveState()
    for number in range(live_state.GONE_KEPT + 2):
        mine.put(str(number), {})
        mine.remove(str(number))
    assert mine.last_seen(f"{mine.epoch}-1") == 0
    assert mine.last_seen(f"{mine.epoch}-{2 * live_state.GONE_KEPT}") > 0
    assert len(json.loads(mine.update_since(4, 10**6).data)["gone"]) == live_state.GONE_KEPT


def test_a_reader_is_woken_by_a_change_and_by_the_end() -> None:
    state = LiveState()
    woken: list[bool] = []
    for act in (lambda: state.put("a", {}), state.close):
        known = state.update_since(0, 100).change
        reader = threading.Thread(target=lambda known=known: woken.append(state.wait(known, 30)))
        reader.start()
        act()
        reader.join(30)
    assert woken == [True, True] and state.is_closed


def test_lone_surrogates_do_not_break_a_message() -> None:
    state = LiveState()
    state.put("a\ud800", {"text": "\ud800\u2028\n"})
    assert b"\n" not in state.update_since(0, 10).data
    assert update(state)["set"] == {"a?": {"text": "?\u2028\n"}}
