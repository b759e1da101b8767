"""Waits for conditions of services: healthy, or completed. Every wait is bounded."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from tbench.errors import TrialError
from tbench.sandbox.docker.create import engine_errors, last_output
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.text import one_line

_SHORTEST_SEC, _LONGEST_SEC = 0.05, 0.5
"""Pauses between two inspections of a container."""
_COMPLETED_SEC = 1800.0
"""Time limit for a service that has to complete."""
_DEFAULTS = {"Interval": 30.0, "Timeout": 30.0, "Retries": 3}
"""The engine's defaults of a healthcheck."""
_MARGIN_SEC = 60.0
_LEAST_INTERVAL_SEC = 10.0
"""Least time allowed for each try of a check that the engine does not run itself; the machine may be busy."""
_LONGEST_PROBE_PAUSE_SEC = 1.0


async def wait_until_healthy(engine: Engine, service: str, container: str) -> None:
    """Wait for the healthcheck of a service; a service without one has to run, or to have ended with 0.

    Raises TrialError: healthcheck_failed with the check's last output, service_failed with the service's.
    """
    state = await _state(engine, service, container)
    if not (state.get("Health") or {}).get("Status"):  # Podman sends an empty one
        return await _require_running(engine, service, container, state)
    configured = (await _inspect(engine, service, container))["Config"].get("Healthcheck") or {}
    began = time.monotonic()
    probes: list[dict[str, Any]] = []
    probing = asyncio.create_task(_probe(engine, container, configured, probes))
    pause_sec = _SHORTEST_SEC
    try:
        while (health := state["Health"])["Status"] != "healthy" and not _succeeded(probing):
            await _require_running(engine, service, container, state, until_it_ends=True)
            log = health.get("Log") or []
            limit_sec = _limit_sec(configured, runs=bool(log) or not probes)
            if health["Status"] == "unhealthy" or time.monotonic() - began > limit_sec:
                raise _unhealthy(service, configured, (log or probes or [{}])[-1])
            await asyncio.wait([probing], timeout=pause_sec) if not probing.done() else await asyncio.sleep(pause_sec)
            pause_sec = min(1.5 * pause_sec, _LONGEST_SEC)
            state = await _state(engine, service, container)
    finally:
        probing.cancel()


async def wait_until_completed(engine: Engine, service: str, container: str) -> None:
    """Wait until a service has ended with 0. Raises TrialError(service_failed)."""
    ends_at, pause_sec = time.monotonic() + _COMPLETED_SEC, _SHORTEST_SEC
    while (state := await _state(engine, service, container))["Status"] not in ("exited", "dead"):
        if time.monotonic() > ends_at:
            raise TrialError("service_failed", f"{service}: has not completed within {_COMPLETED_SEC:.0f} s")
        await asyncio.sleep(pause_sec)
        pause_sec = min(1.5 * pause_sec, _LONGEST_SEC)
    await _require_running(engine, service, container, state)


async def _require_running(
    engine: Engine, service: str, container: str, state: dict[str, Any], *, until_it_ends: bool = False
) -> None:
    """Check that a service runs, or has ended with 0. Raises TrialError(service_failed)."""
    if state["Status"] not in ("exited", "dead"):
        return
    if state["ExitCode"] == 0 and not until_it_ends:
        return
    output = (await last_output(engine, container)).decode("utf-8", "replace")
    lines = [line for line in output.splitlines() if line.strip()][-3:]
    last = f"; its last output: {one_line(' | '.join(lines), 300)}" if lines else ""
    why = " (out of memory)" if state.get("OOMKilled") else ""
    raise TrialError("service_failed", f"{service}: ended with {state['ExitCode']}{why} before the agent began{last}")


def _limit_sec(check: dict[str, Any], *, runs: bool) -> float:
    """Return the seconds after which there must be a result; `runs`: the engine itself runs the check.

    Podman without systemd does not.
    """
    seconds = {key: (check.get(key) or 0) / 1e9 or _DEFAULTS[key] for key in ("Interval", "Timeout")}
    retries = check.get("Retries") or _DEFAULTS["Retries"]
    start_sec = (check.get("StartPeriod") or 0) / 1e9
    if not runs:
        return start_sec + (retries + 1) * max(seconds["Interval"], _LEAST_INTERVAL_SEC)
    return start_sec + (retries + 1) * sum(seconds.values()) + _MARGIN_SEC


def _unhealthy(service: str, check: dict[str, Any], last: dict[str, Any]) -> TrialError:
    output = one_line(str(last.get("Output") or "").strip(), 300)
    ended = f"ended with {last['ExitCode']}" if "ExitCode" in last else "has never ended"
    command = one_line(" ".join(check.get("Test") or ()), 200)
    return TrialError(
        "healthcheck_failed", f"{service}: never became healthy: {command!r} {ended}{f': {output}' if output else ''}"
    )


async def _probe(engine: Engine, container: str, check: dict[str, Any], probes: list[dict[str, Any]]) -> bool:
    """Run the check with growing pauses until it succeeds; failures are added to `probes`.

    Docker runs it for the first time after a whole interval, which may be half a minute; Podman not at all without
    systemd.
    """
    kind, *words = check.get("Test") or ("NONE",)
    argv = words if kind == "CMD" else ["/bin/sh", "-c", *words]
    pause_sec = _SHORTEST_SEC
    while kind != "NONE":
        await asyncio.sleep(pause_sec)
        pause_sec = min(2 * pause_sec, _LONGEST_PROBE_PAUSE_SEC)
        try:
            created = await engine.call(engine.api.exec_create, container, argv)
            output: bytes = await engine.call(engine.api.exec_start, created["Id"])
            code = (await engine.call(engine.api.exec_inspect, created["Id"]))["ExitCode"]
            if code == 0:
                return True
            probes.append({"ExitCode": code, "Output": output.decode("utf-8", "replace")})
        except EngineError:
            continue  # the service has ended, or has no such program: leave it to the engine
    return False


def _succeeded(probing: asyncio.Task[bool]) -> bool:
    return probing.done() and not probing.cancelled() and probing.exception() is None and probing.result()


async def _state(engine: Engine, service: str, container: str) -> dict[str, Any]:
    found: dict[str, Any] = (await _inspect(engine, service, container))["State"]
    return found


async def _inspect(engine: Engine, service: str, container: str) -> dict[str, Any]:
    with engine_errors(f"inspecting the container of {service}", "sandbox_lost"):
        found: dict[str, Any] = await engine.call(engine.api.inspect_container, container)
    return found
