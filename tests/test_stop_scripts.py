"""docs/machines.md: the scripts that stop a run in time, with stand-ins for tbench, Slurm and the cloud's notice."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
import yaml
from fault_server import FaultServer

PAGE = (Path(__file__).parents[1] / "docs" / "machines.md").read_text(encoding="utf-8")
BOUND_SEC = 30.0
TBENCH = """#!/bin/bash
echo "$@" >>called
[ $1 = run ] || exit 0
trap 'echo stopped >>called; exit 6' TERM
touch running
for _ in $(seq 300); do [ ! -e ends ] || exit $(cat ends); sleep 0.1; done
"""


def block(language: str, with_text: str) -> str:
    """The block of the page that has a text."""
    blocks = re.findall(rf"^```{language}\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    (found,) = (each for each in blocks if with_text in each)
    return str(found)


class Place:
    """A directory with stand-ins for programs, in which scripts run."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        for name, text in {"tbench": TBENCH, "scontrol": '#!/bin/sh\necho "$@" >>called\n'}.items():
            (folder / name).write_text(text)
            (folder / name).chmod(0o755)

    def start(self, script: str, **variables: str) -> subprocess.Popen[bytes]:
        path = f"{self.folder}:{os.environ['PATH']}"
        return subprocess.Popen(["bash", "-c", script], cwd=self.folder, env={**os.environ, "PATH": path, **variables})

    @property
    def called(self) -> list[str]:
        path = self.folder / "called"
        return path.read_text().splitlines() if path.exists() else []

    def wait(self, holds: Callable[[], bool]) -> None:
        ends_at = time.monotonic() + BOUND_SEC
        while not holds():
            assert time.monotonic() < ends_at
            time.sleep(0.02)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_job_that_slurm_ends_stops_its_run_and_is_queued_again(place: Place) -> None:
    job = place.start(block("bash", "--signal=B:TERM"), SLURM_JOB_ID="77")
    place.wait((place.folder / "running").exists)
    job.send_signal(signal.SIGTERM)
    assert job.wait(BOUND_SEC) == 6
    run, *others = place.called
    assert run.startswith("run ")
    assert others == ["stopped", "requeue 77"]


@pytest.mark.parametrize("code", [0, 3])
def test_a_job_that_ends_by_itself_is_not_queued_again(place: Place, code: int) -> None:
    (place.folder / "ends").write_text(str(code))
    assert place.start(block("bash", "--signal=B:TERM"), SLURM_JOB_ID="77").wait(BOUND_SEC) == code
    assert len(place.called) == 1


def test_a_pod_that_ends_stops_its_run(place: Place) -> None:
    hook = yaml.safe_load(block("yaml", "preStop"))["lifecycle"]["preStop"]["exec"]["command"]
    assert hook[:2] == ["sh", "-c"]
    assert place.start(hook[2], RUN="runs/a b").wait(BOUND_SEC) == 0
    assert place.called == ["stop runs/a b"]


@pytest.fixture
def cloud() -> Iterator[FaultServer]:
    with closing(FaultServer()) as server:
        yield server


def test_a_notice_of_a_spot_instance_s_end_stops_the_run(place: Place, cloud: FaultServer) -> None:
    for status in (500, 200, 404, 200, 200):  # no token; a token and no notice; a token and a notice
        cloud.will_answer(status, {"action": "terminate"})
    script = block("bash", "spot/instance-action").replace("sleep 5", "sleep 0.1")
    assert place.start(script, RUN="runs/x", METADATA_URL=cloud.base_url).wait(BOUND_SEC) == 0
    token, notice = "/v1/api/token", "/v1/meta-data/spot/instance-action"
    assert [each.path for each in cloud.seen] == [token, token, notice, token, notice]
    assert all(each.headers.get("x-aws-ec2-metadata-token") for each in cloud.seen if each.path == notice)
    assert place.called == ["stop runs/x"]
