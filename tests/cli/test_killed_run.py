"""The run directory of a killed run can be read, reported and resumed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import in_process
import pytest

from tbench.demo.server import DemoEndpoint
from tbench.proxies.datasets.records import read_dataset
from tbench.storage.read_run import read_run
from tbench.tasks.sources import read_tasks

TBENCH = str(Path(sys.executable).with_name("tbench"))
KEPT = Path(__file__).parents[1] / "data" / "killed-run"


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """Copy of the run, whose run.json names the current path of the tasks."""
    directory = shutil.copytree(KEPT, tmp_path / "killed")
    document = json.loads((directory / "run" / "run.json").read_text())
    document["config"]["tasks"]["source"] = str(directory / "tasks")
    (directory / "run" / "run.json").write_text(json.dumps(document))
    return directory


@pytest.fixture
def demo(killed: Path) -> Iterator[str]:
    """Endpoint of the run."""
    with DemoEndpoint({task.name: task.instruction for task in read_tasks(str(killed / "tasks")).tasks}) as endpoint:
        yield endpoint.base_url


def tbench(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    done = in_process.tbench(*map(str, arguments), COLUMNS="120")
    assert done.returncode == 0, done
    return done


def test_it_is_read_as_it_was(killed: Path) -> None:
    stored = read_run(killed / "run")
    assert (len(stored.results), stored.notes, stored.document and stored.document.status) == (3, (), "running")
    assert [(result.task, result.seed, result.reward, result.steps) for result in stored.results] == [
        ("git-lost-commits", 0, 1.0, 5),
        ("tidy-notes", 0, 1.0, 5),
        ("git-lost-commits", 1, 1.0, 5),
    ]


def test_its_score_and_its_page_are_made(killed: Path) -> None:
    told = tbench("summary", killed / "run").stdout
    assert "score so far 75.0 ± 35.4 % (sample std over 2 seeds; 100.0 % over the 1 completed; " in told
    assert "incomplete: 1 trial not run; coverage 3/4; unscored = 0)" in told
    tbench("report", killed / "run")
    assert "git-lost-commits" in (killed / "run" / "report.html").read_text()


def test_its_trajectories_make_a_dataset(killed: Path, tmp_path: Path) -> None:
    tbench("replay", "build", killed / "run", "-o", tmp_path / "steps.jsonl")
    assert len(read_dataset(tmp_path / "steps.jsonl").records) == 9


@pytest.mark.engine
@pytest.mark.slow
def test_it_goes_on_where_it_was_killed(killed: Path, demo: str) -> None:
    before = (killed / "run" / "results.jsonl").read_text().splitlines()
    environment = {name: value for name, value in os.environ.items() if name != "OPENAI_BASE_URL"} | {"COLUMNS": "120"}
    command = [TBENCH, "resume", killed / "run", "--base-url", demo]
    told = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment)
    assert told.returncode == 0, told
    assert "3 of 4 trials are kept, 1 to run" in told.stderr
    assert "score 100.0 ± 0.0 % (sample std over 2 seeds; coverage 4/4)" in told.stdout
    lines = (killed / "run" / "results.jsonl").read_text().splitlines()
    assert lines[:3] == before
    last = json.loads(lines[3])
    assert (last["task"], last["seed"], last["attempt"], last["reward"]) == ("tidy-notes", 1, 2, 1.0)
    assert json.loads((killed / "run" / "run.json").read_text())["status"] == "finished"
