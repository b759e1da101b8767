"""HTTP to one endpoint: JSON requests and answers, with all kinds of failures distinguished.

The only module that imports openai, for its HTTP clients, and only when a Transport is created: the import takes about
a second.
"""

from __future__ import annotations

import errno
import json
import os
import ssl
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

from harness.concurrency import take_turn
from harness.endpoint.address import bypasses_proxies, proxy_for
from harness.endpoint.answers import LONGEST_QUOTE, quote, shorten
from harness.endpoint.bodies import ENCODINGS, BodyReader, OutOfBoundsError, RawAnswer, rejected_body_error
from harness.endpoint.retry import TransientError
from harness.errors import EndpointError

# Certificates for https.

_FILE, _DIR = "SSL_CERT_FILE", "SSL_CERT_DIR"
_UNKNOWN = f"its signer is unknown here: set {_FILE} to a file with the signer's certificate"
_CLOCK = "renew it, or check this machine's clock"
_CERTIFICATE_ERRORS = {
    **dict.fromkeys((2, 18, 19, 20, 21, 24, 27), _UNKNOWN),
    9: f"it is not valid yet: {_CLOCK}",
    10: f"it has expired: {_CLOCK}",
    **dict.fromkeys((62, 64), "it is for another host: write the base URL with a name that the certificate has"),
}
"""Explanations by OpenSSL's error number for certificates."""


def _certificates(http: Any) -> ssl.SSLContext:
    """Return the context for checking servers' certificates. Raises EndpointError for bad environment variables."""
    file, directory = os.environ.get(_FILE), os.environ.get(_DIR)
    if directory and not file and not Path(directory).is_dir():
        raise EndpointError(f"{_DIR}={directory}: no such directory; correct or unset the variable")
    try:
        return _read_certificates(http, file, directory, Path(file).stat().st_mtime_ns if file else 0)
    except OSError as error:
        words = "no certificates in it" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        raise EndpointError(f"{_FILE}={file}: {words}; correct or unset the variable") from None


@lru_cache(maxsize=4)
def _read_certificates(http: Any, *_named_by_the_environment: object) -> ssl.SSLContext:
    """Read the certificates, which takes 50 ms; cached until other files are named or a file changes."""
    context: ssl.SSLContext = http.create_ssl_context()
    return context


def explain_tls_failure(error: ssl.SSLError) -> str:
    """Explain why TLS failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = _CERTIFICATE_ERRORS.get(error.verify_code, "inspect it with openssl s_client")
        return f"the server's certificate is not trusted ({error.verify_message}): {why}"
    if error.reason == "WRONG_VERSION_NUMBER":
        return "the server does not use TLS: write the base URL with http://"
    return f"TLS failed ({error.reason or error}): inspect the server's TLS with openssl s_client"


T = TypeVar("T")

_USER_AGENT = "tbench"
_MAX_REDIRECTS = 5
_JSON = {"Content-Type": "application/json"}
_BROKEN_CONNECTION_ERRORS = {
    *("ReadError", "WriteError", "CloseError", "RemoteProtocolError"),  # of httpx and httpx2
    *("ServerDisconnectedError", "ClientPayloadError", "ClientResponseError", "ClientOSError"),  # of aiohttp
}
_CONNECT_ERRORS = {"ConnectError", "ClientConnectorError", "ClientConnectorDNSError", "ClientConnectorSSLError"}


@dataclass(frozen=True)
class _Connections:
    """Limits of kept connections: one per concurrent request, each closed before a server would close it.

    vLLM closes idle connections after 5 s, like uvicorn. It has the fields of httpx's `Limits`, whose package differs
    between major versions of the SDK.
    """

    max_connections: int = 0
    """No limit, for aiohttp."""
    max_keepalive_connections: int | None = None
    keepalive_expiry: float = 4.0


class StatusError(Exception):
    """An answer with a status other than 2xx; `body` is decoded JSON, or text: of a page, title and headings."""

    def __init__(self, answer: RawAnswer) -> None:
        super().__init__(f"HTTP {answer.status}")
        self.status = answer.status
        self.body = _words_or_json(answer)
        self.is_page = answer.is_page
        """Whether it is an HTML page, which comes from a gateway rather than a model server."""
        self.content_type = answer.content_type
        self.server = answer.server
        """The header `Server`."""
        self.retry_after = answer.retry_after
        """The header `Retry-After`."""


class Transport:
    """Connections to one base URL, kept between requests, and the key for all requests.

    Raises EndpointError if the environment's proxy or certificates cannot be used.
    """

    def __init__(self, url: str, key: str | None) -> None:
        import aiohttp
        import anyio
        import openai

        http = _library_of(openai.DefaultAsyncHttpxClient)
        self._failures = (http.HTTPError, http.StreamError, aiohttp.ClientError, OSError, anyio.EndOfStream)
        self._bodies = BodyReader()
        self.proxy = proxy_for(url)
        self._idle_since: deque[float] = deque()
        """Times at which connections that may still be open became idle; which one a request uses is unknown."""
        # aiohttp costs half of httpx per request, but supports neither SOCKS nor a password in a URL besides a key.
        is_direct = self.proxy is None and urlsplit(url).username is None
        headers = {"Accept": "application/json", "Accept-Encoding": ENCODINGS, "User-Agent": _USER_AGENT}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if not is_direct and urlsplit(url).scheme != "https":
            # httpx's pool keeps idle connections for 5 s as well: a race when a command takes that long.
            headers["Connection"] = "close"
        kept: dict[str, Any] = {"limits": _Connections()} if is_direct else {}
        make: Any = openai.DefaultAioHttpClient if is_direct else openai.DefaultAsyncHttpxClient
        certificates = _certificates(http)
        try:
            self._client = make(
                base_url=url,
                headers=headers,
                timeout=None,  # bounded by the caller, including the server's queue
                follow_redirects=False,  # their bodies would be read without a limit
                trust_env=not bypasses_proxies(url),
                verify=certificates,
                **kept,
            )
        except (ImportError, ValueError) as error:
            raise EndpointError(f"{self.proxy or 'the proxy of the environment'}: {_proxy_words(error)}") from None

    async def get(self, path: str) -> object:
        """Return the decoded body of the answer. Raises like `post`."""
        return await self._exchange("GET", path, None, _decode)

    async def get_text(self, path: str) -> str:
        """Return the body of the answer as text. Raises StatusError or TransientError."""
        return await self._exchange("GET", path, None, lambda answer: answer.text)

    async def post(self, path: str, content: bytes) -> object:
        """Return the decoded body of the answer to an encoded JSON body; `path` is below the base URL, or a full URL.

        Raises StatusError for an answer other than 2xx, TransientError without an answer or if it is not JSON.
        """
        return await self._exchange("POST", path, content, _decode)

    async def post_for_answer(self, path: str, body: object) -> RawAnswer:
        """Return the answer to a JSON body, whatever its status. Raises TransientError if there is none."""
        return await self._exchange("POST", path, encode(body), lambda answer: answer, refuses=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def _exchange(
        self, method: str, path: str, content: bytes | None, read: Callable[[RawAnswer], T], *, refuses: bool = True
    ) -> T:
        """Send a request and read its answer; resend it at once if a kept connection turns out to be closed."""
        headers = None if content is None else _JSON
        request = self._client.build_request(method, path, content=content, headers=headers)
        is_kept = self._may_reuse_connection()
        try:
            return await self._read_answer(request, read, refuses)
        except TransientError as failure:
            if not (is_kept and failure.broke):
                raise
        return await self._read_answer(request, read, refuses)

    def _may_reuse_connection(self) -> bool:
        """Whether the next request may reuse the connection of an earlier one."""
        kept, now = self._idle_since, time.monotonic()
        while kept and now - kept[0] > _Connections.keepalive_expiry:
            kept.popleft()
        if not kept:
            return False
        kept.pop()
        return True

    async def _read_answer(self, request: Any, read: Callable[[RawAnswer], T], refuses: bool) -> T:
        failure: Exception
        try:
            response = await self._send_request(request)
            try:
                async with self._bodies.read(response) as answer:
                    if refuses and not 200 <= answer.status < 300:
                        raise StatusError(answer)
                    value = read(answer)
            finally:
                await response.aclose()
        except self._failures as error:
            failure = _no_connection(error)
        else:
            self._idle_since.append(time.monotonic())
            return value
        # Raised outside the handlers: the client's exceptions contain the request with its headers.
        raise failure

    async def _send_request(self, request: Any) -> Any:
        """Send a request, follow redirects, and return the answer with its body still unread."""
        response = await self._client.send(request, stream=True)
        for _ in range(_MAX_REDIRECTS):
            if response.next_request is None:
                break
            await response.aclose()
            response = await self._client.send(response.next_request, stream=True)
        # Hundreds of answers that arrive at once are read one after the other, so that other tasks get a turn.
        await take_turn()
        return response


def _library_of(client: type) -> Any:
    """Return the HTTP library of a client class: httpx, or its replacement in another version of the SDK."""
    base = next(each for each in client.__mro__ if each.__name__ == "AsyncClient")
    return sys.modules[base.__module__.partition(".")[0]]


def encode(body: object) -> bytes:
    """Encode a JSON body."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _decode(answer: RawAnswer) -> object:
    """Return the decoded body. Raises TransientError."""
    try:
        return answer.json()
    except OutOfBoundsError as error:
        raise rejected_body_error(answer.status, error) from None
    except ValueError:
        what = "a page" if answer.is_page else "a body"
        begins = quote(answer.words[: 2 * LONGEST_QUOTE])
        words = f"HTTP {answer.status} with {what} that is not JSON{': ' if begins else ''}{begins}"
        raise TransientError(words) from None


def _words_or_json(answer: RawAnswer) -> object:
    """Return a refusal's decoded JSON, or its text."""
    try:
        return answer.json()
    except ValueError:
        return answer.words


def _proxy_words(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "a SOCKS proxy needs another package: pip install 'httpx[socks]', or unset the variable"
    return f"{shorten(str(error))}; correct or unset the variable"


def _no_connection(error: Exception) -> TransientError:
    causes = list(_causes(error))
    names = {type(cause).__name__ for cause in causes}
    denied = [cause for cause in causes if type(cause).__module__ == "ssl" and isinstance(cause, ssl.SSLError)]
    if denied and names & (_CONNECT_ERRORS | {"SSLCertVerificationError"}):
        return TransientError(f"cannot connect: {explain_tls_failure(denied[-1])}")
    words = quote(next(filter(None, map(_cause_words, reversed(causes))), "no details"))
    if names & _BROKEN_CONNECTION_ERRORS:
        return TransientError(f"connection broke: {words}", broke=True)
    refused = any(isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED for cause in causes)
    what = "cannot connect" if names & _CONNECT_ERRORS else "request failed"
    return TransientError(f"{what}: {words}", refused=refused)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__ or cause.__context__


def _cause_words(cause: BaseException) -> str:
    if not isinstance(cause, OSError):
        return str(cause)
    if cause.errno and str(cause.strerror).startswith("Connect call failed"):  # asyncio's own text
        return os.strerror(cause.errno)
    return cause.strerror or str(cause)
