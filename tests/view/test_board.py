"""What all browsers are to see, and what one of them has not seen yet."""

from __future__ import annotations

import json
import threading
from typing import Any

from tbench.view import board
from tbench.view.board import NewsBoard


def told(board: NewsBoard, known: int = 0, most: int = 100) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(board.news(known, most).data)
    return found


def test_who_begins_is_told_everything_and_then_what_changes() -> None:
    board = NewsBoard()
    board.put("a", {"n": 1})
    board.put("b", {"n": 1})
    assert told(board) == {"anew": True, "set": {"a": {"n": 1}, "b": {"n": 1}}, "gone": []}
    known = board.news(0, 100).change
    board.put("a", {"n": 2})
    board.put("a", {"n": 3})
    board.remove("b")
    assert told(board, known) == {"set": {"a": {"n": 3}}, "gone": ["b"]}


def test_what_is_as_before_is_no_news() -> None:
    board = NewsBoard()
    board.put("a", {"n": 1})
    known = board.news(0, 100).change
    board.put("a", {"n": 1})
    board.remove("nothing")
    assert not board.wait(known, 0)
    assert told(board, known) == {"set": {}, "gone": []}


def test_much_news_comes_in_several_messages_oldest_first() -> None:
    board = NewsBoard()
    for number in range(10):
        board.put(str(number), {})
    seen, known, messages = set[str](), 0, 0
    while True:
        news = board.news(known, 4)
        seen |= json.loads(news.data)["set"].keys()
        known, messages = news.change, messages + 1
        if news.is_all:
            break
    assert seen == set("0123456789") and messages == 3


def test_the_id_of_a_last_message_holds_for_this_board_alone() -> None:
    mine, other = NewsBoard(), NewsBoard()
    mine.put("a", {})
    assert mine.known_of(f"{mine.era}-1") == 1
    for mark in (None, "", "x", f"{other.era}-1", f"{mine.era}-2", f"{mine.era}-{'9' * 30}", f"{mine.era}--1"):
        assert mine.known_of(mark) == 0


def test_who_missed_more_than_is_remembered_begins_anew() -> None:
    mine = NewsBoard()
    for number in range(board.GONE_KEPT + 2):
        mine.put(str(number), {})
        mine.remove(str(number))
    assert mine.known_of(f"{mine.era}-1") == 0
    assert mine.known_of(f"{mine.era}-{2 * board.GONE_KEPT}") > 0
    assert len(json.loads(mine.news(4, 10**6).data)["gone"]) == board.GONE_KEPT


def test_a_reader_is_woken_by_news_and_by_the_end() -> None:
    board = NewsBoard()
    woken: list[bool] = []
    for act in (lambda: board.put("a", {}), board.close):
        known = board.news(0, 100).change
        reader = threading.Thread(target=lambda known=known: woken.append(board.wait(known, 30)))
        reader.start()
        act()
        reader.join(30)
    assert woken == [True, True] and board.is_closed


def test_text_that_is_no_text_does_not_break_a_message() -> None:
    board = NewsBoard()
    board.put("a\ud800", {"text": "\ud800\u2028\n"})
    assert b"\n" not in board.news(0, 10).data
    assert told(board)["set"] == {"a?": {"text": "?\u2028\n"}}
