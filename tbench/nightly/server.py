"""Processes of a night, in particular the model server: started, awaited over HTTP, ended with all their children."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import socket
import sys
import time
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Self
from urllib.parse import urlsplit

from harness.endpoint.chat import ChatModel
from harness.endpoint.retry import TransientError
from harness.errors import EndpointError
from harness.model import Sampling
from tbench.errors import TbenchError, UsageError
from tbench.files import writable
from tbench.nightly.configuration import PLACEHOLDERS, Checkpoint, ServeSection
from tbench.text import one_line
from tbench.threads import in_thread
from tbench.web import Unanswered, WebRequest

PYTHON = (sys.executable, "-P", "-m")
"""Runs a module of this installation; -P ignores modules in the current directory."""
_TAIL_BYTES = 8192
_GRACE_SEC = 15.0
"""Seconds that the supervisor gets beyond `stop_sec` before it is killed itself."""


class SupervisedProcess:
    """A running command whose process group ends with the night, even if the night is killed.

    As a context manager, it ends the command and its group at the end of the block.
    """

    def __init__(self, process: asyncio.subprocess.Process, log: Path, log_offset: int, stop_sec: float) -> None:
        self._process = process
        self._log = log
        self._log_offset = log_offset
        self._stop_sec = stop_sec

    @classmethod
    async def start(
        cls, command: Sequence[str], log: Path, *, stop_sec: float, env: Mapping[str, str] | None = None, lock: int
    ) -> Self:
        """Start a command whose output is appended to `log`.

        `lock` is a descriptor that the supervisor inherits and holds until the command's group has ended. Raises
        OSError if the log cannot be written; a command that cannot be started ends with 127 and a message in the log.
        """
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as output:
            log_offset = output.tell()
            process = await asyncio.create_subprocess_exec(
                *(*PYTHON, "tbench.nightly.supervisor", str(stop_sec), *command),
                stdin=asyncio.subprocess.PIPE,
                stdout=output,
                stderr=output,
                env={**os.environ, **(env or {})},
                start_new_session=True,
                pass_fds=(lock,),
            )
        return cls(process, log, log_offset, stop_sec)

    @property
    def code(self) -> int | None:
        """The command's exit code; None while it runs."""
        return self._process.returncode

    async def wait(self) -> int:
        """Wait for the command's end without a deadline; return its exit code."""
        return await self._process.wait()

    async def stop(self) -> int:
        """End the command and its group with SIGTERM, then SIGKILL; return the exit code. May be called again."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            return await asyncio.wait_for(self._process.wait(), self._stop_sec + _GRACE_SEC)
        except TimeoutError:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()
            return await self._process.wait()

    def output(self) -> str:
        """Return the end of the command's output so far."""
        with contextlib.suppress(OSError), self._log.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(self._log_offset, size - _TAIL_BYTES))
            return log.read().decode("utf-8", "replace")
        return ""

    def last_lines(self, lines: int = 3) -> str:
        """Return the last lines of the output as one line."""
        found = [line.strip() for line in self.output().splitlines() if line.strip()]
        return one_line(" | ".join(found[-lines:]), 400) if found else "no output"

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


_PLACEHOLDER = re.compile(rf"\{{({'|'.join(PLACEHOLDERS)})\}}")
_REQUEST_SEC = 2.0
_POLL_SEC = 0.2
_LIST_MODELS_SEC = 30.0
_PORT_BY_HAND = 8000


class ServerFailed(TbenchError):
    """A model server did not get ready or ended too early; one line with its last output."""


@dataclass(frozen=True)
class ModelServer:
    """A model server that is ready."""

    process: SupervisedProcess
    base_url: str
    log: Path

    async def wait_for_end(self) -> str:
        """Wait for the server's end; return one line that says so, with its last output."""
        code = await self.process.wait()
        return f"the model server ended with code {code}: {self.process.last_lines()} (log: {self.log})"


def server_command(serve: ServeSection, checkpoint: Checkpoint, port: int) -> list[str]:
    """Return the server's command with its placeholders filled in."""
    return [_fill_placeholders(word, checkpoint, port) for word in serve.command]


def server_by_hand(serve: ServeSection, checkpoint: Checkpoint) -> tuple[str, str]:
    """Return the shell command that starts the server again, on a fixed port, and its base URL."""
    port = serve.port or _PORT_BY_HAND
    variables = [f"{name}={shlex.quote(str(value))}" for name, value in serve.env.items()]
    return " ".join([*variables, shlex.join(server_command(serve, checkpoint, port))]), _fill_placeholders(
        serve.base_url, checkpoint, port
    )


@contextlib.asynccontextmanager
async def serving(serve: ServeSection, checkpoint: Checkpoint, log: Path, lock: int) -> AsyncIterator[ModelServer]:
    """Run a server for the checkpoint; yield it when it is ready, and stop it afterwards.

    Raises UsageError if the port is taken or a URL is invalid, ServerFailed if the server does not get ready in time.
    """
    port = serve.port or _free_port()
    health, base_url = (_fill_placeholders(url, checkpoint, port) for url in (serve.health_url, serve.base_url))
    try:
        taken = await asyncio.to_thread(_is_listening, health)
    except ValueError as error:
        raise UsageError(f"serve.health_url: {health}: is not a valid URL: {error}") from None
    if taken:
        raise UsageError(f"{health}: another process uses this port; stop it, or choose another serve.port")
    with writable(log):
        process = await SupervisedProcess.start(
            server_command(serve, checkpoint, port),
            log,
            stop_sec=serve.stop_timeout_sec,
            env={name: str(value) for name, value in serve.env.items()},
            lock=lock,
        )
    async with process:
        server = ModelServer(process, base_url, log)
        await _wait_until_ready(server, health, serve.ready_timeout_sec)
        if any("{checkpoint}" in word for word in serve.command):
            await _check_weights(server, checkpoint)
        yield server


async def _wait_until_ready(server: ModelServer, health: str, within_sec: float) -> None:
    """Wait until the health URL answers with 200. Raises ServerFailed."""
    ends_at, answered = time.monotonic() + within_sec, "there was no answer"
    request = WebRequest(health, min(_REQUEST_SEC, within_sec), most_bytes=0)
    while True:
        if server.process.code is not None:
            raise ServerFailed(f"failed to start: {await server.wait_for_end()}")
        try:
            status = (await in_thread(request.answer)).status
            if status == 200 and server.process.code is None:
                return
            answered = f"the last answer was HTTP {status}"
        except Unanswered as why:
            answered = f"the last request got {why}"
        if time.monotonic() > ends_at:
            raise ServerFailed(
                f"{health}: not ready within {within_sec:g} s; {answered}; last output: "
                f"{server.process.last_lines()} (log: {server.log}); raise serve.ready_timeout_sec if it needs longer"
            )
        await asyncio.sleep(_POLL_SEC)


async def _check_weights(server: ModelServer, checkpoint: Checkpoint) -> None:
    """Raise ServerFailed if the server reports weights from another path on this machine.

    A path that does not exist here is inside a container, and is ignored.
    """
    key = os.environ.get("OPENAI_API_KEY")
    try:
        async with ChatModel(
            server.base_url, None, Sampling(), api_key=key, request_timeout_sec=_LIST_MODELS_SEC
        ) as chat:
            cards = await chat.list_models()
    except (EndpointError, TransientError):
        return
    roots = [card.root for card in cards if card.root and card.parent is None]
    if (other := _other_weights(roots, checkpoint)) is not None:
        raise ServerFailed(
            f"{server.base_url}: serves {other} instead of {checkpoint.path}: another server uses its port, or its "
            f"command names other weights (log: {server.log})"
        )


def _other_weights(roots: Iterable[str], checkpoint: Checkpoint) -> Path | None:
    """Return the first of these paths that exists here; None if an existing one is within the checkpoint."""
    existing = [root for each in roots if (root := Path(each)).is_absolute() and root.exists()]
    expected = Path(checkpoint.path).resolve()
    return None if any(root.resolve().is_relative_to(expected) for root in existing) else next(iter(existing), None)


def _fill_placeholders(text: str, checkpoint: Checkpoint, port: int) -> str:
    """Return the text with its placeholders filled in; placeholders within filled-in values stay as they are."""
    values = {"checkpoint": checkpoint.path, "name": checkpoint.name, "port": str(port)}
    pieces = _PLACEHOLDER.split(text)
    return "".join(values[piece] if at % 2 else piece for at, piece in enumerate(pieces))


def _is_listening(url: str) -> bool:
    """Whether a process accepts connections at the URL's host and port; raises ValueError for an invalid URL."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=2):
            return True
    except OSError:
        return False


def _free_port() -> int:
    """Return a port of this machine that is free at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
