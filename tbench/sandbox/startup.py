"""Startup of a sandbox: the image's entry point, and the healthcheck for which the agent waits."""

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

IDLE_COMMAND = ("sh", "-c", "sleep infinity")
"""Arguments of every entry point, in place of the image's CMD; the same as Harbor's."""
_INITS = {"tini", "dumb-init", "catatonit"}
_NANO = 1e9
_START_INTERVAL_SEC = 1.0
"""Seconds between checks before the engine would make its first one."""


@dataclass(frozen=True)
class Startup:
    """Commands that an image starts in its containers by itself."""

    entrypoint: tuple[str, ...] = ()
    """The image's ENTRYPOINT with its arguments; empty if it starts nothing."""
    healthcheck: Healthcheck | None = None
    """The image's HEALTHCHECK."""
    own_entrypoint: tuple[str, ...] = ()
    """The image's ENTRYPOINT without arguments, even if it starts nothing."""

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Startup:
        """Read an image's configuration as the engine reports it."""
        entrypoint = tuple(config.get("Entrypoint") or ())
        if is_only_init(entrypoint):
            return cls((), _healthcheck(config), entrypoint)
        return cls((*entrypoint, *IDLE_COMMAND), _healthcheck(config), entrypoint)


NO_STARTUP = Startup()


def is_only_init(entrypoint: tuple[str, ...]) -> bool:
    """Whether an entry point starts only an init process, which every container here has anyway."""
    if not entrypoint:
        return True
    return PurePosixPath(entrypoint[0]).name in _INITS and all(re.match("-", word) for word in entrypoint[1:])


def _healthcheck(config: Mapping[str, Any]) -> Healthcheck | None:
    """Return the image's HEALTHCHECK, checked early: an engine waits a whole interval before its first check."""
    given = config.get("Healthcheck") or {}
    kind, *argv = given.get("Test") or ["NONE"]
    if kind not in ("CMD", "CMD-SHELL") or not argv:
        return None
    interval_sec = _seconds(given, "Interval", 30.0)
    return Healthcheck(
        command=shlex.join(argv) if kind == "CMD" else argv[0],
        interval_sec=interval_sec,
        timeout_sec=_seconds(given, "Timeout", 30.0),
        start_period_sec=max(_seconds(given, "StartPeriod", 0.0), interval_sec),
        start_interval_sec=_START_INTERVAL_SEC,
        retries=given.get("Retries") or 3,
    )


def _seconds(given: Mapping[str, Any], name: str, default: float) -> float:
    return given[name] / _NANO if given.get(name) else default


# Bash if the image has it, as in Harbor: commands of tasks rely on it.
_CHECK_SCRIPT = """cd {workdir} 2>/dev/null
for shell in bash sh; do command -v $shell >/dev/null && exec $shell -c {command} </dev/null; done
exec {busybox} sh -c {command} </dev/null
"""


async def wait_until_healthy(sandbox: Sandbox, check: Healthcheck, user: str | None = None) -> None:
    """Run `check` as `user` (default: the image's) in the working directory until it succeeds.

    Checks in the start period are `start_interval_sec` apart and their failures do not count; later ones are
    `interval_sec` apart. A timeout is a failure. Raises TrialError(healthcheck_failed) after `retries` failures.
    """
    command = shlex.quote(check.command)
    script = _CHECK_SCRIPT.format(workdir=shlex.quote(sandbox.workdir), command=command, busybox=BUSYBOX)
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
            why = f"no answer in {check.timeout_sec:g} s" if ended.timed_out else _last_output(ended)
            raise TrialError("healthcheck_failed", f"{check.command!r} failed {failures} times: {why}")
        await asyncio.sleep(check.interval_sec)


def _last_output(ended: ExecResult) -> str:
    text = ended.output[-200:].decode("utf-8", "replace").strip()
    return text or f"exit code {ended.exit_code}, no output"
