"""Tasks of Terminal-Bench 1 become tasks of the current form, or are named with the reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from tb1_tasks import COMPOSE, PARTS, client, write_tb1_task

from tbench.errors import TaskInvalid
from tbench.tasks.task import Task
from tbench.tasks.terminal_bench_1.conversion import Conversion, convert


def converted(folder: Path, parts: dict[str, str | None] | None = None) -> tuple[Task, Conversion]:
    done = convert(write_tb1_task(folder / "before" / "old-task", parts), folder / "after" / "old-task")
    return Task.read(done.path), done


def files(path: Path) -> set[str]:
    return {each.relative_to(path).as_posix() for each in path.rglob("*") if each.is_file()}


def test_a_usual_task_becomes_one_with_a_dockerfile(tmp_path: Path) -> None:
    task, done = converted(tmp_path)
    assert (task.name, task.unsupported, task.unknown_keys, task.has_oracle) == ("old-task", [], [], True)
    assert done.notes == ()
    assert task.instruction == "Create the file /app/done.\n"
    assert (task.file.agent.timeout_sec, task.file.verifier.timeout_sec) == (360, 90.5)
    assert task.file.verifier.user == "root"
    assert task.file.environment.env == {"TEST_DIR": "/tests"}
    assert task.file.metadata == {"difficulty": "easy"}
    assert files(done.path) == {
        *("task.toml", "instruction.md", "environment/Dockerfile", "environment/data.txt", "solution/solve.sh"),
        *("tests/run-tests.sh", "tests/test.sh", "tests/verdict.sh", "tests/test_outputs.py"),
    }
    assert (done.path / "tests" / "run-tests.sh").read_text() == PARTS["run-tests.sh"]
    assert b"verdict.sh pytest" in task.test_script


def test_what_the_service_says_becomes_keys_and_lines(tmp_path: Path) -> None:
    compose = client(
        *("working_dir: /srv", "user: worker", "platform: linux/amd64", "tty: true", "stdin_open: true"),
        *("command: tail -f /dev/null", "entrypoint: ['/start', '--now']", "network_mode: none", "restart: always"),
        "environment: {MODE: fast, COUNT: 3, FLAG: true, TOKEN: , PRICE: $$5, OF: '${HOME_X:-y}'}",
        "volumes: ['./data.txt:/srv/in.txt:ro', './:/all', 'named:/var/lib/x', '/anonymous']",
        "deploy: {resources: {limits: {cpus: '1.5', memory: 512M, pids: 99}, reservations: {cpus: 1}}}",
    )
    task, _ = converted(tmp_path, {"docker-compose.yaml": f"{compose}volumes:\n  named:\nversion: '3'\n"})
    environment = task.file.environment
    assert (environment.cpus, environment.memory_mb, environment.pids_limit) == (1.5, 512, 99)
    assert (environment.workdir, environment.network_mode, task.file.agent.user) == ("/srv", "no-network", "worker")
    assert environment.env == {
        "MODE": "fast",
        "COUNT": "3",
        "FLAG": "true",
        "TOKEN": "${TOKEN:-}",
        "PRICE": "$5",
        "OF": "${HOME_X:-y}",
    }
    assert task.dockerfile.read_text().splitlines() == [
        *("FROM --platform=linux/amd64 debian:bookworm-slim", "WORKDIR /app", "COPY data.txt ./"),
        *('COPY ["data.txt", "/srv/in.txt"]', 'COPY [".", "/all/"]', 'ENTRYPOINT ["/start", "--now"]'),
    ]


def test_an_image_that_is_not_built_is_named(tmp_path: Path) -> None:
    compose = "services:\n  only:\n    image: debian:bookworm-slim\n"
    task, done = converted(tmp_path, {"docker-compose.yaml": compose})
    assert task.file.environment.docker_image == "debian:bookworm-slim"
    assert not (done.path / "environment").exists()
    more = f"{compose}    volumes: ['./data.txt:/data.txt']\n"
    other = convert(write_tb1_task(tmp_path / "more", {"docker-compose.yaml": more}), tmp_path / "more-after")
    assert (other.path / "environment/Dockerfile").read_text() == (
        'FROM debian:bookworm-slim\nCOPY ["data.txt", "/data.txt"]\n'
    )


def test_tests_and_solution_are_in_the_image_only_where_the_dockerfile_takes_them_there(tmp_path: Path) -> None:
    dockerfile = (
        "FROM debian:bookworm-slim AS first\nFROM debian:bookworm-slim\nCOPY --from=first /etc/tests /x\n"
        'COPY . /app\nCOPY --chown=root:root \\\n  ./solution.sh /oracle/\nCOPY ["task.yaml", "/app/"]\n'
    )
    _, done = converted(tmp_path, {"Dockerfile": dockerfile})
    assert files(done.path / "environment") == {"Dockerfile", "data.txt", "solution.sh", "task.yaml"}


def test_of_two_scripts_for_the_tests_the_one_in_their_folder_runs(tmp_path: Path) -> None:
    _, done = converted(tmp_path, {"tests/run-tests.sh": "echo inner\n"})
    assert (done.path / "tests/run-tests.sh").read_text() == "echo inner\n"


def test_tests_in_the_agents_shell_run_as_its_user_and_that_is_said(tmp_path: Path) -> None:
    task, done = converted(tmp_path, {"task.yaml": "instruction: x\nrun_tests_in_same_shell: true\n"})
    assert task.file.verifier.user is None
    assert done.notes == ("run_tests_in_same_shell: the tests run in a separate shell as the agent's user",)


def test_metadata_is_kept_whatever_it_is(tmp_path: Path) -> None:
    text = "instruction: x\nauthor_name: 'a\"b\\c'\ntags: [a, 1, 2024-01-02, null]\nexpert_time_estimate_min: 7\n"
    task, _ = converted(tmp_path, {"task.yaml": text + "difficulty: {a: 1}\nunknown: 1\n"})
    assert task.file.metadata == {
        "author_name": 'a"b\\c',
        "difficulty": "{'a': 1}",
        "expert_time_estimate_min": 7,
        "tags": ["a", 1, "2024-01-02", "None"],
    }


SEVERAL = """\
services:
  web:
    build: ./web
    image: ${T_BENCH_TASK_DOCKER_NAME_PREFIX}__web
    container_name: web-server
    depends_on: [client]
    network_mode: "service:client"
  db:
    image: postgres:16
    container_name: ${T_BENCH_TASK_DOCKER_NAME_PREFIX}__db
    hostname: the-db
    volumes: [ "${T_BENCH_TASK_LOGS_PATH}:/var/log/x", "data:/var/lib" ]
  client:
    build: {context: ., dockerfile: Dockerfile}
    image: ${T_BENCH_TASK_DOCKER_CLIENT_IMAGE_NAME}
    container_name: ${T_BENCH_TASK_DOCKER_CLIENT_CONTAINER_NAME}
    environment: [ "TEST_DIR=${T_BENCH_TEST_DIR}" ]
    depends_on: {db: {condition: service_started}}
    networks: [inner]
    deploy: {resources: {limits: {cpus: 2, memory: 1g}}}
networks: {inner: {name: "${T_BENCH_TASK_DOCKER_NAME_PREFIX}_inner"}}
volumes: {data: {}}
"""


TWO_MAINS = SEVERAL.replace("web:", "main:", 1).replace("./web", ".")


def test_several_services_become_a_compose_file_with_main(tmp_path: Path) -> None:
    parts: dict[str, str | None] = {"docker-compose.yaml": SEVERAL, "web/Dockerfile": "FROM nginx\n"}
    done = convert(write_tb1_task(tmp_path / "old.task", parts), tmp_path / "after")
    described: dict[str, Any] = yaml.safe_load((done.path / "environment/docker-compose.yaml").read_text())
    services = described["services"]
    assert set(services) == {"main", "web", "db"}
    assert services["main"]["networks"] == {"inner": {"aliases": ["client"]}}
    assert services["main"]["environment"] == ["TEST_DIR=/tests"]
    assert not {"image", "container_name", "volumes"} & set(services["main"])
    assert services["web"] == {"build": "./web", "depends_on": ["main"], "network_mode": "service:main"}
    assert services["db"]["networks"] == {"default": {"aliases": ["tb__old-task__db"]}}
    assert services["db"]["volumes"] == ["data:/var/lib"]
    assert (described["networks"], described["volumes"]) == ({"inner": {}}, {"data": {}})
    assert files(done.path / "environment") == {"Dockerfile", "data.txt", "docker-compose.yaml", "web/Dockerfile"}
    assert done.notes == ("keeps its docker-compose.yaml because of: several services",)
    assert "cpus = 2\nmemory_mb = 1024" in (done.path / "task.toml").read_text()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("command: sh -c 'service cron start && sleep infinity'", "command"),
        ("cap_add: [SYS_PTRACE]", "cap_add"),
        ("networks: [inner]", "networks"),
        ("network_mode: host", "network_mode"),
        ("deploy: {replicas: 2}", "deploy"),
    ],
)
def test_one_service_that_needs_more_becomes_a_compose_file(tmp_path: Path, line: str, reason: str) -> None:
    done = convert(write_tb1_task(tmp_path / "before", {"docker-compose.yaml": client(line)}), tmp_path / "after")
    assert done.notes == (f"keeps its docker-compose.yaml because of: {reason}",)
    assert (done.path / "environment" / "docker-compose.yaml").is_file()


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        ({"task.yaml": "- a\n"}, r"task\.yaml: must be a table of keys and values"),
        ({"task.yaml": "difficulty: hard\n"}, r"task\.yaml: instruction: Field required"),
        ({"task.yaml": "instruction: [a]\n"}, r"task\.yaml: instruction: Input should be a valid string"),
        (
            {"task.yaml": "instruction: a\nmax_agent_timeout_sec: soon\n"},
            r"task\.yaml: max_agent_timeout_sec: .*'soon'",
        ),
        ({"task.yaml": "instruction: a\nmax_test_timeout_sec: .inf\n"}, r"task\.yaml: max_test_timeout_sec: "),
        ({"task.yaml": "instruction: a\nparser_name: swelancer\n"}, r"task\.yaml: parser_name: .*'swelancer'"),
        ({"task.yaml": "instruction: a\nb: [\n"}, r"task\.yaml: line 3: is not valid YAML"),
        ({"docker-compose.yaml": None}, r"docker-compose\.yaml: No such file"),
        ({"docker-compose.yaml": "services: []\n"}, r"docker-compose\.yaml: services: must be a table"),
        ({"docker-compose.yaml": "services:\n  client: x\n"}, r"services\.client: must be a table of keys and values"),
        ({"docker-compose.yaml": client("volumes: ['/etc:/etc']")}, r"services\.client\.volumes: /etc is outside"),
        ({"docker-compose.yaml": client("volumes: ['./../x:/x']")}, r"services\.client\.volumes: \./\.\./x is outside"),
        ({"docker-compose.yaml": client("volumes: ['./gone:/x']")}, r"services\.client\.volumes: .* is missing"),
        ({"docker-compose.yaml": client("environment: 3")}, r"services\.client\.environment: must be a table or"),
        ({"docker-compose.yaml": client("environment: ['A=b-${C}']")}, r"environment\.A: b-\$\{C\} contains variables"),
        ({"docker-compose.yaml": client("mem_limit: much")}, r"services\.client\.memory: much is not a size"),
        ({"docker-compose.yaml": client("cpus: -1")}, r"services\.client\.cpus: -1 is not a number above 0"),
        (
            {"docker-compose.yaml": client("working_dir: ${DIR}")},
            r"client\.working_dir: .* is not plain text",
        ),
        (
            {"docker-compose.yaml": "services:\n  a:\n    build: ../up\n"},
            r"services\.a\.build\.context: \.\./up is outside",
        ),
        ({"docker-compose.yaml": "services:\n  a:\n    image: ${X}\n"}, r"services\.a\.image: is missing or contains"),
        (
            {"docker-compose.yaml": SEVERAL.replace("web:", "main:", 1).replace("./web", ".")},
            "has to be named main, but another",
        ),
        ({"Dockerfile": None}, r"services\.client\.build\.dockerfile: .*Dockerfile is missing"),
        ({"run-tests.sh": None}, r"run-tests\.sh: missing; a Terminal-Bench 1 task needs it"),
        ({"tests/test.sh": "true\n"}, r"tests/test\.sh: this name is needed for the verdict"),
    ],
)
def test_what_cannot_be_converted_is_named_and_nothing_is_left(
    tmp_path: Path, parts: dict[str, str | None], words: str
) -> None:
    before = write_tb1_task(tmp_path / "before", parts)
    with pytest.raises(TaskInvalid, match=words):
        convert(before, tmp_path / "after")
    assert [each.name for each in tmp_path.iterdir()] == ["before"]


def test_a_dockerfile_that_is_no_text_is_named(tmp_path: Path) -> None:
    before = write_tb1_task(tmp_path / "before")
    (before / "Dockerfile").write_bytes(b"FROM debian\n# \xff\n")
    with pytest.raises(TaskInvalid, match="before/Dockerfile: is not UTF-8 text"):
        convert(before, tmp_path / "after")


def test_a_solution_that_is_typed_is_an_oracle_where_a_script_can_do_it(tmp_path: Path) -> None:
    task, done = converted(tmp_path, {"solution.sh": None, "solution.yaml": "- command: touch done\n"})
    assert (task.has_oracle, done.notes) == (True, ())
    before = write_tb1_task(tmp_path / "typed", {"solution.sh": None, "solution.yaml": "- command: vim\n"})
    done = convert(before, tmp_path / "typed-after")
    assert done.notes == (
        f"has no oracle: {before / 'solution.yaml'}: 0.command: vim is an interactive program, so there can be no "
        "script; write a solution.sh",
    )
    assert not Task.read(done.path).has_oracle
    without = convert(write_tb1_task(tmp_path / "none", {"solution.sh": None}), tmp_path / "none-after")
    assert without.notes == ("has no solution, so there is no oracle",)


def test_a_link_that_leaves_the_task_is_refused_and_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    before = write_tb1_task(tmp_path / "before")
    (before / "link.txt").symlink_to(tmp_path / "secret")
    done = convert(before, tmp_path / "after")
    with pytest.raises(TaskInvalid, match="symlink leaves the task directory"):
        Task.read(done.path)


def test_the_usual_compose_file_is_that_of_the_original_tasks() -> None:
    assert set(yaml.safe_load(COMPOSE)["services"]["client"]) >= {"build", "image", "container_name", "command"}


def test_reading_one_without_converting_says_how_to(tmp_path: Path) -> None:
    with pytest.raises(TaskInvalid, match="is a Terminal-Bench 1 task; convert it with: tbench task convert /"):
        Task.read(write_tb1_task(tmp_path / "old-task"))
