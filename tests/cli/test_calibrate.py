"""`tbench calibrate` in real containers: its table, its page, and no repeated measurements."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tbench.cli import app
from tbench.errors import UsageError

MakeTask = Any


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TBENCH_CACHE", str(tmp_path / "cache"))


def tbench(*arguments: str) -> tuple[int, list[str], str]:
    done = CliRunner().invoke(app, ["calibrate", *arguments], prog_name="tbench")
    return done.exit_code, done.stdout.splitlines(), done.stderr


def test_a_task_that_cannot_run_is_not_healthy_and_needs_no_engine(make_task: MakeTask) -> None:
    windows = make_task("windows", toml='[environment]\nos = "windows"\n')
    broken = make_task("broken", toml="[agent\n")
    code, lines, _ = tbench(str(windows.parent))
    assert code == 2
    assert lines[1].split()[:4] == ["windows", "cannot", "be", "run"]
    assert f"broken: cannot be run: {broken / 'task.toml'}: not valid TOML" in "\n".join(lines)
    assert lines[-1] == "2 tasks, 2 not healthy here"
    code, lines, told = tbench(str(windows.parent), "--json")
    assert (code, told.splitlines()[-1]) == (2, "2 tasks, 2 not healthy here")
    assert {row["task"]: row["healthy"] for row in map(json.loads, lines)} == {"broken": False, "windows": False}


def test_a_file_that_is_there_is_not_overwritten_and_nothing_is_measured(make_task: MakeTask, tmp_path: Path) -> None:
    page = tmp_path / "notes.txt"
    page.write_text("mine")
    done = CliRunner().invoke(app, ["calibrate", str(make_task()), "--page", str(page)], prog_name="tbench")
    assert isinstance(done.exception, UsageError) and (done.stdout, page.read_text()) == ("", "mine")
    assert str(done.exception).startswith(f"{page}: exists and was not written by tbench")


@pytest.mark.engine
@pytest.mark.slow
def test_bundled_tasks_are_healthy_and_known_afterwards(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    arguments = ("bundled", "-t", "lab-permissions", "-t", "broken-makefile", "-k", "2")
    code, lines, told = tbench(*arguments, "--page", str(page))
    assert code == 0, lines
    rows = {line.split()[0]: line for line in lines}
    assert " healthy " in rows["lab-permissions"] and "1 1  0 0  yes" in rows["lab-permissions"]
    # The work includes the installed make.
    assert " healthy " in rows["broken-makefile"] and "1 1  0 0  yes" in rows["broken-makefile"]
    assert lines[-1] == "2 tasks, 0 not healthy here"
    assert "lab-permissions: oracle 1 1" in told and '<th scope="row">lab-permissions</th>' in page.read_text()
    code, again, told = tbench(*arguments)
    assert (code, again) == (0, lines) and "oracle" not in told
    code, objects, _ = tbench(*arguments, "--json")
    trials = json.loads(objects[1])["calibration"]["trials"]
    assert {(each["agent"], each["reward"], each["reward_writes"]) for each in trials} == {
        ("oracle", 1.0, 1), ("nop", 0.0, 1),
    }  # fmt: skip
    assert all(
        status == "passed" for each in trials if each["agent"] == "oracle" for status in each["tests"][""].values()
    )


@pytest.mark.engine
@pytest.mark.slow
def test_what_is_wrong_with_a_task_is_said_of_it(make_task: MakeTask) -> None:
    make_task("open", test="echo 1 > /logs/verifier/reward.txt\n")
    make_task("wrong", solve="echo nothing\n", test="echo never; echo 0 > /logs/verifier/reward.txt\n")
    make_task("unbuilt", dockerfile="FROM debian:bookworm-slim\nRUN false\n")
    code, lines, _ = tbench(str(make_task("good").parent), "-k", "1")
    assert code == 2 and lines[-1] == "4 tasks, 3 not healthy here"
    said = "\n".join(lines)
    assert "open: nop passes: doing nothing scores 1" in said
    assert "wrong: oracle fails: scores 0; the verifier's last words: 'never'" in said
    assert "unbuilt: cannot be built: image_build_failed: " in said


@pytest.mark.engine
@pytest.mark.slow
def test_a_run_names_unhealthy_tasks_beside_its_score(make_task: MakeTask, tmp_path: Path) -> None:
    make_task("open", test="echo 1 > /logs/verifier/reward.txt\n")
    tasks, run = make_task("good").parent, tmp_path / "run"
    command = ["run", str(tasks), "--agent", "oracle", "--calibrate", "all", "--output", str(run)]
    done = CliRunner().invoke(app, command, prog_name="tbench")
    assert done.exit_code == 0, done.output
    said = "1 of 2 tasks is not healthy here: open (nop passes); without it 100.0 %"
    assert said in done.stdout.splitlines()
    assert json.loads((run / "run.json").read_text())["unhealthy"] == {"open": "nop passes"}
    code, lines, told = tbench(str(tasks))
    assert (code, lines[-1]) == (2, "2 tasks, 1 not healthy here") and "oracle" not in told
