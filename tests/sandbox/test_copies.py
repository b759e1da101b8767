"""Copies that are started before it is known what they will hold."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from tbench.errors import TrialError
from tbench.sandbox.archive import FileEntry
from tbench.sandbox.copies import SpareCopies
from tbench.sandbox.fake import FakeSandbox


class Slow(FakeSandbox):
    """Starts a copy as told, and counts those that are there."""

    def __init__(self, fails: str = "") -> None:
        super().__init__()
        self.files = {"/app/done": FileEntry(b"1"), "/app/other": FileEntry(b"2")}
        self.fails = fails
        self.let_start = asyncio.Event()
        self.kinds: list[bool] = []
        """Whether each copy was to be apart."""

    async def start_copy(self, *, is_apart: bool = False) -> FakeSandbox:
        self.kinds.append(is_apart)
        made = await self.make_fresh()
        try:
            await self.let_start.wait()
            if self.fails == "start":
                raise TrialError("sandbox_failed", "no room")
        except BaseException:
            await made.remove()
            raise
        return made

    async def copy_into(self, starting: asyncio.Future[Any], paths: Collection[str], removed: Collection[str]) -> None:
        if self.fails == "copy_into":
            raise TrialError("verifier_failed", "not all of it came")
        await super().copy_into(starting, paths, removed)

    @property
    def left(self) -> list[FakeSandbox]:
        return [copy for copy in self.copies if not copy.removed]


async def test_a_spare_starts_meanwhile_and_is_the_first_copy_that_is_filled() -> None:
    sandbox = Slow()
    async with SpareCopies(sandbox) as copies:
        copies.prepare()
        copies.prepare()
        await asyncio.sleep(0)
        assert len(sandbox.copies) == 1
        sandbox.let_start.set()
        async with (
            copies.filled(["/app/done"], [], is_apart=True) as first,
            copies.filled(["/app/other"], [], is_apart=True) as second,
        ):
            assert sandbox.left == [first, second]
    assert [list(each.files) for each in sandbox.copies] == [["/app/done"], ["/app/other"]]
    assert sandbox.left == []


async def test_a_spare_of_another_kind_is_not_used() -> None:
    sandbox = Slow()
    sandbox.let_start.set()
    async with SpareCopies(sandbox) as copies:
        copies.prepare(is_apart=True)
        async with copies.filled([], [], is_apart=False):
            assert sandbox.kinds == [True, False]
    assert sandbox.left == []


@pytest.mark.parametrize("starts", [True, False])
async def test_a_spare_that_no_one_fills_is_removed(starts: bool) -> None:
    sandbox = Slow()
    async with SpareCopies(sandbox) as copies:
        copies.prepare()
        await asyncio.sleep(0)
        if starts:
            sandbox.let_start.set()
            await asyncio.sleep(0)
    assert (len(sandbox.copies), sandbox.left) == (1, [])


async def test_a_sandbox_that_has_no_copies_apart_gets_no_such_spare() -> None:
    sandbox = Slow()
    sandbox.can_be_apart = lambda: False  # type: ignore[method-assign]
    async with SpareCopies(sandbox) as copies:
        copies.prepare()
        await asyncio.sleep(0)
        assert sandbox.copies == []
        copies.prepare(is_apart=False)
        await asyncio.sleep(0)
        assert len(sandbox.copies) == 1


@pytest.mark.parametrize("fails", ["start", "copy_into"])
async def test_what_fails_is_reported_where_the_copy_is_wanted_and_leaves_nothing(fails: str) -> None:
    sandbox = Slow(fails)
    sandbox.let_start.set()
    async with SpareCopies(sandbox) as copies:
        with pytest.raises(TrialError):
            async with copies.filled([], [], is_apart=True):
                pass
    async with SpareCopies(sandbox) as copies:  # not wanted
        copies.prepare()
        await asyncio.sleep(0)
    assert (len(sandbox.copies), sandbox.left) == (2, [])


async def test_a_spare_that_could_not_be_started_is_used_once() -> None:
    sandbox = Slow("start")
    sandbox.let_start.set()
    async with SpareCopies(sandbox) as copies:
        copies.prepare()
        with pytest.raises(TrialError):
            async with copies.filled([], [], is_apart=True):
                pass
        sandbox.fails = ""
        async with copies.filled(["/app/done"], [], is_apart=True) as copy:
            assert sandbox.left == [copy]
    assert (len(sandbox.copies), sandbox.left) == (2, [])


@pytest.mark.parametrize("is_apart", [True, False])
async def test_its_removal_is_awaited_at_once_only_on_a_shared_network(is_apart: bool) -> None:
    sandbox = Slow()
    sandbox.let_start.set()
    async with SpareCopies(sandbox) as copies:
        async with copies.filled([], [], is_apart=is_apart) as copy:
            pass
        assert (sandbox.left == []) is not is_apart
    assert sandbox.left == [] and copy is sandbox.copies[0]


@pytest.mark.parametrize("starts", [True, False])
async def test_whoever_is_cancelled_leaves_no_copy(starts: bool) -> None:
    sandbox = Slow()
    if starts:
        sandbox.let_start.set()

    async def judging() -> None:
        async with SpareCopies(sandbox) as copies:
            copies.prepare()
            async with copies.filled([], [], is_apart=True):
                await asyncio.Event().wait()

    task = asyncio.create_task(judging())
    for _ in range(5):
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert (len(sandbox.copies), sandbox.left) == (1, [])
