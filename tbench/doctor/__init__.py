"""Checks whether this machine, its engine and the endpoint are fit for a run, and gives advice if they are not.

Checks are bounded in time and independent: an exception fails one check only. They leave no containers behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from tbench.errors import TbenchError
from tbench.text import one_line

_OVERLOADED = "check whether engine and network are overloaded or hang"


class CheckStatus(StrEnum):
    """Outcome of a check."""

    OK = "ok"
    WARN = "warn"
    """A run works, but may be slow or fail in some cases."""
    FAIL = "fail"
    SKIPPED = "skipped"
    """The check could not be made, or was not requested."""


@dataclass(frozen=True)
class Finding:
    """One line of `tbench doctor`: what a check has seen, with advice after a warning or a failure."""

    name: str
    """Name of the check, which `examine` sets."""
    status: CheckStatus
    seen: str
    advice: str = ""


@dataclass(frozen=True)
class Check:
    """A check with a time limit."""

    name: str
    run: Callable[[], Awaitable[Finding]]
    limit_sec: float = 20.0


def ok(seen: str) -> Finding:
    return Finding("", CheckStatus.OK, seen)


def warn(seen: str, advice: str) -> Finding:
    return Finding("", CheckStatus.WARN, seen, advice)


def fail(seen: str, advice: str) -> Finding:
    return Finding("", CheckStatus.FAIL, seen, advice)


def skipped(seen: str) -> Finding:
    return Finding("", CheckStatus.SKIPPED, seen)


async def examine(check: Check) -> Finding:
    """Run a check. Never raises, except when cancelled."""
    try:
        async with asyncio.timeout(check.limit_sec):
            found = await check.run()
    except TimeoutError:
        found = fail(f"no answer within {check.limit_sec:.0f} s", _OVERLOADED)
    except TbenchError as error:
        found = fail(str(error), _OVERLOADED)
    except Exception as error:  # noqa: BLE001 - a broken check is a finding, and must not end the others
        message = one_line(f"{type(error).__name__}: {error}", 200)
        found = fail(
            f"the check itself failed: {message}", "fix what the message names; if it names nothing, report a bug"
        )
    return replace(found, name=check.name, seen=one_line(found.seen, 400), advice=one_line(found.advice, 400))


async def examine_all(checks: Sequence[Check]) -> list[Finding]:
    """Run all checks concurrently; the findings are in the order of the checks."""
    return list(await asyncio.gather(*(examine(check) for check in checks)))


def skip_all(names: Sequence[str], why: str) -> list[Finding]:
    return [Finding(name, CheckStatus.SKIPPED, why) for name in names]
