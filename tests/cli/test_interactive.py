"""`tbench fork --shell`: a trial is replayed up to a step, then handed to the user."""

from __future__ import annotations

import sys
import termios
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pexpect
import pytest
from fault_server import FaultServer
from in_process import tbench
from lost_trials import MISTAKE, lost_trial

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.storage.read_run import read_run

BOUND_SEC = 120
MakeTask = Any
pytestmark = pytest.mark.engine


@pytest.fixture
async def trial(engine: Engine, tools_volume: str, make_task: MakeTask, tmp_path: Path) -> str:
    """Stored trial whose endpoint is gone."""
    with closing(FaultServer()) as server:
        return await lost_trial(server, make_task, tmp_path / "failed")


@pytest.fixture
def person(trial: str, tmp_path: Path) -> Iterator[pexpect.spawn]:  # type: ignore[type-arg]
    """User who forks the trial at the step of its mistake and continues it."""
    words = ["-m", "tbench", "fork", trial, "--at-step", str(MISTAKE), "--shell", "-o", str(tmp_path / "forked")]
    child = pexpect.spawn(sys.executable, words, encoding="utf-8", timeout=BOUND_SEC, dimensions=(30, 100))
    try:
        yield child
    finally:
        child.close()


def test_a_fork_goes_on_in_a_persons_hands_without_an_endpoint(
    person: Any, trial: str, engine: Engine, tmp_path: Path
) -> None:
    before = termios.tcgetattr(person.child_fd)
    person.expect("Ctrl-] verifies")
    person.expect("the terminal is yours")
    person.send("cat done\r")
    person.expect(r"(?<!\d)12(?!\d)")
    person.send("\x1d")
    person.expect("reward 0")
    person.expect("press Enter to go back")
    person.send("\r")
    person.expect("the terminal is yours")
    person.send("printf 345 >> done; cat done\r")
    person.expect("12345")
    person.send("\x1d")
    person.expect("reward 1")
    person.expect("q to remove it")
    assert termios.tcgetattr(person.child_fd) == before
    person.send("q\r")
    person.expect(pexpect.EOF)
    person.close()
    assert person.exitstatus == 0
    (result,) = read_run(tmp_path / "forked").results
    assert result.human_touched
    assert result.reward is None
    assert engine.api.containers(all=True, filters={"label": f"{LABEL_RUN}=forked"}) == []


def test_what_a_fork_by_hand_cannot_be_is_one_line(trial: str) -> None:
    at = ["fork", trial, "--at-step", str(MISTAKE)]
    assert tbench(*at, "--shell").stderr == (
        "tbench: --shell needs a terminal; --debug takes commands from stdin as well\n"
    )
    assert tbench(*at, "--shell", "--k", "2").stderr == "tbench: --shell: cannot be combined with --k\n"
    assert tbench(*at, "--debug", "--shell").stderr == "tbench: --shell: cannot be combined with --debug\n"
    assert tbench(*at, "--debug", "--json").stderr == "tbench: --debug: cannot be combined with --json\n"
