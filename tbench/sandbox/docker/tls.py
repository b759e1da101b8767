"""An engine that wants TLS as one behind a socket of this machine: a thread speaks TLS with it.

The SDK's own TLS gives the socket of an exec in a form that no event loop can read, and asyncio's cannot end one
direction alone, as the input of a process ends. Behind the socket nothing differs from an engine of this machine.
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
_AT_ONCE_BYTES = 1 << 18
_PORT = 2376
_NOTHING = "it hangs up behind the handshake; it may refuse cert.pem"
VERIFY, CERTIFICATES = "DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH"
"""The variables of the environment that ask for TLS, as the docker command has them."""


def tls_context(variables: Mapping[str, str]) -> ssl.SSLContext | None:
    """The TLS that an environment asks for; None where it asks for none.

    Raises EngineUnavailable where its files cannot be used.
    """
    verifies, given = bool(variables.get(VERIFY)), variables.get(CERTIFICATES, "")
    if not verifies and not given:
        return None
    folder = Path(given or "~/.docker").expanduser()
    try:
        context = ssl.create_default_context(cafile=str(folder / "ca.pem") if verifies else None)
        # What Docker's own pages have openssl make is not all that Python 3.13 asks for.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        if not verifies:
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        context.load_cert_chain(folder / "cert.pem", folder / "key.pem")
    except (OSError, ssl.SSLError) as error:
        raise EngineUnavailable(
            f"the TLS files of {given or '~/.docker'} cannot be used: {error.strerror or error}; "
            f"let {CERTIFICATES} name the directory of ca.pem, cert.pem and key.pem"
        ) from error
    return context


class TlsForward:
    """A socket of this machine behind which an engine answers that wants TLS. Whoever makes it closes it."""

    def __init__(self, host: str, context: ssl.SSLContext) -> None:
        """`host` is tcp://NAME:PORT."""
        parts = urlsplit(host)
        self._name, self._port, self._context = parts.hostname or "", parts.port or _PORT, context
        self.why = ""
        """Why the last connection could not be made; empty where it could."""
        self._directory = Path(tempfile.mkdtemp(prefix="tb-tls-"))
        self._socket = self._directory / "engine.sock"
        self._is_there, self._loop, self._ended = threading.Event(), asyncio.new_event_loop(), asyncio.Event()
        self._leading: set[asyncio.Task[None]] = set()
        self._thread = threading.Thread(target=self._run, daemon=True, name=f"TLS with {self._name}")
        self._thread.start()
        self._is_there.wait(_END_SEC)

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
            self._is_there.set()
        await self._ended.wait()
        server.close()
        for leading in self._leading:
            leading.cancel()
        await asyncio.gather(*self._leading, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        leading = asyncio.create_task(self._lead(reader, writer), name="a connection to an engine over TLS")
        self._leading.add(leading)  # the loop itself holds it only weakly
        leading.add_done_callback(self._leading.discard)
        # Also of one that is cancelled before it begins.
        leading.add_done_callback(lambda _: writer.close())

    async def _lead(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Lead one connection to the engine, until that hangs up."""
        try:
            session = await self._session()
        except OSError as error:
            self.why = _reason(error)
            return
        sending = asyncio.create_task(_send(reader, session), name="to an engine over TLS")
        self.why = _NOTHING
        try:
            while data := await session.read():
                self.why = ""
                writer.write(data)
                await writer.drain()
        except OSError as error:
            # A certificate of ours that is refused is told behind the handshake, if that arrives.
            if self.why:
                self.why = _reason(error) if isinstance(error, ssl.SSLError) else _NOTHING
        finally:
            sending.cancel()
            session.close()

    async def _session(self) -> _Session:
        """A session with the engine. Raises OSError, of which those of TLS are a kind."""
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
    """A TLS session each direction of which can be ended on its own. All that may raise raises OSError."""

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
                    raise ConnectionResetError("it hangs up on TLS") from None
            else:
                return await self._flush()

    async def read(self) -> bytes:
        """What has come; b"" where nothing more will."""
        pieces: list[bytes] = []
        while not pieces:
            # Nothing whole is left in between: what is there when the other direction ends would be lost.
            try:
                while piece := self._tls.read(_AT_ONCE_BYTES):
                    pieces.append(piece)
            except ssl.SSLWantReadError:
                if pieces:
                    break
                await self._flush()
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
        """Say that nothing more will be written; reading goes on."""
        with contextlib.suppress(ssl.SSLError):  # it would wait for the engine to do the same
            self._tls.unwrap()
        await self._flush()

    async def _fill(self) -> bool:
        data = await self._reader.read(_AT_ONCE_BYTES)
        self._in.write(data)
        return bool(data)

    async def _flush(self) -> None:
        if data := self._out.read():
            self._writer.write(data)
        await self._writer.drain()

    def close(self) -> None:
        self._writer.close()


async def _send(reader: asyncio.StreamReader, session: _Session) -> None:
    with contextlib.suppress(OSError):  # who reads the other direction is told
        while data := await reader.read(_AT_ONCE_BYTES):
            await session.write(data)
        await session.end()


def _reason(error: OSError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is refused: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS failed: {(error.reason or str(error)).replace('_', ' ').lower()}"
    if error.errno is not None and error.errno > 0:  # of a connection asyncio has words of its own
        return os.strerror(error.errno)
    return error.strerror or str(error) or f"no answer within {CONNECT_SEC:.0f} s"
