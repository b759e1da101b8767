"""The server of a run's control socket."""

from __future__ import annotations

import asyncio

from pydantic import ValidationError

from tbench.control import wire
from tbench.errors import UsageError
from tbench.text import one_line

_ANSWER_SEC = 10.0
"""Longest time for a client to read an answer; then it is disconnected."""
_KEYS_BYTES = 1 << 14
"""Maximum number of bytes of keys that are typed at once."""


async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, controls: wire.ControlHandler) -> None:
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
    line: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, controls: wire.ControlHandler
) -> bool:
    """Answer a request line; return whether more may follow. Raises OSError, and TimeoutError for a stuck client."""
    try:
        request = wire.read_request(line)
        if isinstance(request, wire.Attach):
            async with controls.attach(request.trial, take=request.take, drawn=request.drawn) as viewer:
                await _show(viewer, reader, writer)
            return False
        answer = await _dispatch(request, controls)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "request"
        answer = wire.Answer(ok=False, words=one_line(f"{where}: {first['msg']}"))
    except UsageError as error:
        answer = wire.Answer(ok=False, words=one_line(str(error)))
    await _send(writer, wire.as_line(answer))
    return True


async def _send(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    async with asyncio.timeout(_ANSWER_SEC):
        await writer.drain()


async def _show(viewer: wire.TerminalViewer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
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


async def _dispatch(request: wire.Request, controls: wire.ControlHandler) -> wire.Answer:
    """Carry out a request. It may take a while: the requests of one client are answered in order."""
    match request:
        case wire.ListTrials():
            return wire.Answer(ok=True, state=controls.state())
        case wire.Pause(trial=trial, now=now):
            return wire.Answer(ok=True, words=controls.pause(trial, now=now))
        case wire.Continue(trial=trial):
            return wire.Answer(ok=True, words=controls.go_on(trial))
        case wire.Abort(trial=trial):
            return wire.Answer(ok=True, words=controls.abort(trial))
        case wire.Stop(trial=trial):
            return wire.Answer(ok=True, words=controls.stop(trial))
        case wire.Say(trial=trial, text=text):
            return wire.Answer(ok=True, words=controls.say(trial, text))
        case wire.SetConcurrency(number=number):
            return wire.Answer(ok=True, words=controls.resize(number))
        case wire.ReadScreen(trial=trial):
            return wire.Answer(ok=True, screen=await controls.screen(trial))
        case wire.TypeKeys(trial=trial, keys=keys):
            return wire.Answer(ok=True, words=await controls.type(trial, keys))
        case wire.Debug(trial=trial, after=after, version=version):
            return wire.Answer(ok=True, debug=await controls.debug(trial, after=after, version=version))
        case wire.Attach():
            raise AssertionError("does not have a single answer")
        case _:
            return wire.Answer(ok=True, words=await controls.decide(request))
