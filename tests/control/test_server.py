"""server and client: control of a running run by a socket in its directory."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import stat
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from pathlib import Path

import pytest

from tbench.control.client import ask, attach
from tbench.control.listener import LINE_LIMIT_BYTES, SOCKET_NAME, listening
from tbench.control.server import serve
from tbench.control.telling import runs_under_way
from tbench.control.wire import (
    Abort,
    Answer,
    Attach,
    Continue,
    ControlHandler,
    ListTrials,
    Pause,
    ReadScreen,
    Request,
    RunUnderWay,
    Say,
    Screen,
    SetConcurrency,
    TypeKeys,
    as_line,
)
from tbench.errors import UsageError

STATE = RunUnderWay(run="r", planned=3, ended=1, concurrency=2, paused="no", trials=())
SCREEN = Screen(
    columns=9, rows=2, cursor=(1, 0), cursor_visible=True, application_keys=False, lines=("\x1b[1m$\x1b[m", "ä")
)


def heard(directory: Path, controls: ControlHandler, say: Callable[[str], None]) -> AbstractAsyncContextManager[None]:
    return listening(directory, partial(serve, controls=controls), say)


class Looking:
    """A viewer that receives what the test sends."""

    def __init__(self) -> None:
        self.shown: asyncio.Queue[bytes] = asyncio.Queue()
        self.typed = b""
        self.has_left = asyncio.Event()

    async def next(self) -> bytes:
        return await self.shown.get()

    async def type(self, data: bytes) -> None:
        self.typed += data
        self.shown.put_nowait(data.upper())


class Noted:
    """A handler that records its requests."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.looking = Looking()

    def state(self) -> RunUnderWay:
        return STATE

    def pause(self, trial: str | None, *, now: bool) -> str:
        self.asked.append(("pause", trial, now))
        return "paused"

    def go_on(self, trial: str | None) -> str:
        self.asked.append(("continue", trial))
        return "goes on"

    def abort(self, trial: str) -> str:
        raise UsageError(f"{trial}: no such trial is under way")

    def say(self, trial: str, text: str) -> str:
        self.asked.append(("say", trial, text))
        return "said"

    def resize(self, number: int) -> str:
        self.asked.append(("resize", number))
        return "resized"

    async def screen(self, trial: str) -> Screen:
        await asyncio.sleep(0)
        return SCREEN

    async def type(self, trial: str, keys: str) -> str:
        self.asked.append(("type", trial, keys))
        return "typed"

    @contextlib.asynccontextmanager
    async def attach(self, trial: str, *, take: bool, drawn: bool) -> AsyncIterator[Looking]:
        if trial != "a/0":
            raise UsageError(f"{trial}: no such trial is under way")
        self.asked.append(("attach", trial, take, drawn))
        try:
            yield self.looking
        finally:
            self.looking.has_left.set()


@pytest.fixture
async def controls(tmp_path: Path) -> AsyncIterator[Noted]:
    noted = Noted()
    async with heard(tmp_path, noted, print):
        yield noted


async def asked(directory: Path, request: Request) -> Answer:
    return await asyncio.to_thread(ask, directory, request)


async def test_each_request_has_its_answer(tmp_path: Path, controls: Noted) -> None:
    assert (await asked(tmp_path, ListTrials())).state == STATE
    assert (await asked(tmp_path, Pause(trial="a/0", now=True))).words == "paused"
    assert (await asked(tmp_path, Continue())).words == "goes on"
    assert (await asked(tmp_path, Say(trial="a/0", text="Look again.\nThere."))).words == "said"
    assert (await asked(tmp_path, SetConcurrency(number=7))).words == "resized"
    assert (await asked(tmp_path, TypeKeys(trial="a/0", keys="ls\x1b[A\n"))).words == "typed"
    assert (await asked(tmp_path, ReadScreen(trial="a/0"))).screen == SCREEN
    assert controls.asked == [
        ("pause", "a/0", True),
        ("continue", None),
        ("say", "a/0", "Look again.\nThere."),
        ("resize", 7),
        ("type", "a/0", "ls\x1b[A\n"),
    ]


async def test_an_impossible_request_is_refused_in_one_line(tmp_path: Path, controls: Noted) -> None:
    with pytest.raises(UsageError, match=r"^b/1: no such trial is under way$"):
        await asked(tmp_path, Abort(trial="b/1"))


async def test_an_attached_client_gets_bytes_and_sends_keys_until_it_leaves(tmp_path: Path, controls: Noted) -> None:
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET_NAME))
    writer.write(as_line(Attach(trial="b/0")))
    assert not Answer.model_validate_json(await reader.readline()).ok
    writer.write(as_line(Attach(trial="a/0", take=True)))
    controls.looking.shown.put_nowait(b"\x1b[2Jscreen")
    assert await reader.readexactly(10) == b"\x1b[2Jscreen"
    writer.write(b'{"do": "list"}\x00\xff')
    assert await reader.readexactly(16) == b'{"DO": "LIST"}\x00\xff'
    assert controls.looking.typed == b'{"do": "list"}\x00\xff'
    writer.close()
    async with asyncio.timeout(20):
        await controls.looking.has_left.wait()
    assert controls.asked == [("attach", "a/0", True, False)]


async def test_an_attached_client_is_disconnected_when_the_terminal_closes(tmp_path: Path, controls: Noted) -> None:
    controls.looking.shown.put_nowait(as_line(Answer(ok=True, screen=SCREEN)))
    async with attach(tmp_path, Attach(trial="a/0", drawn=True)) as way:
        assert way.first.screen == SCREEN
        controls.looking.shown.put_nowait(as_line(Answer(ok=True, screen=SCREEN, words="x" * 2 * LINE_LIMIT_BYTES)))
        controls.looking.shown.put_nowait(b"")
        assert (await way.next()) is not None
        assert await way.next() is None
    assert controls.looking.has_left.is_set()


async def test_a_run_that_ends_disconnects_attached_clients(tmp_path: Path) -> None:
    noted = Noted()
    noted.looking.shown.put_nowait(as_line(Answer(ok=True, screen=SCREEN)))
    async with contextlib.AsyncExitStack() as stack:
        async with heard(tmp_path, noted, print):
            way = await stack.enter_async_context(attach(tmp_path, Attach(trial="a/0", drawn=True)))
        assert noted.looking.has_left.is_set()
        assert await way.next() is None
    with pytest.raises(UsageError, match=r"no run is under way here"):
        async with attach(tmp_path, Attach(trial="a/0", drawn=True)):
            raise AssertionError


@pytest.mark.slow
async def test_a_client_that_reads_nothing_is_disconnected(tmp_path: Path, controls: Noted) -> None:
    _, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET_NAME))
    writer.write(as_line(Attach(trial="a/0")))
    for _ in range(64):
        controls.looking.shown.put_nowait(b"x" * LINE_LIMIT_BYTES)
    async with asyncio.timeout(40):
        await controls.looking.has_left.wait()
    writer.close()


async def test_only_the_owner_can_connect_to_a_run(tmp_path: Path, controls: Noted) -> None:
    assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600


async def test_runs_are_found_in_their_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    assert runs_under_way(tmp_path) == []
    async with heard(run, Noted(), print):
        assert runs_under_way(tmp_path) == runs_under_way(run) == [run]
    assert runs_under_way(tmp_path / "nothing") == []


async def test_a_malformed_request_is_answered_and_the_next_one_served(tmp_path: Path, controls: Noted) -> None:
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET_NAME))
    for line, words in [
        (b"{not json\n", "JSON"),
        (b'{"do": "fly"}\n', "fly"),
        (b'{"do": "concurrency", "number": 0}\n', "number"),
        (b'{"do": "say", "trial": "a/0", "text": "x", "more": 1}\n', "more"),
    ]:
        writer.write(line)
        answer = Answer.model_validate_json(await reader.readline())
        assert not answer.ok
        assert words in answer.words
        assert "\n" not in answer.words
    writer.write(ListTrials().model_dump_json().encode() + b"\n")
    assert Answer.model_validate_json(await reader.readline()).state == STATE
    writer.close()
    await writer.wait_closed()


async def test_a_line_without_an_end_ends_the_conversation(tmp_path: Path, controls: Noted) -> None:
    reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET_NAME))
    writer.write(b"x" * (2 * LINE_LIMIT_BYTES))
    assert await reader.read() == b""
    writer.close()
    assert (await asked(tmp_path, ListTrials())).state == STATE


async def test_the_socket_goes_with_the_run_and_takes_its_clients_along(tmp_path: Path) -> None:
    async with heard(tmp_path, Noted(), print):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET_NAME))
        writer.write(as_line(ListTrials()))
        assert await reader.readline()
    assert await reader.read() == b""
    writer.close()
    assert not (tmp_path / SOCKET_NAME).exists()
    with pytest.raises(UsageError, match=r"no run is under way here"):
        await asked(tmp_path, ListTrials())


async def test_a_run_with_a_long_path_can_be_controlled(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 30) / ("path" * 30)
    directory.mkdir(parents=True)
    async with heard(directory, Noted(), print):
        assert (await asked(directory, ListTrials())).state == STATE
    assert list(directory.iterdir()) == []


async def test_a_stale_socket_of_a_killed_run_is_reported_and_removed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET_NAME))
    with pytest.raises(UsageError, match=r"its run was killed \(removed a stale socket\); .*tbench resume"):
        await asked(tmp_path, ListTrials())
    assert not (tmp_path / SOCKET_NAME).exists()


async def test_a_run_that_goes_on_takes_the_place_of_a_stale_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET_NAME))
    async with heard(tmp_path, Noted(), print):
        assert (await asked(tmp_path, ListTrials())).state == STATE


async def test_a_directory_that_takes_no_socket_costs_the_run_nothing_but_a_note(tmp_path: Path) -> None:
    (tmp_path / SOCKET_NAME).mkdir()
    notes: list[str] = []
    async with heard(tmp_path, Noted(), notes.append):
        pass
    assert len(notes) == 1
    assert "cannot be created, so this run cannot be controlled" in notes[0]
