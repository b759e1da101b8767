"""Names that the engine reports as the ones written into a container."""

from __future__ import annotations

import dataclasses
import time
import uuid
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from tbench.sandbox.backend import BackendFacts
from tbench.sandbox.docker.create import ensure_scratch_image
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.networks import backend_facts
from tbench.sandbox.owner import LABEL_RUN

pytestmark = pytest.mark.engine


@pytest.fixture
async def make(engine: Engine) -> AsyncIterator[Callable[..., str]]:
    """Makes containers that are never started; removes them."""
    nothing, made = await ensure_scratch_image(engine), list[str]()
    labels = {LABEL_RUN: f"test-{uuid.uuid4().hex[:12]}"}

    def make_one(**config: Any) -> str:
        host_config = engine.api.create_host_config(**config)
        found = engine.api.create_container(nothing, ["nothing"], labels=labels, host_config=host_config)
        made.append(found["Id"])
        return made[-1]

    yield make_one
    for each in made:
        engine.api.remove_container(each, force=True)


async def test_the_names_are_those_of_whose_network_a_container_has(engine: Engine, make: Callable[..., str]) -> None:
    hosts = {"server": "192.0.0.2", "six": "2001:db8::1", "db": "127.0.0.1"}
    holder = make(network_mode="none", dns=["192.0.0.1"], extra_hosts=hosts)
    main = make(network_mode=f"container:{holder}")
    copy = make(network_mode=f"container:{main}")
    expected = BackendFacts(frozenset({"192.0.0.1"}), frozenset((address, name) for name, address in hosts.items()))
    found = [await backend_facts(engine, each) for each in (holder, main, copy)]
    assert [dataclasses.replace(each, began_at=0.0) for each in found] == [expected] * 3
    # Each was made by itself, after the one before.
    assert 0 < time.time() - 60 < found[0].began_at < found[1].began_at < found[2].began_at < time.time() + 60


async def test_a_container_of_which_nothing_is_said_has_none(engine: Engine, make: Callable[..., str]) -> None:
    found = await backend_facts(engine, make(network_mode="none"))
    assert found == BackendFacts(began_at=found.began_at)
