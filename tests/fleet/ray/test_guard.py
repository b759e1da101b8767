"""The program that removes what an actor leaves, beside a process that ends: with the real engine, and without one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from dataclasses import replace
from pathlib import Path

import pytest

from tbench.fleet.ray import guard
from tbench.fleet.ray.actor import NodeActor
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import KEPT_PREFIX, LABEL_OWNER, Owner

TEXT = Path(guard.__file__).read_text(encoding="utf-8")
SOCKET = "unix:///var/run/docker.sock"
IMAGE = "debian:bookworm-slim"
BOUND_SEC = 60.0


def test_it_needs_nothing_but_the_standard_library(tmp_path: Path) -> None:
    outside = subprocess.run(
        [sys.executable, "-I", "-S", "-c", TEXT.replace('"__main__"', '"another"')], cwd=tmp_path, capture_output=True
    )
    assert (outside.returncode, outside.stderr) == (0, b"")


def test_an_engine_that_is_away_is_waited_for_within_bounds() -> None:
    pauses: list[float] = []

    def sleep(sec: float) -> None:
        pauses.append(sec)
        time.sleep(0.02)

    guard.remove_all_labelled("unix:///nowhere", "a=b", "kept-", away_sec=0.05, sleep=sleep)
    assert 1 <= len(pauses) <= 3


@pytest.mark.engine
def test_when_the_actor_has_ended_its_containers_are_removed_but_not_what_was_kept_or_is_anothers(
    engine: Engine,
) -> None:
    api, owner = engine.api, uuid.uuid4().hex

    def made(whose: str, name: str | None = None) -> str:
        container = api.create_container(IMAGE, command=["sleep", "60"], labels={LABEL_OWNER: whose}, name=name)
        return str(container["Id"])

    def there() -> set[str]:
        return {each["Id"] for each in api.containers(all=True, filters={"label": LABEL_OWNER})}

    own, kept, other = made(owner), made(owner, f"{KEPT_PREFIX}{owner}"), made(f"{owner}-other")
    network = api.create_network(f"guard-{owner}", labels={LABEL_OWNER: owner})["Id"]
    settings = {"address": SOCKET, "label": LABEL_OWNER, "owner": owner, "kept": KEPT_PREFIX}
    ours, theirs = os.pipe()
    try:
        subprocess.run([sys.executable, "-c", TEXT, json.dumps(settings)], stdin=ours, timeout=BOUND_SEC, check=True)
        os.close(ours)
        assert {own, kept, other} <= there()  # the actor lives, and so does what is its own
        os.close(theirs)
        ends_at = time.monotonic() + BOUND_SEC
        while own in there():
            assert time.monotonic() < ends_at, "in vain waited for the removal"
            time.sleep(0.1)
        while network in {each["Id"] for each in api.networks()}:
            assert time.monotonic() < ends_at, "in vain waited for the removal of the network"
            time.sleep(0.1)
        assert {kept, other} <= there()
    finally:
        for container in (kept, other):
            api.remove_container(container, force=True)


@pytest.mark.engine
def test_owners_are_those_of_the_engines_containers(engine: Engine) -> None:
    label = f"tbench.test-{uuid.uuid4().hex}"
    container = engine.api.create_container(IMAGE, labels={label: "somebody"})["Id"]
    try:
        assert guard.list_owners(SOCKET, label) == {"somebody"}
        assert guard.remove_once(SOCKET, f"{label}=somebody", KEPT_PREFIX) == 1
        assert guard.list_owners(SOCKET, label) == set()
    finally:
        guard.remove_once(SOCKET, label, KEPT_PREFIX)
    assert container


@pytest.mark.engine
async def test_an_actor_removes_what_dead_actors_have_left_but_nothing_of_runs_of_its_machine(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOCKER_HOST", SOCKET)
    label, dead = f"tbench.test-{uuid.uuid4().hex}", replace(Owner.of_this_process(), start="1")
    made = {
        kind: engine.api.create_container(IMAGE, labels={label: replace(dead, kind=kind).label()})["Id"]
        for kind in ("", "actor")
    }
    actor = NodeActor(TEXT, label, KEPT_PREFIX)
    try:
        seen = await actor.prepare()
        assert seen["left"] == 1, seen
        engine.api.inspect_container(made[""])  # its run may go on in it
        assert guard.list_owners(SOCKET, label) == {dead.label()}
    finally:
        if actor._guard_pipe is not None:
            os.close(actor._guard_pipe)
        guard.remove_once(SOCKET, label, KEPT_PREFIX)
