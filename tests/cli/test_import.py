"""`tbench import`: its output, and imported runs in every command that reads runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner
from harbor_jobs import atif, did, finish, result, said, trial, write

from tbench.cli import app
from tbench.errors import UsageError


def tbench(*arguments: object) -> tuple[int, list[str]]:
    done = CliRunner().invoke(app, [str(each) for each in arguments], prog_name="tbench")
    if isinstance(done.exception, UsageError):
        raise done.exception
    return done.exit_code, done.output.splitlines()


@pytest.fixture
def run(tmp_path: Path) -> Path:
    log = atif(said("go"), did("", "ls\n", shown="x"), did("", done=True, shown=""))
    trial(tmp_path / "job", result("a__1", "a", {"reward": 1.0}), agent__trajectory_dot_json=log)
    trial(tmp_path / "job", result("b__1", "b", {"reward": 0.0}))
    finish(tmp_path / "job", mean=0.5)
    code, lines = tbench("import", "harbor", tmp_path / "job", "-o", tmp_path / "run")
    assert (code, lines) == (
        0,
        [
            f"run directory: {tmp_path / 'run'}",
            "  2 trials: 2 tasks, 1 seed by terminus-2 with small-model",
            "  mean by Harbor's rule 0.500000 (its result.json: 0.500000), score here 0.500000",
        ],
    )
    return tmp_path / "run"


def test_an_imported_run_has_a_summary_and_a_page_with_links_to_its_trials(run: Path) -> None:
    code, lines = tbench("summary", run)
    assert code == 0
    assert any(line.startswith("score 50.0 %") for line in lines)
    tbench("report", run)
    page = (run / "report.html").read_text()
    assert 'href="trials/a/seed-0/trajectory.json"' in page
    assert "harbor job" in page and "terminus-2 2.0.0" in page


def test_what_would_start_something_refuses_it_in_a_line(run: Path) -> None:
    before = sorted(run.rglob("*"))
    with pytest.raises(UsageError, match=r"run.json: was imported from 'job', so it cannot be continued"):
        tbench("resume", run)
    with pytest.raises(UsageError, match="only tbench's own runs can be verified again"):
        tbench("regrade", run)
    assert sorted(run.rglob("*")) == before


def test_a_run_goes_to_runs_by_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = write(tmp_path / "mine.csv", "task,reward,model\na,1,x\na,0,x\na,1,y\n")
    code, lines = tbench("import", "results", file, "--number-seeds", "--split", "model")
    assert code == 0
    assert lines[0] == "run directory: runs/mine-x" and "  score 0.500000" in lines
    assert sorted(path.name for path in Path("runs").iterdir()) == ["mine-x", "mine-y"]
    with pytest.raises(UsageError, match="runs/mine-x: not empty"):
        tbench("import", "results", file, "--number-seeds", "--split", "model")
