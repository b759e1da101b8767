"""Reads a small file over HTTP, with a bound on its size and on the time."""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request

from harness.endpoint.address import goes_past_proxies, proxy_of
from tbench.datasets.reference import without_login
from tbench.errors import UsageError

MOST_BYTES = 64 << 20
"""Harbor's registry of 80 datasets is 9 MB: it lists every task."""
DEADLINE_SEC = 60.0
_SILENCE_SEC = 20.0
_PIECE_BYTES = 1 << 16


def get(url: str, deadline_sec: float = DEADLINE_SEC) -> bytes:
    """The content at an http or https URL. Raises UsageError, naming the URL and the proxy that was used."""
    shown, proxy = without_login(url), proxy_of(url)
    where = f"{shown} through {proxy}" if proxy else shown
    handlers = [urllib.request.ProxyHandler({})] if goes_past_proxies(url) else []
    ends_at = time.monotonic() + deadline_sec
    try:
        with urllib.request.build_opener(*handlers).open(url, timeout=min(_SILENCE_SEC, deadline_sec)) as response:
            return _read(response, ends_at, where, deadline_sec)
    except urllib.error.HTTPError as error:
        with error:
            raise UsageError(f"{where}: HTTP {error.code} ({error.reason}); check the URL") from None
    except TimeoutError:
        raise UsageError(f"{where}: nothing came for {_SILENCE_SEC:g} s; try again, or give a file") from None
    except urllib.error.URLError as error:
        why = "no answer in time" if isinstance(error.reason, TimeoutError) else error.reason
        raise UsageError(f"{where}: cannot be reached: {why}; check the URL and the network") from None
    except (http.client.HTTPException, OSError, ValueError) as error:
        raise UsageError(f"{where}: no usable answer: {error or type(error).__name__}; check the URL") from None


def _read(response: http.client.HTTPResponse, ends_at: float, where: str, deadline_sec: float) -> bytes:
    content = bytearray()
    while piece := response.read1(_PIECE_BYTES):
        content += piece
        if len(content) > MOST_BYTES:
            raise UsageError(f"{where}: more than {MOST_BYTES >> 20} MB, so it is no registry; check the URL")
        if time.monotonic() > ends_at:
            raise UsageError(f"{where}: not over after {deadline_sec:g} s; try again, or give a file")
    if response.length:  # what was announced and did not come
        raise UsageError(f"{where}: broke off after {len(content):,} bytes; try again")
    return bytes(content)
