"""Pulls through a real registry and its faults: what is tried again, what is not, and what is said."""

from __future__ import annotations

import asyncio
import json
import re
import time
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from own_registry import (
    HTML,
    LOGIN,
    TOO_MANY,
    Front,
    OwnRegistry,
    Pushed,
    answering,
    cut_after,
    front_of,
    never,
    own_registry,
    slowly,
)

from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.pulls import PullFailed, Pulls, RetryPolicy
from tbench.sandbox.image import ImageName

pytestmark = pytest.mark.engine
HASTY = RetryPolicy(first_sec=0.05, most_sec=0.2, total_sec=5.0)


@pytest.fixture(scope="module")
def closed_registry() -> Iterator[OwnRegistry]:
    with own_registry(login=True) as registry:
        yield registry


class Said(list[str]):
    """Messages of a pull, without names."""

    def take(self, line: str) -> None:
        self.append(re.sub(r"127\.0\.0\.1:\d+(/lab/\w+(:1)?(@sha256:\w+)?)?", "NAME", line))


@pytest.fixture
def said() -> Said:
    return Said()


@pytest.fixture
def pulls(engine: Engine, said: Said) -> Pulls:
    return Pulls(engine, retries=HASTY, say=said.take)


@pytest.fixture(autouse=True)
async def removed(engine: Engine) -> AsyncIterator[None]:
    """Removes what was pulled: the images of these tests have a label of their own."""
    yield
    for image in await engine.call(engine.api.images, filters={"label": "tbench.test=registry"}):
        await engine.call(engine.api.remove_image, image["Id"], force=True)


async def is_there(engine: Engine, name: str) -> bool:
    try:
        await engine.call(engine.api.inspect_image, ImageName.parse(name).reference)
    except EngineError as error:
        assert error.status == 404
        return False
    return True


async def failure(pulls: Pulls, name: str) -> PullFailed:
    with pytest.raises(PullFailed) as caught:
        await pulls.pull(ImageName.parse(name), "small")
    return caught.value


async def test_an_image_is_pulled_and_its_size_is_said(
    engine: Engine, pulls: Pulls, registry: OwnRegistry, said: Said
) -> None:
    name = registry.push(size=300_000).at(registry)
    await pulls.pull(ImageName.parse(name), "small")
    assert await is_there(engine, name)
    begun, ended = said
    assert begun == "small: pulling NAME" and re.fullmatch(r"small: pulled NAME: 0\.3 MB in \d+ s", ended)


async def test_a_pinned_image_is_pulled_by_its_digest_whatever_its_tag_stands_for(
    engine: Engine, pulls: Pulls, registry: OwnRegistry
) -> None:
    old, new = registry.push(), registry.push()
    pinned = f"{registry.address}/{old.name}:9@{old.digest}"  # there is no such tag
    await pulls.pull(ImageName.parse(pinned), "small")
    image = await engine.call(engine.api.inspect_image, f"{registry.address}/{old.name}@{old.digest}")
    assert image["RepoDigests"] == [f"{registry.address}/{old.name}@{old.digest}"] and image["RepoTags"] == []
    assert (await failure(pulls, f"{registry.address}/{old.name}:1@{new.digest}")).kind == "missing"


async def test_an_image_is_pulled_once_however_many_ask_for_it(
    pulls: Pulls, registry: OwnRegistry, front: Front, said: Said
) -> None:
    name = ImageName.parse(registry.push().at(front))
    await asyncio.gather(*(pulls.pull(name, f"task-{number}") for number in range(5)))
    await pulls.pull(name, "late")
    assert len([line for line in said if "pulling" in line]) == 1
    pulls.forget(name)
    await pulls.pull(name, "again")
    assert said[-2:] == ["again: pulling NAME", "again: pulled NAME: 0 s"], (
        "it is on the engine, and was asked for anew"
    )


@pytest.mark.parametrize("at_once", [1, 2])
async def test_no_more_than_so_many_are_under_way(
    engine: Engine, registry: OwnRegistry, front: Front, at_once: int
) -> None:
    images = [registry.push() for _ in range(4)]
    front.fault("/blobs/", slowly(0.4 if at_once > 1 else 0.1))  # so long that two images overlap on a busy machine
    pulls = Pulls(engine, at_once=at_once, retries=HASTY)
    await asyncio.gather(*(pulls.pull(ImageName.parse(each.at(front)), "small") for each in images))
    # Of each image two blobs at most are on their way at a time: its configuration and its layer.
    assert front.most_at_once <= 2 * at_once
    assert at_once == 1 or front.most_at_once > 2


async def test_how_far_it_is_is_said_now_and_then(
    engine: Engine, registry: OwnRegistry, front: Front, said: Said
) -> None:
    image = registry.push(size=1_500_000)
    front.fault(image.layers[0], slowly(0.04))
    pulls = Pulls(engine, retries=HASTY, say=said.take, report_every_sec=0.2)
    await pulls.pull(ImageName.parse(image.at(front)), "small")
    steps = [line for line in said if re.fullmatch(r"small: pulling NAME: \d\.\d of 1\.5 MB", line)]
    assert len(steps) >= 2 and steps == sorted(set(steps))
    assert said[-1].startswith("small: pulled NAME: 1.5 MB in ")


@pytest.mark.parametrize(
    "fault",
    [answering(503), answering(500, b"oops", "text/plain"), cut_after(0), cut_after(700), answering(429, TOO_MANY)],
    ids=["503", "500", "no answer", "cut", "429"],
)
async def test_what_passes_by_itself_is_tried_again(
    engine: Engine, pulls: Pulls, registry: OwnRegistry, front: Front, said: Said, fault: Any
) -> None:
    name = registry.push().at(front)
    front.fault("/manifests/", fault, times=2)
    await pulls.pull(ImageName.parse(name), "small")
    assert await is_there(engine, name)
    assert any(re.search(r"; trying again in \d s$", line) for line in said)


async def test_tries_have_an_end(engine: Engine, registry: OwnRegistry, front: Front, said: Said) -> None:
    front.fault("/manifests/", answering(503))
    few = RetryPolicy(attempts=3, first_sec=0.01, most_sec=0.02)
    failed = await failure(Pulls(engine, retries=few, say=said.take), registry.push().at(front))
    assert (failed.kind, len([line for line in said if line == "small: pulling NAME"])) == ("passing", 3)


async def test_the_wait_that_a_registry_asks_for_is_kept(
    engine: Engine, pulls: Pulls, registry: OwnRegistry, front: Front, said: Said
) -> None:
    name = registry.push().at(front)
    # The engine asks twice, HEAD and GET; the third is tbench's own question how long to wait.
    front.fault("/manifests/", answering(429, TOO_MANY, Retry_After="1"), times=3)
    await pulls.pull(ImageName.parse(name), "small")
    assert await is_there(engine, name)
    (line,) = [line for line in said if "trying again" in line]
    assert "limits pulls" in line and "docker login NAME" in line and line.endswith("; trying again in 1 s")


async def test_a_wait_beyond_all_patience_is_given_up_at_once_for_all_of_that_registry(
    engine: Engine, pulls: Pulls, registry: OwnRegistry, front: Front, said: Said
) -> None:
    front.fault("/manifests/", answering(429, TOO_MANY, Retry_After="21600"))
    first, second = registry.push().at(front), registry.push().at(front)
    assert (await failure(pulls, first)).kind == "rate-limited"
    assert (await failure(pulls, second)).kind == "rate-limited"
    assert said == ["small: pulling NAME"] * 2, "nobody waits six hours"
    front.behave()
    await pulls.pull(ImageName.parse(second), "small")
    assert await is_there(engine, second)


@pytest.mark.parametrize(
    ("fault", "kind", "words"),
    [
        (answering(401), "denied", "requires a login"),
        (answering(403), "denied", "docker login 127.0.0.1"),
        (answering(403, b'{"errors":[{"code":"DENIED","message":"no"}]}'), "missing", "may require 'docker login'"),
        (answering(404), "missing", "404"),
        (HTML, "unreadable", "does not answer like a registry"),
        (answering(200, b'{"a": 1}'), "unreadable", "does not answer like a registry"),
    ],
    ids=["401", "403", "403 denied", "404", "html", "json"],
)
async def test_what_someone_has_to_mend_is_not_tried_again(
    engine: Engine, pulls: Pulls, registry: OwnRegistry, front: Front, said: Said, fault: Any, kind: str, words: str
) -> None:
    name = registry.push().at(front)
    front.fault("/manifests/", fault)
    failed = await failure(pulls, name)
    assert failed.kind == kind and words in str(failed) and "\n" not in str(failed)
    assert said == ["small: pulling NAME"] and not await is_there(engine, name)


async def test_a_registry_that_is_away_is_asked_once_for_all_images(pulls: Pulls, said: Said) -> None:
    first, second = await failure(pulls, "127.0.0.1:1/lab/a:1"), await failure(pulls, "127.0.0.1:1/lab/b:1")
    assert (first.kind, second.kind, said) == ("away", "away", ["small: pulling NAME"])


async def test_a_registry_that_never_answers_is_given_up_after_a_second_try(
    engine: Engine, registry: OwnRegistry, front: Front, said: Said
) -> None:
    front.fault("/manifests/", never)
    pulls = Pulls(engine, retries=HASTY, pull_sec=0.5, say=said.take)
    failed = await failure(pulls, registry.push().at(front))
    assert (failed.kind, len([line for line in said if line == "small: pulling NAME"])) == ("silent", 2)


async def test_a_pull_that_takes_its_whole_time_is_not_begun_again(
    engine: Engine, registry: OwnRegistry, front: Front, said: Said
) -> None:
    image = registry.push(size=2_000_000)
    front.fault(image.layers[0], slowly(0.1))
    failed = await failure(Pulls(engine, retries=HASTY, pull_sec=1.0, say=said.take), image.at(front))
    assert failed.kind == "slow" and "took longer than 1 s" in str(failed)
    assert said == ["small: pulling NAME"] and not await is_there(engine, image.at(front))


async def test_a_registry_that_goes_away_for_good_is_waited_for_once(
    engine: Engine, registry: OwnRegistry, said: Said
) -> None:
    few = RetryPolicy(attempts=3, first_sec=0.01, most_sec=0.02)
    pulls = Pulls(engine, retries=few, say=said.take)
    with front_of(registry) as front:
        await pulls.pull(ImageName.parse(registry.push().at(front)), "small")
        names = [registry.push().at(front) for _ in range(3)]
    attempts = []
    for name in names:
        said.clear()
        assert (await failure(pulls, name)).kind == "away"
        attempts.append(len([line for line in said if line == "small: pulling NAME"]))
    assert attempts == [3, 1, 0], "with retries, without, and by what is known"


async def test_a_rate_limit_of_one_registry_takes_no_place_of_another(
    engine: Engine, registry: OwnRegistry, front: Front
) -> None:
    limited, free = registry.push().at(front), registry.push().at(registry)
    front.fault("/manifests/", answering(429, TOO_MANY, Retry_After="3"))
    pulls = Pulls(engine, at_once=1, retries=HASTY)
    waiting = asyncio.create_task(pulls.pull(ImageName.parse(limited), "limited"))
    await asyncio.to_thread(_wait_until, lambda: front.asked("/manifests/") >= 3)
    await pulls.pull(ImageName.parse(free), "free")
    assert not waiting.done() and await is_there(engine, free)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting


async def test_another_image_of_a_registry_need_not_wait_for_the_end_of_the_first(
    pulls: Pulls, registry: OwnRegistry, front: Front
) -> None:
    large, small = registry.push(), registry.push()
    front.fault(large.layers[0], never)
    first = asyncio.create_task(pulls.pull(ImageName.parse(large.at(front)), "large"))
    await pulls.pull(ImageName.parse(small.at(front)), "small")
    assert not first.done()
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first


async def test_a_pull_that_was_cancelled_ends_on_the_engine_and_leaves_nothing_that_counts(
    engine: Engine, pulls: Pulls, registry: OwnRegistry, front: Front
) -> None:
    image = registry.push(size=500_000, layers=2)
    # A registry that has not even begun to answer is waited for by this engine whoever goes away.
    front.fault(image.layers[1], cut_after(100_000, then_wait=True), times=1)
    name = image.at(front)
    pulling = asyncio.create_task(pulls.pull(ImageName.parse(name), "small"))
    await asyncio.to_thread(_wait_until, lambda: front.asked(image.layers[1]) == 1)
    pulling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pulling
    assert not await is_there(engine, name)
    await pulls.pull(ImageName.parse(name), "small")
    assert await is_there(engine, name)


def _wait_until(is_so: Any) -> None:
    ends_at = time.monotonic() + 30
    while not is_so():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


@pytest.mark.slow
async def test_a_layer_that_was_cut_is_fetched_again_by_the_engine_itself(
    engine: Engine, pulls: Pulls, registry: OwnRegistry, front: Front, said: Said
) -> None:
    image = registry.push(size=500_000)
    front.fault(image.layers[0], cut_after(200_000), times=1)
    await pulls.pull(ImageName.parse(image.at(front)), "small")
    assert await is_there(engine, image.at(front))
    assert front.asked(image.layers[0]) == 2 and said[-1].startswith("small: pulled NAME: 0.5 MB in ")


async def test_a_pull_that_fails_half_way_leaves_nothing_that_counts_and_another_goes_on(
    engine: Engine, pulls: Pulls, registry: OwnRegistry, front: Front
) -> None:
    image = registry.push(size=500_000, layers=2)
    front.fault(image.layers[1], answering(401))
    assert (await failure(pulls, image.at(front))).kind == "denied"
    assert front.asked(image.layers[0]) == 1 and not await is_there(engine, image.at(front))
    front.behave()
    await pulls.pull(ImageName.parse(image.at(front)), "small")
    assert await is_there(engine, image.at(front))


class TestLogins:
    """A registry that asks who one is, and Docker's own configuration."""

    @pytest.fixture
    def image(self, closed_registry: OwnRegistry) -> Pushed:
        return closed_registry.push()

    @pytest.fixture
    def config(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

        def write(**content: Any) -> None:
            (tmp_path / "config.json").write_text(json.dumps(content))

        return write

    async def test_without_one_it_says_where_to_log_in(
        self, engine: Engine, pulls: Pulls, closed_registry: OwnRegistry, image: Pushed, config: Any, said: Said
    ) -> None:
        config()
        failed = await failure(pulls, image.at(closed_registry))
        assert failed.kind == "denied"
        assert str(failed).startswith(f"{closed_registry.address} requires a login (")
        assert str(failed).endswith(f": docker login {closed_registry.address}")
        assert not await is_there(engine, image.at(closed_registry)) and len(said) == 1

    async def test_the_login_of_the_configuration_is_used(
        self, engine: Engine, pulls: Pulls, closed_registry: OwnRegistry, image: Pushed, config: Any, said: Said
    ) -> None:
        config(auths={closed_registry.address: {"auth": LOGIN}})
        await pulls.pull(ImageName.parse(image.at(closed_registry)), "small")
        assert await is_there(engine, image.at(closed_registry))
        assert LOGIN not in " ".join(said)

    async def test_a_wrong_one_is_refused_without_being_told(
        self, pulls: Pulls, closed_registry: OwnRegistry, image: Pushed, config: Any, said: Said
    ) -> None:
        config(auths={closed_registry.address: {"username": "lab", "password": "wr0ng-secret"}})
        failed = await failure(pulls, image.at(closed_registry))
        assert failed.kind == "denied"
        assert "rejects the login in Docker's configuration" in str(failed)
        assert "wr0ng" not in " ".join([str(failed), *said])

    async def test_a_helper_program_gives_it(
        self,
        engine: Engine,
        pulls: Pulls,
        closed_registry: OwnRegistry,
        image: Pushed,
        config: Any,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        program = tmp_path / f"docker-credential-{uuid.uuid4().hex}"
        program.write_text('#!/bin/sh\ncat >/dev/null\necho \'{"Username":"lab","Secret":"not-a-secret-1"}\'\n')
        program.chmod(0o755)
        monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
        config(credHelpers={closed_registry.address: program.name.removeprefix("docker-credential-")})
        await pulls.pull(ImageName.parse(image.at(closed_registry)), "small")
        assert await is_there(engine, image.at(closed_registry))

    async def test_a_helper_that_is_missing_is_named(
        self, pulls: Pulls, closed_registry: OwnRegistry, image: Pushed, config: Any
    ) -> None:
        config(credsStore="not-here")
        failed = await failure(pulls, image.at(closed_registry))
        assert failed.kind == "denied" and "docker-credential-not-here" in str(failed)
