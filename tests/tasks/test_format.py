"""The schema of task.toml: every key of the format, its default, and what is said when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tbench.errors import TaskInvalid
from tbench.tasks.format import nearest_key
from tbench.tasks.task import Task

MakeTask = Any
LEFT_OUT: dict[str, Any] = {
    "agent.timeout_sec": None,
    "agent.user": None,
    "agent.network_mode": None,
    "agent.allowed_hosts": None,
    "verifier.timeout_sec": 600,
    "verifier.env": {},
    "verifier.user": None,
    "verifier.reward_range": (0.0, 1.0),
    "verifier.environment_mode": None,
    "verifier.environment": None,
    "verifier.network_mode": None,
    "verifier.allowed_hosts": None,
    "verifier.collect": (),
    "solution.env": {},
    "environment.build_timeout_sec": 600,
    "environment.docker_image": None,
    "environment.env": {},
    "environment.workdir": None,
    "environment.network_mode": "public",
    "environment.allowed_hosts": None,
    "environment.os": "linux",
    "environment.gpus": 0,
    "environment.gpu_types": [],
    "environment.tpu": None,
    "environment.healthcheck": None,
    "environment.mcp_servers": [],
    "environment.skills_dir": None,
    "artifacts": (),
    "steps": [],
}
EVERYTHING = """
schema_version = "1.4"
source = "elsewhere"
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
network_mode = "allowlist"
allowed_hosts = ["h"]
[verifier]
timeout_sec = 360
user = 0
reward_range = [-1, 2.5]
environment_mode = "separate"
network_mode = "allowlist"
allowed_hosts = ["h"]
env = { A = "${A}" }
[[verifier.collect]]
command = "dump"
[verifier.environment]
cpus = 1
memory = "1G"
[solution]
env = { B = "b" }
[environment]
build_timeout_sec = 60
docker_image = "org/image:1"
cpus = 2
memory_mb = 4096
storage_mb = 1
os = "Linux"
gpus = 0
gpu_types = ["A100"]
tpu = { type = "v4", topology = "2x2x1" }
env = { C = "c" }
workdir = "/w"
network_mode = "allowlist"
allowed_hosts = ["h"]
mcp_servers = []
skills_dir = "/skills"
[environment.healthcheck]
command = "true"
interval_sec = 1
timeout_sec = 2
start_period_sec = 3
start_interval_sec = 0.5
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
    assert (check.interval_sec, check.timeout_sec, check.retries) == (5, 30, 3)
    assert (check.start_period_sec, check.start_interval_sec) == (0, 5)


def test_every_key_of_the_format_is_read_and_none_is_unknown(make_task: MakeTask) -> None:
    task = Task.read(make_task(toml=EVERYTHING))
    assert task.unknown_keys == []
    assert (value(task, "agent.timeout_sec"), value(task, "agent.user")) == (900.5, "dev")
    assert (value(task, "verifier.timeout_sec"), value(task, "verifier.user")) == (360, 0)
    assert value(task, "verifier.reward_range") == (-1.0, 2.5)
    assert value(task, "environment.healthcheck.retries") == 4
    assert value(task, "environment.healthcheck.start_interval_sec") == 0.5
    assert (value(task, "environment.os"), value(task, "verifier.environment.memory_mb")) == ("linux", 1024)
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
    ("line", "mode"),
    [
        ("", "public"),
        ("allow_internet = true", "public"),
        ("allow_internet = false", "no-network"),
        ('network_mode = "public"', "public"),
        ('network_mode = "no-network"', "no-network"),
        ('allow_internet = true\nnetwork_mode = "no-network"', "no-network"),
        ('allow_internet = false\nnetwork_mode = "public"', "public"),
        ('allow_internet = false\nnetwork_mode = "allowlist"', "allowlist"),
        ("allow_internet = false\nallowed_hosts = []", "public"),
    ],
)
def test_the_internet_is_there_unless_the_newest_key_of_the_network_takes_it_away(
    make_task: MakeTask, line: str, mode: str
) -> None:
    assert Task.read(make_task(toml=f"[environment]\n{line}\n")).file.environment.network.mode == mode


@pytest.mark.parametrize(
    ("toml", "key"),
    [
        ('[agent]\ntimeout_sec = "soon"', "agent.timeout_sec"),
        ("[agent]\ntimeout_sec = 0", "agent.timeout_sec"),
        ("[verifier]\ntimeout_sec = -1", "verifier.timeout_sec"),
        ("[verifier]\ntimeout_sec = inf", "verifier.timeout_sec"),
        ("[verifier]\nenv = { A = 1 }", "verifier.env.A"),
        ("[verifier]\nreward_range = [1, 0]", "verifier.reward_range: must be the lowest and the highest reward"),
        ("[verifier]\nreward_range = [1, 1]", "verifier.reward_range"),
        ("[verifier]\nreward_range = [0]", "verifier.reward_range"),
        ("[verifier]\nreward_range = [0, 1, 2]", "verifier.reward_range"),
        ("[verifier]\nreward_range = 1", "verifier.reward_range"),
        ("[verifier]\nreward_range = [0, inf]", "verifier.reward_range.1"),
        ("[verifier]\nreward_range = [nan, 1]", "verifier.reward_range.0"),
        ("[verifier]\nreward_range = [0, 1.1e9]", "verifier.reward_range.1"),
        ("[verifier]\nreward_range = [0, '1']", "verifier.reward_range.1"),
        ("[verifier]\nreward_range = [false, true]", "verifier.reward_range.0"),
        ("[environment]\ncpus = nan", "environment.cpus"),
        ("[environment]\nmemory_mb = inf", "environment.memory_mb"),
        ('[environment]\nmemory = "lots"', "memory"),
        ("[environment]\nstorage = [1]", "storage"),
        ('[environment]\nnetwork_mode = "sometimes"', "environment.network_mode"),
        ('[agent]\nnetwork_mode = "no_network"', "agent.network_mode"),
        ('[verifier]\nnetwork_mode = "sometimes"', "verifier.network_mode"),
        ('[environment]\nallowed_hosts = ["h"]', "environment: allowed_hosts only works with"),
        ('[environment]\nnetwork_mode = "no-network"\nallowed_hosts = ["h"]', "environment: allowed_hosts"),
        ('[agent]\nnetwork_mode = "public"\nallowed_hosts = ["h"]', "agent: allowed_hosts"),
        ("[agent]\nallowed_hosts = []", "agent: allowed_hosts"),
        ("[verifier]\nallowed_hosts = []", "verifier: allowed_hosts"),
        ('[agent]\nnetwork_mode = "allowlist"\nallowed_hosts = ["h", "https://h"]', "agent.allowed_hosts.1"),
        ('[verifier]\nnetwork_mode = "allowlist"\nallowed_hosts = ["h:80"]', "verifier.allowed_hosts.0"),
        (
            '[verifier.environment]\nnetwork_mode = "public"\nallowed_hosts = ["h"]',
            "verifier.environment: allowed_hosts",
        ),
        ('[verifier]\nenvironment_mode = "both"', "verifier.environment_mode"),
        ("[verifier.environment]\ncpus = 0", "verifier.environment.cpus"),
        ('[environment]\nos = "plan9"', "environment.os"),
        (
            "[environment.healthcheck]\ncommand = ''\nstart_interval_sec = 0",
            "environment.healthcheck.start_interval_sec",
        ),
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


def test_a_shared_verifier_with_an_environment_of_its_own_is_a_contradiction(make_task: MakeTask) -> None:
    path = make_task(toml='[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\ncpus = 1\n')
    assert complaint(path).startswith(
        f'{path / "task.toml"}: verifier: environment_mode = "shared" contradicts [verifier.environment]'
    )


def test_unknown_keys_are_named_and_refused_unless_they_only_describe(make_task: MakeTask) -> None:
    toml = """
colour = 1
tags = ["a"]
difficulty_explanation = "subtle"
expert_time_estimate_hours = 2
[task]
id = 3
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
    task = Task.read(make_task(toml=toml))
    described = ["difficulty_explanation", "expert_time_estimate_hours", "tags", "task.id"]
    assert task.unknown_keys == sorted([*unknown, *described])
    assert [each.partition(" ")[0] for each in task.unsupported] == task.refused_keys == unknown
    allowed = task.with_access((), ignored_keys=("environment.*", "colour"))
    assert (allowed.refused_keys, allowed.hash) == (["agent.mood"], task.hash)
    assert len(allowed.unsupported) == 1


def test_only_bash_runs_scripts_so_others_are_refused_in_one_line(make_task: MakeTask) -> None:
    written = "#!/bin/sh\necho 1 > /logs/verifier/reward.txt\n"
    assert Task.read(make_task(test=written)).unsupported == []
    path = make_task(test="")
    script = path / "tests" / "test.sh"
    script.write_bytes(written.replace("\n", "\r\n").encode())
    assert complaint(path).startswith(f"{script}: has Windows line ends")
    script.write_text("#!/usr/bin/env -S python3 -u\nprint(1)\n")
    assert complaint(path).startswith(f"{script}: is written for python3")
    script.write_text("printf '%s' \"#!/usr/bin/python3\"\n")
    assert Task.read(path).unsupported == []


def test_a_byte_order_mark_is_no_part_of_the_instruction(make_task: MakeTask) -> None:
    path = make_task(instruction="")
    (path / "instruction.md").write_bytes(b"\xef\xbb\xbfWrite a letter.\n")
    toml = (path / "task.toml").read_bytes()
    (path / "task.toml").write_bytes(b"\xef\xbb\xbf" + toml)
    assert Task.read(path).instruction == "Write a letter.\n"


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("agent.timeout_secs", "agent.timeout_sec"),
        ("enviroment", "environment"),
        ("environment.cpu", "environment.cpus"),
        ("environment.memory-mb", "environment.memory_mb"),
        ("verifier.solution", "solution"),
        ("memory_mb", "environment.memory_mb"),
        ("verifier.environment.imag", None),
        ("colour", None),
    ],
)
def test_the_key_that_was_probably_meant(key: str, meant: str | None) -> None:
    assert nearest_key(key) == meant
