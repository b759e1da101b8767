"""Checks whether this machine, its engine and the endpoint can carry a run, and says what to do where they cannot.

Every check is bounded in time and on its own: one that breaks is a failed check. None leaves anything behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from tbench.text import one_line


class CheckStatus(StrEnum):
    """How a check came out."""

    OK = "ok"
    WARN = "warn"
    """A run works, but something will be slow, or go wrong in some cases."""
    FAIL = "fail"
    SKIPPED = "skipped"
    """The check could not be made, or was not asked for."""


@dataclass(frozen=True)
class CheckResult:
    """What a check found, and what to do about it: empty where all is well."""

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
    """A check by name. `run` has `limit_sec` seconds."""

    name: str
    run: Callable[[], Awaitable[CheckResult]]
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
    """Make a check. Never raises, except when cancelled."""
    try:
        async with asyncio.timeout(check.limit_sec):
            result = await check.run()
    except TimeoutError:
        result = fail(
            f"no answer within {check.limit_sec:.0f} s", "look whether engine and network are overloaded or hang"
        )
    except Exception as error:  # noqa: BLE001 - a check that breaks is a finding, not the end of the others
        words = one_line(f"{type(error).__name__}: {error}", 200)
        result = fail(
            f"the check itself failed: {words}", "mend what the message names; if nothing, report it as a bug"
        )
    return Finding(check.name, result.status, one_line(result.what, 400), one_line(result.advice, 400))


async def examine_all(checks: Sequence[Check]) -> list[Finding]:
    """Make all checks at once; the findings come in the order of the checks."""
    return list(await asyncio.gather(*(examine(check) for check in checks)))


def skip_all(names: Sequence[str], why: str) -> list[Finding]:
    return [Finding(name, CheckStatus.SKIPPED, why) for name in names]
