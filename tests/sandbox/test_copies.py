"""Copies that are started before it is known what they will hold."""

from __future__ import annotations

import asyncio
from collections.abc import Collection

import pytest

from tbench.errors import TrialError
from tbench.sandbox.archive import FileEntry
from tbench.sandbox.backend import Sandbox, background_copy
from tbench.sandbox.fake import FakeSandbox


class Slow(FakeSandbox):
    """Starts a copy as told, and counts those that are there."""

    def __init__(self, fails: str = "") -> None:
        super().__init__()
        self.files = {"/app/done": FileEntry(b"1"), "/app/other": FileEntry(b"2")}
        self.fails = fails
        self.let_start = asyncio.Event()

    async def start_copy(self, *, is_apart: bool = False) -> FakeSandbox:
        made = await self.make_fresh()
        try:
            await self.let_start.wait()
            if self.fails == "start":
                raise TrialError("sandbox_failed", "no room")
        except BaseException:
            await made.remove()
            raise
        return made

    async def copy_into(self, copy: Sandbox, paths: Collection[str], removed: Collection[str]) -> None:
        if self.fails == "copy_into":
            raise TrialError("verifier_failed", "not all of it came")
        await super().copy_into(copy, paths, removed)

    @property
    def left(self) -> list[FakeSandbox]:
        return [copy for copy in self.copies if not copy.removed]


async def test_a_copy_starts_meanwhile_and_belongs_to_whoever_fills_it() -> None:
    sandbox = Slow()
    async with background_copy(sandbox) as fill:
        await asyncio.sleep(0)
        assert len(sandbox.copies) == 1
        sandbox.let_start.set()
        copy = await fill(["/app/done"], [])
        another = await fill(["/app/other"], [])
    assert sandbox.left == [copy, another]
    assert [list(each.files) for each in sandbox.copies] == [["/app/done"], ["/app/other"]]


@pytest.mark.parametrize("starts", [True, False])
async def test_a_copy_that_no_one_fills_is_removed(starts: bool) -> None:
    sandbox = Slow()
    async with background_copy(sandbox):
        await asyncio.sleep(0)
        if starts:
            sandbox.let_start.set()
            await asyncio.sleep(0)
    assert (len(sandbox.copies), sandbox.left) == (1, [])


@pytest.mark.parametrize("fails", ["start", "copy_into"])
async def test_what_fails_is_reported_where_the_copy_is_wanted_and_leaves_nothing(fails: str) -> None:
    sandbox = Slow(fails)
    sandbox.let_start.set()
    async with background_copy(sandbox) as fill:
        with pytest.raises(TrialError):
            await fill([], [])
    async with background_copy(sandbox):  # not wanted
        await asyncio.sleep(0)
    assert (len(sandbox.copies), sandbox.left) == (2, [])


@pytest.mark.parametrize("starts", [True, False])
async def test_whoever_is_cancelled_leaves_no_copy(starts: bool) -> None:
    sandbox = Slow()
    if starts:
        sandbox.let_start.set()

    async def judging() -> None:
        async with background_copy(sandbox) as fill:
            if not starts:
                await fill([], [])
            await asyncio.Event().wait()

    task = asyncio.create_task(judging())
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (len(sandbox.copies), sandbox.left) == (1, [])
