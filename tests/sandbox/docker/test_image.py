"""Images of tasks: found, pulled or built, once per content, and what is said when there is none."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from digest_cases import write_task
from run_plans import a_config

from tbench.compose.project import ImageBuild
from tbench.errors import TrialError
from tbench.results import ImageOrigin
from tbench.runs.plan import as_configured
from tbench.sandbox.build_context import build_tag
from tbench.sandbox.docker import image as image_module
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.image import Images
from tbench.sandbox.docker.pulls import Pulls
from tbench.sandbox.image import Image
from tbench.tasks.environment import Environment, agent_environment
from tbench.tasks.task import Task

needs_engine = pytest.mark.engine
BASE = "debian:bookworm-slim"
NOWHERE = "localhost:1/nobody/nothing:1"
"""Refused at once: no registry listens there."""


async def failure(images: Images, task: Task) -> TrialError:
    return await failure_of(images, agent_environment(task))


async def failure_of(images: Images, environment: Environment) -> TrialError:
    with pytest.raises(TrialError) as caught:
        await images.get(environment)
    return caught.value


@needs_engine
async def test_an_image_is_built_from_the_dockerfile_and_its_files(engine: Engine, fresh: Callable[..., Task]) -> None:
    task = fresh("COPY data /data\nENV LC_ALL=C.UTF-8\nUSER nobody\nWORKDIR /srv/work\n")
    (task.path / "environment" / "data").write_bytes(b"\xff\0")
    image = await Images(engine).get(agent_environment(task))
    assert (image.reference, image.user, image.workdir, image.has_locale) == (
        build_tag(agent_environment(task)), "nobody", "/srv/work", True,
    )  # fmt: skip


@needs_engine
async def test_an_image_that_says_nothing_has_defaults(engine: Engine, fresh: Callable[..., Task]) -> None:
    image = await Images(engine).get(agent_environment(fresh()))
    assert (image.user, image.workdir, image.has_locale) == ("", "/", False)


@needs_engine
async def test_the_same_content_is_built_once(engine: Engine, fresh: Callable[..., Task]) -> None:
    task, said = fresh(), list[str]()
    images = Images(engine, say=said.append)
    first = await asyncio.gather(*(images.get(agent_environment(task)) for _ in range(4)))
    later = await Images(engine, say=said.append).get(agent_environment(task))
    assert {image.id for image in first} == {later.id}
    assert said == [f"{task.name}: building its image"]


@needs_engine
async def test_other_content_is_built_again(engine: Engine, fresh: Callable[..., Task]) -> None:
    task, said = fresh("COPY . /all\n"), list[str]()
    before = await Images(engine).get(agent_environment(task))
    old_tag = build_tag(agent_environment(task))
    (task.path / "environment" / "more").write_text("x")
    after = await Images(engine, say=said.append).get(agent_environment(Task.read(task.path)))
    assert before.id != after.id
    assert len(said) == 1
    await engine.call(engine.api.remove_image, old_tag, force=True)


@needs_engine
async def test_an_environment_that_is_not_the_one_of_the_hash_is_neither_built_nor_used(
    engine: Engine, fresh: Callable[..., Task]
) -> None:
    task, said = fresh("COPY . /all\n"), list[str]()
    assert task.hash
    (task.path / "environment" / "more").write_text("x")
    # Now the engine has an image of just this content.
    await Images(engine).get(agent_environment(Task.read(task.path)))
    failed = await failure(Images(engine, say=said.append), task)
    assert (failed.type, said) == ("task_changed", [])
    assert f"{task.path / 'environment' / 'more'} was added" in str(failed)


@needs_engine
async def test_an_environment_that_no_image_is_built_of_is_not_read(engine: Engine, fresh: Callable[..., Task]) -> None:
    task = fresh(docker_image=BASE)
    assert task.hash
    (task.path / "environment" / "more").write_text("x")
    assert (await Images(engine).get(agent_environment(task))).reference == BASE


@needs_engine
async def test_building_can_be_forced(engine: Engine, fresh: Callable[..., Task]) -> None:
    task, said = fresh(docker_image=BASE), list[str]()
    assert (await Images(engine).get(agent_environment(task))).reference == BASE
    assert (await Images(engine, build=True, say=said.append).get(agent_environment(task))).reference == build_tag(
        agent_environment(task)
    )
    assert said == [f"{task.name}: building its image"]


@needs_engine
async def test_without_the_build_cache_every_step_is_done_again(engine: Engine, fresh: Callable[..., Task]) -> None:
    task = fresh("RUN date +%s.%N >/built\n")
    first = await Images(engine).get(agent_environment(task))
    assert (await Images(engine, build=True).get(agent_environment(task))).id == first.id, "this comes from the cache"
    anew = Images(engine, no_build_cache=True)
    second = await anew.get(agent_environment(task))
    assert second.id != first.id and (await anew.get(agent_environment(task))).id == second.id
    await engine.call(engine.api.remove_image, first.id, force=True)


@needs_engine
async def test_without_the_build_cache_a_published_image_is_used_as_it_is(
    engine: Engine, fresh: Callable[..., Task]
) -> None:
    task = fresh(docker_image=BASE)
    images = Images(engine, no_build_cache=True)
    assert (
        await images.predict_state(agent_environment(task)),
        (await images.get(agent_environment(task))).reference,
    ) == (
        "present",
        BASE,
    )
    assert await images.predict_state(agent_environment(fresh())) == "to be built"


@needs_engine
async def test_an_image_tells_what_was_done_for_it_and_what_it_was_built_of(
    engine: Engine, fresh: Callable[..., Task]
) -> None:
    task = fresh()
    tag = build_tag(agent_environment(task))
    origins = [(await Images(engine).get(agent_environment(task))).origin for _ in range(2)]
    built_from = tag.rpartition(":")[2]
    assert origins == [
        ImageOrigin(how="built", reference=tag, built_from=built_from),
        ImageOrigin(how="present", reference=tag, built_from=built_from),
    ]
    published = (await Images(engine).get(agent_environment(fresh(docker_image=BASE)))).origin
    assert published is not None and published.model_copy(update={"digest": None}) == ImageOrigin(
        how="present", reference=BASE
    )


@pytest.mark.parametrize(
    ("reference", "digests", "digest"),
    [
        ("alpine:3", [], None),
        ("alpine:3", ["mirror/alpine@sha256:1", "alpine@sha256:2"], "sha256:1"),
        ("lab/alpine", ["alpine@sha256:1", "docker.io/lab/alpine@sha256:2"], "sha256:2"),
        ("lab/alpine@sha256:2", ["elsewhere/alpine@sha256:1", "lab/alpine@sha256:2"], "sha256:2"),
        ("docker.io/library/alpine", ["alpine@sha256:1"], "sha256:1"),
    ],
)
def test_of_several_digests_that_of_the_task_s_own_name_counts(
    reference: str, digests: list[str], digest: str | None
) -> None:
    origin = Image.from_inspection(reference, {"Id": "sha256:0", "RepoDigests": digests}).as_published("pulled").origin
    assert origin == ImageOrigin(how="pulled", reference=reference, digest=digest)


@needs_engine
@pytest.mark.slow
async def test_a_build_has_the_time_that_a_run_gives_it(engine: Engine, fresh: Callable[..., Task]) -> None:
    task = fresh(f"RUN sleep 2; echo {uuid.uuid4()}\n", toml="build_timeout_sec = 1\n")
    failed = await failure(Images(engine), task)
    assert (failed.type, "took longer than 1 s" in str(failed)) == ("image_build_timeout", True)
    patient = as_configured(task, a_config(build_timeout_multiplier=120))
    image = await Images(engine).get(agent_environment(patient))
    assert image.origin is not None and image.origin.how == "built"


@needs_engine
async def test_a_build_that_fails_names_the_dockerfile_and_its_last_words(
    engine: Engine, fresh: Callable[..., Task], tmp_path: Path
) -> None:
    task, said = fresh("RUN echo all is lost; exit 7\n"), list[str]()
    images = Images(engine, log_dir=tmp_path / "logs", say=said.append)
    failed = await failure(images, task)
    assert failed.type == "image_build_failed"
    assert str(task.dockerfile) in str(failed)
    assert "all is lost" in str(failed)
    assert "all is lost" in (tmp_path / "logs" / f"{task.name}.log").read_text()
    # The other seeds of the task fail with the same words, at once.
    assert str(await failure(images, task)) == str(failed)
    assert len(said) == 1


@needs_engine
async def test_a_dockerfile_that_cannot_be_parsed_is_named(engine: Engine, fresh: Callable[..., Task]) -> None:
    task = fresh("BUILD everything\n")
    failed = await failure(Images(engine), task)
    assert failed.type == "image_build_failed"
    assert str(task.dockerfile) in str(failed)
    assert "BUILD" in str(failed)


BUILDS = {
    "platform": (
        "ARG TARGETARCH\nARG TARGETOS\nARG BUILDPLATFORM=mine\n"
        'RUN test "$TARGETOS/$TARGETARCH $BUILDPLATFORM" = "linux/{architecture} mine"\n',
        {},
    ),
    "what is ignored": (
        "COPY . /all\nRUN cd /all && test \"$(echo $(find . ! -type d | sort))\" = './a ./d/b'\n",
        {
            "a": "",
            "d/b": "",
            "d/c": "",
            "a~": "",
            "d/__pycache__/x.pyc": "",
            ".dockerignore": "d/*\n!d/b\n.*\nDocker*\n",
        },
    ),
    "modes and links": (
        'COPY . /all\nRUN cd /all && test "$(echo $(stat -c %a:%U a d d/b))" = "644:root 755:root 755:root"\n'
        'RUN test "$(readlink /all/link)" = a\n',
        {"a": "", "d/b": "#!", "link": "-> a"},
    ),
    "no heredocs": ("RUN test \"$(bash -c 'cat <<<one')$((1<<2))\" = one4 && echo '<<EOF' >/x\n", {}),
    "a frontend that no registry has": ("COPY Dockerfile /\nRUN test -e /Dockerfile\n", {}),
}


@needs_engine
@pytest.mark.parametrize("builder", ["BuildKit", "the engine's own"])
@pytest.mark.parametrize("what", BUILDS)
async def test_each_builder_makes_of_a_dockerfile_what_its_users_get(
    engine: Engine, fresh: Callable[..., Task], monkeypatch: pytest.MonkeyPatch, builder: str, what: str
) -> None:
    steps, files = BUILDS[what]
    task = fresh(steps.replace("{architecture}", engine.info.architecture))
    write_task(task.path, {f"environment/{name}": text for name, text in files.items()})
    for path in task.path.glob("environment/**/*"):
        path.chmod(0o700 if path.is_dir() or path.name == "b" else 0o600)
    if what == "a frontend that no registry has":
        text = task.dockerfile.read_text()
        task.dockerfile.write_text(f"# syntax=docker.io/docker/dockerfile:9-{uuid.uuid4().hex}\n{text}")
    if builder != "BuildKit":
        monkeypatch.setattr(image_module, "has_buildkit", lambda _: False)
    assert await Images(engine).get(agent_environment(Task.read(task.path)))


@needs_engine
@pytest.mark.parametrize("steps", ["RUN cat << 'EOF' >/x\ntext\nEOF\n", "COPY <<-EOF /x\n\ttext\n\tEOF\n"])
async def test_a_heredoc_is_built_or_refused_by_name(engine: Engine, fresh: Callable[..., Task], steps: str) -> None:
    task = fresh(steps)
    try:
        await Images(engine).get(agent_environment(task))
    except TrialError as error:
        assert error.type == "image_build_failed"
        assert str(error).startswith(f"{task.dockerfile}: the heredoc EOF in line 3: ") and engine.info.version in str(
            error
        )


@needs_engine
async def test_what_buildkit_alone_builds_is_refused_where_a_copy_would_see_the_dockerfile(
    engine: Engine, fresh: Callable[..., Task]
) -> None:
    task = fresh("COPY . /all\nCOPY --chmod=700 Dockerfil[e] /x/\n")
    (task.path / "environment" / ".dockerignore").write_text("Dockerfile\n")
    failed = await failure(Images(engine), Task.read(task.path))
    assert failed.type == "image_build_failed" and "(--chmod in line 4)" in str(failed)


@needs_engine
async def test_values_of_a_build_are_not_shown(engine: Engine, fresh: Callable[..., Task], tmp_path: Path) -> None:
    secret, task = uuid.uuid4().hex, fresh("ARG TOKEN\nRUN echo $TOKEN >/dev/null; exit 3\n")
    build = ImageBuild(".", args={"TOKEN": secret})
    environment = replace(agent_environment(task), build=build)
    failed = await failure_of(Images(engine, log_dir=tmp_path / "logs"), environment)
    log = (tmp_path / "logs" / f"{task.name}.log").read_text()
    assert "RUN echo" in log and secret not in str(failed) + log


@needs_engine
@pytest.mark.parametrize("wait", ["sleep 100", "while :; do echo tick; sleep 0.05; done"], ids=["silent", "talking"])
async def test_a_build_that_takes_too_long_names_the_dockerfile_and_its_last_words(
    engine: Engine, fresh: Callable[..., Task], wait: str
) -> None:
    task = fresh(f"RUN echo tick; {wait}\n", toml="build_timeout_sec = 3\n")
    async with asyncio.timeout(60):
        failed = await failure(Images(engine), task)
    assert failed.type == "image_build_timeout"
    assert str(task.dockerfile) in str(failed)
    assert "tick" in str(failed)


@needs_engine
async def test_an_image_that_the_engine_has_is_used(engine: Engine, fresh: Callable[..., Task]) -> None:
    said: list[str] = []
    image = await Images(engine, say=said.append).get(agent_environment(fresh(docker_image=BASE)))
    assert (image.reference, said) == (BASE, [])


@needs_engine
async def test_an_image_that_cannot_be_pulled_is_built_instead(engine: Engine, fresh: Callable[..., Task]) -> None:
    task, said = fresh(docker_image=NOWHERE), list[str]()
    image = await Images(engine, say=said.append).get(agent_environment(task))
    assert image.reference == build_tag(agent_environment(task))
    assert said[0] == f"{task.name}: pulling {NOWHERE}"
    assert "buil" in said[1]


@needs_engine
async def test_an_unreachable_registry_is_asked_once(engine: Engine, fresh: Callable[..., Task]) -> None:
    said: list[str] = []
    images = Images(engine, say=said.append)
    for _ in range(2):
        await images.get(agent_environment(fresh(docker_image=NOWHERE)))
    assert len([line for line in said if "pulling" in line]) == 1


@needs_engine
async def test_without_image_and_dockerfile_there_is_none(engine: Engine, make_task: Any) -> None:
    path = make_task(toml=f'[environment]\ndocker_image = "{NOWHERE}"\n', dockerfile=None)
    failed = await failure(Images(engine), Task.read(path))
    assert failed.type == "image_unavailable"
    assert NOWHERE in str(failed)


@pytest.fixture
def silent_registry() -> Iterator[str]:
    """Takes connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}/some/image:1"


@needs_engine
async def test_a_registry_that_never_answers_is_given_up(
    engine: Engine, fresh: Callable[..., Task], make_task: Any, silent_registry: str
) -> None:
    said: list[str] = []
    images = Images(engine, pulls=Pulls(engine, pull_sec=1.0, say=said.append), say=said.append)
    task = fresh(docker_image=silent_registry)
    async with asyncio.timeout(60):
        assert (await images.get(agent_environment(task))).reference == build_tag(agent_environment(task))
    assert any("cannot be reached" in line for line in said)
    path = make_task(toml=f'[environment]\ndocker_image = "{silent_registry}"\n', dockerfile=None)
    assert (await failure(images, Task.read(path))).type == "image_unavailable"


@needs_engine
async def test_what_another_attempt_may_mend_is_not_remembered(engine: Engine, make_task: Any) -> None:
    name = f"tbench-test/{uuid.uuid4().hex}"
    path = make_task(toml=f'[environment]\ndocker_image = "{name}:1"\n', dockerfile=None)
    images = Images(engine, pulls=Pulls(engine, pull_sec=5.0))
    failed = await failure(images, Task.read(path))
    assert (failed.type, failed.kind.retryable) == ("image_unavailable", True)
    await engine.call(engine.api.tag, BASE, name, "1")
    try:
        assert (await images.get(agent_environment(Task.read(path)))).reference == f"{name}:1"
    finally:
        await engine.call(engine.api.remove_image, f"{name}:1")


_ID = f"sha256:{64 * 'a'}"


class CacheLosing:
    """Asks an engine to build, where the first builds find that somebody removed an image of the cache under them."""

    def __init__(self, build: Any, words: str, times: int) -> None:
        self._build, self._words, self._times, self.asked = build, words, times, 0

    def __call__(self, **options: Any) -> Any:
        self.asked += 1
        if self.asked > self._times:
            return self._build(**options)
        return (each for each in ({"stream": " ---> Using cache\n"}, {"error": self._words}))


@needs_engine
@pytest.mark.parametrize(
    "words",
    [
        f'unable to find image "{_ID}"',
        f"failed to get digest {_ID}: open /var/lib/docker/image/{_ID}: no such file or directory",
        f"failed to export image: failed to set parent {_ID}: unknown parent image ID {_ID}",
        "failed to create image: layer does not exist",
    ],
)
async def test_a_build_whose_cache_another_run_removes_is_done_again(
    engine: Engine, fresh: Callable[..., Task], monkeypatch: pytest.MonkeyPatch, words: str
) -> None:
    losing = CacheLosing(engine.api.build, words, times=2)
    monkeypatch.setattr(engine.api, "build", losing)
    task = fresh()
    assert (await Images(engine).get(agent_environment(task))).reference == build_tag(agent_environment(task))
    assert losing.asked == 3


@needs_engine
@pytest.mark.parametrize(
    ("words", "type_", "asked"),
    [
        (f'unable to find image "{_ID}"', "image_unavailable", 3),
        (f"manifest for nobody/nothing@{_ID} not found", "image_build_failed", 1),
    ],
    ids=["its cache is gone every time", "no registry has its base"],
)
async def test_a_build_is_the_tasks_fault_unless_it_loses_its_cache_every_time(
    engine: Engine, fresh: Callable[..., Task], monkeypatch: pytest.MonkeyPatch, words: str, type_: str, asked: int
) -> None:
    losing = CacheLosing(engine.api.build, words, times=99)
    monkeypatch.setattr(engine.api, "build", losing)
    failed = await failure(Images(engine), fresh())
    assert (failed.type, failed.kind.retryable, losing.asked) == (type_, asked > 1, asked)
    assert words in str(failed)


@needs_engine
async def test_an_image_that_another_run_removes_is_made_again(engine: Engine, fresh: Callable[..., Task]) -> None:
    task, said = fresh(), list[str]()
    images = Images(engine, say=said.append)
    made = await images.get(agent_environment(task))
    await engine.call(engine.api.remove_image, made.reference)
    again = await images.get(agent_environment(task))
    assert await images.find(again.id) is not None
    assert said == [f"{task.name}: building its image"] * 2


@needs_engine
async def test_nothing_is_built_or_pulled_on_a_disk_that_is_nearly_full(
    engine: Engine, fresh: Callable[..., Task]
) -> None:
    said: list[str] = []
    images = Images(engine, free_mb=1e12, say=said.append)
    for task in (fresh(), fresh(docker_image=NOWHERE)):
        failed = await failure(images, task)
        assert failed.type == "image_no_space"
        assert engine.info.root in str(failed) and "tbench clean" in str(failed)
    assert said == []
    assert (await images.get(agent_environment(fresh(docker_image=BASE)))).reference == BASE, (
        "what is there needs no room"
    )


INTERRUPTED = """
import asyncio, sys
from pathlib import Path
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.image import Images
from tbench.tasks.environment import Environment, agent_environment
from tbench.tasks.task import Task

async def main():
    engine = Engine.connect(2)
    begun = asyncio.Event()
    environment = agent_environment(Task.read(Path(sys.argv[1])))
    building = asyncio.create_task(Images(engine, say=lambda _: begun.set()).get(environment))
    await begun.wait()
    await asyncio.sleep(0.5)
    building.cancel()
    await asyncio.gather(building, return_exceptions=True)
    print("cancelled", building.cancelled())
    engine.close()

asyncio.run(main())
"""


@needs_engine
def test_a_process_does_not_wait_for_a_build_that_was_cancelled(fresh: Callable[..., Task]) -> None:
    path = str(fresh("RUN sleep 300\n").path)
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, path], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout, done.stderr, done.returncode) == ("cancelled True\n", "", 0)


@needs_engine
async def test_one_bad_image_does_not_hold_up_another(engine: Engine, fresh: Callable[..., Task]) -> None:
    images = Images(engine)
    good, bad = fresh(), fresh("RUN exit 1\n")
    ends = await asyncio.gather(
        images.get(agent_environment(bad)), images.get(agent_environment(good)), return_exceptions=True
    )
    assert [isinstance(end, TrialError) for end in ends] == [True, False]


def test_a_tag_is_stable_and_sees_names_bytes_modes_and_links(make_task: Any) -> None:
    task = Task.read(make_task("Odd_Name--2026"))
    environment = task.path / "environment"
    tags = [build_tag(agent_environment(task))]
    assert tags[0] == build_tag(agent_environment(task))
    assert tags[0].startswith("tbench/odd-name-2026:")
    (environment / "a").write_text("1")
    tags.append(build_tag(agent_environment(task)))
    (environment / "a").write_text("2")
    tags.append(build_tag(agent_environment(task)))
    (environment / "a").chmod(0o755)
    tags.append(build_tag(agent_environment(task)))
    (environment / "b").symlink_to("a")
    tags.append(build_tag(agent_environment(task)))
    (environment / "b").unlink()
    (environment / "b").symlink_to("Dockerfile")
    tags.append(build_tag(agent_environment(task)))
    assert len(set(tags)) == len(tags)


def test_a_tag_depends_on_the_environment_only(make_task: Any) -> None:
    task = Task.read(make_task())
    before = build_tag(agent_environment(task))
    (task.path / "tests" / "test.sh").write_text("changed")
    (task.path / "task.toml").write_text("")
    assert build_tag(agent_environment(Task.read(task.path))) == before
