"""`tbench task`: what is listed and what is said of tasks, without an engine."""

from __future__ import annotations

from typing import Any

import pytest
from click.testing import CliRunner

from tbench.cli import app
from tbench.tasks.task import Task

MakeTask = Any


def tbench(*arguments: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, list(arguments), prog_name="tbench")
    return done.exit_code, done.output.splitlines()


def test_check_says_of_each_task_what_keeps_it_from_running_and_what_has_no_effect(make_task: MakeTask) -> None:
    good = make_task("good", toml="colour = 1\n", solve=None)
    separate = make_task("separate", toml="[verifier.environment]\ncpus = 1\n")
    both = make_task("both", toml='[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\n')
    code, lines = tbench("task", "check", str(good.parent))
    assert code == 2
    assert lines[0].startswith(f"cannot run: {both / 'task.toml'}: verifier: environment_mode")
    assert lines[1:] == [
        f"cannot run: {separate.name}: needs verifier.environment, which tbench does not have",
        f"ignored: {good / 'task.toml'}: colour",
        f"no oracle: {good / 'solution' / 'solve.sh'} is missing",
        "3 tasks, 2 problems",
    ]


def test_check_of_a_task_that_can_run_ends_well(make_task: MakeTask) -> None:
    assert tbench("task", "check", str(make_task(toml=""))) == (0, ["1 tasks, 0 problems"])


def test_check_says_where_a_build_has_a_network_and_what_block_host_does_not_build(make_task: MakeTask) -> None:
    make_task("offline")
    fetching = make_task("fetching", dockerfile="FROM debian\nADD http://host/x /y\n", toml="")
    code, lines = tbench("task", "check", str(fetching.parent))
    assert code == 0
    assert lines[0].startswith(f"not built with --block-host: {fetching / 'environment' / 'Dockerfile'}: 'ADD http")
    assert lines[1].startswith("builds have a network, also those of tasks whose trials have none")
    assert lines[2:] == ["2 tasks, 0 problems"]


def test_check_names_what_a_task_asks_of_the_environment_and_the_flag_that_allows_it(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-some-key")
    toml = '[environment.env]\nK = "${HF_TOKEN}"\n[verifier.env]\nL = "${OPENAI_API_KEY:-}"\n'
    path = make_task(toml=toml) / "task.toml"
    assert tbench("task", "check", str(path.parent)) == (
        0,
        [
            f"asks for HF_TOKEN (not set here): {path}: environment.env.K; "
            "without --allow-env HF_TOKEN it has the error env_missing",
            f"asks for OPENAI_API_KEY: {path}: verifier.env.L; without --allow-env OPENAI_API_KEY it has its default",
            "1 tasks, 0 problems",
        ],
    )


def test_list_shows_difficulty_limits_and_the_hash(make_task: MakeTask) -> None:
    path = make_task(toml="[agent]\ntimeout_sec = 9\n[environment]\ncpus = 2\nmemory_mb = 64\n")
    plain = make_task("plain", toml='[metadata]\ndifficulty = "hard"\n')
    code, lines = tbench("task", "list", str(path.parent))
    limits = ["2", "cpu", "64", "MB", "9", "s"]
    assert (code, lines[1].split()) == (0, ["small-task", "-", *limits, Task.read(path).hash[:12]])
    assert lines[0].split()[:2] == ["plain", "hard"]
    assert tbench("task", "list", str(path.parent), "-t", "pl*")[1] == [lines[0]]
    assert tbench("task", "list", str(plain.parent), "-l", "1", "-x", "pl*")[1] == [lines[1]]
