"""Artifacts that a task hands over to its verifier: allowed names, where they are stored, order of collection."""

from __future__ import annotations

from typing import Any

import pytest

from tbench.errors import TaskInvalid
from tbench.tasks.artifacts import Artifact, collection_order
from tbench.tasks.task import Task

MakeTask = Any


def artifact(source: str, **more: Any) -> Artifact:
    return Artifact.model_validate({"source": source, **more})


def test_a_path_alone_is_an_artifact() -> None:
    assert Artifact.model_validate("/app/out/") == artifact("/app/out/")
    assert (artifact("/app//./out/").path, artifact("/app/out/").stored_path) == ("/app/out", "app/out")


def test_a_relative_path_begins_at_the_root() -> None:
    assert artifact("out.txt").path == "/out.txt"


def test_a_destination_is_where_people_find_it() -> None:
    found = artifact("/app/out", destination="results/all")
    assert (found.path, found.stored_path) == ("/app/out", "results/all")


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("artifacts = ['/app/../etc']", r"artifacts\.0\.source: must be .* without '\.\.'"),
        ("artifacts = ['/']", r"/ cannot be handed over"),
        ("artifacts = ['/proc/self/environ']", r"/proc/self/environ cannot be handed over"),
        ("artifacts = ['/opt/tbench/bin']", r"cannot be handed over"),
        (
            "artifacts = [{ source = '/a', destination = '../a' }]",
            r"artifacts\.0\.destination: must be a relative path below",
        ),
        ("artifacts = [{ source = '/a', destination = '/a' }]", r"must be a relative path below artifacts/"),
        ("artifacts = [{ source = '/a', destination = 'a\\\\b' }]", r"must be a relative path below artifacts/"),
        ("artifacts = [{ source = '/a', destination = 'manifest.json' }]", r"manifest\.json is reserved"),
        ("artifacts = [{ source = '/a', service = '-x' }]", r"must be a service name"),
        ("artifacts = [{ source = 'a', service = 'api' }]", r"'a' of service 'api' must be an absolute path"),
        ("artifacts = [{ destination = 'a' }]", r"artifacts\.0\.source: Field required"),
        ("[[verifier.collect]]\ncommand = 'x'\nservice = ''", r"verifier\.collect\.0\.service: must be a service name"),
        ("[[verifier.collect]]\ncommand = 'x'\ntimeout_sec = 0", r"verifier\.collect\.0\.timeout_sec"),
        ("[[verifier.collect]]\nuser = 'x'", r"verifier\.collect\.0\.command: Field required"),
        (
            "artifacts = [{ source = '/a', service = 'api' }]",
            r"refer to the service 'api', but there is no environment/",
        ),
        ("[[verifier.collect]]\ncommand = 'x'\nservice = 'db'", r"refer to the service 'db', but there is no"),
    ],
)
def test_what_cannot_be_collected_is_named_before_a_run(make_task: MakeTask, written: str, says: str) -> None:
    with pytest.raises(TaskInvalid, match=says):
        Task.read(make_task(toml=written + "\n"))


def places(*artifacts: Artifact) -> list[tuple[str, bool]]:
    return [(each.path, is_free) for each, is_free in collection_order(artifacts)]


def test_the_published_directory_is_always_an_artifact() -> None:
    assert places() == [("/logs/artifacts", True)]
    assert places(artifact("/logs/artifacts/", exclude=["*.o"])) == [("/logs/artifacts", True)]


def test_the_first_of_two_in_one_place_wins_and_the_agents_container_is_first() -> None:
    found = places(
        artifact("/data", service="db"),
        artifact("/data/x"),
        artifact("/data"),
        artifact("/database"),
        artifact("/data/y", destination="y"),
    )
    assert found == [
        ("/logs/artifacts", True),
        ("/data/x", True),
        ("/data", False),
        ("/database", True),
        ("/data/y", True),
        ("/data", False),
    ]
