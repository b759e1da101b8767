"""terminal: its connection is lost and restored while the session keeps running."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

import pytest
import pytest_asyncio
from terminals import BASH, KILL_TMUX, LONG, digest, kinds, opened, output_of, started, type_in, write_task

from harness.errors import TerminalUnreachable
from harness.protocols.base import CommandResult, Keys
from harness.stream import ByteStream
from harness.terminal import COLUMNS, ROWS
from harness.terminal.tap import Recording
from tbench.sandbox.docker.container import Container
from tbench.sandbox.docker.engine import Engine

pytestmark = [pytest.mark.engine, pytest.mark.asyncio(loop_scope="module")]

ENGINE_SOCKET = "/var/run/docker.sock"


class Road:
    """A TCP proxy to the engine, like a remote one, that can be cut and restored."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._travellers: set[asyncio.StreamWriter] = set()
        self.port = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def cut(self) -> None:
        """Drop all connections and refuse new ones."""
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


class Cutter:
    """Opens streams to a container that break before, during or after a write."""

    def __init__(self, container: Container, seed: int) -> None:
        self._container = container
        self._chance = random.Random(seed)
        self.breaks_next = False
        self.broke = 0

    async def connect(self, argv: Sequence[str], environment: Mapping[str, str]) -> ByteStream:
        stream = await self._container.connect(argv, environment)
        write = stream.write

        async def break_at(data: bytes) -> None:
            if not self.breaks_next:
                return await write(data)
            self.breaks_next = False
            self.broke += 1
            passed = data[: self._chance.choice([0, len(data), self._chance.randrange(len(data))])]
            if passed:
                await write(passed)
                await asyncio.sleep(self._chance.choice([0.0, 0.002, 0.05]))
            await stream.close()
            raise ConnectionResetError("cut by the test")

        stream.write = break_at  # type: ignore[method-assign]
        return stream


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
    recording = Recording(tmp_path / "session.cast", columns=COLUMNS, rows=ROWS)
    try:
        async with (
            started(engine, tools_volume, write_task(tmp_path / "terminal-box", BASH)) as container,
            opened(container, recording=recording, on_outage=uncharged.append) as terminal,
        ):
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
            assert (result.output, result.exit_code) == ("late\n", 7)
            assert kinds(result) == ["output_missed"]
            await cut
            assert await output_of(terminal, "echo $kept") == "yes\n"
            await terminal.view()
            assert (await type_in(terminal, "echo exact\n")).new_output is not None
            assert isinstance(await terminal.run("true", LONG), CommandResult)
            recording.close()
            assert (tmp_path / "session.cast").read_text().count("the connection was lost and made again") == 2
    finally:
        engine.close()


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("attended", [True, False], ids=["typed", "delivered"])
async def test_what_is_sent_while_the_stream_breaks_is_done_exactly_once(
    box: Container, attended: bool, seed: int
) -> None:
    cutter, file = Cutter(box, seed), f"/tmp/once-{attended}-{seed}"
    async with opened(box, connect=cutter.connect, attended=attended) as terminal:
        for number in range(25):
            cutter.breaks_next = number % 2 == 0
            if attended:
                await terminal.send(Keys(f"echo {number} >> {file}; echo {number} again >> {file}\n", LONG))
            else:
                await terminal.run(f"echo {number} >> {file}\necho {number} again >> {file}", LONG)
        assert cutter.broke == 13
        cutter.breaks_next = False
        expected = "".join(f"{number}\n{number} again\n" for number in range(25))
        assert await output_of(terminal, f"cat {file}") == expected


@pytest.mark.slow
async def test_a_large_text_is_typed_exactly_once_though_the_stream_breaks(box: Container) -> None:
    cutter, text = Cutter(box, 7), "".join(f"line {number}\n" for number in range(6000))
    async with opened(box, connect=cutter.connect) as terminal:
        for number in range(5):
            cutter.breaks_next = True
            await terminal.send(Keys(f"cat > /tmp/large-{number} <<'E'\n{text}E\n", LONG))
            assert await output_of(terminal, f"cat /tmp/large-{number} | sha256sum") == digest(text)


async def test_what_is_typed_while_the_session_ends_has_run_or_is_told_to_be_lost(box: Container) -> None:
    cutter = Cutter(box, 1)
    async with opened(box, connect=cutter.connect) as terminal:
        await box.shell(KILL_TMUX, timeout_sec=20)
        cutter.breaks_next = True
        await terminal.send(Keys("echo lost\n", 1.0))
        view = await terminal.view()
        assert "terminal_reopened" in kinds(view)
        assert ("keys_lost" in kinds(view)) != ("\nlost\n" in view.screen)


async def test_a_terminal_that_stays_out_of_reach_is_nobodys_outcome(
    tools_volume: str, tmp_path: Path, road: Road, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", f"tcp://127.0.0.1:{road.port}")
    engine = await asyncio.to_thread(Engine.connect, 4)
    try:
        async with (
            started(engine, tools_volume, write_task(tmp_path / "terminal-box", BASH)) as container,
            opened(container, unreachable_sec=0.5) as terminal,
        ):
            road.cut()
            with pytest.raises(TerminalUnreachable):
                await terminal.send(Keys("echo lost\n", LONG))
            await road.open()
    finally:
        engine.close()
