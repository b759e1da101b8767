"""fake_tmux: a real Terminal behaves over it as over a real tmux."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
from fake_tmux import Answer, FakeTmux, escape, scripted
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.errors import TerminalLost
from harness.protocols.base import CommandResult, Keys, ScreenView
from harness.stream import Connect
from harness.terminal import COLUMNS, Terminal, TerminalSpec
from harness.terminal.control_mode import unescape
from harness.terminal.tap import Recording

LONG = 30.0
NUMBERS = "".join(f"{number}\n" for number in range(1, 101))
WIDE = "x" * (2 * COLUMNS + 20)
SCRIPT = {
    "echo one": "one\n",
    "echo two": "two\n",
    "false": Answer(exit_code=1),
    "(exit 7)": Answer(exit_code=7),
    "seq 100": NUMBERS,
    "printf 'no line end'": "no line end",
    f"echo {WIDE}": f"{WIDE}\n",
    r"printf 'a\tb\n'": "a\tb\n",
    "echo näïve": "näïve\n",
    "slowly": Answer(("half", " and half\n"), delay_sec=0.05),
    "sleep infinity": Answer(("never\n",), delay_sec=float("inf")),
    "sleep 0.2": Answer(("",), delay_sec=0.2),
}


async def opened(fake: FakeTmux, recording: Recording | None = None) -> Terminal:
    terminal = Terminal(fake.connect, recording=recording)
    await terminal.open()
    return terminal


@pytest.fixture
def fake() -> FakeTmux:
    return FakeTmux(scripted(SCRIPT))


@pytest_asyncio.fixture
async def terminal(fake: FakeTmux) -> AsyncIterator[Terminal]:
    terminal = await opened(fake)
    yield terminal
    await terminal.close()


# -- a terminal over it --------------------------------------------------------------------------


@pytest.mark.parametrize(("line", "exit_code"), [("echo one", 0), ("false", 1), ("(exit 7)", 7), ("nonsense x", 127)])
async def test_a_line_settles_with_its_exit_code(terminal: Terminal, line: str, exit_code: int) -> None:
    settled = await terminal.send(Keys(f"{line}\n", LONG))
    assert (settled.at_prompt, settled.exit_code) == (True, exit_code)


async def test_a_command_that_runs_longer_than_it_may_has_not_settled(terminal: Terminal, fake: FakeTmux) -> None:
    assert not (await terminal.send(Keys("sleep infinity\n", 0.05))).at_prompt
    settled = await terminal.send(Keys("", LONG, key="C-c"))
    assert (settled.at_prompt, settled.exit_code) == (True, 130)
    assert fake.typed == ["sleep infinity"]


async def test_output_in_pieces_with_pauses_is_waited_for(terminal: Terminal) -> None:
    assert (await terminal.send(Keys("slowly\n", LONG))).at_prompt
    assert "\nhalf and half\n" in ((await terminal.view()).new_output or "")


async def test_a_command_gives_exactly_its_output(terminal: Terminal) -> None:
    assert await terminal.run("seq 100", LONG) == CommandResult(NUMBERS, 0)
    assert await terminal.run("printf 'no line end'", LONG) == CommandResult("no line end", 0)
    assert await terminal.run("false", LONG) == CommandResult("", 1)


async def test_a_command_is_interrupted_at_its_limit(terminal: Terminal) -> None:
    result = await terminal.run("sleep infinity", 0.05)
    assert result.timed_out
    assert (await terminal.run("echo one", LONG)) == CommandResult("one\n", 0)


async def test_a_terminal_survives_the_end_of_the_server(terminal: Terminal, fake: FakeTmux) -> None:
    await terminal.send(Keys("echo one\n", LONG))
    fake.stop()
    assert "one" not in (await terminal.view()).screen
    assert (await terminal.run("echo two", LONG)) == CommandResult("two\n", 0)


async def test_a_terminal_that_is_lost_again_and_again_is_given_up(terminal: Terminal, fake: FakeTmux) -> None:
    async def lose() -> None:
        for _ in range(10):
            fake.stop()
            await terminal.view()

    with pytest.raises(TerminalLost):
        await lose()


async def test_a_session_outlives_its_client(terminal: Terminal, fake: FakeTmux) -> None:
    await terminal.send(Keys("echo one\n", LONG))
    await terminal.close()
    stream = await fake.connect([], {})
    await stream.write(b"capture-pane -p -t main\n")
    assert b"\none\n" in await stream.read()


async def test_what_the_pane_prints_is_recorded(fake: FakeTmux, tmp_path: Path) -> None:
    terminal = await opened(fake, Recording(tmp_path / "session.cast", columns=160, rows=40))
    await terminal.send(Keys("echo one\n", LONG))
    await terminal.close()
    assert "one\\r\\n" in (tmp_path / "session.cast").read_text()


@given(size=st.integers(1, 40))
@settings(max_examples=10)
def test_a_stream_that_is_cut_anywhere_reads_the_same(size: int) -> None:
    async def session() -> ScreenView:
        fake = FakeTmux(scripted(SCRIPT), read_bytes=size)
        terminal = await opened(fake)
        await terminal.send(Keys("echo one\necho näïve\n", LONG))
        view = await terminal.view()
        await terminal.close()
        return view

    assert "\none\n" in (view := asyncio.run(session())).screen
    assert "\nnäïve\n" in view.screen


@given(st.binary())
def test_output_is_escaped_as_the_parser_undoes_it(data: bytes) -> None:
    assert unescape(escape(data)) == data


# -- beside a real tmux --------------------------------------------------------------------------

TYPED = [
    Keys("echo one\n", LONG),
    Keys("", LONG, key="Enter"),
    Keys("false\n", LONG),
    Keys("echo one\nsleep 0.2\nfalse\necho two\n", LONG),
    Keys("seq 100\n", LONG),
    Keys("echo", 0.1),
    Keys(" two\n", LONG),
    Keys("sleep infinity\n", 0.2),
    Keys("", LONG, key="C-c"),
    Keys("echo on", 0.1),
    Keys("", LONG, key="C-c"),
    Keys("sleep 0.2\necho one\n", LONG),
    Keys(f"echo {WIDE}\n", LONG),
    Keys("printf 'a\\tb\\n'\n", LONG),
    Keys("echo näïve\n", LONG),
    Keys("printf 'no line end'\n", LONG),
]
RUN = ["echo one", "seq 100", "false", "printf 'no line end'", "(exit 7)", f"echo {WIDE}", "echo näïve"]


async def play(connect: Connect) -> list[object]:
    """Return everything visible to the agent: how each step settled, each view, each command's result."""
    terminal = Terminal(connect)
    await terminal.open()
    seen: list[object] = []
    try:
        for keys in TYPED:
            seen += [keys, await terminal.send(keys), await terminal.view()]
        for command in RUN:
            seen += [command, await terminal.run(command, LONG), await terminal.view()]
    finally:
        await terminal.close()
    return seen


async def first_prompt(connect: Connect) -> str:
    terminal = Terminal(connect, TerminalSpec(socket="/opt/tbench/run/prompt"))
    await terminal.open()
    screen = (await terminal.view()).screen
    await terminal.close()
    return f"{screen} "


@pytest.mark.engine
async def test_a_real_tmux_gives_the_same_views(start_sandbox: Any, make_task: Any) -> None:
    sandbox = await start_sandbox(make_task())
    fake = FakeTmux(scripted(SCRIPT), prompt=await first_prompt(sandbox.connect))
    for real, ours in zip(await play(sandbox.connect), await play(fake.connect), strict=True):
        assert ours == real
