"""Images that tasks name: present, pulled, pinned, built instead, refused, dropped; through a real registry."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from own_registry import HTML, LOGIN, TOO_MANY, Front, OwnRegistry, answering, cut_after, own_registry

from tbench.errors import TrialError
from tbench.results import ImageOrigin
from tbench.sandbox.backend import SandboxSettings, open_backend
from tbench.sandbox.build_context import build_tag
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.docker.image import Images
from tbench.sandbox.docker.pulls import Pulls, RetryPolicy
from tbench.sandbox.image import Image, ImageName
from tbench.tasks.environment import Environment, agent_environment
from tbench.tasks.task import Task

pytestmark = pytest.mark.engine
HASTY = RetryPolicy(attempts=2, first_sec=0.01, most_sec=0.05, total_sec=1.0)
BASE = "debian:bookworm-slim"
Named = Callable[..., Environment]


@pytest.fixture(autouse=True)
async def removed(engine: Engine) -> AsyncIterator[None]:
    """Removes what was pulled: the images of these tests have a label of their own."""
    yield
    for image in await engine.call(engine.api.images, filters={"label": "tbench.test=registry"}):
        await engine.call(engine.api.remove_image, image["Id"], force=True)


@pytest.fixture
def only(make_task: Any, tmp_path: Path) -> Named:
    """Makes the environment of a task that has an image and no Dockerfile."""

    def make(image: str, name: str = "small") -> Environment:
        toml = f'[environment]\nmemory_mb = 256\ndocker_image = "{image}"\n'
        return agent_environment(Task.read(make_task(name, toml=toml, dockerfile=None)))

    return make


@pytest.fixture
def buildable(fresh: Callable[..., Task]) -> Named:
    """Makes the environment of a task that has an image and a Dockerfile."""
    return lambda image: agent_environment(fresh(docker_image=image))


async def failure(images: Images, environment: Environment) -> TrialError:
    with pytest.raises(TrialError) as caught:
        await images.get(environment)
    return caught.value


async def is_there(engine: Engine, name: str) -> bool:
    return await Images(engine).find(ImageName.parse(name).reference) is not None


async def test_a_pinned_image_is_pulled_and_then_present(engine: Engine, registry: OwnRegistry, only: Named) -> None:
    image = registry.push()
    environment = only(image.at(registry, pinned=True))
    origins = []
    for state in ("to be pulled", "present"):
        images = Images(engine)
        assert await images.predict_state(environment) == state
        origins.append((await images.get(environment)).origin)
    reference = image.at(registry, pinned=True)
    assert origins == [
        ImageOrigin(how="pulled", reference=reference, digest=image.digest),
        ImageOrigin(how="present", reference=reference, digest=image.digest),
    ]


async def test_an_image_of_the_same_tag_and_another_digest_is_not_the_pinned_one(
    engine: Engine, registry: OwnRegistry, only: Named
) -> None:
    old, new = registry.push(), registry.push()
    tagged = await Images(engine).get(only(old.at(registry)))
    pinned = f"{registry.address}/{old.name}:1@{new.digest}"
    assert await Images(engine).find_published(ImageName.parse(pinned)) is None
    assert (await failure(Images(engine), only(pinned))).type == "image_unavailable"
    assert await is_there(engine, tagged.reference)


async def test_an_image_counts_under_the_digest_that_the_engine_knows_it_by(engine: Engine) -> None:
    class Answering:
        def inspect_image(self, name: str) -> dict[str, Any]:
            return {"Id": "sha256:1", "RepoDigests": ["lab/a@sha256:other"]}

    other = Engine(Answering(), engine.executor, engine.info)  # type: ignore[arg-type]
    assert await Images(other).find_published(ImageName.parse("lab/a@sha256:asked")) is None
    assert await Images(other).find_published(ImageName.parse("lab/a@sha256:other")) is not None


async def test_always_asks_for_the_newest_of_a_tag_but_not_of_a_pinned_image(
    engine: Engine, registry: OwnRegistry, front: Front, only: Named
) -> None:
    image = registry.push()
    await Images(engine).get(only(image.at(front)))
    await Images(engine).get(only(image.at(front, pinned=True)))
    asked = front.asked("/manifests/")
    always = Images(engine, pull="always")
    assert await always.predict_state(only(image.at(front))) == "to be pulled"
    assert (await always.get(only(image.at(front)))).origin.how == "present", "it was the newest"  # type: ignore[union-attr]
    assert front.asked("/manifests/") > asked
    asked = front.asked("/manifests/")
    pinned = only(image.at(front, pinned=True), "pinned")
    assert (await always.predict_state(pinned), (await always.get(pinned)).reference) == (
        "present",
        image.at(front, pinned=True),
    )
    assert front.asked("/manifests/") == asked


async def test_always_takes_no_old_image_where_the_registry_does_not_answer(
    engine: Engine, registry: OwnRegistry, front: Front, only: Named, buildable: Named
) -> None:
    image = registry.push()
    await Images(engine).get(only(image.at(front)))
    front.fault("/manifests/", answering(503))
    for environment in (only(image.at(front)), buildable(image.at(front))):
        failed = await failure(Images(engine, pull="always", pulls=Pulls(engine, retries=HASTY)), environment)
        assert failed.type == "image_unavailable" and "--pull missing uses the existing image" in str(failed)


async def test_never_builds_what_is_missing_and_says_so(
    engine: Engine, registry: OwnRegistry, front: Front, buildable: Named
) -> None:
    said: list[str] = []
    environment = buildable(registry.push().at(front))
    images = Images(engine, pull="never", say=said.append)
    assert await images.predict_state(environment) == "to be built"
    assert (await images.get(environment)).reference == build_tag(environment)
    assert front.seen == [] and "--pull never" in said[0] and "built from its Dockerfile" in said[0]


async def test_never_with_nothing_to_build_is_an_error(
    engine: Engine, registry: OwnRegistry, front: Front, only: Named
) -> None:
    environment = only(registry.push().at(front))
    images = Images(engine, pull="never")
    assert await images.predict_state(environment) == "unavailable"
    failed = await failure(images, environment)
    assert failed.type == "image_unavailable" and "--pull never" in str(failed) and front.seen == []


async def test_what_is_here_is_used_with_never(engine: Engine, registry: OwnRegistry, only: Named) -> None:
    environment = only(registry.push().at(registry))
    await Images(engine).get(environment)
    origin = (await Images(engine, pull="never").get(environment)).origin
    assert origin is not None and origin.how == "present"


@pytest.mark.parametrize(
    ("fault", "type_", "blame", "again"),
    [
        (answering(401), "image_denied", "user", False),
        (answering(429, TOO_MANY, Retry_After="3600"), "image_rate_limited", "infra", True),
        (answering(500), "image_unavailable", "infra", True),
        (answering(404), "image_unavailable", "infra", True),
        (HTML, "image_unavailable", "infra", True),
        (cut_after(0), "image_unavailable", "infra", True),
    ],
    ids=["401", "429", "500", "404", "html", "cut"],
)
async def test_what_a_registry_does_wrong_is_one_line_with_task_and_image(
    engine: Engine, registry: OwnRegistry, front: Front, only: Named, fault: Any, type_: str, blame: str, again: bool
) -> None:
    name = registry.push().at(front)
    front.fault("/manifests/", fault)
    failed = await failure(Images(engine, pulls=Pulls(engine, retries=HASTY)), only(name))
    assert (failed.type, failed.kind.blame, failed.kind.retryable, failed.stage) == (type_, blame, again, "image")
    assert str(failed).startswith(f"small: {name} cannot be pulled and there is no Dockerfile to build it from: ")
    assert "\n" not in str(failed) and not await is_there(engine, name)


async def test_what_stands_is_not_asked_for_again_and_what_may_pass_is(
    engine: Engine, registry: OwnRegistry, front: Front, only: Named
) -> None:
    images = Images(engine, pulls=Pulls(engine, retries=RetryPolicy(attempts=1)))
    denied, broken = only(registry.push().at(front), "denied"), only(registry.push().at(front), "broken")
    front.fault("/manifests/", answering(401), times=2)
    first, asked = await failure(images, denied), front.asked("/manifests/")
    assert str(await failure(images, denied)) == str(first) and front.asked("/manifests/") == asked
    front.fault("/manifests/", answering(500), times=2)
    assert (await failure(images, broken)).type == "image_unavailable"
    assert (await images.get(broken)).origin.how == "pulled"  # type: ignore[union-attr]


async def test_a_rate_limit_is_not_turned_into_another_image_in_silence(
    engine: Engine, registry: OwnRegistry, front: Front, buildable: Named
) -> None:
    said: list[str] = []
    front.fault("/manifests/", answering(429, TOO_MANY, Retry_After="3600"))
    pinned = buildable(registry.push().at(front, pinned=True))
    image = await Images(engine, pulls=Pulls(engine, retries=HASTY), say=said.append).get(pinned)
    assert image.origin is not None and (image.origin.how, image.origin.digest) == ("built", None)
    assert "limits pulls" in said[-2] and said[-2].endswith(
        "; an image built from its Dockerfile is used, which will differ from the pinned image"
    )


async def test_the_images_of_several_are_got_together_and_one_that_cannot_be_had_costs_no_other(
    engine: Engine, registry: OwnRegistry, only: Named
) -> None:
    good, bad = only(registry.push().at(registry), "good"), only(f"{registry.address}/lab/none:1", "bad")
    images = Images(engine)
    assert [name.text for name in await images.to_pull([good, bad, good])] == sorted(
        each.settings.docker_image or "" for each in (good, bad)
    )
    found = await images.get_all([good, bad])
    assert isinstance(found["good"], Image) and isinstance(found["bad"], TrialError)
    assert [name.text for name in await images.to_pull([good, bad])] == [bad.settings.docker_image]


async def test_nothing_is_to_be_pulled_if_no_image_may_be(engine: Engine, only: Named) -> None:
    assert await Images(engine, pull="never").to_pull([only("lab/nothing:1")]) == []


async def test_of_images_that_are_built_only_those_without_a_dockerfile_are_pulled(
    engine: Engine, only: Named, buildable: Named
) -> None:
    environments = [only("lab/nothing:1"), buildable("lab/nothing:2")]
    assert [name.text for name in await Images(engine, build=True).to_pull(environments)] == ["lab/nothing:1"]


class TestDropping:
    """Images of tasks whose last trial is over."""

    async def drop(self, images: Images, environment: Environment, others: tuple[Environment, ...] = ()) -> int:
        image = images.to_drop(environment, others)
        return 0 if image is None else await images.drop(environment, image)

    @pytest.mark.parametrize("pinned", [False, True], ids=["tag", "digest"])
    async def test_what_was_pulled_goes_and_is_pulled_again_where_it_is_needed(
        self, engine: Engine, registry: OwnRegistry, only: Named, pinned: bool
    ) -> None:
        environment = only(registry.push(size=50_000).at(registry, pinned=pinned))
        images = Images(engine)
        image = await images.get(environment)
        assert await self.drop(images, environment) == image.size == 50_000
        assert await images.find(image.id) is None
        assert (await images.get(environment)).id == image.id

    async def test_what_was_built_goes(self, engine: Engine, fresh: Callable[..., Task]) -> None:
        environment, images = agent_environment(fresh("RUN echo small > /file\n")), Images(engine)
        image = await images.get(environment)
        assert await self.drop(images, environment) > 0
        assert await images.find(image.id) is None and await is_there(engine, BASE)

    async def test_what_was_there_before_stays(self, engine: Engine, registry: OwnRegistry, only: Named) -> None:
        environment = only(registry.push().at(registry))
        image, later = await Images(engine).get(environment), Images(engine)
        await later.get(environment)
        assert await self.drop(later, environment) == 0 and await is_there(engine, image.reference)

    async def test_what_another_task_needs_stays(self, engine: Engine, registry: OwnRegistry, only: Named) -> None:
        name = registry.push().at(registry)
        first, second, images = only(name, "first"), only(name, "second"), Images(engine)
        await images.get(first)
        assert await self.drop(images, first, (second,)) == 0 and await is_there(engine, name)
        assert await self.drop(images, first) > 0

    async def test_what_has_another_name_loses_only_this_one(
        self, engine: Engine, registry: OwnRegistry, only: Named
    ) -> None:
        environment, images = only(registry.push().at(registry)), Images(engine)
        image = await images.get(environment)
        await engine.call(engine.api.tag, image.id, "tbench-test/also-mine", "1")
        assert await self.drop(images, environment) == 0
        assert await is_there(engine, "tbench-test/also-mine:1") and not await is_there(engine, image.reference)

    async def test_what_a_container_uses_stays(self, engine: Engine, registry: OwnRegistry, only: Named) -> None:
        environment, images = only(registry.push().at(registry)), Images(engine)
        image = await images.get(environment)
        made = await engine.call(engine.api.create_container, image.id, ["/nothing"])
        try:
            assert await self.drop(images, environment) == 0
            assert await images.find(image.id) is not None
        finally:
            await engine.call(engine.api.remove_container, made["Id"])

    async def test_an_image_that_no_one_asked_for_is_none_to_drop(self, engine: Engine, only: Named) -> None:
        assert Images(engine).to_drop(only(BASE), ()) is None


async def test_an_engine_that_does_not_answer_is_not_taken_for_a_registry_that_does_not(
    engine: Engine, only: Named
) -> None:
    class Gone:
        base_url, api_version = "http+docker://localhost", "1.41"

        def inspect_image(self, name: str) -> dict[str, Any]:
            raise EngineError("no such image", 404)

        def post(self, *_: Any, **__: Any) -> None:
            raise ConnectionRefusedError("the engine is gone")

    gone = Engine(Gone(), engine.executor, engine.info, outage_sec=0)  # type: ignore[arg-type]
    assert (await failure(Images(gone), only("lab/nothing:1"))).type == "engine_unreachable"


async def test_a_backend_drops_an_image_with_the_container_that_shows_it_as_it_was(
    engine: Engine, fresh: Callable[..., Task]
) -> None:
    environment = agent_environment(fresh("RUN echo small > /file\n", toml="allow_internet = false\n"))
    async with open_backend(DockerBackend(engine, SandboxSettings("tests"))) as backend:
        sandbox = await backend.sandbox(environment, "tests")
        await sandbox.original()
        await sandbox.remove()
        assert await backend.drop_image(environment, [environment]) == 0, "it is needed once more"
        assert await backend.drop_image(environment, []) > 0
        assert await Images(engine).find(backend.image_ids[environment.name]) is None


async def test_a_backend_tells_what_is_to_be_pulled_and_what_could_not_be(
    engine: Engine, registry: OwnRegistry, only: Named
) -> None:
    good, bad = only(registry.push(size=100_000).at(registry), "good"), only(f"{registry.address}/lab/none:1", "bad")
    async with open_backend(DockerBackend(engine, SandboxSettings("tests"))) as backend:
        (line,) = await backend.describe_pulls([good, bad], ask=True)
        assert line.startswith("2 images to be pulled; 0.1 MB, about 0.3 MB on the disk; size of 1 more unknown")
        failed = await backend.prefetch([good, bad])
        assert {name: error.type for name, error in failed.items()} == {"bad": "image_unavailable"}
        assert set(backend.image_ids) == {"good"} and backend.image_origins["good"].how == "pulled"
        (line,) = await backend.describe_pulls([good, bad], ask=False)
        assert line.startswith("1 image to be pulled; size unknown")


async def test_an_image_is_built_of_one_that_a_registry_gives_to_us_alone(
    engine: Engine, fresh: Callable[..., Task], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with own_registry(login=True) as registry:
        base = registry.push().at(registry)
        (tmp_path / "config.json").write_text(json.dumps({"auths": {registry.address: {"auth": LOGIN}}}))
        monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))
        task = fresh(f"FROM {base}\nCOPY Dockerfile /\n")
        assert (await Images(engine).get(agent_environment(task))).reference == build_tag(agent_environment(task))
