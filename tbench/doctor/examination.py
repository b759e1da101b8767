"""Runs all checks, and orders their findings."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tbench.doctor import (
    Check,
    CheckStatus,
    Finding,
    connection,
    containers,
    endpoint,
    examine,
    examine_all,
    fail,
    machine,
    ok,
    skip_all,
    without_engine,
)
from tbench.doctor.connection import ProcessContext
from tbench.errors import UsageError
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.oci.store import Store
from tbench.threads import in_thread

_CONNECT_SEC = 20.0
_CONTAINER_NAMES = ("limits", "tools", "network", "network of builds", "dns")


@dataclass(frozen=True)
class Subject:
    """Directory of runs and endpoint to examine in addition to the engine."""

    runs: Path
    base_url: str | None = None
    model: str | None = None
    api_key: str | None = None


async def examination(subject: Subject, here: ProcessContext | None = None) -> list[Finding]:
    """Run all checks."""
    here = here or ProcessContext.of_this_process()
    engine, first = await _reach_engine(here)
    try:
        return [*first, *await _other_findings(engine, subject, here)]
    finally:
        if engine is not None:
            engine.close()


async def examination_without_engine(subject: Subject, store: Store) -> list[Finding]:
    """Run the checks of containers without an engine, and of the endpoint."""
    found = await without_engine.findings(store)
    asked = endpoint.checks(subject.base_url, subject.model, subject.api_key) if subject.base_url else ()
    return [*found, *await examine_all(asked)]


async def _reach_engine(here: ProcessContext) -> tuple[Engine | None, list[Finding]]:
    """Connect to the engine, or return None. The address is checked first: the SDK's errors are late and vague."""
    address = await examine(Check("engine", lambda: in_thread(connection.check_address, here), _CONNECT_SEC))
    if address.status is not CheckStatus.OK:
        return None, [address, *skip_all(("storage",), "no engine")]
    met: list[Engine] = []

    async def connect() -> Finding:
        try:
            host = here.host if here.search is None else None
            engine = await in_thread(partial(Engine.connect, is_forwarded=bool(here.over_ssh)), 8, host)
        except UsageError as error:
            return fail(str(error), "fix what the message names")
        met.append(engine)
        info = engine.info
        where = "" if engine.shares_kernel else ", on another machine or kernel"
        size = f"{info.cpus} cpus, {info.memory_mb / 1024:.1f} GB of memory"
        return ok(f"{info.version} at {here.over_ssh or here.host}: {size}{where}")

    found = await examine(Check("engine", connect, _CONNECT_SEC))
    if not met:
        return None, [found, *skip_all(("storage",), "no engine")]
    return met[0], [found, await examine(Check("storage", partial(containers.check_storage, met[0])))]


async def _other_findings(engine: Engine | None, subject: Subject, here: ProcessContext) -> list[Finding]:
    starts = Finding("containers", CheckStatus.SKIPPED, "no engine")
    if engine is not None:
        starts = await examine(Check("containers", partial(containers.check_start, engine, here), 30))
    can_start = engine is not None and starts.status is CheckStatus.OK
    asked: Sequence[Check] = containers.checks(engine) if engine is not None and can_start else ()
    asked = [*asked, *machine.checks(engine, subject.runs)]
    asked.append(Check("clock", partial(machine.check_clock, engine if can_start else None), 30))
    if subject.base_url:
        asked += endpoint.checks(subject.base_url, subject.model, subject.api_key)
    findings = [starts]
    if not can_start:
        findings += skip_all(_CONTAINER_NAMES, "no container starts")
    findings += await examine_all(asked)
    if not subject.base_url:
        findings += skip_all(endpoint.NAMES[:1], "use --base-url (and --model) to check an endpoint")
    return findings
