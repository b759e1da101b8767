"""HTTP to one endpoint: a JSON body out, a JSON body in, and every way in which that can fail told apart.

The only module that imports openai, and only when a Transport is made: the import takes about a second.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from harness.endpoint.address import goes_past_proxies, proxy_of
from harness.endpoint.answers import shorten
from harness.endpoint.retry import TransientError
from harness.errors import EndpointError
from harness.turns import take_turn

_PLACEHOLDER_KEY = "none"  # the SDK demands a key, local servers ignore it
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
    """An answer whose HTTP status is no 2xx; `body` is decoded as far as it can be."""

    def __init__(self, status: int, body: object, retry_after: str | None) -> None:
        super().__init__(f"HTTP {status}")
        self.status = status
        self.body = body
        self.retry_after = retry_after
        """The header of that name."""


class Transport:
    """Connections to one base URL, kept between requests, with the key that each is sent with.

    Raises EndpointError where the environment's proxy cannot be used.
    """

    def __init__(self, url: str, key: str | None) -> None:
        import aiohttp
        import openai

        self._sdk = openai
        self._failures = (openai.APIConnectionError, aiohttp.ClientError)
        self.proxy = proxy_of(url)
        self._idle_since: deque[float] = deque()
        """When connections became idle that may be kept: the SDK does not tell which of them a request goes out on."""
        # aiohttp costs half of httpx per request, but it knows no SOCKS, and takes no password in a URL beside a key.
        is_direct = self.proxy is None and urlsplit(url).username is None
        try:
            self._client = openai.AsyncOpenAI(
                base_url=url,
                api_key=key or _PLACEHOLDER_KEY,
                timeout=None,  # bounded from outside, the server's queue included
                max_retries=0,
                http_client=self._http_client(url, is_direct),
                # httpx's pool keeps idle connections for 5 s, too: a race when a command takes that long.
                default_headers=None if is_direct or urlsplit(url).scheme == "https" else {"Connection": "close"},
            )
        except (ImportError, ValueError) as error:
            raise EndpointError(f"{self.proxy or 'the proxy of the environment'}: {_proxy_words(error)}") from None

    def _http_client(self, url: str, is_direct: bool) -> Any:
        if not is_direct:
            return self._sdk.DefaultAsyncHttpxClient(trust_env=not goes_past_proxies(url))
        # The environment's proxies are not for this machine; its certificates are for all others.
        kept: Any = _Connections()
        hooks = {"response": [_in_turn]}
        return self._sdk.DefaultAioHttpClient(limits=kept, trust_env=not goes_past_proxies(url), event_hooks=hooks)

    async def get(self, path: str) -> object:
        """The decoded body of the answer. Raises as `post` does."""
        return await self._answer(lambda: self._client.get(path, cast_to=object))

    async def post(self, path: str, body: object) -> object:
        """The decoded body of the answer to a JSON body; `path` is below the base URL, or a URL of its own.

        Raises StatusError for an answer that is no 2xx, TransientError where there is none, or no JSON.
        """
        # As bytes: the SDK walks through a body of its own making several times, which costs more than all the rest.
        content = json.dumps(body, ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()
        return await self._answer(
            lambda: self._client.post(path, cast_to=object, content=content, options={"headers": _JSON})
        )

    async def close(self) -> None:
        await self._client.close()

    async def _answer(self, send: Callable[[], Awaitable[Any]]) -> object:
        """The answer to a request, which is sent again at once where the kept connection had been closed by then."""
        is_kept = self._takes_a_kept_one()
        try:
            return await self._answer_to(send())
        except TransientError as failure:
            if not (is_kept and failure.broke):
                raise
        return await self._answer_to(send())

    def _takes_a_kept_one(self) -> bool:
        """Whether the next request may go out on a connection of an earlier one."""
        kept, now = self._idle_since, time.monotonic()
        while kept and now - kept[0] > _Connections.keepalive_expiry:
            kept.popleft()
        if not kept:
            return False
        kept.pop()
        return True

    async def _answer_to(self, sent: Awaitable[Any]) -> object:
        failure: Exception
        try:
            answer = _decoded(await sent)
        except self._sdk.APIStatusError as error:
            failure = StatusError(error.status_code, error.body, error.response.headers.get("retry-after"))
        except self._failures as error:
            failure = _no_connection(error)
        except (json.JSONDecodeError, UnicodeDecodeError):
            failure = TransientError("HTTP 200 with a body that is not JSON")
        else:
            self._idle_since.append(time.monotonic())
            return answer
        # Raised outside the handlers: the SDK's exceptions hold the request with its headers.
        raise failure


async def _in_turn(_: object) -> None:
    """Let hundreds of answers that come at the same moment be read one after the other: others have a turn between."""
    await take_turn()


def _decoded(answer: object) -> object:
    """The decoded body, for which the SDK gives raw text where the content type is not JSON."""
    if not isinstance(answer, str):
        return answer
    try:
        return json.loads(answer)
    except json.JSONDecodeError:
        return answer


def _proxy_words(error: Exception) -> str:
    if isinstance(error, ImportError):
        return "a SOCKS proxy needs a package more: pip install 'httpx[socks]', or unset the variable"
    return f"{shorten(str(error))}; mend or unset the variable"


def _no_connection(error: Exception) -> TransientError:
    causes = [each for each in _causes(error) if not type(each).__module__.startswith("openai")]
    names = {type(cause).__name__ for cause in causes}
    words = next(filter(None, map(_cause_words, reversed(causes))), "no details")
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
