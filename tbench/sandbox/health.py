"""Waits until a sandbox is healthy, by a command that has to succeed in it."""

from __future__ import annotations

import asyncio
import shlex
import time

from tbench.errors import TrialError
from tbench.sandbox.backend import BUSYBOX, ExecResult, Sandbox
from tbench.tasks.format import Healthcheck

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
