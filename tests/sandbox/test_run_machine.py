"""A machine under trials: what ends them when it is lost, and what counts as its failure."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tbench.errors import TrialError
from tbench.results import ErrorInfo
from tbench.sandbox.fake import FakeBackend
from tbench.sandbox.run_machine import RunMachine

Work = Callable[[], Awaitable[object]]


async def for_ever() -> None:
    await asyncio.Event().wait()


class Hosted:
    """Work on a machine, which has begun."""

    def __init__(self, node: RunMachine, work: Work) -> None:
        self.error: TrialError | None = None
        self._node, self._work = node, work
        self.task = asyncio.create_task(self._run())

    async def _run(self) -> str:
        try:
            with self._node.hosting():
                await self._work()
        except TrialError as error:
            self.error = error
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0
        # What comes after it is not ended.
        await asyncio.sleep(0)
        return "went on"


@pytest.fixture
def node() -> RunMachine:
    return RunMachine("a", FakeBackend())


async def hosted(node: RunMachine, work: Work = for_ever) -> Hosted:
    made = Hosted(node, work)
    await asyncio.sleep(0)
    return made


async def test_what_is_on_a_lost_machine_ends_with_its_name_and_goes_on_after_that(node: RunMachine) -> None:
    one, other = await hosted(node), await hosted(node)
    assert node.lose("unplugged") == 2
    assert await asyncio.gather(one.task, other.task) == ["went on"] * 2
    assert one.error is not None
    assert (one.error.type, str(one.error)) == ("engine_unreachable", "a: unplugged")


async def test_nothing_begins_on_a_lost_machine_until_it_is_back(node: RunMachine) -> None:
    node.lose("unplugged")
    early = await hosted(node, lambda: asyncio.sleep(0))
    assert await early.task == "went on" and str(early.error) == "a: unplugged"
    node.come_back()
    later = await hosted(node, lambda: asyncio.sleep(0))
    assert await later.task == "went on" and later.error is None


async def test_a_machine_that_is_lost_twice_ends_a_trial_once(node: RunMachine) -> None:
    one = await hosted(node)
    assert (node.lose("unplugged"), node.lose("again")) == (1, 0)
    assert await one.task == "went on" and str(one.error) == "a: unplugged"


async def test_what_is_cancelled_as_well_is_cancelled(node: RunMachine) -> None:
    one, other = await hosted(node), await hosted(node)
    node.lose("unplugged")
    one.task.cancel()
    other.task.cancel()
    done = await asyncio.gather(one.task, other.task, return_exceptions=True)
    assert [type(each) for each in done] == [asyncio.CancelledError] * 2


async def swallows() -> None:
    try:
        await for_ever()
    except asyncio.CancelledError:
        return


async def fails_on_its_way_out() -> None:
    try:
        await for_ever()
    finally:
        raise TrialError("verifier_no_reward", "nothing could be read")


@pytest.mark.parametrize("work", [swallows, fails_on_its_way_out])
async def test_what_ends_in_another_way_is_lost_all_the_same(node: RunMachine, work: Work) -> None:
    one = await hosted(node, work)
    node.lose("unplugged")
    assert await one.task == "went on"
    assert one.error is not None and one.error.type == "engine_unreachable"


async def test_a_deadline_within_still_works(node: RunMachine) -> None:
    async def times_out() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await for_ever()
        await for_ever()

    one = await hosted(node, times_out)
    await asyncio.sleep(0.05)
    assert not one.task.done()
    node.lose("unplugged")
    assert await one.task == "went on" and one.error is not None


def test_failures_in_a_row_are_counted_and_told(node: RunMachine) -> None:
    told: list[str] = []
    node.on_failure = told.append
    for type_ in ("sandbox_failed", "image_no_space"):
        node.record_attempt(ErrorInfo.of(TrialError(type_, "full")))
    assert (node.failures, told) == (2, ["sandbox_failed: full", "image_no_space: full"])
    # These say nothing about the machine.
    for type_ in ("image_build_failed", "task_invalid", "healthcheck_failed"):
        node.record_attempt(ErrorInfo.of(TrialError(type_, "so it is")))
    assert node.failures == 2
    node.record_attempt(ErrorInfo.of(TrialError("verifier_timeout", "slow")))
    assert node.failures == 0
