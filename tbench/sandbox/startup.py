"""The start of a sandbox: its image's entry point, and the command that has to succeed before it is healthy."""

from __future__ import annotations

import asyncio
import re
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tbench.errors import TrialError
from tbench.sandbox.backend import BUSYBOX, ExecResult, Sandbox
from tbench.tasks.format import Healthcheck

STAYS = ("sh", "-c", "sleep infinity")
"""The arguments of every entry point, in place of the image's own CMD; as Harbor's."""
_INITS = {"tini", "dumb-init", "catatonit"}
_NANO = 1e9
_CHECK_EVERY_SEC = 1.0
"""Time between checks before an engine would make its first one."""


@dataclass(frozen=True)
class Startup:
    """What runs in a container of an image without being asked for."""

    entrypoint: tuple[str, ...] = ()
    """The image's ENTRYPOINT with the arguments that it gets; empty where there is nothing to start."""
    healthcheck: Healthcheck | None = None
    """The image's HEALTHCHECK."""
    own_entrypoint: tuple[str, ...] = ()
    """The ENTRYPOINT alone, also where it starts nothing."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Startup:
        """Read the configuration of an image, as engines tell it."""
        entrypoint = tuple(config.get("Entrypoint") or ())
        if is_only_init(entrypoint):
            return cls((), _healthcheck(config), entrypoint)
        return cls((*entrypoint, *STAYS), _healthcheck(config), entrypoint)


NOTHING = Startup()


def is_only_init(entrypoint: tuple[str, ...]) -> bool:
    """Whether an entry point starts nothing but an init for orphans, which every container has here anyhow."""
    if not entrypoint:
        return True
    return PurePosixPath(entrypoint[0]).name in _INITS and all(re.match("-", word) for word in entrypoint[1:])


def _healthcheck(config: Mapping[str, Any]) -> Healthcheck | None:
    """The image's HEALTHCHECK, asked sooner than an engine would: its first check comes after a whole interval."""
    told = config.get("Healthcheck") or {}
    kind, *words = told.get("Test") or ["NONE"]
    if kind not in ("CMD", "CMD-SHELL") or not words:
        return None
    interval_sec = _seconds(told, "Interval", 30.0)
    return Healthcheck(
        command=shlex.join(words) if kind == "CMD" else words[0],
        interval_sec=interval_sec,
        timeout_sec=_seconds(told, "Timeout", 30.0),
        start_period_sec=max(_seconds(told, "StartPeriod", 0.0), interval_sec),
        start_interval_sec=_CHECK_EVERY_SEC,
        retries=told.get("Retries") or 3,
    )


def _seconds(told: Mapping[str, Any], name: str, default: float) -> float:
    return told[name] / _NANO if told.get(name) else default


# Waits until a sandbox is healthy, by a command that has to succeed in it.

# Bash where there is one, as in Harbor: commands of tasks rely on it.
_ASKS = """cd {workdir} 2>/dev/null
for shell in bash sh; do command -v $shell >/dev/null && exec $shell -c {command} </dev/null; done
exec {busybox} sh -c {command} </dev/null
"""


async def wait_until_healthy(sandbox: Sandbox, check: Healthcheck, user: str | None = None) -> None:
    """Wait until a check succeeds, as `user`, or else the image's, in the working directory.

    Failures of checks begun in the start period are not counted; those checks are `start_interval_sec` apart, the
    others `interval_sec`. A check that takes too long has failed. Raises TrialError(healthcheck_failed) after `retries`
    failures.
    """
    command = shlex.quote(check.command)
    script = _ASKS.format(workdir=shlex.quote(sandbox.workdir), command=command, busybox=BUSYBOX)
    started, failures = time.monotonic(), 0
    while True:
        is_starting = time.monotonic() - started < check.start_period_sec
        ended = await sandbox.shell(script, timeout_sec=int(check.timeout_sec) or 1, user=user)
        if ended.exit_code == 0 and not ended.timed_out:
            return
        if is_starting:
            await asyncio.sleep(check.start_interval_sec)
            continue
        failures += 1
        if failures >= check.retries:
            why = f"no answer in {check.timeout_sec:g} s" if ended.timed_out else _last_words(ended)
            raise TrialError("healthcheck_failed", f"{check.command!r} failed {failures} times: {why}")
        await asyncio.sleep(check.interval_sec)


def _last_words(ended: ExecResult) -> str:
    words = ended.output[-200:].decode("utf-8", "replace").strip()
    return words or f"it ended with {ended.exit_code} and said nothing"
