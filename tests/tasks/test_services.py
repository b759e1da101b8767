"""Tasks of several containers: what each is made of, what they ask for, and what they need together."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_plans import a_config

from tbench.errors import TaskInvalid, TrialError
from tbench.runs.plan import as_configured
from tbench.runs.preflight import why_not_runnable
from tbench.runs.run import task_demand
from tbench.tasks.consent import VariableRequest
from tbench.tasks.environment import Environment, agent_environment
from tbench.tasks.format import EnvironmentSection
from tbench.tasks.task import Task

MakeTask = Any


def with_compose(make_task: MakeTask, text: str, **parts: Any) -> Path:
    path: Path = make_task(**parts)
    (path / "environment").mkdir(exist_ok=True)
    (path / "environment" / "docker-compose.yaml").write_text(text)
    (path / "environment" / "api").mkdir()
    (path / "environment" / "api" / "Dockerfile").write_text("FROM x\n")
    return path


def containers(path: Path) -> dict[str, Environment]:
    return containers_of(Task.read(path))


def containers_of(task: Task) -> dict[str, Environment]:
    return {each.service: each for each in agent_environment(task).containers()}


def test_each_container_has_its_image_its_folder_and_its_limits(make_task: MakeTask) -> None:
    found = containers(
        with_compose(
            make_task,
            """
services:
  api: {build: {context: api, dockerfile: Other}, mem_limit: 64m, cpus: 0.25, pids_limit: 9}
  cache: {image: "redis:7", build: }
  twin: {image: "${MAIN_IMAGE_NAME}"}
  main: {image: "${MAIN_IMAGE_NAME}"}
""",
        )
    )
    shown = {name: (each.name, each.settings.docker_image, each.settings.memory_mb) for name, each in found.items()}
    assert list(shown) == ["main", "api", "cache", "twin"]
    assert shown["main"] == ("small-task", None, 256.0)
    assert shown["api"] == ("small-task (api)", None, 64.0)
    assert shown["cache"] == ("small-task (cache)", "redis:7", 2048.0)
    api = found["api"]
    assert (api.path.name, api.dockerfile.name, api.can_be_built) == ("api", "Other", False)
    assert (api.settings.cpus, api.settings.pids_limit, api.user) == (0.25, 9, None)
    assert not found["cache"].can_be_built
    assert (found["twin"].dockerfile, found["twin"].settings.memory_mb) == (found["main"].dockerfile, 2048.0)


@pytest.mark.parametrize(
    ("main", "dockerfile", "docker_image", "image", "context"),
    [
        ("{}", "FROM x", None, None, "environment"),
        ("{image: y}", "FROM x", None, None, "environment"),
        ("{image: y}", None, None, "y", "environment"),
        ("{image: y}", "FROM x", "z", "y", "environment"),
        ("{image: '${PREBUILT_IMAGE_NAME}'}", None, "z", "z", "environment"),
        ("{}", None, "z", "z", "environment"),
        ("{build: ./api}", None, None, None, "api"),
        ("{build: ./api, image: y}", None, None, None, "api"),
    ],
)
def test_main_has_the_image_of_the_task_unless_the_file_says_otherwise(
    make_task: MakeTask, main: str, dockerfile: str | None, docker_image: str | None, image: str | None, context: str
) -> None:
    toml = f'[environment]\ndocker_image = "{docker_image}"\n' if docker_image else "[environment]\n"
    path = with_compose(make_task, f"services: {{main: {main}}}", toml=toml, dockerfile=dockerfile)
    found = containers(path)["main"]
    assert (found.settings.docker_image, found.path.name) == (image, context)


def test_a_task_without_any_image_for_main_is_malformed(make_task: MakeTask) -> None:
    path = with_compose(make_task, "services: {api: {image: x}}", dockerfile=None)
    with pytest.raises(TaskInvalid, match="Dockerfile: missing"):
        Task.read(path)


def test_admission_counts_all_services_and_the_copy_of_main(make_task: MakeTask) -> None:
    text = "services: {api: {image: x, mem_limit: 128m, cpus: 0.5}, other: {image: y}}"
    task = Task.read(with_compose(make_task, text))
    shared, both = task_demand(task, "shared"), task_demand(task, "both")
    assert (shared.cpus, shared.memory_mb) == (1 + 0.5 + 1, 256 + 128 + 2048)
    assert (both.cpus, both.memory_mb) == (shared.cpus, shared.memory_mb + 256)
    doubled = as_configured(task, a_config(cpus=4.0, memory_mb=512))
    assert task_demand(doubled, "shared").cpus == 4 + 0.5 + 1
    limited = Task.read(
        with_compose(make_task, "services: {main: {mem_limit: '${MEMORY}', cpus: '${CPUS}'}}", name="b")
    )
    assert task_demand(as_configured(limited, a_config(memory_mb=512)), "shared").memory_mb == 512


def test_variables_come_from_the_task_and_with_consent_from_outside(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FRUIT", "pear")
    monkeypatch.delenv("NOWHERE", raising=False)
    text = "services: {api: {image: 'x:${TAG}', environment: {A: '$FRUIT', B: '${NOWHERE:-b}', C: '${TAG}'}}}"
    toml = '[environment]\nenv = { TAG = "1.2" }\n'
    task = Task.read(with_compose(make_task, text, toml=toml))
    assert list(task.requested_variables) == [
        VariableRequest("services.api.environment.A", "FRUIT", False, "environment/docker-compose.yaml"),
        VariableRequest("services.api.environment.B", "NOWHERE", True, "environment/docker-compose.yaml"),
    ]
    refused = why_not_runnable(task, "", "nop")
    assert refused is not None
    assert (refused.type, "--allow-env FRUIT" in str(refused)) == ("env_missing", True)
    with pytest.raises(TrialError) as caught:
        next(agent_environment(task).containers())
    assert caught.value.type == "env_missing"
    allowed = task.with_access(["FRUIT"])
    assert why_not_runnable(allowed, "", "nop") is None
    api = agent_environment(allowed).project
    assert api is not None
    assert (api.services["api"].image, dict(api.services["api"].environment)) == (
        "x:1.2",
        {"A": "pear", "B": "b", "C": "1.2"},
    )


def test_access_to_the_host_needs_trust(make_task: MakeTask) -> None:
    path = with_compose(make_task, "services: {main: {privileged: true, volumes: ['/etc:/host']}}")
    task = Task.read(path)
    refused = why_not_runnable(task, "", "nop")
    assert refused is not None
    assert refused.type == "trust_missing"
    file = path / "environment" / "docker-compose.yaml"
    assert str(refused) == f"{file}: services.main.volumes[0]: /etc; services.main.privileged; --trust allows it"
    with pytest.raises(TrialError) as caught:
        _ = agent_environment(task).project
    assert caught.value.type == "trust_missing"
    trusted = as_configured(task, a_config(trust=True))
    assert why_not_runnable(trusted, "", "nop") is None
    assert agent_environment(trusted).project is not None
    assert why_not_runnable(as_configured(trusted, a_config()), "", "nop") is not None


def test_what_a_compose_file_lacks_is_unsupported_by_key_and_what_is_wrong_is_malformed(make_task: MakeTask) -> None:
    task = Task.read(with_compose(make_task, "services: {main: {secrets: [s], extends: {service: y}}}"))
    named = ["services.main.secrets", "services.main.extends"]
    assert task.unsupported == [f"{key} in environment/docker-compose.yaml" for key in named]
    with pytest.raises(TrialError) as caught:
        _ = agent_environment(task).project
    assert caught.value.type == "task_unsupported"
    with pytest.raises(TaskInvalid, match=r"docker-compose\.yaml:1: services.main.iamge: unknown key; did you mean"):
        Task.read(with_compose(make_task, "services: {main: {iamge: x}}", name="wrong"))


SEPARATE = "[verifier]\nenvironment_mode = 'separate'\n"


def beside_tests(make_task: MakeTask, text: str, name: str = "apart") -> Path:
    path: Path = make_task(name, toml=SEPARATE)
    (path / "tests" / "docker-compose.yaml").write_text(text)
    return path


def test_the_compose_file_of_a_verifier_is_known_before_a_run(make_task: MakeTask) -> None:
    with pytest.raises(TaskInvalid, match=r"tests/docker-compose\.yaml:1: services.main.iamge: unknown key"):
        Task.read(beside_tests(make_task, "services: {main: {iamge: x}}", "wrong"))
    with pytest.raises(TaskInvalid, match=r"tests/docker-compose\.yaml: services.main has no image and no build"):
        Task.read(beside_tests(make_task, "services: {store: {image: x}}", "nothing"))
    lacking = Task.read(beside_tests(make_task, "services: {main: {image: x, secrets: [s]}}", "lacking"))
    assert lacking.unsupported == ["services.main.secrets in tests/docker-compose.yaml"]
    path = beside_tests(make_task, "services: {main: {image: 'x:${TAG}', privileged: true}}")
    task = Task.read(path)
    assert task.requested_variables == (
        VariableRequest("services.main.image", "TAG", False, "tests/docker-compose.yaml"),
    )
    refused = why_not_runnable(task, "", "nop")
    assert refused is not None
    assert refused.type == "trust_missing"
    file = path / "tests" / "docker-compose.yaml"
    assert str(refused) == f"{file}: services.main.privileged; --trust allows it"
    trusted = why_not_runnable(as_configured(task, a_config(trust=True)), "", "nop")
    assert trusted is not None
    assert trusted.type == "env_missing"


def test_the_compose_file_of_a_verifier_is_read_in_its_own_folder(make_task: MakeTask) -> None:
    path = make_task()
    (path / "tests" / "docker-compose.yaml").write_text("services: {store: {image: x}}")
    task = Task.read(path)
    environment = Environment(task, EnvironmentSection(docker_image="v"), "verifier", "tests")
    assert [each.name for each in environment.containers()] == [
        "small-task (verifier)",
        "small-task (verifier, store)",
    ]
    assert [each.name for each in agent_environment(task).containers()] == ["small-task"]


def test_a_compose_file_is_read_once_and_belongs_to_the_hash(make_task: MakeTask) -> None:
    path = with_compose(make_task, "services: {api: {image: x}}")
    file = path / "environment" / "docker-compose.yaml"
    task = Task.read(path)
    file.write_text("services: {api: {image: other}}")
    changed = Task.read(path)
    # The hash is that of what was read.
    assert task.hash != changed.hash
    for each in (task, task.with_access(["A"]), as_configured(task, a_config(memory_mb=99))):
        assert containers_of(each)["api"].settings.docker_image == "x"
    with pytest.raises(TrialError) as caught:
        agent_environment(task).require_unchanged()
    assert caught.value.type == "task_changed"
    tests = path / "tests" / "docker-compose.yaml"
    tests.write_text("services: {}")
    with pytest.raises(TrialError) as caught:
        task.services_of("tests", EnvironmentSection())
    assert caught.value.type == "task_changed"


def test_the_usual_file_of_older_tasks_makes_the_same_as_no_file(make_task: MakeTask) -> None:
    text = """
services:
  main:
    build:
      context: ${CONTEXT_DIR}
    image: ${MAIN_IMAGE_NAME}
    command: ["sh", "-c", "sleep infinity"]
    network_mode: ${NETWORK_MODE:-bridge}
    environment:
      - TEST_DIR=${TEST_DIR}
    volumes:
      - ${HOST_VERIFIER_LOGS_PATH}:${ENV_VERIFIER_LOGS_PATH}
      - ${HOST_AGENT_LOGS_PATH}:${ENV_AGENT_LOGS_PATH}
    deploy:
      resources:
        limits:
          cpus: ${CPUS}
          memory: ${MEMORY}
"""
    task = Task.read(with_compose(make_task, text))
    assert why_not_runnable(task, "", "nop") is None
    (main,) = agent_environment(task).containers()
    assert (main.name, main.path, main.settings) == (task.name, task.path / "environment", task.file.environment)
    project = agent_environment(task).project
    assert project is not None
    assert (project.main.mounts, project.main.network_mode) == ((), "bridge")


def test_a_context_above_the_compose_file_has_the_files_of_the_hash_and_needs_no_trust(make_task: MakeTask) -> None:
    path = with_compose(make_task, "services: {api: {build: {context: .., dockerfile: environment/api/Dockerfile}}}")
    (path / "other.txt").write_text("not in the hash")
    task = Task.read(path)
    assert task.host_access == {}
    api = containers_of(task)["api"]
    names = {each.relative_to(path).as_posix() for each in api.context_paths() if each.is_file()}
    assert {"tests/test.sh", "environment/api/Dockerfile", "task.toml"} <= names
    assert (api.can_be_built, "other.txt" in names) == (True, False)
    api.require_unchanged()
    (path / "tests" / "test.sh").write_text("echo 1")
    with pytest.raises(TrialError) as caught:
        api.require_unchanged()
    assert caught.value.type == "task_changed"


@pytest.mark.parametrize("compose", ["services: {db: {image: x}}", None])
def test_tests_run_in_a_service_that_exists(make_task: MakeTask, compose: str | None) -> None:
    toml = '[verifier]\nservice = "{}"\n'
    if compose is None:
        path = make_task(toml=toml.format("db"))
    else:
        assert Task.read(with_compose(make_task, compose, name="a", toml=toml.format("db"))).unsupported == []
        path = with_compose(make_task, compose, name="b", toml=toml.format("dbb"))
    with pytest.raises(TaskInvalid, match=r"verifier\.service: no service"):
        Task.read(path)
