"""Posts a night's news to a webhook, within bounds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from tbench.text import one_line
from tbench.threads import in_thread
from tbench.web import Unanswered, WebRequest

ATTEMPTS = 3


class _RejectedNews(Exception):
    """A status that another attempt will not change."""


async def post(
    url: str, variable: str, news: Mapping[str, Any], deadline_sec: float, *, first_wait_sec: float = 1.0
) -> str:
    """Post the news as JSON; gives why that did not work, or nothing. Never raises.

    The URL is a secret: what is said names its variable and its host.
    """
    if not url.strip():
        return f"{variable} is not set, so nothing is posted"
    host = urlsplit(url).hostname or "its URL"
    tries = AsyncRetrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=first_wait_sec, max=10),
        retry=retry_if_exception_type(Unanswered),
        reraise=True,
    )
    try:
        async for attempt in tries:
            with attempt:
                await _once(url, news, deadline_sec)
    except (Unanswered, _RejectedNews) as why:
        return f"webhook of {variable} at {host}: {one_line(str(why), 200)}"
    return ""


async def _once(url: str, news: Mapping[str, Any], deadline_sec: float) -> None:
    body, headers = json.dumps(news).encode(), {"Content-Type": "application/json"}
    request = WebRequest(url, deadline_sec, method="POST", headers=headers, body=body, most_bytes=0)
    status = (await in_thread(request.answer)).status
    if status >= 500 or status == 429:
        raise Unanswered(f"HTTP {status}, {ATTEMPTS} times")
    if not 200 <= status < 300:
        raise _RejectedNews(f"HTTP {status}")
