"""Removals that the engine refuses: tried again, and told at the end; never forgotten, and never counted as done."""

from __future__ import annotations

import re
import time
from collections import Counter
from typing import Any

import pytest
from own_relay import own_relay, refused_with

from tbench.sandbox.backend import SandboxSettings
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.create import ensure_scratch_image
from tbench.sandbox.docker.engine import Engine, RefusedRemoval
from tbench.sandbox.docker.removing import Kind, force_remove, remove, remove_or_remember
from tbench.sandbox.owner import LABEL_OWNER, LABEL_RUN
from tbench.tasks.environment import agent_environment

pytestmark = pytest.mark.engine
UNDER_WAY = 409, "removal of container x is already in progress"
BUSY = 500, "driver failed to remove root filesystem: device or resource busy"


async def make(engine: Engine, kind: Kind, run: str) -> str:
    """A thing on the engine that belongs to the run."""
    api, labels = engine.api, {LABEL_RUN: run, LABEL_OWNER: engine.owner}
    nothing = await ensure_scratch_image(engine)
    if kind == "container":
        return str(api.create_container(nothing, "none", labels=labels)["Id"])
    if kind == "network":
        return str(api.create_network(run, labels=labels, internal=True)["Id"])
    if kind == "volume":
        return str(api.create_volume(run, labels=labels)["Name"])
    holder = api.create_container(nothing, "none", labels=labels)["Id"]
    try:
        return str(api.commit(holder)["Id"])
    finally:
        api.remove_container(holder)


def is_there(engine: Engine, kind: Kind, name: str) -> bool:
    found: Any = getattr(engine.api, f"{kind}s")(**({"all": True} if kind == "container" else {}))
    entries = found["Volumes"] or [] if kind == "volume" else found
    return name in {entry["Name" if kind == "volume" else "Id"] for entry in entries}


@pytest.mark.parametrize("kind", ["container", "network", "volume", "image"])
@pytest.mark.parametrize("refusal", [UNDER_WAY, BUSY], ids=["under way", "busy"])
async def test_what_is_refused_is_reported_and_removed_later(
    engine: Engine, tools_volume: str, run_name: str, kind: Kind, refusal: tuple[int, str]
) -> None:
    name, refused = await make(engine, kind, run_name), True

    def refuse(line: str) -> bytes | None:
        return refused_with(*refusal) if refused and line.startswith("DELETE") and name in line else None

    with own_relay(refuse) as relay:
        connected, said = Engine.connect(4, relay.host), list[str]()
        backend = DockerBackend(connected, SandboxSettings(run_name), on_close=connected.close)
        await backend.open(said.append)
        options = {"force": True} if kind in ("container", "volume") else {}
        await remove_or_remember(connected, kind, name, in_use_sec=0.2, **options)
        assert is_there(engine, kind, name)
        await backend.close()
        assert [line for line in said if refusal[1] in line and kind in line and "remove with: " in line]
        assert backend.describe()["left"] == [f"{kind} {name}"]
        refused = False
        connected, said = Engine.connect(4, relay.host), list[str]()
        connected.refused[kind, name] = RefusedRemoval(refusal[1], options)
        backend = DockerBackend(connected, SandboxSettings(run_name), on_close=connected.close)
        await backend.open(said.append)
        await backend.close()
    assert not is_there(engine, kind, name)
    # Runs of other tests may have died meanwhile.
    assert [line for line in said if "whose process is gone" not in line] == []


@pytest.mark.parametrize(("refusal", "times"), [(UNDER_WAY, 3), (BUSY, 1)], ids=["under way", "busy"])
async def test_another_removal_is_waited_for_and_a_failure_is_tried_again(
    engine: Engine, run_name: str, refusal: tuple[int, str], times: int
) -> None:
    container, lines = await make(engine, "container", run_name), Counter[str]()

    def refuse(line: str) -> bytes | None:
        lines[line] += line.startswith("DELETE")
        return refused_with(*refusal) if 0 < lines[line] <= times else None

    with own_relay(refuse) as relay:
        connected = Engine.connect(4, relay.host)
        assert await remove(connected, "container", container, force=True, v=True) is None
        assert not is_there(engine, "container", container)
        connected.close()


async def test_what_was_refused_in_a_long_run_goes_with_a_later_removal(engine: Engine, run_name: str) -> None:
    first, second = [await make(engine, "container", run_name) for _ in range(2)]
    with own_relay() as relay:
        connected = Engine.connect(4, relay.host)
        options = {"force": True, "v": True}
        connected.refused["container", first] = RefusedRemoval("busy", options, at=time.monotonic() - 3600)
        await force_remove(connected, second)
        assert not connected.refused
        connected.close()
    assert not is_there(engine, "container", first)


async def test_what_a_machine_that_is_back_does_not_let_go_is_not_counted_as_removed(
    engine: Engine, tools_volume: str, run_name: str, fresh: Any
) -> None:
    stuck: list[str] = []

    def refuse(line: str) -> bytes | None:
        return (
            refused_with(*BUSY) if line.startswith("DELETE") and any(re.search(each, line) for each in stuck) else None
        )

    with own_relay(refuse) as relay:
        connected, said = Engine.connect(4, relay.host), list[str]()
        backend = DockerBackend(connected, SandboxSettings(run_name), on_close=connected.close)
        await backend.open(said.append)
        sandboxes = [await backend.sandbox(agent_environment(fresh()), f"t.s{seed}") for seed in range(2)]
        stuck.append(sandboxes[0].container_id)
        assert await backend.recover() == 1
        stuck.clear()
        await backend.close()
    assert not [line for line in said if "could not be removed" in line]
    assert not is_there(engine, "container", sandboxes[0].container_id)
