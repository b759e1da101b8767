"""Forwards a local socket to an engine that requires TLS, in a thread.

With the SDK's own TLS the socket of an exec cannot be read by an event loop, and asyncio's TLS cannot close one
direction alone, as is needed to end a process's input. The forwarded socket looks like a local engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import ssl
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from tbench.errors import EngineUnavailable

CONNECT_SEC = 20.0
_END_SEC = 5.0
_CHUNK_BYTES = 1 << 18
_PORT = 2376
_CLOSED_AFTER_HANDSHAKE = "it closes the connection after the handshake; it may refuse cert.pem"
VERIFY, CERTIFICATES = "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"
"""Environment variables for TLS, as in the docker command."""


def tls_context(variables: Mapping[str, str]) -> ssl.SSLContext | None:
    """Return the TLS context for environment variables; None without TLS.

    Raises EngineUnavailable if the certificate files cannot be used.
    """
    verifies, given = bool(variables.get(VERIFY)), variables.get(CERTIFICATES, "")
    if not verifies and not given:
        return None
    folder = Path(given or "~/.docker").expanduser()
    try:
        context = ssl.create_default_context(cafile=str(folder / "ca.pem") if verifies else None)
        # Certificates made as Docker's documentation says lack extensions that Python 3.13 requires.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not verifies:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    except (OSError, ssl.SSLError) as error:
        raise EngineUnavailable(
            f"the TLS files in {given or '~/.docker'} cannot be used: {error.strerror or error}; "
            f"set {CERTIFICATES} to the directory of ca.pem, cert.pem and key.pem"
        ) from error
    return context


class TlsForward:
    """A local socket that leads to an engine with TLS. Its creator has to close it."""

    def __init__(self, host: str, context: ssl.SSLContext) -> None:
        """`host` is tcp://NAME:PORT."""
        parts = urlsplit(host)
        self._name, self._port, self._context = parts.hostname or "", parts.port or _PORT, context
        self.why = ""
        """Error of the last connection; empty if it succeeded."""
        self._directory = Path(tempfile.mkdtemp(prefix="tb-tls-"))
        self._socket = self._directory / "engine.sock"
        self._is_ready, self._loop, self._ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
        self._connections: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"TLS with {self._name}")
        self._thread.start()
        self._is_ready.wait(_END_SEC)

    @property
    def host(self) -> str:
        """The address of the socket."""
        return f"unix://{self._socket}"

    def close(self) -> None:
        """End all connections. Never raises."""
        with contextlib.suppress(RuntimeError):  # closed before
            self._loop.call_soon_threadsafe(self._ended.set)
        self._thread.join(_END_SEC)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(self._serve())

    async def _serve(self) -> None:
        try:
            server = await asyncio.start_unix_server(self._accept, self._socket)
        finally:
            self._is_ready.set()
        await self._ended.wait()
        server.close()
        for connection in self._connections:
            connection.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connection = asyncio.create_task(self._forward(reader, writer), name="a connection to an engine over TLS")
        self._connections.add(connection)  # the loop itself holds it only weakly
        connection.add_done_callback(self._connections.discard)
        # In a callback, since the task may be cancelled before it begins.
        connection.add_done_callback(lambda _: writer.close())

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection until the engine closes it."""
        try:
            session = await self._session()
        except OSError as error:
            self.why = _reason(error)
            return
        sending = asyncio.create_task(_send(reader, session), name="to an engine over TLS")
        self.why = _CLOSED_AFTER_HANDSHAKE
        try:
            while data := await session.read():
                self.why = ""
                writer.write(data)
                await writer.drain()
        except OSError as error:
            # The engine reports a refused client certificate after the handshake, if at all.
            if self.why:
                self.why = _reason(error) if isinstance(error, ssl.SSLError) else _CLOSED_AFTER_HANDSHAKE
        finally:
            sending.cancel()
            session.close()

    async def _session(self) -> _Session:
        """Connect to the engine. Raises OSError, which includes errors of TLS."""
        async with asyncio.timeout(CONNECT_SEC):
            streams = await asyncio.open_connection(self._name, self._port)
            session = _Session(*streams, self._context, self._name)
            try:
                await session.begin()
            except BaseException:
                session.close()
                raise
            return session


class _Session:
    """A TLS session whose directions can be closed separately. Its methods raise OSError."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, context: ssl.SSLContext, name: str
    ) -> None:
        self._reader, self._writer = reader, writer
        self._in, self._out = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._in, self._out, server_hostname=name)

    async def begin(self) -> None:
        while True:
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                await self._flush()
                if not await self._fill():
                    raise ConnectionResetError("it closes the connection during the TLS handshake") from None
            else:
                return await self._flush()

    async def read(self) -> bytes:
        """Read data; b"" at the end."""
        pieces: list[bytes] = []
        while not pieces:
            # Reads everything available: data left here would be lost when the other direction ends.
            try:
                while piece := self._tls.read(_CHUNK_BYTES):
                    pieces.append(piece)
            except ssl.SSLWantReadError:
                if pieces:
                    break
                # Without waiting until it is sent: the engine may not read before this side has read.
                self._put()
                if not await self._fill():
                    return b""
            except ssl.SSLZeroReturnError:
                break
            else:
                break
        return b"".join(pieces)

    async def write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        await self._flush()

    async def end(self) -> None:
        """Close the writing direction; reading continues."""
        with contextlib.suppress(ssl.SSLError):  # raised since the engine has not closed its direction
            self._tls.unwrap()
        await self._flush()

    async def _fill(self) -> bool:
        data = await self._reader.read(_CHUNK_BYTES)
        self._in.write(data)
        return bool(data)

    def _put(self) -> None:
        if data := self._out.read():
            self._writer.write(data)

    async def _flush(self) -> None:
        self._put()
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


async def _send(reader: asyncio.StreamReader, session: _Session) -> None:
    with contextlib.suppress(OSError):  # reported by the other direction
        while data := await reader.read(_CHUNK_BYTES):
            await session.write(data)
        await session.end()


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if error.errno is not None and error.errno > 0:  # asyncio's own message is longer
        return os.strerror(error.errno)
    return error.strerror or str(error) or f"no answer within {CONNECT_SEC:.0f} s"
