"""Healthchecks: which failures count, and how long is waited between checks."""

from __future__ import annotations

import asyncio

import pytest

from tbench.errors import TrialError
from tbench.sandbox.backend import ExecResult
from tbench.sandbox.fake import FakeSandbox
from tbench.sandbox.startup import wait_until_healthy
from tbench.tasks.format import Healthcheck

LONG, SHORT = 3600.0, 0.001


async def checks(answers: list[int], **settings: float) -> int:
    """How many checks were made of a sandbox that answers with these exit codes, then with 0."""
    sandbox = FakeSandbox(answers=[ExecResult(code, b"no port") for code in answers])
    async with asyncio.timeout(10):
        await wait_until_healthy(sandbox, Healthcheck.model_validate({"command": "true", **settings}))
    return len(sandbox.calls)


async def test_a_healthy_sandbox_is_asked_once() -> None:
    assert await checks([]) == 1


async def test_checks_of_the_start_period_follow_each_other_by_its_interval_and_are_not_counted() -> None:
    settings = {"start_period_sec": LONG, "start_interval_sec": SHORT, "interval_sec": LONG, "retries": 1}
    assert await checks([1] * 5, **settings) == 6


async def test_later_checks_follow_each_other_by_the_other_interval() -> None:
    assert await checks([1, 1], start_interval_sec=LONG, interval_sec=SHORT, retries=3) == 3


async def test_failures_after_the_start_period_are_counted() -> None:
    settings = {"start_period_sec": 0.05, "start_interval_sec": 0.06, "interval_sec": SHORT, "retries": 2}
    with pytest.raises(TrialError, match="failed 2 times: no port") as caught:
        await checks([1] * 9, **settings)
    assert caught.value.type == "healthcheck_failed"


async def test_a_check_that_takes_too_long_has_failed() -> None:
    sandbox = FakeSandbox(answers=[ExecResult(0, timed_out=True)])
    with pytest.raises(TrialError, match="failed 1 times"):
        await wait_until_healthy(sandbox, Healthcheck(command="true", retries=1))


async def test_a_check_runs_as_the_images_user_in_the_working_directory() -> None:
    sandbox = FakeSandbox(workdir="/some where")
    await wait_until_healthy(sandbox, Healthcheck(command="test -e 'a b'", timeout_sec=1.9))
    (call,) = sandbox.calls
    assert (call.user, call.timeout_sec) == (None, 1)
    assert call.script.startswith("cd '/some where' ")


async def test_a_check_that_says_nothing_has_failed_all_the_same() -> None:
    sandbox = FakeSandbox(answers=[ExecResult(1)])
    with pytest.raises(TrialError, match="'false' failed 1 times: exit code 1, no output"):
        await wait_until_healthy(sandbox, Healthcheck(command="false", retries=1))
