"""terminal: the way to it is cut, and comes back, while the session lives on."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from terminals import BASH, LONG, opened, output_of, start_container, type_in, write_task

from harness.errors import TerminalUnreachable
from harness.protocols.base import CommandResult, Keys
from harness.terminal import COLUMNS, ROWS, Terminal
from harness.terminal.recording import Recording
from tbench.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

ENGINE_SOCKET = "/var/run/docker.sock"


class Road:
    """A TCP road to the engine, as to a remote one: it can be cut and mended."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._travellers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Everything under way is lost, nothing new gets through."""
        assert self._server is not None
        self._server.close()
        for writer in self._travellers:
            writer.transport.abort()
        self._travellers.clear()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_unix_connection(ENGINE_SOCKET)
        self._travellers |= {writer, far_writer}
        await asyncio.gather(_carry(reader, far_writer), _carry(far_reader, writer))


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()


@pytest_asyncio.fixture(loop_scope="module")
async def road() -> AsyncIterator[Road]:
    road = Road()
    await road.open()
    yield road
    with contextlib.suppress(Exception):
        road.cut()


async def cut_for(road: Road, begin_sec: float, length_sec: float) -> None:
    await asyncio.sleep(begin_sec)
    road.cut()
    await asyncio.sleep(length_sec)
    await road.open()


@pytest.mark.slow
async def test_a_terminal_that_was_cut_off_is_attached_again_and_its_session_lives_on(
    tools_volume: str, tmp_path: Path, road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{road.port}")
    engine = await asyncio.to_thread(Engine.connect, 4)
    uncharged: list[float] = []
    container = await start_container(engine, tools_volume, write_task(tmp_path / "terminal-box", BASH))
    recording = Recording(tmp_path / "session.cast", columns=COLUMNS, rows=ROWS)
    try:
        async with opened(container, recording=recording, on_outage=uncharged.append) as terminal:
            await type_in(terminal, "kept=yes\n")
            cut = asyncio.create_task(cut_for(road, 0.3, 0.7))
            settled = await terminal.send(Keys("echo before; sleep 3; echo after\n", LONG))
            assert settled.at_prompt
            view = await terminal.view()
            assert view.new_output is None, "nobody can say what was printed meanwhile"
            assert "\nbefore\nafter\n" in view.screen
            await cut
            assert 0.3 < sum(uncharged) < 30

            cut = asyncio.create_task(cut_for(road, 0.3, 0.3))
            result = await terminal.run("sleep 2; echo late; (exit 7)", LONG)
            assert isinstance(result, CommandResult)
            assert (result.output, result.exit_code) == ("late\n", 7)
            assert [note.partition(":")[0] for note in result.notes] == ["output_missed"]
            await cut
            assert await output_of(terminal, "echo $kept") == "yes\n"
            await terminal.view()
            assert (await type_in(terminal, "echo exact\n")).new_output is not None
            assert isinstance(await terminal.run("true", LONG), CommandResult)
            recording.close()
            assert (tmp_path / "session.cast").read_text().count("the connection was lost and made again") == 2
    finally:
        await container.remove()
        engine.close()


async def test_a_terminal_that_stays_out_of_reach_is_nobodys_outcome(
    tools_volume: str, tmp_path: Path, road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{road.port}")
    engine = await asyncio.to_thread(Engine.connect, 4)
    container = await start_container(engine, tools_volume, write_task(tmp_path / "terminal-box", BASH))
    terminal = Terminal(container.connect, unreachable_sec=0.5)
    try:
        await terminal.open()
        road.cut()
        with pytest.raises(TerminalUnreachable):
            await terminal.send(Keys("echo lost\n", LONG))
    finally:
        await road.open()
        await terminal.close()
        await container.remove()
        engine.close()
