"""HTTP requests to others than models: one deadline and one bound for each answer, and one line for every failure."""

from __future__ import annotations

import contextlib
import os
import ssl
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any
from urllib.parse import urlsplit

from harness.endpoint.address import is_loopback as is_loopback
from harness.endpoint.address import proxy_of
from tbench.threads import THREADS

MOST_BYTES = 64 << 20
"""Harbor's registry of 80 datasets is 9 MB: it lists every task."""
_MOST_REDIRECTS = 10
_HEADERS = {"User-Agent": "tbench", "Accept": "*/*", "Accept-Encoding": "identity"}
"""Not packed: a bound on what comes is a bound on what is kept."""


class Unanswered(Exception):
    """A request without a whole answer; the message says why in a few words, without URL, header or body."""


@dataclass(frozen=True)
class WebAnswer:
    """The answer to a request, whatever its status."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """By their names, in small letters or in capitals."""
    body: bytes


@dataclass(frozen=True)
class WebRequest:
    """A request over HTTP: through the environment's proxies but to this machine, and to where it is redirected.

    It is made in a thread, which is left behind at the deadline: no timeout of a socket bounds a whole answer.
    """

    url: str = field(repr=False)
    deadline_sec: float
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password."""
    most_bytes: int = MOST_BYTES
    """The largest body; 0 leaves the body unread."""
    silence_sec: float = float("inf")
    """Longest time in which nothing comes."""

    def answer(self) -> WebAnswer:
        """Wait for the answer. Raises Unanswered."""
        try:
            return THREADS.submit(self._exchange, _library()).result(self.deadline_sec)
        except TimeoutError:
            raise self._late() from None

    def _late(self) -> Unanswered:
        return Unanswered(f"no whole answer within {self.deadline_sec:g} s")

    def _exchange(self, http: Any) -> WebAnswer:
        silence_sec = min(self.silence_sec, self.deadline_sec + 1.0)
        try:
            return self._redirected(http, silence_sec)
        except http.TimeoutException:
            failure = Unanswered(f"nothing came for {silence_sec:g} s")
        except (http.ConnectError, http.ProxyError) as error:
            failure = Unanswered(f"cannot be reached: {error}")
        except (http.RemoteProtocolError, http.NetworkError) as error:
            failure = Unanswered(f"no usable answer: {error or type(error).__name__}")
        except ImportError:
            failure = Unanswered("the environment names a SOCKS proxy, which needs one more package, socksio")
        except (http.HTTPError, http.InvalidURL, ValueError) as error:
            # Without its words: they may quote the URL or a header.
            failure = Unanswered(f"it cannot be sent ({type(error).__name__})")
        raise failure  # outside the handlers: the library's exceptions hold the request with its headers

    def _redirected(self, http: Any, silence_sec: float) -> WebAnswer:
        ends_at = time.monotonic() + self.deadline_sec
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise Unanswered("it is no http or https URL")
        request = http.Request(self.method, self.url, headers=_HEADERS | {**self.headers}, content=self.body)
        login = self.login
        for _ in range(_MOST_REDIRECTS + 1):
            client = http.Client(
                timeout=silence_sec, trust_env=False, verify=_certificates(), proxy=_proxy(str(request.url))
            )
            with client:
                response = client.send(request, stream=True, auth=login or http.USE_CLIENT_DEFAULT)
                with contextlib.closing(response):
                    if response.next_request is None:
                        return self._read(response, ends_at)
                    request, login = response.next_request, None
        raise Unanswered(f"redirected more than {_MOST_REDIRECTS} times")

    def _read(self, response: Any, ends_at: float) -> WebAnswer:
        body = bytearray()
        for piece in response.iter_raw() if self.most_bytes else ():
            body += piece
            if len(body) > self.most_bytes:
                raise Unanswered(f"more than {self.most_bytes >> 20} MB")
            if time.monotonic() > ends_at:
                raise self._late()
        return WebAnswer(response.status_code, response.reason_phrase, response.headers, bytes(body))


@cache
def _library() -> Any:
    """httpx, or what the installed version of the openai SDK brings in its place."""
    return import_module(next((name for name in ("httpx2", "httpx") if find_spec(name)), "httpx"))


@cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()


def _proxy(url: str) -> str | None:
    """The proxy for a URL, with its password."""
    if (named := proxy_of(url)) is None:
        return None
    proxy = os.environ.get(named.variable, named.url)
    return proxy if "://" in proxy else f"http://{proxy}"
