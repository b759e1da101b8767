"""Copies of a sandbox: each may be started before it is needed, and is removed in the background."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection
from types import TracebackType
from typing import Self

from harness.concurrency import wait_until_ended
from tbench.sandbox.backend import Copies, Sandbox


class SpareCopies:
    """Provides copies of one sandbox, and has at most one spare: a copy that is started but not filled yet."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._spare: asyncio.Task[Sandbox] | None = None
        self._is_spare_apart = False
        self._removals: set[asyncio.Task[None]] = set()

    def prepare(self, *, is_apart: bool = True) -> None:
        """Start a spare in the background, if there is none yet and the sandbox can have one of this kind.

        `is_apart` as in `Copies.start_copy`.
        """
        sandbox = self.sandbox
        if self._spare is None and isinstance(sandbox, Copies) and (sandbox.can_be_apart() or not is_apart):
            self._spare, self._is_spare_apart = asyncio.create_task(sandbox.start_copy(is_apart=is_apart)), is_apart

    @contextlib.asynccontextmanager
    async def filled(
        self, paths: Collection[str], removed: Collection[str], *, is_apart: bool
    ) -> AsyncIterator[Sandbox]:
        """Provide a copy with these files, as by `Copies.copy_into`, for the block. Raises TrialError.

        Afterwards the copy is removed in the background; on a shared network its removal is awaited, since a server in
        it could answer the tests of the next container there.
        """
        sandbox = self.sandbox
        assert isinstance(sandbox, Copies)
        starting, self._spare = (self._spare, None) if self._is_spare_apart is is_apart else (None, self._spare)
        starting = starting or asyncio.create_task(sandbox.start_copy(is_apart=is_apart))
        try:
            await sandbox.copy_into(starting, paths, removed)
            yield await asyncio.shield(starting)
        finally:
            removing = self._remove(starting)
            if not is_apart:
                await asyncio.shield(removing)

    def _remove(self, starting: asyncio.Task[Sandbox]) -> asyncio.Task[None]:
        """Remove in the background a copy that has started, or is starting."""
        removing = asyncio.create_task(_discard(starting))
        self._removals.add(removing)
        removing.add_done_callback(self._removals.discard)
        return removing

    async def close(self) -> None:
        """Remove the spare, and wait for all removals. Never raises."""
        if self._spare is not None:
            self._remove(self._spare)
            self._spare = None
        if self._removals:
            await asyncio.wait(self._removals)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await wait_until_ended(asyncio.ensure_future(self.close()))


async def _discard(starting: asyncio.Task[Sandbox]) -> None:
    if not starting.done():
        starting.cancel()
        await asyncio.wait([starting])
    if not starting.cancelled() and starting.exception() is None:
        await starting.result().remove()
