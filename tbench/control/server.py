"""The server of a run's control socket."""

from __future__ import annotations

import asyncio

from pydantic import ValidationError

from tbench.control.wire import (
    Abort,
    Answer,
    Attach,
    Continue,
    ControlHandler,
    Debug,
    ListTrials,
    Pause,
    ReadScreen,
    Request,
    Say,
    SetConcurrency,
    Stop,
    TerminalViewer,
    TypeKeys,
    as_line,
    read_request,
)
from tbench.errors import UsageError
from tbench.text import one_line

_ANSWER_SEC = 10.0
"""Longest time for a client to read an answer; then it is disconnected."""
_KEYS_BYTES = 1 << 14
"""Maximum number of bytes of keys that are typed at once."""


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, controls: ControlHandler) -> None:
    """Answer one client until it disconnects."""
    try:
        while line := await _line(reader):
            if not await _handle(line, reader, writer, controls):
                break
    except TimeoutError:
        writer.transport.abort()  # the client reads nothing, so drop the buffered answer
    except OSError:
        pass


async def _line(reader: asyncio.StreamReader) -> bytes:
    """Read the next line; empty at the end, and for a line that is too long."""
    try:
        return await reader.readline()
    except ValueError:
        return b""


async def _handle(
    line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, controls: ControlHandler
) -> bool:
    """Answer a request line; return whether more may follow. Raises OSError, and TimeoutError for a stuck client."""
    try:
        request = read_request(line)
        if isinstance(request, Attach):
            async with controls.attach(request.trial, take=request.take, drawn=request.drawn) as viewer:
                await _show(viewer, reader, writer)
            return False
        answer = await _dispatch(request, controls)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "request"
        answer = Answer(ok=False, words=one_line(f"{where}: {first['msg']}"))
    except UsageError as error:
        answer = Answer(ok=False, words=one_line(str(error)))
    await _send(writer, as_line(answer))
    return True


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(_ANSWER_SEC):
        await writer.drain()


async def _show(viewer: TerminalViewer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Serve an attached client until it leaves or the terminal is closed. Raises OSError and TimeoutError."""

    async def pass_on() -> None:
        while data := await viewer.next():
            await _send(writer, data)

    async def take_keys() -> None:
        while data := await reader.read(_KEYS_BYTES):
            await viewer.type(data)

    tasks = {asyncio.create_task(pass_on(), name="showing"), asyncio.create_task(take_keys(), name="taking keys")}
    try:
        ended, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    for task in ended:
        task.result()


async def _dispatch(request: Request, controls: ControlHandler) -> Answer:
    """Carry out a request. It may take a while: the requests of one client are answered in order."""
    match request:
        case ListTrials():
            return Answer(ok=True, state=controls.state())
        case Pause(trial=trial, now=now):
            return Answer(ok=True, words=controls.pause(trial, now=now))
        case Continue(trial=trial):
            return Answer(ok=True, words=controls.go_on(trial))
        case Abort(trial=trial):
            return Answer(ok=True, words=controls.abort(trial))
        case Stop(trial=trial):
            return Answer(ok=True, words=controls.stop(trial))
        case Say(trial=trial, text=text):
            return Answer(ok=True, words=controls.say(trial, text))
        case SetConcurrency(number=number):
            return Answer(ok=True, words=controls.resize(number))
        case ReadScreen(trial=trial):
            return Answer(ok=True, screen=await controls.screen(trial))
        case TypeKeys(trial=trial, keys=keys):
            return Answer(ok=True, words=await controls.type(trial, keys))
        case Debug(trial=trial, after=after, version=version):
            return Answer(ok=True, debug=await controls.debug(trial, after=after, version=version))
        case Attach():
            raise AssertionError("does not have a single answer")
        case _:
            return Answer(ok=True, words=await controls.decide(request))
