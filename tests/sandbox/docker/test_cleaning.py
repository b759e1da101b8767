"""Removal of leftovers, and reasons to keep them; on a real engine, and on one that fails."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from docker.errors import APIError
from requests import Response

from tbench.sandbox.backend import SandboxSettings, open_backend
from tbench.sandbox.docker import backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.cleaning import clean, remove_leftovers
from tbench.sandbox.docker.engine import Engine, EngineInfo
from tbench.sandbox.leftovers import Reaped, Scope
from tbench.sandbox.owner import (
    KEPT_PREFIX,
    LABEL_DIRECTORY,
    LABEL_IMAGE,
    LABEL_MEMORY,
    LABEL_OWNER,
    LABEL_RUN,
    LABEL_SHARED,
    LABEL_SNAPSHOT,
    LABEL_TRIAL,
    SNAPSHOT_KEPT,
    Owner,
    owner,
)
from tbench.sandbox.underway import UnderWay

BASE = "debian:bookworm-slim"
HERE = Owner.of_this_process()
DEAD = replace(HERE, pid="4194305", start="1").label()
ELSEWHERE = replace(HERE, boot="other", machine="0123456789ab", host="far").label()


@contextmanager
def killed_at_the_end() -> Iterator[str]:
    """The label of a process that lives no longer than the block: until then no other run's start takes what it has."""
    script = "from tbench.sandbox.owner import owner; print(owner(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.kill()


class FakeApi:
    """As much of the engine's API as cleaning uses; `broken` says what removing a thing fails with."""

    def __init__(self, **things: list[dict[str, Any]]) -> None:
        self.things = {"containers": [], "networks": [], "volumes": [], "images": []} | things
        self.broken: dict[str, int] = {}
        self.gone: list[str] = []

    def _listed(self, kind: str, filters: dict[str, list[str]]) -> list[dict[str, Any]]:
        (label,) = filters["label"]
        if kind in self.broken:
            raise failure(self.broken[kind], f"no list of {kind}")
        return [thing for thing in self.things[kind] if label in (thing.get("Labels") or {})]

    def containers(self, all: bool, filters: dict[str, list[str]]) -> list[dict[str, Any]]:
        assert all
        return self._listed("containers", filters)

    def networks(self, filters: dict[str, list[str]]) -> list[dict[str, Any]]:
        return self._listed("networks", filters)

    def images(self, filters: dict[str, list[str]]) -> list[dict[str, Any]]:
        return self._listed("images", filters)

    def volumes(self, filters: dict[str, list[str]]) -> dict[str, Any]:
        return {"Volumes": self._listed("volumes", filters) or None}

    def _remove(self, identity: str) -> None:
        if identity in self.broken:
            raise failure(self.broken[identity], f"{identity} is stuck")
        self.gone.append(identity)

    def remove_container(self, identity: str, force: bool, v: bool) -> None:
        assert force and v
        self._remove(identity)

    def remove_network(self, identity: str) -> None:
        self._remove(identity)

    def remove_volume(self, identity: str) -> None:
        self._remove(identity)

    def remove_image(self, identity: str, noprune: bool) -> None:
        assert noprune is identity.startswith(("sha256:temp", "tbench/snap"))
        self._remove(identity)


def failure(status: int, words: str) -> APIError:
    response = Response()
    response.status_code = status
    return APIError("failed", response=response, explanation=words)


def over(api: FakeApi) -> Engine:
    return Engine(api, ThreadPoolExecutor(2), EngineInfo("fake", "0", 1, 1.0, "fake", "2"))  # type: ignore[arg-type]


def container(name: str, whose: str, named: str = "happy_name") -> dict[str, Any]:
    return {"Id": name, "Names": [f"/{named}"], "Labels": {LABEL_RUN: "r", LABEL_OWNER: whose}}


def image(identity: str, *tags: str, **labels: str) -> dict[str, Any]:
    return {"Id": f"sha256:{identity:0<20}", "RepoTags": list(tags) or None, "Labels": labels or {LABEL_IMAGE: "task"}}


async def test_what_vanishes_meanwhile_or_is_being_removed_is_as_good_as_removed() -> None:
    class Going(FakeApi):
        """Another removal of a container ends after the second look."""

        def _remove(self, identity: str) -> None:
            looks.append(identity)
            if looks.count("going") == 3:
                self.broken["going"] = 404
            super()._remove(identity)

    looks: list[str] = []
    api = Going(containers=[container(name, DEAD) for name in ("gone", "going", "there")])
    api.broken = {"gone": 404, "going": 409}
    cleaned = await clean(over(api), Scope())
    assert (sorted(cleaned.removed), cleaned.failed) == (
        [f"container {name} of run r" for name in ("going", "gone", "there")],
        [],
    )
    assert api.gone == ["there"]


async def test_one_that_cannot_be_removed_does_not_stop_the_others() -> None:
    api = FakeApi(containers=[container("stuck", DEAD), container("there", DEAD)])
    api.broken = {"stuck": 500}
    assert (await remove_leftovers(over(api))).lines == [
        "removed container there of run r, whose process is gone",
        "could not remove container stuck of run r: stuck is stuck",
    ]


async def test_an_engine_that_cannot_list_does_not_stop_a_run_from_starting() -> None:
    api = FakeApi()
    api.broken = {"networks": 500}
    assert (await remove_leftovers(over(api))).lines == [
        "could not remove leftovers of killed runs: no list of networks"
    ]


async def test_one_list_that_fails_does_not_keep_the_others_from_being_cleaned() -> None:
    api = FakeApi(containers=[container("there", DEAD)])
    api.broken = {"images": 500}
    cleaned = await clean(over(api), Scope())
    assert cleaned.removed == ["container there of run r"]
    assert set(cleaned.failed) == {"listing leftovers: no list of images"}


def everyones() -> list[dict[str, Any]]:
    return [
        container("dead", DEAD),
        container("live", owner()),
        container("far", ELSEWHERE),
        container("kept", DEAD, f"{KEPT_PREFIX}task.s0"),
        container("notkept", DEAD, "my-tbench-kept-box"),
        {"Id": "helper", "Labels": {LABEL_SHARED: "tools", LABEL_OWNER: DEAD}},
        {"Id": "filling", "Labels": {LABEL_SHARED: "tools", LABEL_OWNER: owner()}},
    ]


@pytest.mark.parametrize(
    ("scope", "gone"),
    [
        (Scope(), {"dead", "notkept", "helper"}),
        (Scope(kept=True), {"dead", "notkept", "helper", "kept"}),
        (Scope(everything=True), {"dead", "notkept", "helper", "kept", "far"}),
        (Scope(run="r"), {"dead", "notkept"}),
        (Scope(run="another"), set()),
    ],
)
async def test_of_containers_only_those_go_that_no_one_can_be_using(scope: Scope, gone: set[str]) -> None:
    api = FakeApi(containers=everyones())
    await clean(over(api), scope)
    assert set(api.gone) == gone


async def test_what_stays_is_listed_with_the_reason() -> None:
    kept = (await clean(over(FakeApi(containers=everyones())), Scope())).kept
    assert f"container live of run r: its process {HERE.pid} still runs" in kept
    assert f"container far of run r: its process {HERE.pid} belongs to another machine (far); --all removes it" in kept
    assert "container kept of run r: kept on purpose; --kept removes it" in kept


async def test_containers_of_a_trial_that_was_cut_take_room_until_their_end(tmp_path: Path) -> None:
    (tmp_path / "journal.jsonl").touch()
    note = UnderWay(
        trial="t.s0.x", task="t", seed=0, attempt=1, sandbox="cut", entered_at=0, keep_sec=60,
        started_at=datetime.now(UTC),
    )  # fmt: skip
    note.write(tmp_path)
    one = container("cut", DEAD)
    one["Labels"] |= {LABEL_DIRECTORY: str(tmp_path), LABEL_TRIAL: "t.s0.x", LABEL_MEMORY: "512"}
    api = FakeApi(containers=[one])
    found = await remove_leftovers(over(api))
    assert (api.gone, found.kept_mb) == ([], 512)
    assert any("--kept" in line for line in found.lines)
    for path in (tmp_path / "journal.jsonl", tmp_path / "underway/t.s0.x.json"):
        os.utime(path, (time.time() - 61,) * 2)
    assert (await clean(over(api), Scope())).removed == ["container cut of run r"]
    assert (await remove_leftovers(over(FakeApi()))).kept_mb == 0


async def test_a_run_s_start_takes_only_what_is_gone_for_certain() -> None:
    snapshot = {LABEL_RUN: "r", LABEL_OWNER: DEAD}
    api = FakeApi(
        containers=everyones(),
        networks=[{"Id": "net", "Name": "net", "Labels": {LABEL_RUN: "r", LABEL_OWNER: DEAD}}],
        images=[
            image("old"),
            image("snap", "tbench/snap:1", **snapshot, **{LABEL_SNAPSHOT: SNAPSHOT_KEPT}),
            image("mine", "my-own-commit:1", **snapshot),
        ],
    )
    await remove_leftovers(over(api))
    assert set(api.gone) == {"dead", "notkept", "helper", "net"}


async def test_nameless_images_go_unless_a_run_is_under_way() -> None:
    api = FakeApi(images=[image("old"), image("new", "tbench/task:1")])
    assert (await clean(over(api), Scope())).removed == ["image without a name, old000000000"]
    api = FakeApi(images=[image("old")], containers=[container("far", ELSEWHERE)])
    assert (await clean(over(api), Scope())).removed == []


async def test_all_takes_what_is_shared_too_and_says_what_is_still_in_use() -> None:
    shared = {LABEL_SHARED: "x"}
    api = FakeApi(
        networks=[{"Id": "net", "Name": "tbench", "Labels": shared}],
        volumes=[{"Name": "tools", "Labels": shared}],
        images=[image("both", "tbench/a:1", "tbench/b:1"), image("base", "tbench/tools:1", **shared)],
    )
    api.broken = {"tools": 409, "tbench/b:1": 404}
    cleaned = await clean(over(api), Scope(everything=True))
    assert set(api.gone) == {"net", "tbench/a:1", "tbench/tools:1"}
    assert (cleaned.kept, cleaned.failed) == (["volume tools: in use: tools is stuck"], [])


async def test_nothing_shared_goes_while_a_run_is_under_way() -> None:
    network = {"Id": "net", "Name": "tbench", "Labels": {LABEL_SHARED: "x"}}
    api = FakeApi(containers=[container("live", owner())], networks=[network], images=[image("a", "tbench/a:1")])
    cleaned = await clean(over(api), Scope(everything=True))
    assert api.gone == []
    assert cleaned.kept[1:] == [
        f"{thing}: a run in progress may need it" for thing in ("image tbench/a:1", "network tbench")
    ]


async def test_a_dry_run_removes_nothing() -> None:
    api = FakeApi(containers=[container("dead", DEAD), container("far", ELSEWHERE)], images=[image("old")])
    cleaned = await clean(over(api), Scope(everything=True), dry_run=True)
    assert len(cleaned.removed) == 3
    assert api.gone == []


class Things:
    """Real things on the engine, of a run of their own."""

    def __init__(self, engine: Engine) -> None:
        self.api = engine.api
        self.run = f"test-{uuid.uuid4().hex[:12]}"
        self.images: list[str] = []

    def container(self, whose: str, *, kept: bool = False) -> str:
        labels = {LABEL_RUN: self.run, LABEL_OWNER: whose}
        created: str = self.api.create_container(BASE, ["true"], labels=labels)["Id"]
        if kept:
            self.api.rename(created, f"{KEPT_PREFIX}{self.run}-{created[:12]}")
        return created

    def snapshot(self, container: str, kind: str) -> str:
        self.images.append(self.api.commit(container, changes=[f"LABEL {LABEL_SNAPSHOT}={kind}"])["Id"])
        return self.images[-1]

    def left(self) -> set[str]:
        mine = {"label": f"{LABEL_RUN}={self.run}"}
        images = {image["Id"] for image in self.api.images(filters=mine)}
        return {found["Id"] for found in self.api.containers(all=True, filters=mine)} | images


@pytest.fixture
def things(engine: Engine) -> Iterator[Things]:
    made = Things(engine)
    yield made
    for identity in made.left():
        if identity in made.images:
            engine.api.remove_image(identity)
        else:
            engine.api.remove_container(identity, force=True)


@pytest.mark.engine
async def test_on_a_real_engine_the_reaper_takes_a_killed_run_s_things_and_no_others(
    engine: Engine, things: Things
) -> None:
    stay = {things.container(owner()), things.container(ELSEWHERE)}
    for _ in range(20):  # the start of a run beside this test may be the first to take what is dead
        with killed_at_the_end() as whose:
            dead, kept = things.container(whose), things.container(whose, kept=True)
            snapshot = things.snapshot(kept, SNAPSHOT_KEPT)
        stay |= {kept, snapshot}
        said = {
            line.removesuffix(f" of run {things.run}, whose process is gone")
            for line in (await remove_leftovers(engine)).lines
        }
        if f"removed container {dead[:12]}" in said:
            break
    else:
        pytest.fail("what the reaper says is not what it took")
    assert things.left() == stay


@pytest.mark.engine
async def test_on_a_real_engine_a_run_s_kept_things_can_be_removed(engine: Engine, things: Things) -> None:
    with killed_at_the_end() as whose:
        kept = things.container(whose, kept=True)
        snapshot, live = things.snapshot(kept, SNAPSHOT_KEPT), things.container(owner())
    dry = await clean(engine, Scope(run=things.run, kept=True), dry_run=True)
    assert {kept, snapshot, live} == things.left()
    done = await clean(engine, Scope(run=things.run, kept=True))
    assert (done.removed, done.failed) == (dry.removed, [])
    assert things.left() == {live}


@pytest.mark.engine
async def test_a_run_begins_while_the_engine_is_still_busy_with_what_others_left(
    engine: Engine, tools_volume: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    is_removed, is_said = asyncio.Event(), asyncio.Event()

    async def slow(_: Engine) -> Reaped:
        await is_removed.wait()
        return Reaped(["removed"])

    monkeypatch.setattr(backend, "remove_leftovers", slow)
    monkeypatch.setattr(backend, "_REAP_FIRST_SEC", 0.01)
    async with asyncio.timeout(60):
        async with open_backend(DockerBackend(engine, SandboxSettings("none")), lambda words: is_said.set()):
            assert not is_said.is_set()
            is_removed.set()
            await is_said.wait()
        is_removed.clear()
        async with open_backend(DockerBackend(engine, SandboxSettings("none"))):
            pass
