"""Files of a build context that a builder gets: those in the hash, without those in .dockerignore."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from typing import Any

import pytest
from digest_cases import write_task

from tbench.compose.project import ImageBuild
from tbench.errors import TrialError
from tbench.sandbox.build_context import BuildContext, build_tag
from tbench.tasks.environment import Environment, agent_environment
from tbench.tasks.task import Task

FILES = {"environment/Dockerfile": "FROM a\n", "environment/a": "a", "environment/d/b": "b", "environment/d/e/c": "c"}


@pytest.fixture
def environment(make_task: Any) -> Any:
    def make(files: Mapping[str, str] = FILES, build: ImageBuild | None = None) -> Environment:
        own = agent_environment(Task.read(write_task(make_task(), {**FILES, **files})))
        return own if build is None else Environment(own.task, own.settings, build=build)

    return make


def packed(context: BuildContext, *, uses_buildkit: bool = False) -> dict[str, tarfile.TarInfo]:
    file = io.BytesIO()
    context.pack(file, uses_buildkit=uses_buildkit)
    file.seek(0)
    with tarfile.open(fileobj=file) as archive:
        return {member.name: member for member in archive}


def files(context: BuildContext) -> set[str]:
    return {name for name, member in packed(context, uses_buildkit=True).items() if not member.isdir()}


@pytest.mark.parametrize(
    ("lines", "left"),
    [
        ("", {"a", "d/b", "d/e/c"}),
        ("a\n", {"d/b", "d/e/c"}),
        ("# a\n  /d/  \n", {"a"}),
        ("d/*\n!d/e\n", {"a", "d/e/c"}),
        ("*\n!a", {"a"}),
        ("**/c\n", {"a", "d/b"}),
        ("d/**\n!**/b", {"a", "d/b"}),
        ("./d/../a\n?/[b-c]\n", {"d/e/c"}),
        ("d\\/b\n.\n/\n\n", {"a", "d/e/c"}),
    ],
)
def test_a_dockerignore_leaves_out_what_docker_leaves_out(environment: Any, lines: str, left: set[str]) -> None:
    context = BuildContext.for_environment(
        environment({"environment/.dockerignore": f"{lines}\n.dockerignore\nDockerfile\n!Docker*"})
    )
    assert files(context) == left | {"Dockerfile"}
    assert (context.is_visible, context.may_copy_dockerfile) == (True, False)


def test_a_dockerignore_that_cannot_be_used_is_named(environment: Any) -> None:
    with pytest.raises(TrialError, match=r"environment/\.dockerignore: ") as caught:
        BuildContext.for_environment(environment({"environment/.dockerignore": "[a\n"}))
    assert caught.value.type == "image_build_failed"


def test_the_ignore_file_of_a_dockerfile_comes_before_that_of_the_context(environment: Any) -> None:
    own = {"environment/Dockerfile.dockerignore": "d\n", "environment/.dockerignore": "a\n"}
    assert files(BuildContext.for_environment(environment(own))) == {
        "Dockerfile",
        "Dockerfile.dockerignore",
        ".dockerignore",
        "a",
    }


def test_strays_that_are_not_hashed_are_neither_sent_nor_change_the_image(environment: Any) -> None:
    before = build_tag(environment())
    stray = {f"environment/{name}": "x" for name in ("__pycache__/x.pyc", "d/.DS_Store", "d/b~", ".a.swp")}
    made = environment(stray)
    assert files(BuildContext.for_environment(made)) == {"Dockerfile", "a", "d/b", "d/e/c"}
    for path in made.path.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    assert build_tag(made) == before
    ignored = environment({".gitignore": "Dockerfile\n"})
    with pytest.raises(TrialError, match="excluded from the task's hash by an ignore file"):
        BuildContext.for_environment(ignored)


def test_owners_are_root_modes_those_of_git_and_links_stay_links(environment: Any) -> None:
    made = environment({"environment/link": "-> a", "environment/folder": "-> d"})
    (made.path / "a").chmod(0o711)
    (made.path / "d" / "b").chmod(0o600)
    members = packed(BuildContext.for_environment(made))
    assert [oct(members[name].mode) for name in ("a", "d", "d/b", "Dockerfile")] == ["0o755", "0o755", "0o644", "0o644"]
    assert {member.uid for member in members.values()} == {0}
    assert (members["link"].linkname, members["folder"].linkname) == ("a", "d")


@pytest.mark.parametrize(
    "steps", ["COPY . /x", 'COPY ["./", "/x"]', "ADD D* /x", "COPY $ALL /x", "RUN --mount=target=/c ls"]
)
def test_a_dockerfile_that_is_left_out_is_kept_from_what_could_take_it(environment: Any, steps: str) -> None:
    ignored = {"environment/.dockerignore": "Dockerfile\n", "environment/Dockerfile": f"FROM a\n{steps}\n"}
    assert BuildContext.for_environment(environment(ignored)).may_copy_dockerfile
    harmless = ignored | {"environment/Dockerfile": "FROM a\nCOPY a d /x/\nCOPY --from=b . /y\n"}
    assert not BuildContext.for_environment(environment(harmless)).may_copy_dockerfile


def test_a_dockerfile_of_elsewhere_comes_along_under_a_name_that_builders_leave_out(environment: Any) -> None:
    inline = BuildContext.for_environment(environment(build=ImageBuild(".", inline="FROM b\nCOPY . /x\n")))
    assert inline.may_copy_dockerfile and inline.dockerfile not in FILES
    assert {inline.dockerfile, "Dockerfile", ".dockerignore"} < set(packed(inline))
    below = BuildContext.for_environment(environment(build=ImageBuild("d", dockerfile="../Dockerfile")))
    assert files(below) == {below.dockerfile, "b", "e/c"}
