"""HTTP requests of a night: each has one deadline for all of it, also against a server that drips or never answers."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from harness.endpoint.address import goes_past_proxies


class Unanswered(Exception):
    """A request that got no answer in time, or none at all; the message says why in a few words."""


async def status_of(url: str, deadline_sec: float, body: Mapping[str, Any] | None = None) -> int:
    """The HTTP status with which a URL answers: to GET, or to POST of a JSON body. Raises Unanswered.

    Done in a thread that is left behind at the deadline, and ends soon after it where nothing comes at all: no timeout
    of a socket bounds a whole request.
    """
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[int] = loop.create_future()

    def settle(status: int | None, why: str) -> None:
        if answer.done():
            return
        if status is None:
            answer.set_exception(Unanswered(why))
        else:
            answer.set_result(status)

    def ask() -> None:
        status, why = _asked(url, deadline_sec, body)
        with contextlib.suppress(RuntimeError):  # the loop may be closed by now
            loop.call_soon_threadsafe(settle, status, why)

    threading.Thread(target=ask, name="nightly-request", daemon=True).start()
    try:
        return await asyncio.wait_for(answer, deadline_sec)
    except TimeoutError:
        raise Unanswered(f"no answer within {deadline_sec:g} s") from None


def _asked(url: str, deadline_sec: float, body: Mapping[str, Any] | None) -> tuple[int | None, str]:
    data = None if body is None else json.dumps(body).encode()
    handlers = [urllib.request.ProxyHandler({})] if goes_past_proxies(url) else []
    try:
        request = urllib.request.Request(url, data, {} if data is None else {"Content-Type": "application/json"})
        with urllib.request.build_opener(*handlers).open(request, timeout=deadline_sec + 1.0) as response:
            return int(response.status), ""
    except urllib.error.HTTPError as error:
        with error:
            return error.code, ""
    except urllib.error.URLError as error:
        return None, str(error.reason)
    except (http.client.HTTPException, OSError, ValueError) as error:
        return None, str(error) or type(error).__name__


def somebody_listens(url: str) -> bool:
    """Whether anybody takes connections where `url` leads; raises ValueError for no URL."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    try:
        with socket.create_connection((parts.hostname or "", port), timeout=2):
            return True
    except OSError:
        return False


def free_port() -> int:
    """A port of this machine that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
