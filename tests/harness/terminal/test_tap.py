"""tap: the terminal for viewers, and the keys that they type into it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from terminals import output_of, run, type_in

from harness.protocols.base import Keys
from harness.terminal import DrawnScreen, Tap, Terminal
from harness.terminal.control_mode import CommandReply
from harness.terminal.tap import Recording
from tbench.view.screen import TileScreen

FACTS = b"20 5 3 1 1 0 0 0 0 1 0 4"


def on_a_container(test: Any) -> Any:
    return pytest.mark.engine(pytest.mark.asyncio(loop_scope="module")(test))


def screen_of(*lines: bytes, facts: bytes = FACTS) -> DrawnScreen:
    return DrawnScreen.read([CommandReply(True, (facts,)), CommandReply(True, lines)])


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():  # noqa: ASYNC110 -- of what a program in the container does
            await asyncio.sleep(0.005)


# -- what tmux has drawn -----------------------------------------------------------------------------


def test_each_line_of_a_screen_has_its_own_colours() -> None:
    screen = screen_of(b"plain \x1b[1;31mred", b"still red \x1b[0mnot", b"\x1b[44m", b"\x1b[0;32mgreen\x1b[39m no")
    assert screen.lines == (
        "plain \x1b[1;31mred\x1b[m",
        "\x1b[1;31mstill red \x1b[0mnot\x1b[m",
        "",
        "\x1b[44m\x1b[0;32mgreen\x1b[39m no\x1b[m",
    )
    assert screen.text == "plain red\nstill red not\n\ngreen no"


def test_lines_of_the_other_character_set_are_characters() -> None:
    assert screen_of(b"\x0elq\x1b[31mqk", b"x\x0f x").lines == ("┌─\x1b[31m─┐\x1b[m", "\x1b[31m│ x\x1b[m")


def test_a_drawing_leaves_the_terminal_as_it_was_found() -> None:
    drawn = screen_of(b"a", facts=b"20 5 3 2 0 1 1 1 1 0 1 3").escapes().decode()
    assert drawn.endswith("\x1b[2;4r\x1b[3;4H\x1b[?6h\x1b[2;4H\x1b[4h\x1b[?7l\x1b[?1h\x1b=\x1b[?25l")


def test_a_cursor_behind_the_last_column_is_in_it() -> None:
    assert screen_of(b"x" * 20, facts=b"20 5 20 0 1 0 0 0 0 1 0 4").cursor == (19, 0)


# -- those who fall behind ---------------------------------------------------------------------------


async def test_who_takes_nothing_is_shown_the_screen_again() -> None:
    tap = Tap()
    assert tap.needs_redraw
    tap.note_drawn()
    tap.output(b"abc")
    assert (tap.take(), tap.needs_redraw) == (b"abc", False)
    for _ in range(300):
        tap.output(b"x" * 1024)
    assert (tap.take(), tap.needs_redraw) == (b"", True)


@pytest.mark.parametrize("switch", [b"\x1b[?1049h", b"\x1b[?47l"])
@pytest.mark.parametrize("at", [0, 3, 8])
async def test_a_switch_between_two_screens_is_drawn_instead(switch: bytes, at: int) -> None:
    tap = Tap()
    tap.note_drawn()
    tap.output(b"before" + switch[:at])
    tap.output(switch[at:] + b"after")
    assert tap.needs_redraw
    assert tap.take() == b""


async def test_a_drawing_within_an_escape_sequence_goes_on_there() -> None:
    tap = Tap()
    tap.output(b"text \x1b[3")
    tap.note_drawn()
    tap.output(b"1mred")
    assert tap.take() == b"\x1b[31mred"


async def test_those_who_wait_hear_of_the_end() -> None:
    tap = Tap()
    await tap.news()
    waiting = asyncio.create_task(tap.news())
    await asyncio.sleep(0)
    assert not waiting.done()
    tap.end()
    await waiting
    await tap.news()
    assert tap.is_over


# -- a real terminal ---------------------------------------------------------------------------------


@on_a_container
async def test_what_a_tap_passes_on_draws_what_is_on_the_screen(shared: Terminal) -> None:
    await type_in(shared, "clear; printf '\\e[1;32mgreen\\e[0m\\nnext\\n'\n")
    with shared.open_tap() as tap:
        first = await shared.draw_screen(tap)
        shown = first.escapes()
        await type_in(shared, "seq 50; printf '\\e[5;3Hplaced'; echo\n")
        shown += tap.take()
        now = await shared.draw_screen()
        own = TileScreen(now.columns, now.rows)
        own.feed(shown.decode())
    lines = ["".join(part if isinstance(part, str) else part[0] for part in line) for line in own.last_lines(40, 160)]
    assert [line.rstrip() for line in lines if line.strip()] == [line for line in now.text.split("\n") if line]
    assert any("\x1b[" in line and "green" in line for line in first.lines)


@on_a_container
async def test_the_screen_is_seen_while_a_command_runs_and_when_no_one_else_looks(shared: Terminal) -> None:
    working = asyncio.create_task(output_of(shared, "echo begun; until [ -e /tmp/go ]; do sleep 0.01; done; echo over"))
    async with asyncio.timeout(20):
        while "begun\n" not in f"{(await shared.draw_screen()).text}\n":  # noqa: ASYNC110 -- of a program in the container
            await asyncio.sleep(0.01)
    with shared.open_tap() as tap:
        await shared.draw_screen(tap)
        await shared._link.commands(b"run-shell 'echo > /tmp/go'\n")
        assert (await working) == "begun\nover\n"
        assert b"over\r\n" in tap.take()
    await run(shared, "rm /tmp/go")


@on_a_container
async def test_what_a_person_typed_is_seen_as_read_and_the_agent_goes_on_as_before(shared: Terminal) -> None:
    await type_in(shared, "clear\n")
    for key in b"echo by-hand; cd /tmp\r":
        await shared.pass_on(bytes([key]))
    left = await shared.handed_back()
    assert left is not None
    assert "\nby-hand\n" in left.text
    settled = await shared.send(Keys("pwd\n", 30.0))
    view = await shared.view()
    assert settled.at_prompt
    assert view.new_output is not None
    assert "\n/tmp\n" in view.new_output
    assert "by-hand" not in view.new_output
    result = await run(shared, "pwd; cd /app")
    assert (result.output, result.background) == ("/tmp\n", "")


@on_a_container
async def test_a_key_without_an_end_of_line_or_a_program_left_running_holds_up_nothing(shared: Terminal) -> None:
    await shared.pass_on(b"sleep 100\r")
    await until(lambda: shared._pane.shell.answer == "C")
    left = await shared.handed_back()
    assert left is not None
    assert left.text.endswith("sleep 100")
    assert (await shared.send(Keys("", 10.0, key="C-c"))).at_prompt
    await shared.pass_on("half ä".encode())
    left = await shared.handed_back()
    assert left is not None
    assert left.text.endswith("# half ä")
    assert (await shared.send(Keys("", 10.0, key="C-c"))).at_prompt


# recording: every session becomes a valid asciicast v2 file.


def read_cast(path: Path) -> tuple[dict[str, Any], list[list[Any]]]:
    """Return header and events, after validating their format."""
    header, *events = [json.loads(line) for line in path.read_bytes().decode().split("\n") if line]
    assert header["version"] == 2
    assert all(isinstance(header[name], int) for name in ("width", "height", "timestamp"))
    times = [event[0] for event in events]
    assert times == sorted(times)
    assert all(time >= 0 for time in times)
    for event in events:
        assert len(event) == 3
        assert event[1] in {"o", "i", "m"}
        assert isinstance(event[2], str)
    return header, events


def start(directory: Path, **options: Any) -> tuple[Recording, Path]:
    path = directory / "trial" / "session.cast"
    return Recording(path, columns=160, rows=40, **options), path


def test_a_session_is_a_valid_asciicast(tmp_path: Path) -> None:
    recording, path = start(tmp_path)
    recording.output(b"$ ")
    recording.input("echo \x1b[1m'quoted'\n")
    recording.output("line\r\n\u2028\u65e5 \U0001f600".encode())
    recording.marker("a remark")
    recording.close()
    header, events = read_cast(path)
    assert (header["width"], header["height"]) == (160, 40)
    assert [event[1:] for event in events] == [
        ["o", "$ "],
        ["i", "echo \x1b[1m'quoted'\n"],
        ["o", "line\r\n\u2028\u65e5 \U0001f600"],
        ["m", "a remark"],
    ]


def test_a_character_cut_between_two_reads_is_one_character(tmp_path: Path) -> None:
    recording, path = start(tmp_path)
    for byte in "é日\U0001f600".encode():
        recording.output(bytes((byte,)))
    recording.close()
    _, events = read_cast(path)
    assert [event[2] for event in events] == ["é", "日", "\U0001f600"]


def test_bytes_that_are_no_text_are_replaced(tmp_path: Path) -> None:
    recording, path = start(tmp_path)
    recording.output(b"a\xffb\xed\xa0\x80\x00")
    recording.input("half \ud800 pair")
    recording.close()
    _, events = read_cast(path)
    assert events[0][2] == "a\ufffdb\ufffd\ufffd\ufffd\x00"
    assert events[1][2] == "half ? pair"


@given(st.lists(st.binary(max_size=20), max_size=10))
def test_the_recorded_output_is_what_was_printed(tmp_path_factory: Any, portions: list[bytes]) -> None:
    recording, path = start(tmp_path_factory.mktemp("cast"))
    for portion in portions:
        recording.output(portion)
    recording.output(b".")  # ends a character that was left open
    recording.close()
    _, events = read_cast(path)
    assert "".join(event[2] for event in events) == (b"".join(portions) + b".").decode("utf-8", "replace")


def test_output_beyond_the_limit_is_left_out_and_a_marker_says_so(tmp_path: Path) -> None:
    recording, path = start(tmp_path, limit_bytes=100)
    for _ in range(50):
        recording.output(b"x" * 30)
    recording.input("still typed\n")
    recording.close()
    _, events = read_cast(path)
    kinds = [event[1] for event in events]
    assert kinds == ["o"] * 4 + ["m", "i"]
    assert "limit" in events[4][2]


def test_what_was_recorded_before_a_flush_is_in_the_file_at_once(tmp_path: Path) -> None:
    recording, path = start(tmp_path)
    recording.output(b"$ ")
    recording.flush()
    assert [event[1:] for event in read_cast(path)[1]] == [["o", "$ "]]
    recording.input("ls\n")
    recording.flush()
    assert len(read_cast(path)[1]) == 2
    recording.close()
    recording.flush()


def test_what_comes_after_the_close_is_ignored(tmp_path: Path) -> None:
    recording, path = start(tmp_path)
    recording.close()
    recording.close()
    recording.output(b"late")
    recording.input("late")
    recording.marker("late")
    assert read_cast(path)[1] == []


def test_a_full_disk_ends_the_recording_and_not_the_session() -> None:
    recording = Recording(Path("/dev/full"), columns=80, rows=24)
    for _ in range(3):
        recording.output(b"x" * 100_000)
    recording.input("ls")
    recording.close()
    assert recording.problem == "No space left on device"


def test_a_disk_that_is_full_at_a_flush_ends_the_recording_and_not_the_session() -> None:
    recording = Recording(Path("/dev/full"), columns=80, rows=24)
    recording.flush()
    recording.input("ls")
    recording.flush()
    assert recording.problem == "No space left on device"
