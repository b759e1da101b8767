"""`tbench ps`, `pause`, `continue`, `say`, `abort` and `set` on a real run."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import in_process
import pytest

from tbench.storage.read_run import read_run, read_trajectory
from tbench.storage.run_files import trial_directory
from tbench.storage.summaries import make_summary

TBENCH = str(Path(sys.executable).with_name("tbench"))
BOUND_SEC = 120
pytestmark = pytest.mark.engine


def tbench(*words: str, cwd: Path, ok: bool = True) -> str:
    done = subprocess.run([TBENCH, *words], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) is ok, done.stdout + done.stderr
    return done.stdout + done.stderr


class SpokenRun:
    """Run of two tasks with a slow model."""

    def __init__(self, folder: Path, endpoint: str) -> None:
        self.folder = folder
        self.directory = folder / "runs" / "spoken"
        words = [
            "--task",
            "web-log-digest",
            "--task",
            "tidy-notes",
            "--seeds",
            "1",
            "--cpu-overcommit",
            "4",
            "--verify",
            "shared",
        ]
        self.process = subprocess.Popen(
            [TBENCH, "run", "--base-url", endpoint, "--concurrency", "2", *words, "--output", str(self.directory)],
            cwd=folder,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def trials(self) -> dict[str, Any]:
        """What `tbench ps --json` says of them, by their names."""
        done = in_process.tbench("ps", "--json", directory=self.folder)
        assert done.returncode == 0, done
        (run,) = json.loads(done.stdout)["runs"] or [{"trials": []}]
        return {f"{trial['task']}/{trial['seed']}": trial for trial in run["trials"]}

    def until(self, condition: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        ends_at = time.monotonic() + BOUND_SEC
        while time.monotonic() < ends_at:
            trials = self.trials()
            if condition(trials):
                return trials
            time.sleep(0.05)
        raise AssertionError(f"never came to it: {self.trials()}")


@pytest.fixture
def slow_endpoint(tmp_path: Path) -> Iterator[str]:
    server = subprocess.Popen(
        [TBENCH, "demo-endpoint", "--port", "0", "--latency", "1"], stdout=subprocess.PIPE, text=True, cwd=tmp_path
    )
    assert server.stdout is not None
    line = server.stdout.readline()
    yield next(word for word in line.split() if word.startswith("http")).rstrip(":")
    server.terminate()
    server.wait(timeout=30)
    server.stdout.close()


@pytest.fixture
def run(tmp_path: Path, slow_endpoint: str) -> Iterator[SpokenRun]:
    run = SpokenRun(tmp_path, slow_endpoint)
    yield run
    if run.process.poll() is None:
        run.process.terminate()
    run.process.wait(timeout=BOUND_SEC)


def test_a_run_is_held_told_something_cut_and_goes_on(run: SpokenRun) -> None:
    run.until(lambda trials: len(trials) == 2 and all(trial["step"] >= 1 for trial in trials.values()))
    assert "2 trials held at their next model calls" in tbench("pause", "--now", cwd=run.folder)
    held = run.until(lambda trials: all(trial["held"] for trial in trials.values()))
    assert held.keys() == {"web-log-digest/0", "tidy-notes/0"}
    shown = tbench("ps", cwd=run.folder)
    assert "0 of 2 trials ended, 2 running (concurrency 2); paused: holding all" in shown
    assert "agent held" in shown
    told = tbench("say", "runs/spoken/web-log-digest/0", "Mind the dates.", cwd=run.folder)
    assert told == "web-log-digest/0: its model gets this with the next observation; the trial does not count\n"
    assert tbench("abort", "tidy-notes", cwd=run.folder) == "tidy-notes/0: is ended without a verdict\n"
    nothing = tbench("abort", "web-log-diges/0", cwd=run.folder, ok=False)
    assert "no such trial is running; did you mean web-log-digest/0?" in nothing
    assert tbench("set", "--concurrency", "5", cwd=run.folder) == "concurrency 5, was 2\n"
    assert tbench("continue", cwd=run.folder) == "goes on\n"
    run.process.wait(timeout=BOUND_SEC)
    stored = read_run(run.directory)
    errors = {result.task: result.error.type for result in stored.results if result.error}
    assert errors == {"tidy-notes": "aborted"}
    trajectory = read_trajectory(trial_directory(run.directory, "web-log-digest", 0))
    assert trajectory is not None
    assert [(each.kind, each.text) for each in trajectory.interventions] == [("message", "Mind the dates.")]
    assert trajectory.waited_sec > 0
    assert sum("Mind the dates." in message.content for message in trajectory.messages) == 1
    summary = make_summary(stored)
    assert summary.score is None
    assert {error.type for error in summary.errors} == {"aborted", "human_touched"}
    assert not (run.directory / "control.sock").exists()
    assert "no run is in progress" in tbench("ps", cwd=run.folder)


def test_what_is_no_run_under_way_is_one_line(tmp_path: Path) -> None:
    assert "runs: no run is in progress here; give its directory" in tbench("pause", cwd=tmp_path, ok=False)
    assert "not a run directory; give one, or RUN/TASK/SEED" in tbench("pause", str(tmp_path), cwd=tmp_path, ok=False)
