"""moving_picture: a terminal over time as one file."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from moving_picture import LAST_SEC, LONGEST_SEC, SHORTEST_SEC, Frame, moving_picture, shown_frames

SVG = "{http://www.w3.org/2000/svg}"


def picture(*screens: str, seconds: float = 1.0) -> ElementTree.Element:
    return ElementTree.fromstring(moving_picture([Frame(each, seconds) for each in screens], (20, 3), "a < title"))


def texts(drawn: ElementTree.Element) -> list[str]:
    return ["".join(each.itertext()) for each in drawn.iter(f"{SVG}text")]


def test_equal_screens_are_one_and_each_is_shown_for_a_time_that_can_be_read() -> None:
    frames = [Frame("a", 0.1), Frame("a", 0.1), Frame("b", 60.0), Frame("c", 1.0), Frame("d", 0.0)]
    assert shown_frames(frames) == [
        Frame("a", SHORTEST_SEC),
        Frame("b", LONGEST_SEC),
        Frame("c", 1.0),
        Frame("d", LAST_SEC),
    ]


def test_a_line_that_several_screens_have_is_drawn_once() -> None:
    drawn = picture("same\none", "same\ntwo", "same\none")
    assert sorted(texts(drawn)) == ["a < title", "one", "same", "two"]


def test_each_line_is_seen_while_its_screen_stands() -> None:
    drawn = picture("one", "two", "three", seconds=LAST_SEC)
    (style,) = (each.text or "" for each in drawn.iter(f"{SVG}style"))
    times = dict(re.findall(r"@keyframes (s\d){(.*?)}}", style))
    total = 2 * LONGEST_SEC + LAST_SEC
    first, second = round(100 * LONGEST_SEC / total, 3), round(200 * LONGEST_SEC / total, 3)
    assert times == {
        "s0": f"0%{{opacity:1}}{first:g}%{{opacity:0",
        "s1": f"0%{{opacity:0}}{first:g}%{{opacity:1}}{second:g}%{{opacity:0",
        "s2": f"0%{{opacity:0}}{second:g}%{{opacity:1",
    }
    assert f"animation:s1 {total:g}s step-end infinite" in style


def test_who_wants_no_motion_sees_the_last_screen() -> None:
    drawn = picture("one\nsame", "two\nsame")
    still = {"".join(group.itertext()): group.get("opacity") for group in drawn.iter(f"{SVG}g")}
    assert still == {"one": "0", "two": None, "same": None}
    assert "prefers-reduced-motion" in moving_picture([Frame("a", 1.0)], (20, 3), "t")


def test_colours_and_reverse_are_drawn() -> None:
    drawn = picture("\x1b[1;31mred\x1b[0m \x1b[7mback\x1b[0m")
    red, back = [each for each in drawn.iter(f"{SVG}text") if each.text in ("red", "back")]
    assert red.get("font-weight") == "700"
    assert red.get("fill") != back.get("fill")
    assert any(each.get("width") == f"{4 * 8.4:.1f}" for each in drawn.iter(f"{SVG}rect"))


def test_nothing_is_loaded_and_nothing_of_a_screen_is_markup() -> None:
    text = moving_picture([Frame("<script>&\u200b", 1.0)], (20, 3), "t")
    assert "<script>" not in text
    assert "&lt;script&gt;&amp;\N{REPLACEMENT CHARACTER}" in text
    assert re.findall(r"https?://[^\"]+|url\(|@import|href", text) == ["http://www.w3.org/2000/svg"]
