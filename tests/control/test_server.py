"""server and client: a run under way is spoken to on a socket in its directory."""

from __future__ import annotations

import asyncio
import socket
import stat
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tbench.control.client import ask, runs_under_way
from tbench.control.server import controlled
from tbench.control.wire import (
    LINE_LIMIT_BYTES,
    SOCKET_NAME,
    Abort,
    Answer,
    Continue,
    ListTrials,
    Pause,
    Request,
    RunUnderWay,
    Say,
    SetConcurrency,
    as_line,
)
from tbench.errors import UsageError

STATE = RunUnderWay(run="r", planned=3, ended=1, concurrency=2, paused="no", trials=())


class Noted:
    """Controls that note what they are asked."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []

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


@pytest.fixture
async def controls(tmp_path: Path) -> AsyncIterator[Noted]:
    noted = Noted()
    async with controlled(tmp_path, noted, print):
        yield noted


async def asked(directory: Path, request: Request) -> Answer:
    return await asyncio.to_thread(ask, directory, request)


async def test_each_request_has_its_answer(tmp_path: Path, controls: Noted) -> None:
    assert (await asked(tmp_path, ListTrials())).state == STATE
    assert (await asked(tmp_path, Pause(trial="a/0", now=True))).words == "paused"
    assert (await asked(tmp_path, Continue())).words == "goes on"
    assert (await asked(tmp_path, Say(trial="a/0", text="Look again.\nThere."))).words == "said"
    assert (await asked(tmp_path, SetConcurrency(number=7))).words == "resized"
    assert controls.asked == [
        ("pause", "a/0", True),
        ("continue", None),
        ("say", "a/0", "Look again.\nThere."),
        ("resize", 7),
    ]


async def test_what_cannot_be_done_is_told_in_one_line(tmp_path: Path, controls: Noted) -> None:
    with pytest.raises(UsageError, match=r"^b/1: no such trial is under way$"):
        await asked(tmp_path, Abort(trial="b/1"))


async def test_nobody_else_may_speak_to_a_run(tmp_path: Path, controls: Noted) -> None:
    assert stat.S_IMODE((tmp_path / SOCKET_NAME).stat().st_mode) == 0o600


async def test_runs_are_found_in_their_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    assert runs_under_way(tmp_path) == []
    async with controlled(run, Noted(), print):
        assert runs_under_way(tmp_path) == runs_under_way(run) == [run]
    assert runs_under_way(tmp_path / "nothing") == []


async def test_what_is_no_request_is_answered_and_the_next_one_is_heard(tmp_path: Path, controls: Noted) -> None:
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
    async with controlled(tmp_path, Noted(), print):
        reader, writer = await asyncio.open_unix_connection(str(tmp_path / SOCKET_NAME))
        writer.write(as_line(ListTrials()))
        assert await reader.readline()
    assert await reader.read() == b""
    writer.close()
    assert not (tmp_path / SOCKET_NAME).exists()
    with pytest.raises(UsageError, match=r"no run is under way here"):
        await asked(tmp_path, ListTrials())


async def test_a_run_of_a_long_path_can_be_spoken_to(tmp_path: Path) -> None:
    directory = tmp_path / ("long" * 30) / ("path" * 30)
    directory.mkdir(parents=True)
    async with controlled(directory, Noted(), print):
        assert (await asked(directory, ListTrials())).state == STATE
    assert list(directory.iterdir()) == []


async def test_a_socket_that_a_killed_run_has_left_is_told_and_removed(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET_NAME))
    with pytest.raises(UsageError, match=r"its run was killed \(a stale socket was removed\); .*tbench resume"):
        await asked(tmp_path, ListTrials())
    assert not (tmp_path / SOCKET_NAME).exists()


async def test_a_run_that_goes_on_takes_the_place_of_a_stale_socket(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(str(tmp_path / SOCKET_NAME))
    async with controlled(tmp_path, Noted(), print):
        assert (await asked(tmp_path, ListTrials())).state == STATE


async def test_a_directory_that_takes_no_socket_costs_the_run_nothing_but_a_note(tmp_path: Path) -> None:
    (tmp_path / SOCKET_NAME).mkdir()
    notes: list[str] = []
    async with controlled(tmp_path, Noted(), notes.append):
        pass
    assert len(notes) == 1
    assert "cannot be made, so this run cannot be spoken to" in notes[0]
