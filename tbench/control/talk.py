"""A longer talk with a run under way: several requests on one connection, without blocking anybody."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path
from typing import Self

from pydantic import ValidationError

from tbench.control.client import MOST_BYTES, told_as_usage
from tbench.control.server import short_path
from tbench.control.wire import Answer, Request, as_line
from tbench.errors import UsageError

_ANSWER_SEC = 1200.0
"""Longest time for an answer: a model may be asked before it."""
_CONNECT_SEC = 10.0


class TalkOver(UsageError):
    """Raised where the run has ended, or has closed the connection."""


class Talk:
    """One client's connection to a run, an asynchronous context manager; its requests are answered in order."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._turn = asyncio.Lock()

    async def __aenter__(self) -> Self:
        """Connect. Raises UsageError where no run is under way in the directory."""
        with told_as_usage(self._directory), short_path(self._directory) as path:
            async with asyncio.timeout(_CONNECT_SEC):
                self._reader, self._writer = await asyncio.open_unix_connection(path, limit=MOST_BYTES)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def ask(self, request: Request) -> Answer:
        """Send a request and wait for its answer. Raises UsageError where the run says no, TalkOver at the end.

        Who is cancelled meanwhile must not ask again on this connection.
        """
        async with self._turn, asyncio.timeout(_ANSWER_SEC):
            try:
                self._writer.write(as_line(request))
                await self._writer.drain()
            except OSError:
                raise self._over("the run has ended") from None
            return await self.next()

    async def next(self) -> Answer:
        """The next answer, where a request has several. Raises as `ask` does."""
        try:
            line = await self._reader.readline()
        except ValueError:
            raise self._over("an answer is longer than any should be") from None
        except OSError:
            line = b""
        if not line:
            raise self._over("the run has ended")
        try:
            answer = Answer.model_validate_json(line)
        except ValidationError:
            raise self._over("the run answers in words of another version") from None
        if not answer.ok:
            raise UsageError(answer.words)
        return answer

    def _over(self, why: str) -> TalkOver:
        return TalkOver(f"{self._directory}: {why}")
