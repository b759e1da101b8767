"""Hostile tasks that try to control the user's terminal: their text is shown escaped everywhere."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import unicodedata
from pathlib import Path

import in_process
import pytest
from conftest import MakeTask

from tbench.results import TrialResult
from tbench.tasks.sources import read_tasks

TBENCH = str(Path(sys.executable).with_name("tbench"))
STEERING = "\x1b[2J\x1b]0;title\x07\x9b31m\x08\r\n99:99:99 forged: reward 1\u202e\u2066"
IN_TOML = json.dumps(STEERING)
PRINTED = r"\033[2J\033]0;title\007\302\23331m\b\r\n99:99:99 forged: reward 1\342\200\256"
BASE = "FROM debian:bookworm-slim\n"
LEAVING = "touch \"/logs/verifier/$(printf '\\033[2J\\n\\302\\233x')\""
TOML = "[environment]\nmemory_mb = 256\nallow_internet = false\n"
HEALTHCHECK = f"""[environment.healthcheck]
command = "printf '{PRINTED}'; exit 1"
retries = 1
""".replace("\\", "\\\\")


def strange_characters(text: str) -> set[str]:
    bidi = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
    return {
        char
        for char in text
        if (unicodedata.category(char) == "Cc" and char not in "\n\t") or unicodedata.bidirectional(char) in bidi
    }


def assert_harmless(text: str, where: object) -> None:
    assert not strange_characters(text), (where, text)
    assert not [line for line in text.splitlines() if line.startswith("99:99:99")], (where, text)


@pytest.fixture
def hostile(make_task: MakeTask) -> Path:
    """Write a normal task, and one for each way of showing text to the user."""
    good = make_task("good", toml=f"{IN_TOML} = 1\n{TOML}", solve=None)
    for name in (f"name{STEERING}", "turned\u202etxt", "two\nlines"):
        make_task(name)
    make_task("value", toml=f"[environment]\ncpus = {IN_TOML}\n")
    make_task("key", toml=f"[environment.env]\n{IN_TOML} = 1\n")
    make_task("syntax", toml=f"{TOML}\nx = \x1b[2J\u202e\n")
    make_task("image", toml=f"[environment]\ndocker_image = {json.dumps('localhost:1/' + STEERING)}\n", dockerfile=None)
    make_task("unset", toml=f"{TOML}[environment.env]\n{IN_TOML} = '${{SURELY_NOT_SET}}'\n")
    make_task("health", toml=f"{TOML}{HEALTHCHECK}")
    make_task("build", dockerfile=f"{BASE}RUN printf '{PRINTED}'; printf '{PRINTED}' >&2; exit 1\n")
    make_task("syntax-of-build", dockerfile=f"{BASE}\x1b[2J\u202e x\n")
    make_task("reward", test=f"printf '{PRINTED}'; printf '{PRINTED}' > /logs/verifier/reward.txt\n")
    make_task("logs", test=f"printf '{PRINTED}' >&2; {LEAVING}; echo 0 > /logs/verifier/reward.txt\n")
    return good.parent


def tbench(directory: Path, *arguments: str) -> tuple[int, str]:
    done = in_process.tbench(*arguments, directory=directory)
    return done.returncode, harmless(done.stdout + done.stderr, arguments)


def run_of(directory: Path, *arguments: str) -> None:
    """Run tbench in a separate process."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("TBENCH_", "OPENAI_"))}
    done = subprocess.run(
        [TBENCH, "run", *arguments], capture_output=True, timeout=600, check=False, cwd=directory, env=environment
    )
    harmless(done.stdout.decode() + done.stderr.decode(), arguments)


def harmless(said: str, arguments: tuple[str, ...]) -> str:
    assert "Traceback" not in said, said
    assert_harmless(said, arguments)
    return said


def test_tasks_are_listed_and_checked_without_obeying_them(hostile: Path, tmp_path: Path) -> None:
    code, said = tbench(tmp_path, "task", "check", str(hostile))
    assert code == 2
    assert said.count("task names must not contain control characters") == 3
    assert "cpus: Input should be a valid number" in said
    assert "task.toml: environment.env.\\u001b[2J" in said
    tbench(tmp_path, "task", "list", str(hostile))
    code, said = tbench(tmp_path, "task", "check", str(hostile / f"name{STEERING}"))
    assert code == 2 and "\\u001b[2J" in said


def test_a_name_that_cannot_be_shown_is_shown_escaped_and_cannot_run(hostile: Path) -> None:
    found = read_tasks(str(hostile))
    assert {"turned\\u202etxt", "two\\u000alines"} <= found.invalid.keys()
    for text in (*found.names, *found.invalid.values()):
        assert_harmless(text, "names")
        assert "\n" not in text


@pytest.mark.engine
@pytest.mark.slow
def test_a_run_of_them_leaves_and_shows_nothing_that_steers(hostile: Path, tmp_path: Path) -> None:
    tbench(tmp_path, "run", str(hostile), "-a", "nop", "--dry-run")
    run_of(tmp_path, str(hostile), "-a", "nop", "-o", "r", "--retries", "0", "--log-level", "debug")
    run = tmp_path / "r"
    results = {
        result.task: result
        for result in map(TrialResult.model_validate_json, (run / "results.jsonl").read_text().splitlines())
    }
    errors = {name: result.error.type for name, result in results.items() if result.error}
    assert errors.items() >= {
        ("value", "task_invalid"),
        ("turned\\u202etxt", "task_invalid"),
        ("unset", "env_missing"),
        ("health", "healthcheck_failed"),
        ("build", "image_build_failed"),
        ("syntax-of-build", "image_build_failed"),
        ("reward", "verifier_bad_reward"),
    }
    assert "image" in errors and "good" not in errors
    for result in results.values():
        if result.error:
            assert_harmless(result.error.message, result.task)
            assert "\n" not in result.error.message
    tbench(tmp_path, "summary", "r")
    tbench(tmp_path, "summary", "r", "--json")
    tbench(tmp_path, "report", "r")
    for name in ("results.jsonl", "run.json", "run.log", "journal.jsonl", "report.html"):
        assert_harmless((run / name).read_text(), name)
    for path in run.rglob("*"):
        assert_harmless(str(path.relative_to(run)), "paths")
        assert "\n" not in path.name
    # Build logs are stored raw, to be read with a pager.
    assert "\x1b[2J" in (run / "images" / "build.log").read_text()
