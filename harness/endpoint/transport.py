"""HTTP to one endpoint: a JSON body out, a JSON body in, and every way in which that can fail told apart.

The only module that imports openai, for its HTTP clients, and only when a Transport is made: the import takes about a
second.
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

from harness.endpoint.address import goes_past_proxies, proxy_of
from harness.endpoint.answers import LONGEST_QUOTE, quote, shorten
from harness.endpoint.bodies import ENCODINGS, Bodies, OutOfBoundsError, RawAnswer, out_of_bounds
from harness.endpoint.retry import TransientError
from harness.errors import EndpointError
from harness.turns import take_turn

# Certificates of https: those of the environment, checked before they are used, and why a server's is not trusted.

_FILE, _DIR = "SSL_CERT_FILE", "SSL_CERT_DIR"
_UNKNOWN = f"it is signed by nobody who is known here: set {_FILE} to a file with the certificate of who signed it"
_CLOCK = "renew it, or look at the clock of this machine"
_WHY = {
    **dict.fromkeys((2, 18, 19, 20, 21, 24, 27), _UNKNOWN),
    9: f"it is not valid yet: {_CLOCK}",
    10: f"it has expired: {_CLOCK}",
    **dict.fromkeys((62, 64), "it is for another host: write the base URL with a name that the certificate has"),
}
"""By OpenSSL's number of what is wrong with a certificate."""


def _certificates(http: Any) -> ssl.SSLContext:
    """What servers' certificates are checked with. Raises EndpointError where what the environment names is no use."""
    file, directory = os.environ.get(_FILE), os.environ.get(_DIR)
    if directory and not file and not Path(directory).is_dir():
        raise EndpointError(f"{_DIR}={directory}: no such directory; mend or unset the variable")
    try:
        return _read_certificates(http, file, directory, Path(file).stat().st_mtime_ns if file else 0)
    except OSError as error:
        words = "no certificates in it" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
        raise EndpointError(f"{_FILE}={file}: {words}; mend or unset the variable") from None


@lru_cache(maxsize=4)
def _read_certificates(http: Any, *_named_by_the_environment: object) -> ssl.SSLContext:
    """Reading them takes 50 ms: once, and again where something else is named, or a file is written anew."""
    context: ssl.SSLContext = http.create_ssl_context()
    return context


def certificate_words(error: ssl.SSLError) -> str:
    """Why TLS failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = _WHY.get(error.verify_code, "look at it with openssl s_client")
        return f"the server's certificate is not trusted ({error.verify_message}): {why}"
    if error.reason == "WRONG_VERSION_NUMBER":
        return "what listens there does not speak TLS: write the base URL with http://"
    return f"TLS failed ({error.reason or error}): look at the server's TLS with openssl s_client"


T = TypeVar("T")

_USER_AGENT = "tbench"
_MOST_REDIRECTS = 5
_JSON = {"Content-Type": "application/json"}
_BROKEN = {
    *("ReadError", "WriteError", "CloseError", "RemoteProtocolError"),  # of httpx and httpx2
    *("ServerDisconnectedError", "ClientPayloadError", "ClientResponseError", "ClientOSError"),  # of aiohttp
}
_UNCONNECTED = {"ConnectError", "ClientConnectorError", "ClientConnectorDNSError", "ClientConnectorSSLError"}


@dataclass(frozen=True)
class _Connections:
    """How connections are kept: as many as there are requests, and none for as long as a server keeps them.

    vLLM closes idle connections after 5 s, as uvicorn does. It looks like the `Limits` of httpx, which is another
    package's from one major version of the SDK to the next.
    """

    max_connections: int = 0
    """aiohttp's word for no limit."""
    max_keepalive_connections: int | None = None
    keepalive_expiry: float = 4.0


class StatusError(Exception):
    """An answer whose HTTP status is no 2xx; `body` is decoded JSON, or text: of a page only its title and headings."""

    def __init__(self, answer: RawAnswer) -> None:
        super().__init__(f"HTTP {answer.status}")
        self.status = answer.status
        self.body = _words_or_json(answer)
        self.is_page = answer.is_page
        """Whether it is a page for people, which no server of models sends, but what stands before it."""
        self.content_type = answer.content_type
        self.server = answer.server
        """What answered, by its header of that name."""
        self.retry_after = answer.retry_after
        """The header of that name."""


class Transport:
    """Connections to one base URL, kept between requests, with the key that each is sent with.

    Raises EndpointError where the environment's proxy or certificates cannot be used.
    """

    def __init__(self, url: str, key: str | None) -> None:
        import aiohttp
        import anyio
        import openai

        http = _library_of(openai.DefaultAsyncHttpxClient)
        self._failures = (http.HTTPError, http.StreamError, aiohttp.ClientError, OSError, anyio.EndOfStream)
        self._bodies = Bodies()
        self.proxy = proxy_of(url)
        self._idle_since: deque[float] = deque()
        """When connections became idle that may be kept: nobody tells which of them a request goes out on."""
        # aiohttp costs half of httpx per request, but it knows no SOCKS, and takes no password in a URL beside a key.
        is_direct = self.proxy is None and urlsplit(url).username is None
        headers = {"Accept": "application/json", "Accept-Encoding": ENCODINGS, "User-Agent": _USER_AGENT}
        if key is not None:
            headers["Authorization"] = f"Bearer {key}"
        if not is_direct and urlsplit(url).scheme != "https":
            # httpx's pool keeps idle connections for 5 s, too: a race when a command takes that long.
            headers["Connection"] = "close"
        kept: dict[str, Any] = {"limits": _Connections()} if is_direct else {}
        make: Any = openai.DefaultAioHttpClient if is_direct else openai.DefaultAsyncHttpxClient
        certificates = _certificates(http)
        try:
            self._client = make(
                base_url=url,
                headers=headers,
                timeout=None,  # bounded from outside, the server's queue included
                follow_redirects=False,  # their bodies would be read whole
                trust_env=not goes_past_proxies(url),
                verify=certificates,
                **kept,
            )
        except (ImportError, ValueError) as error:
            raise EndpointError(f"{self.proxy or 'the proxy of the environment'}: {_proxy_words(error)}") from None

    async def get(self, path: str) -> object:
        """The decoded body of the answer. Raises as `post` does."""
        return await self._exchange("GET", path, None, _decoded)

    async def get_text(self, path: str) -> str:
        """The body of the answer as text. Raises StatusError or TransientError."""
        return await self._exchange("GET", path, None, lambda answer: answer.text)

    async def post(self, path: str, content: bytes) -> object:
        """The decoded body of the answer to an encoded JSON body; `path` is below the base URL, or a URL of its own.

        Raises StatusError for an answer that is no 2xx, TransientError where there is none, or no JSON.
        """
        return await self._exchange("POST", path, content, _decoded)

    async def post_for_answer(self, path: str, body: object) -> RawAnswer:
        """The answer to a JSON body, whatever its status. Raises TransientError where there is none."""
        return await self._exchange("POST", path, encoded(body), lambda answer: answer, refuses=False)

    async def close(self) -> None:
        await self._client.aclose()

    async def _exchange(
        self, method: str, path: str, content: bytes | None, read: Callable[[RawAnswer], T], *, refuses: bool = True
    ) -> T:
        """What is read of the answer to a request, which is sent again at once where the kept connection had been
        closed by then."""
        headers = None if content is None else _JSON
        request = self._client.build_request(method, path, content=content, headers=headers)
        is_kept = self._takes_a_kept_one()
        try:
            return await self._answer_to(request, read, refuses)
        except TransientError as failure:
            if not (is_kept and failure.broke):
                raise
        return await self._answer_to(request, read, refuses)

    def _takes_a_kept_one(self) -> bool:
        """Whether the next request may go out on a connection of an earlier one."""
        kept, now = self._idle_since, time.monotonic()
        while kept and now - kept[0] > _Connections.keepalive_expiry:
            kept.popleft()
        if not kept:
            return False
        kept.pop()
        return True

    async def _answer_to(self, request: Any, read: Callable[[RawAnswer], T], refuses: bool) -> T:
        failure: Exception
        try:
            response = await self._sent(request)
            try:
                async with self._bodies.received(response) as answer:
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
        # Raised outside the handlers: the client's exceptions hold the request with its headers.
        raise failure

    async def _sent(self, request: Any) -> Any:
        """The answer to a request, with its body yet to be read, from where it is redirected to."""
        response = await self._client.send(request, stream=True)
        for _ in range(_MOST_REDIRECTS):
            if response.next_request is None:
                break
            await response.aclose()
            response = await self._client.send(response.next_request, stream=True)
        # Hundreds of answers that come at the same moment are read one after the other: others have a turn between.
        await take_turn()
        return response


def _library_of(client: type) -> Any:
    """The HTTP library of a client class: httpx, or what another version of the SDK has in its place."""
    base = next(each for each in client.__mro__ if each.__name__ == "AsyncClient")
    return sys.modules[base.__module__.partition(".")[0]]


def encoded(body: object) -> bytes:
    """A JSON body as it is sent."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _decoded(answer: RawAnswer) -> object:
    """The decoded body. Raises TransientError."""
    try:
        return answer.json()
    except OutOfBoundsError as error:
        raise out_of_bounds(answer.status, error) from None
    except ValueError:
        what = "a page" if answer.is_page else "a body"
        begins = quote(answer.words[: 2 * LONGEST_QUOTE])
        words = f"HTTP {answer.status} with {what} that is not JSON{': ' if begins else ''}{begins}"
        raise TransientError(words) from None


def _words_or_json(answer: RawAnswer) -> object:
    """What a refusal says."""
    try:
        return answer.json()
    except ValueError:
        return answer.words


def _proxy_words(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "a SOCKS proxy needs a package more: pip install 'httpx[socks]', or unset the variable"
    return f"{shorten(str(error))}; mend or unset the variable"


def _no_connection(error: Exception) -> TransientError:
    causes = list(_causes(error))
    names = {type(cause).__name__ for cause in causes}
    denied = [cause for cause in causes if type(cause).__module__ == "ssl" and isinstance(cause, ssl.SSLError)]
    if denied and names & (_UNCONNECTED | {"SSLCertVerificationError"}):
        return TransientError(f"cannot connect: {certificate_words(denied[-1])}")
    words = quote(next(filter(None, map(_cause_words, reversed(causes))), "no details"))
    if names & _BROKEN:
        return TransientError(f"connection broke: {words}", broke=True)
    refused = any(isinstance(cause, OSError) and cause.errno == errno.ECONNREFUSED for cause in causes)
    what = "cannot connect" if names & _UNCONNECTED else "request failed"
    return TransientError(f"{what}: {words}", refused=refused)


def _causes(error: BaseException) -> Iterator[BaseException]:
    cause: BaseException | None = error
    while cause is not None:
        yield cause
        cause = cause.exceptions[0] if isinstance(cause, BaseExceptionGroup) else cause.__cause__ or cause.__context__


def _cause_words(cause: BaseException) -> str:
    if not isinstance(cause, OSError):
        return str(cause)
    if cause.errno and str(cause.strerror).startswith("Connect call failed"):  # asyncio's way of putting it
        return os.strerror(cause.errno)
    return cause.strerror or str(cause)
