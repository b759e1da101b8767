"""Looks whether this machine, its engine and the endpoint can carry a run, and says what to do where they cannot.

Every check is bounded and on its own: one that breaks is a failed check. None leaves anything behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from tbench.sandbox.docker.engine import DaemonThreads
from tbench.text import one_line

T = TypeVar("T")
_THREADS = DaemonThreads()


class CheckStatus(StrEnum):
    """What came out of a check."""

    OK = "ok"
    WARN = "warn"
    """A run works, but something will be slow, or wrong in a case."""
    FAIL = "fail"
    SKIPPED = "skipped"
    """It could not be looked at, or nobody asked."""


@dataclass(frozen=True)
class CheckResult:
    """What a check saw, and what to do about it: empty where all is well."""

    status: CheckStatus
    what: str
    advice: str = ""


@dataclass(frozen=True)
class Finding:
    """One line of `tbench doctor`."""

    name: str
    status: CheckStatus
    seen: str
    advice: str = ""


@dataclass(frozen=True)
class Check:
    """Something to look at, within `limit_sec`."""

    name: str
    look: Callable[[], Awaitable[CheckResult]]
    limit_sec: float = 20.0


def ok(what: str) -> CheckResult:
    return CheckResult(CheckStatus.OK, what)


def warn(what: str, advice: str) -> CheckResult:
    return CheckResult(CheckStatus.WARN, what, advice)


def fail(what: str, advice: str) -> CheckResult:
    return CheckResult(CheckStatus.FAIL, what, advice)


def skipped(what: str) -> CheckResult:
    return CheckResult(CheckStatus.SKIPPED, what)


async def examine(check: Check) -> Finding:
    """Never raises but for cancellation."""
    try:
        async with asyncio.timeout(check.limit_sec):
            seen = await check.look()
    except TimeoutError:
        seen = fail(
            f"no answer within {check.limit_sec:.0f} s", "look whether engine and network are overloaded or hang"
        )
    except Exception as error:  # noqa: BLE001 - a check that breaks is a finding, not the end of the others
        words = one_line(f"{type(error).__name__}: {error}", 200)
        seen = fail(f"the check itself failed: {words}", "mend what the message names; if nothing, report it as a bug")
    return Finding(check.name, seen.status, one_line(seen.what, 400), one_line(seen.advice, 400))


async def examine_all(checks: Sequence[Check]) -> list[Finding]:
    """All at once; in their order."""
    return list(await asyncio.gather(*(examine(check) for check in checks)))


async def in_thread(function: Callable[..., T], *arguments: Any) -> T:
    """In a thread that nobody waits for: what hangs there must not outlive the check's limit."""
    return await asyncio.get_running_loop().run_in_executor(_THREADS, partial(function, *arguments))


def not_looked_at(names: Sequence[str], why: str) -> list[Finding]:
    return [Finding(name, CheckStatus.SKIPPED, why) for name in names]
