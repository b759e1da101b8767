"""HTTP requests to anything but models, with a deadline, a size limit and one-line errors."""

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
from harness.endpoint.address import proxy_for
from tbench.threads import THREADS

MAX_BYTES = 64 << 20
"""Size limit of an answer in bytes. Harbor's registry of 80 datasets has 9 MB."""
_MAX_REDIRECTS = 10
_HEADERS = {"User-Agent": "tbench", "Accept": "*/*", "Accept-Encoding": "identity"}
"""Uncompressed, so that a limit on the received bytes also limits the memory."""


class Unanswered(Exception):
    """A request got no complete answer. The message has the reason, without URL, headers or body."""


@dataclass(frozen=True)
class WebAnswer:
    """The answer to a request, whatever its status."""

    status: int
    reason: str
    headers: Mapping[str, str]
    """Headers by name, case-insensitive."""
    body: bytes


@dataclass(frozen=True)
class WebRequest:
    """An HTTP request. It follows redirects and uses the environment's proxies, except for this machine.

    It runs in a thread that is abandoned at the deadline, because socket timeouts do not limit the whole answer.
    """

    url: str = field(repr=False)
    deadline_sec: float
    method: str = "GET"
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    body: bytes | None = field(default=None, repr=False)
    login: tuple[str, str] | None = field(default=None, repr=False)
    """User and password."""
    most_bytes: int = MAX_BYTES
    """Maximum size of the body in bytes; 0 leaves the body unread."""
    silence_sec: float = float("inf")
    """Maximum seconds without receiving data."""

    def answer(self) -> WebAnswer:
        """Wait for the answer. Raises Unanswered."""
        try:
            return THREADS.submit(self._exchange, _library()).result(self.deadline_sec)
        except TimeoutError:
            raise self._deadline_passed() from None

    def _deadline_passed(self) -> Unanswered:
        return Unanswered(f"no complete answer within {self.deadline_sec:g} s")

    def _exchange(self, http: Any) -> WebAnswer:
        silence_sec = min(self.silence_sec, self.deadline_sec + 1.0)
        try:
            return self._follow_redirect(http, silence_sec)
        except http.TimeoutException:
            failure = Unanswered(f"no data for {silence_sec:g} s")
        except (http.ConnectError, http.ProxyError) as error:
            failure = Unanswered(f"cannot be reached: {error}")
        except (http.RemoteProtocolError, http.NetworkError) as error:
            failure = Unanswered(f"no usable answer: {error or type(error).__name__}")
        except ImportError:
            failure = Unanswered("the environment sets a SOCKS proxy; install the package socksio to use it")
        except (http.HTTPError, http.InvalidURL, ValueError) as error:
            # Without the error's message, which may quote the URL or a header.
            failure = Unanswered(f"it cannot be sent ({type(error).__name__})")
        raise failure  # outside the handlers, because the library's exceptions contain the request with its headers

    def _follow_redirect(self, http: Any, silence_sec: float) -> WebAnswer:
        ends_at = time.monotonic() + self.deadline_sec
        if urlsplit(self.url).scheme not in ("http", "https"):
            raise Unanswered("not an http or https URL")
        request = http.Request(self.method, self.url, headers=_HEADERS | {**self.headers}, content=self.body)
        login = self.login
        for _ in range(_MAX_REDIRECTS + 1):
            client = http.Client(
                timeout=silence_sec, trust_env=False, verify=_certificates(), proxy=_proxy(str(request.url))
            )
            with client:
                response = client.send(request, stream=True, auth=login or http.USE_CLIENT_DEFAULT)
                with contextlib.closing(response):
                    if response.next_request is None:
                        return self._read(response, ends_at)
                    request, login = response.next_request, None
        raise Unanswered(f"redirected more than {_MAX_REDIRECTS} times")

    def _read(self, response: Any, ends_at: float) -> WebAnswer:
        body = bytearray()
        for piece in response.iter_raw() if self.most_bytes else ():
            body += piece
            if len(body) > self.most_bytes:
                raise Unanswered(f"more than {self.most_bytes >> 20} MB")
            if time.monotonic() > ends_at:
                raise self._deadline_passed()
        return WebAnswer(response.status_code, response.reason_phrase, response.headers, bytes(body))


@cache
def _library() -> Any:
    """Return httpx, or the replacement that the installed version of the openai SDK brings."""
    return import_module(next((name for name in ("httpx2", "httpx") if find_spec(name)), "httpx"))


@cache
def _certificates() -> ssl.SSLContext:
    return ssl.create_default_context()


def _proxy(url: str) -> str | None:
    """Return the proxy for a URL, including its password."""
    if (named := proxy_for(url)) is None:
        return None
    proxy = os.environ.get(named.variable, named.url)
    return proxy if "://" in proxy else f"http://{proxy}"
