"""The files of docs/nightly, tried as far as a machine without GitHub and Slurm allows."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
FILES = ROOT / "docs" / "nightly"
WORKFLOW, SLURM = FILES / "github-workflow.yml", FILES / "nightly.slurm"
RECORD = '#!/bin/sh\necho "${0##*/} $*" >> "$CALLS"\n'
BOUND_SEC = 20


class Place:
    """A directory with commands that write down how they were called."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.calls = folder / "calls"
        (folder / "bin").mkdir()
        for name in ("tbench", "sbatch", "scontrol", "pip"):
            self.command(name)

    def command(self, name: str, more: str = "") -> None:
        file = self.folder / "bin" / name
        file.write_text(RECORD + more)
        file.chmod(0o755)

    def start(self, *words: str, **variables: str) -> subprocess.Popen[bytes]:
        path = f"{self.folder / 'bin'}:{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "CALLS": str(self.calls), **variables}
        return subprocess.Popen(words, cwd=self.folder, env=environment)

    def said(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def slurm(place: Place, job: str = "7") -> subprocess.Popen[bytes]:
    shutil.copy(SLURM, place.folder)
    return place.start("bash", "nightly.slurm", SLURM_SUBMIT_DIR=str(place.folder), SLURM_JOB_ID=job)


def test_the_steps_of_the_workflow_run_a_night(place: Place) -> None:
    steps: list[dict[str, Any]] = yaml.safe_load(WORKFLOW.read_text())["jobs"]["night"]["steps"]
    for step in steps:
        if "run" in step:
            assert place.start("bash", "-e", "-c", step["run"], NIGHT="n1").wait(BOUND_SEC) == 0
    assert place.said() == ["pip install .", "tbench setup", "tbench nightly bench.toml --night n1"]


def test_a_job_runs_its_night_after_it_has_submitted_the_next(place: Place) -> None:
    place.command("tbench", "exit 5\n")
    assert slurm(place).wait(BOUND_SEC) == 5, "an alarm is the job's own code"
    submitted, night = place.said()
    assert submitted.startswith("sbatch --begin=2") and submitted.endswith("T02:17:00 nightly.slurm")
    assert night.startswith("tbench nightly bench.toml --night 2") and not (place.folder / ".night-of-7").exists()


def test_a_job_whose_time_is_over_ends_its_night_and_is_requeued_for_the_same(place: Place) -> None:
    place.command("tbench", "trap 'kill $!; exit 130' TERM\ntouch \"$CALLS.started\"\nsleep 20 &\nwait $!\n")
    with slurm(place) as job:
        ends_at = time.monotonic() + BOUND_SEC
        while not Path(f"{place.calls}.started").exists():
            assert time.monotonic() < ends_at
            time.sleep(0.02)
        job.send_signal(signal.SIGTERM)
        assert job.wait(BOUND_SEC) == 130
    assert place.said()[-1] == "scontrol requeue 7"
    (place.folder / ".night-of-7").write_text("2026-11-20\n")
    place.command("tbench")
    assert slurm(place).wait(BOUND_SEC) == 0
    assert place.said()[3:] == ["tbench nightly bench.toml --night 2026-11-20"]


def test_the_script_has_no_mistakes_that_can_be_seen() -> None:
    subprocess.run(["bash", "-n", str(SLURM)], check=True)
    if shutil.which("shellcheck") is None:
        pytest.skip("no shellcheck")
    subprocess.run(["shellcheck", str(SLURM)], check=True)


@pytest.mark.slow
def test_systemd_takes_the_units(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("no systemd-analyze")
    for name in ("tbench-nightly.service", "tbench-nightly.timer"):
        text = (FILES / name).read_text().replace("/opt/tbench/bin/tbench", "/bin/true")  # which has to be there
        (tmp_path / name).write_text(text)
    done = subprocess.run(
        ["systemd-analyze", "verify", *map(str, sorted(tmp_path.iterdir()))], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
