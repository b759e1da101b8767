"""`tbench task list` and `check`: the list, findings about tasks, and trials of oracle and nop."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest
from click.testing import CliRunner
from step_tasks import step_task

from tbench.cli import app
from tbench.cli.findings import trial_findings
from tbench.errors import TrialError
from tbench.results import ErrorInfo
from tbench.tasks.task import Task
from tbench.verify.calibration import MeasuredTrial

MakeTask = Any


def tbench(*arguments: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, list(arguments), prog_name="tbench")
    return done.exit_code, done.output.splitlines()


def test_check_says_of_each_task_what_keeps_it_from_running_and_what_has_no_effect(make_task: MakeTask) -> None:
    good = make_task("good", toml='category = "games"\n', solve=None)
    windows = make_task("windows", toml='[environment]\nos = "windows"\n')
    both = make_task("both", toml='[verifier]\nenvironment_mode = "shared"\n[verifier.environment]\n')
    code, lines = tbench("task", "check", str(good.parent))
    assert code == 2
    assert lines[0].startswith(f"cannot run: {both / 'task.toml'}: verifier: environment_mode")
    assert lines[1:] == [
        f"cannot run: {windows.name}: needs environment.os = windows, which tbench does not have",
        f"ignored: {good / 'task.toml'}: category",
        f"no oracle: {good / 'solution' / 'solve.sh'} is missing",
        "3 tasks, 2 problems, 0 hints",
    ]


def test_check_of_a_task_that_can_run_ends_well(make_task: MakeTask) -> None:
    path = str(make_task(toml=""))
    assert tbench("task", "check", "--static", path) == (0, ["1 task, 0 problems, 0 hints"])


def test_check_says_where_a_build_has_a_network_and_what_block_host_does_not_build(make_task: MakeTask) -> None:
    make_task("offline")
    fetching = make_task("fetching", dockerfile="FROM debian:12\nADD http://host/x /y\n", toml="")
    code, lines = tbench("task", "check", str(fetching.parent))
    assert code == 0
    assert lines[0].startswith(f"not built with --block-host: {fetching / 'environment' / 'Dockerfile'}: 'ADD http")
    assert lines[1].startswith("builds have network access, even for tasks whose trials have none")
    assert lines[2:] == ["2 tasks, 0 problems, 0 hints"]


def test_check_names_what_a_task_asks_of_the_environment_and_the_flag_that_allows_it(
    make_task: MakeTask, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-some-key")
    toml = '[environment.env]\nK = "${HF_TOKEN}"\n[verifier.env]\nL = "${OPENAI_API_KEY:-}"\n'
    path = make_task(toml=toml) / "task.toml"
    assert tbench("task", "check", "--static", str(path.parent)) == (
        0,
        [
            f"asks for HF_TOKEN (not set here): {path}: environment.env.K; "
            "without --allow-env HF_TOKEN, the trial fails with env_missing",
            f"asks for OPENAI_API_KEY: {path}: verifier.env.L; without --allow-env OPENAI_API_KEY, its default is used",
            "1 task, 0 problems, 0 hints",
        ],
    )


def test_list_shows_how_many_steps_a_task_has_and_their_time_together(make_task: MakeTask) -> None:
    path = step_task(make_task, "one", "two", top="[agent]\ntimeout_sec = 40\n", two="[steps.agent]\ntimeout_sec = 5\n")
    code, (line,) = tbench("task", "list", str(path))
    assert code == 0 and line.endswith("  2 steps") and " 45 s " in line


def test_list_shows_difficulty_limits_and_the_hash(make_task: MakeTask) -> None:
    path = make_task(toml="[agent]\ntimeout_sec = 9\n[environment]\ncpus = 2\nmemory_mb = 64\n")
    plain = make_task("plain", toml='[metadata]\ndifficulty = "hard"\n')
    code, lines = tbench("task", "list", str(path.parent))
    limits = ["2", "cpu", "64", "MB", "9", "s"]
    assert (code, lines[1].split()) == (0, ["small-task", "-", *limits, Task.read(path).hash[:12]])
    assert lines[0].split()[:2] == ["plain", "hard"]
    assert tbench("task", "list", str(path.parent), "-t", "pl*")[1] == [lines[0]]
    assert tbench("task", "list", str(plain.parent), "-l", "1", "-x", "pl*")[1] == [lines[1]]


def test_check_refuses_unknown_keys_by_name_and_with_the_key_that_was_probably_meant(make_task: MakeTask) -> None:
    path = make_task(toml="colour = 1\n[agent]\ntimeout_secs = 9\n[environment]\ntimeout_sec = 9\n")
    unknown = {
        "agent.timeout_secs": "did you mean agent.timeout_sec?",
        "colour": "--ignore-keys colour leaves it out",
        "environment.timeout_sec": "did you mean environment.build_timeout_sec?",
    }
    lines = [
        f"cannot run: {path.name}: needs {key} in task.toml ({remedy}), which tbench does not have"
        for key, remedy in unknown.items()
    ]
    assert tbench("task", "check", "--static", str(path)) == (2, [*lines, "1 task, 3 problems, 0 hints"])
    flags = ("--ignore-keys", "*.time*", "--ignore-keys", "colour")
    code, shown = tbench("task", "check", "--static", *flags, str(path))
    assert (code, shown[-1]) == (0, "1 task, 0 problems, 0 hints")
    assert [line.rpartition(": ")[2] for line in shown[:-1]] == [*unknown]


def test_check_prints_an_object_per_task(make_task: MakeTask) -> None:
    good = make_task("good", solve=None, toml="", instruction="Read /app/never-there.txt\n")
    make_task("bad", toml="[environment]\ncpus = 0\n")
    code, lines = tbench("task", "check", str(good.parent), "--json")
    assert code == 2
    bad_row, good_row = map(json.loads, lines)
    assert (bad_row["task"], bad_row["path"], bad_row["tried"]) == ("bad", None, {})
    assert "environment.cpus" in bad_row["problems"][0]
    assert good_row["hash"] == Task.read(good).hash
    assert good_row["problems"] == []
    assert good_row["notes"] == [f"no oracle: {good / 'solution' / 'solve.sh'} is missing"]
    assert good_row["hints"] == [
        f"looks wrong: {good / 'instruction.md'}: /app/never-there.txt: no such file in environment, tests or solution",
    ]


@pytest.mark.engine
def test_one_task_is_tried_and_several_only_when_asked(make_task: MakeTask) -> None:
    always = make_task("always", test="echo fine; echo 1 > /logs/verifier/reward.txt\n", solve=None)
    code, lines = tbench("task", "check", str(always))
    assert code == 2
    assert lines[0] == "trying oracle and nop in 1 task (--static skips this)"
    assert "nop: always: scores 1, expected 0; last output of the verifier: 'fine'" in lines
    assert lines[-1] == "1 task, 1 problem, 1 hint"
    make_task("good")
    static = (
        0,
        [
            f"no oracle: {always}/solution/solve.sh is missing",
            f"always passes: {always}/tests/test.sh: writes a reward of 1 whatever happens before",
            "2 tasks, 0 problems, 1 hint",
        ],
    )
    for option in ((), ("--static",)):
        code, lines = tbench("task", "check", str(always.parent), *option)
        assert (code, [line for line in lines if not line.startswith("builds have")]) == static
    code, lines = tbench("task", "check", str(always.parent), "-t", "good", "--run", "--json")
    assert code == 0
    row = json.loads(lines[-1])
    assert row["tried"] == {"oracle": {"reward": 1.0, "error": None}, "nop": {"reward": 0.0, "error": None}}


def tried(agent: str, reward: float | None, **more: Any) -> MeasuredTrial:
    return MeasuredTrial.model_validate({"agent": agent, "repetition": 0, "reward": reward, **more})


@pytest.mark.parametrize(
    ("trial", "line", "level"),
    [
        (tried("oracle", 1.0), "oracle: name: scores 1", "note"),
        (
            tried("oracle", 0.6, last_words="so"),
            "oracle: name: scores 0.6, expected 1; last output of the verifier: 'so'",
            "hint",
        ),
        (tried("oracle", 0.0), "oracle: name: scores 0, expected 1", "problem"),
        (
            tried("oracle", None, error=ErrorInfo.of(TrialError("verifier_no_reward", "none"))),
            "oracle: name: no verdict: verifier_no_reward: none",
            "problem",
        ),
        (tried("nop", 0.0), "nop: name: scores 0", "note"),
        (tried("nop", -1.0), "nop: name: scores -1", "note"),
        (tried("nop", 0.25), "nop: name: scores 0.25, expected 0", "hint"),
        (tried("nop", 1.0), "nop: name: scores 1, expected 0", "problem"),
    ],
)
def test_what_a_trial_tells(trial: MeasuredTrial, line: str, level: str) -> None:
    assert [(str(each), each.level) for each in trial_findings("name", [trial])] == [(line, level)]


def test_an_oracle_that_looks_like_a_cheat_is_reported() -> None:
    found = trial_findings("name", [tried("oracle", 1.0, signs=("path: /bin/ls changed",))])
    assert [str(each) for each in found] == [
        "oracle: name: scores 1",
        "oracle: name: its work looks like tampering: path: /bin/ls changed",
    ]


def test_without_an_engine_the_way_without_one_is_named(make_task: MakeTask) -> None:
    # In a separate process, because Docker's SDK leaks the socket of a failed connection.
    environment = {**os.environ, "DOCKER_HOST": "unix:///nowhere/docker.sock"}
    argv = [sys.executable, "-m", "tbench", "task", "check", str(make_task())]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 2
    assert "; --static checks without an engine" in done.stderr.splitlines()[-1]


def test_of_each_kind_of_hint_three_are_shown_and_the_others_counted(make_task: MakeTask) -> None:
    tasks = [make_task(f"task-{number}", toml="", dockerfile="FROM debian\n") for number in range(5)]
    make_task("other", toml="", test="make -j$(nproc)\necho $? > /logs/verifier/reward.txt\n")
    code, lines = tbench("task", "check", str(tasks[0].parent))
    assert code == 0
    assert len([line for line in lines if line.startswith("not pinned: ")]) == 4
    assert "not pinned: 2 more; --json lists all" in lines
    assert len([line for line in lines if line.startswith("machine's cpus: ")]) == 1
    rows = [json.loads(line) for line in tbench("task", "check", str(tasks[0].parent), "--json")[1]]
    assert sum(len(row["hints"]) for row in rows) == 6
