"""Processes of a night, the model server above all: started, waited for over HTTP, ended with all their children."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from harness.endpoint.chat import ChatModel, Sampling
from harness.endpoint.retry import TransientError
from harness.errors import EndpointError
from tbench.errors import TbenchError, UsageError
from tbench.nightly.reading import PLACEHOLDERS, Checkpoint, ServeSection
from tbench.text import one_line
from tbench.threads import in_thread
from tbench.web import Unanswered, WebRequest

# A command as a process of a night: kept by a small process that ends it with the night, however the night ends.

PYTHON = (sys.executable, "-P", "-m")
"""Runs a module of this installation, whatever folders lie where the night is started."""
_TAIL_BYTES = 8192
_GRACE_SEC = 15.0
"""Seconds beyond its own bounds after which the keeper itself is killed."""


class KeptProcess:
    """A command under way; as a context manager, it has ended with all of its group at the end of the block."""

    def __init__(self, process: asyncio.subprocess.Process, log: Path, begins_at: int, stop_sec: float) -> None:
        self._process = process
        self._log = log
        self._begins_at = begins_at
        self._stop_sec = stop_sec

    @classmethod
    async def start(
        cls, command: Sequence[str], log: Path, *, stop_sec: float, env: Mapping[str, str] | None = None, lock: int
    ) -> Self:
        """Start a command whose output is appended to `log`.

        `lock` is a descriptor that the keeper inherits and holds until nothing is left of the command. Raises OSError
        where the log cannot be written; a command that cannot be started ends with 127, and its log says why.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            begins_at = output.tell()
            process = await asyncio.create_subprocess_exec(
                *(*PYTHON, "tbench.nightly.keeper", str(stop_sec), *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                pass_fds=(lock,),
            )
        return cls(process, log, begins_at, stop_sec)

    @property
    def code(self) -> int | None:
        """The command's exit code; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the command's end, without a deadline; gives its exit code."""
        return await self._process.wait()

    async def stop(self) -> int:
        """End the command and its group: SIGTERM, then SIGKILL; gives the exit code. May be called again."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return await asyncio.wait_for(self._process.wait(), self._stop_sec + _GRACE_SEC)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            return await self._process.wait()

    def output(self) -> str:
        """The end of what the command has written so far."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._begins_at, size - _TAIL_BYTES))
            return log.read().decode("utf-8", "replace")
        return ""

    def last_words(self, lines: int = 3) -> str:
        """The last lines of it as one; says so where there are none."""
        found = [line.strip() for line in self.output().splitlines() if line.strip()]
        return one_line(" | ".join(found[-lines:]), 400) if found else "it wrote nothing"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


_PLACEHOLDER = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")
_ASK_SEC = 2.0
_POLL_SEC = 0.2
_LIST_SEC = 30.0


class ServerFailed(TbenchError):
    """A model server that did not get ready, or ended too early; one line with its last words."""


@dataclass(frozen=True)
class ModelServer:
    """A model server that is ready."""

    process: KeptProcess
    base_url: str
    log: Path

    async def ended(self) -> str:
        """Wait for its end; says in one line that it ended, and its last words."""
        code = await self.process.wait()
        return f"the model server ended with code {code}: {self.process.last_words()} (log: {self.log})"


def command_of(serve: ServeSection, checkpoint: Checkpoint, port: int) -> list[str]:
    """The server's command with what its placeholders stand for."""
    return [_filled(word, checkpoint, port) for word in serve.command]


@contextlib.asynccontextmanager
async def serving(serve: ServeSection, checkpoint: Checkpoint, log: Path, lock: int) -> AsyncIterator[ModelServer]:
    """A server for the checkpoint, from ready to ended.

    Raises UsageError where somebody else answers already or the URLs are none, ServerFailed where it does not get
    ready in time.
    """
    port = serve.port or _free_port()
    health, base_url = (_filled(url, checkpoint, port) for url in (serve.health_url, serve.base_url))
    try:
        taken = await asyncio.to_thread(_is_listening, health)
    except ValueError as error:
        raise UsageError(f"serve.health_url: {health}: is no URL: {error}") from None
    if taken:
        raise UsageError(
            f"{health}: somebody answers there before the model server is started; end it, or choose another serve.port"
        )
    try:
        process = await KeptProcess.start(
            command_of(serve, checkpoint, port),
            log,
            stop_sec=serve.stop_timeout_sec,
            env={name: str(value) for name, value in serve.env.items()},
            lock=lock,
        )
    except OSError as error:
        raise UsageError(f"{log}: cannot be written: {error.strerror or error}") from None
    async with process:
        server = ModelServer(process, base_url, log)
        await _ready(server, health, serve.ready_timeout_sec)
        if any("{checkpoint}" in word for word in serve.command):
            await _check_weights(server, checkpoint)
        yield server


async def _ready(server: ModelServer, health: str, within_sec: float) -> None:
    """Wait until the health URL answers with 200. Raises ServerFailed."""
    ends_at, answered = time.monotonic() + within_sec, "nobody answered"
    question = WebRequest(health, min(_ASK_SEC, within_sec), most_bytes=0)
    while True:
        if server.process.code is not None:
            raise ServerFailed(f"died while it started: {await server.ended()}")
        try:
            status = (await in_thread(question.answer)).status
            if status == 200 and server.process.code is None:
                return
            answered = f"the last answer was HTTP {status}"
        except Unanswered as why:
            answered = f"the last request got {why}"
        if time.monotonic() > ends_at:
            words = server.process.last_words()
            raise ServerFailed(
                f"{health}: not ready within {within_sec:g} s; {answered}; the server's last words: {words} "
                f"(log: {server.log}); raise serve.ready_timeout_sec if it needs longer"
            )
        await asyncio.sleep(_POLL_SEC)


async def _check_weights(server: ModelServer, checkpoint: Checkpoint) -> None:
    """Raise ServerFailed where the server says that its weights are of another place on this machine.

    A path that is not here is one inside of a container, and says nothing.
    """
    key = os.environ.get("OPENAI_API_KEY")
    try:
        async with ChatModel(server.base_url, None, Sampling(), api_key=key, request_timeout_sec=_LIST_SEC) as chat:
            cards = await chat.list_models()
    except (EndpointError, TransientError):
        return
    roots = [card.root for card in cards if card.root and card.parent is None]
    if (other := _elsewhere(roots, checkpoint)) is not None:
        raise ServerFailed(
            f"{server.base_url}: serves {other} and not {checkpoint.path}: another server has its port, or its command "
            f"names other weights (log: {server.log})"
        )


def _elsewhere(roots: Iterable[str], checkpoint: Checkpoint) -> Path | None:
    """The first of the places on this machine that weights came from, where none of them is the checkpoint's."""
    here = [root for each in roots if (root := Path(each)).is_absolute() and root.exists()]
    expected = Path(checkpoint.path).resolve()
    return None if any(root.resolve().is_relative_to(expected) for root in here) else next(iter(here), None)


def _filled(text: str, checkpoint: Checkpoint, port: int) -> str:
    """The text with its placeholders filled in, one by one: what is filled in is not looked at again."""
    values = {"checkpoint": checkpoint.path, "name": checkpoint.name, "port": str(port)}
    pieces = _PLACEHOLDER.split(text)
    return "".join(values[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def _is_listening(url: str) -> bool:
    """Whether anybody takes connections where `url` leads; raises ValueError for no URL."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=2):
            return True
    except OSError:
        return False


def _free_port() -> int:
    """A port of this machine that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
