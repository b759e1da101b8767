"""Reading task directories: every key of the format, its default, and what is said when it is wrong."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

from tbench.errors import TaskInvalid, TrialError
from tbench.tasks.task import Task, resolve_env

MakeTask = Any
LEFT_OUT: dict[str, Any] = {
    "agent.timeout_sec": None,
    "agent.user": None,
    "agent.network_mode": None,
    "agent.allowed_hosts": [],
    "verifier.timeout_sec": 600,
    "verifier.env": {},
    "verifier.user": None,
    "verifier.environment_mode": "shared",
    "solution.env": {},
    "environment.build_timeout_sec": 600,
    "environment.docker_image": None,
    "environment.env": {},
    "environment.workdir": None,
    "environment.network_mode": "public",
    "environment.allowed_hosts": [],
    "environment.gpus": 0,
    "environment.healthcheck": None,
    "environment.mcp_servers": [],
    "environment.skills_dir": None,
    "environment.has_internet": True,
    "artifacts": [],
    "steps": [],
}
EVERYTHING = """
schema_version = "1.1"
artifacts = ["/app/out"]
multi_step_reward_strategy = "mean"
[task]
name = "org/full"
description = "All keys."
keywords = ["a"]
version = "3"
[[task.authors]]
name = "A"
[metadata]
difficulty = "hard"
anything = { at = "all" }
[agent]
timeout_sec = 900.5
user = "dev"
network_mode = "no-network"
allowed_hosts = ["h"]
[verifier]
timeout_sec = 360
user = 0
environment_mode = "shared"
env = { A = "${A}" }
[[verifier.collect]]
path = "/x"
[verifier.environment]
cpus = 1
[solution]
env = { B = "b" }
[environment]
build_timeout_sec = 60
docker_image = "org/image:1"
cpus = 2
memory_mb = 4096
storage_mb = 1
gpus = 0
env = { C = "c" }
workdir = "/w"
network_mode = "public"
allowed_hosts = ["h"]
mcp_servers = []
skills_dir = "/skills"
[environment.healthcheck]
command = "true"
interval_sec = 1
timeout_sec = 2
start_period_sec = 3
retries = 4
"""


def value(task: Task, dotted: str) -> Any:
    found: Any = task.file
    for key in dotted.split("."):
        found = getattr(found, key)
    return found


def complaint(path: Path) -> str:
    with pytest.raises(TaskInvalid) as caught:
        Task.read(path)
    return str(caught.value)


@pytest.mark.parametrize("key", LEFT_OUT)
def test_a_key_that_is_left_out_has_the_default_of_the_format(make_task: MakeTask, key: str) -> None:
    assert value(Task.read(make_task(toml="")), key) == LEFT_OUT[key]


def test_the_limits_of_a_task_without_any_are_positive(make_task: MakeTask) -> None:
    environment = Task.read(make_task(toml="")).file.environment
    assert min(environment.cpus, environment.memory_mb, environment.storage_mb, environment.pids_limit) > 0


def test_a_healthcheck_needs_only_its_command(make_task: MakeTask) -> None:
    check = Task.read(make_task(toml='[environment.healthcheck]\ncommand = "true"\n')).file.environment.healthcheck
    assert check is not None
    assert (check.interval_sec, check.timeout_sec, check.start_period_sec, check.retries) == (5, 30, 0, 3)


def test_every_key_of_the_format_is_read_and_none_is_unknown(make_task: MakeTask) -> None:
    task = Task.read(make_task(toml=EVERYTHING))
    assert task.unknown_keys == []
    assert (value(task, "agent.timeout_sec"), value(task, "agent.user")) == (900.5, "dev")
    assert (value(task, "verifier.timeout_sec"), value(task, "verifier.user")) == (360, 0)
    assert value(task, "environment.healthcheck.retries") == 4
    assert (value(task, "environment.cpus"), value(task, "environment.memory_mb")) == (2, 4096)
    assert value(task, "metadata") == {"difficulty": "hard", "anything": {"at": "all"}}
    assert value(task, "environment.workdir") == "/w"


@pytest.mark.parametrize(
    ("text", "memory_mb"),
    [("2G", 2048), ("512M", 512), ("1.5g", 1536), ("2GB", 2048), ("2GiB", 2048), ("1T", 1 << 20), ("1048576K", 1024)],
)
def test_legacy_sizes_have_units(make_task: MakeTask, text: str, memory_mb: float) -> None:
    task = Task.read(make_task(toml=f'[environment]\nmemory = "{text}"\nstorage = "{text}"\n'))
    assert (task.file.environment.memory_mb, task.file.environment.storage_mb) == (memory_mb, memory_mb)
    assert task.unknown_keys == []


def test_the_newer_size_wins_where_both_spellings_occur(make_task: MakeTask) -> None:
    task = Task.read(make_task(toml='[environment]\nmemory = "2G"\nmemory_mb = 300\n'))
    assert task.file.environment.memory_mb == 300


@pytest.mark.parametrize(
    ("line", "has_internet"),
    [
        ("", True),
        ("allow_internet = true", True),
        ("allow_internet = false", False),
        ('network_mode = "public"', True),
        ('network_mode = "no-network"', False),
    ],
)
def test_the_internet_is_there_unless_one_of_two_keys_takes_it_away(
    make_task: MakeTask, line: str, has_internet: bool
) -> None:
    assert Task.read(make_task(toml=f"[environment]\n{line}\n")).file.environment.has_internet is has_internet


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ('[agent]\ntimeout_sec = "soon"', "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = 0", "agent.timeout_sec"),
        ("[verifier]\ntimeout_sec = -1", "verifier.timeout_sec"),
        ("[verifier]\ntimeout_sec = inf", "verifier.timeout_sec"),
        ("[verifier]\nenv = { A = 1 }", "verifier.env.A"),
        ("[environment]\ncpus = nan", "environment.cpus"),
        ("[environment]\nmemory_mb = inf", "environment.memory_mb"),
        ('[environment]\nmemory = "lots"', "memory"),
        ("[environment]\nstorage = [1]", "storage"),
        ('[environment]\nnetwork_mode = "sometimes"', "environment.network_mode"),
        ('[agent]\nnetwork_mode = "no_network"', "agent.network_mode"),
        ('[environment]\nallow_internet = "perhaps"', "environment.allow_internet"),
        ("[environment.healthcheck]\nretries = 1", "environment.healthcheck.command"),
        ("environment = 3", "environment"),
        ("steps = 1", "steps"),
    ],
)
def test_a_wrong_value_is_refused_with_file_and_key(make_task: MakeTask, toml: str, key: str) -> None:
    path = make_task(toml=toml + "\n")
    assert str(path / "task.toml") in complaint(path)
    assert key in complaint(path)


def test_a_file_that_is_no_toml_is_named(make_task: MakeTask) -> None:
    path = make_task(toml="[agent\n")
    assert complaint(path).startswith(f"{path / 'task.toml'}: not valid TOML")


def test_a_file_that_is_no_utf8_is_named(make_task: MakeTask) -> None:
    path = make_task()
    (path / "task.toml").write_bytes(b'version = "\xff"')
    assert complaint(path).startswith(f"{path / 'task.toml'}: ")


@pytest.mark.parametrize(
    ("part", "file"),
    [
        ("toml", "task.toml"),
        ("instruction", "instruction.md"),
        ("test", "tests/test.sh"),
        ("dockerfile", "environment/Dockerfile"),
    ],
)
def test_a_missing_part_is_named(make_task: MakeTask, part: str, file: str) -> None:
    path = make_task(**{part: None})
    assert str(path / file) in complaint(path)


def test_an_image_can_stand_for_the_dockerfile(make_task: MakeTask) -> None:
    path = make_task(toml='[environment]\ndocker_image = "org/image:1"\n', dockerfile=None)
    assert Task.read(path).file.environment.docker_image == "org/image:1"


def test_the_oracle_is_optional(make_task: MakeTask) -> None:
    assert Task.read(make_task(solve=None)).name == "small-task"


def test_a_symlink_that_leaves_the_task_is_refused(make_task: MakeTask, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("s")
    path = make_task()
    (path / "environment" / "data").symlink_to(tmp_path / "secret")
    assert complaint(path).startswith(f"{path / 'environment' / 'data'}: symlink leaves the task")


def test_a_directory_symlink_and_a_dangling_one_that_leave_the_task_are_refused(
    make_task: MakeTask, tmp_path: Path
) -> None:
    for target in (tmp_path, Path("../../../nowhere")):
        path = make_task()
        link = path / "tests" / "link"
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        assert "symlink leaves the task" in complaint(path)


def test_a_symlink_inside_the_task_is_fine(make_task: MakeTask) -> None:
    path = make_task()
    (path / "tests" / "again.sh").symlink_to("test.sh")
    assert Task.read(path).name == "small-task"


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        ("Do it.\n", "Do it.\n"),
        ("<!-- harbor-canary GUID 1234 -->\nDo it.\n", "Do it.\n"),
        ("# CANARY GUID 1234\n\n\nDo it.\n", "Do it.\n"),
        ("<!-- a canary -->\n# a Canary too\n\nDo it.\n", "Do it.\n"),
        ("# Title\n\nDo it.\n", "# Title\n\nDo it.\n"),
        ("Do it.\n# canary\nmore\n", "Do it.\n# canary\nmore\n"),
        ("Mind the canary.\n", "Mind the canary.\n"),
        ("<!-- canary --> Do it.\n", "<!-- canary --> Do it.\n"),
    ],
)
def test_leading_canary_lines_are_not_shown(make_task: MakeTask, written: str, shown: str) -> None:
    assert Task.read(make_task(instruction=written)).instruction == shown


def test_an_instruction_with_broken_bytes_can_still_be_sent(make_task: MakeTask) -> None:
    path = make_task()
    (path / "instruction.md").write_bytes(b"caf\xe9\n")
    assert Task.read(path).instruction == "caf\ufffd\n"


def test_env_templates_come_from_the_host() -> None:
    env = {"A": "${HOST_A}", "B": "${HOST_B:-b}", "C": "${HOST_A:-other}", "D": "plain", "E": "${HOST_B:-}"}
    assert resolve_env(env, {"HOST_A": "a"}) == {"A": "a", "B": "b", "C": "a", "D": "plain", "E": ""}


def test_only_a_whole_value_is_a_template() -> None:
    env = {"A": "x${HOST_A}", "B": "$HOST_A", "C": "${HOST_A} ", "D": "${not-a-name}"}
    assert resolve_env(env, {"HOST_A": "a"}) == env


def test_a_missing_variable_without_default_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SURELY_UNSET", raising=False)
    with pytest.raises(TrialError, match=r"KEY.*SURELY_UNSET") as caught:
        resolve_env({"KEY": "${SURELY_UNSET}"})
    assert caught.value.info().type == "env_missing"


def independent_digest(root: Path) -> str:
    names = ["README.md", "environment/Dockerfile", "environment/a/b.bin", "instruction.md", "solution/solve.sh"]
    names += ["task.toml", "tests/test.sh", "trajectory"]
    lines = [name.encode() + b"\0" + hashlib.sha256((root / name).read_bytes()).hexdigest().encode() for name in names]
    return hashlib.sha256(b"".join(line + b"\n" for line in lines)).hexdigest()


def test_the_digest_is_the_published_one(make_task: MakeTask) -> None:
    path = make_task()
    (path / "README.md").write_text("r")
    (path / "trajectory").write_text("t")
    (path / "environment" / "a").mkdir()
    (path / "environment" / "a" / "b.bin").write_bytes(bytes(range(256)))
    for ignored in ("tests/__pycache__/x.py", "tests/x.pyc", "tests/.DS_Store", "tests/x.swp", "tests/x.swo"):
        (path / ignored).parent.mkdir(exist_ok=True)
        (path / ignored).write_text("ignored")
    (path / "tests" / "test.sh~").write_text("ignored")
    (path / "NOTES").write_text("not part of the digest")
    assert Task.read(path).hash == independent_digest(path)


def test_the_digest_ignores_modes_and_sees_bytes(make_task: MakeTask) -> None:
    path = make_task()
    before = Task.read(path).hash
    (path / "tests" / "test.sh").chmod(0o755)
    assert Task.read(path).hash == before
    (path / "tests" / "test.sh").write_bytes(b"\n")
    assert Task.read(path).hash != before


@pytest.mark.parametrize(
    ("toml", "feature"),
    [
        ("[[steps]]\nname = 'one'", "steps"),
        ("[environment]\ngpus = 1", "environment.gpus = 1"),
        ('[environment]\nnetwork_mode = "allowlist"', "network_mode = allowlist"),
        ('[agent]\nnetwork_mode = "allowlist"', "network_mode = allowlist"),
        ('[verifier]\nenvironment_mode = "separate"', "verifier.environment_mode = separate"),
        ('[[environment.mcp_servers]]\nname = "m"', "environment.mcp_servers"),
    ],
)
def test_a_feature_that_is_not_there_is_named(make_task: MakeTask, toml: str, feature: str) -> None:
    assert Task.read(make_task(toml=toml + "\n")).unsupported == [feature]


def test_a_compose_file_is_unsupported_by_its_exact_name_only(make_task: MakeTask) -> None:
    path = make_task()
    (path / "environment" / "docker-compose.yml").write_text("data of the task")
    assert Task.read(path).unsupported == []
    (path / "environment" / "docker-compose.yaml").write_text("services: {}")
    assert Task.read(path).unsupported == ["environment/docker-compose.yaml"]


def test_a_compose_task_needs_no_dockerfile(make_task: MakeTask) -> None:
    path = make_task(dockerfile=None)
    (path / "environment").mkdir()
    (path / "environment" / "docker-compose.yaml").write_text("services: {}")
    assert Task.read(path).unsupported == ["environment/docker-compose.yaml"]


def test_a_multi_step_task_is_unsupported_and_not_malformed(make_task: MakeTask) -> None:
    path = make_task(toml="[[steps]]\nname = 'one'\n", instruction=None, test=None)
    assert Task.read(path).unsupported == ["steps"]


def test_a_plain_task_needs_nothing_special(make_task: MakeTask) -> None:
    assert Task.read(make_task()).unsupported == []


def test_unknown_keys_are_tolerated_and_told(make_task: MakeTask) -> None:
    toml = """
colour = 1
[metadata]
free = 1
[agent]
mood = "good"
[environment]
cpu = 2
env = { FREE = "1" }
[environment.healthcheck]
command = "true"
interval = 3
"""
    unknown = ["agent.mood", "colour", "environment.cpu", "environment.healthcheck.interval"]
    assert Task.read(make_task(toml=toml)).unknown_keys == unknown
