"""`tbench attach`: watch a trial's terminal from two places, take it over, return it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import in_process
import pexpect
import pytest

from tbench.control.client import ask
from tbench.control.wire import Continue, ListTrials, Pause, TrialUnderWay
from tbench.errors import UsageError
from tbench.storage.read_run import read_run, read_trajectory
from tbench.storage.run_files import trial_directory

TBENCH = [sys.executable, "-m", "tbench"]
BOUND_SEC = 120
TRIAL = "runs/seen/web-log-digest/0"
pytestmark = pytest.mark.engine


def tbench(*words: str, cwd: Path, ok: bool = True) -> str:
    done = subprocess.run([*TBENCH, *words], cwd=cwd, capture_output=True, text=True, timeout=60)
    assert (done.returncode == 0) is ok, done.stdout + done.stderr
    return done.stdout + done.stderr


class SeenRun:
    """A run of one trial."""

    def __init__(self, folder: Path, process: subprocess.Popen[bytes]) -> None:
        self.folder, self.process = folder, process


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SeenRun]:
    """Run with a trial that is held as soon as it begins."""
    folder = tmp_path_factory.mktemp("seen")
    quiet: Any = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(
        [*TBENCH, "demo-endpoint", "--port", "0", "--latency", "0.3"], stdout=subprocess.PIPE, text=True, cwd=folder
    )
    assert server.stdout is not None
    url = next(word for word in server.stdout.readline().split() if word.startswith("http")).rstrip(":")
    words = ["--task", "web-log-digest", "--seeds", "1", "--verify", "shared", "--output", "runs/seen"]
    run = subprocess.Popen([*TBENCH, "run", "--base-url", url, *words], cwd=folder, **quiet)
    until(folder / "runs/seen", lambda trial: trial.step >= 1)
    ask(folder / "runs/seen", Pause(trial="web-log-digest"))
    until(folder / "runs/seen", lambda trial: trial.held)
    yield SeenRun(folder, run)
    run.terminate()
    run.wait(timeout=BOUND_SEC)
    server.terminate()
    server.wait(timeout=30)
    server.stdout.close()


def until(run: Path, condition: Callable[[TrialUnderWay], bool]) -> None:
    ends_at = time.monotonic() + BOUND_SEC
    while time.monotonic() < ends_at:
        with contextlib.suppress(UsageError):
            state = ask(run, ListTrials()).state
            if state is not None and state.trials and condition(state.trials[0]):
                return
        time.sleep(0.02)
    raise AssertionError("never came to it")


class Person:
    """User who attaches from a shell in a real terminal, whose settings must survive the command."""

    def __init__(self, folder: Path, *words: str, size: tuple[int, int] = (30, 100)) -> None:
        environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
        self.child = pexpect.spawn(
            "/bin/sh", cwd=str(folder), dimensions=size, encoding="utf-8", timeout=BOUND_SEC, env=environment
        )
        self.child.sendline("PS1='at-''shell '")
        self.child.expect("at-shell ")
        self.before = termios.tcgetattr(self.child.child_fd)
        self.child.sendline(" ".join([*TBENCH, "attach", TRIAL, *words]))

    def has_left(self, words: str) -> None:
        """Assert that the command has printed this and restored the terminal."""
        self.child.expect_exact("\x1b[?1049l")
        self.child.expect(words)
        self.child.expect("at-shell ")
        assert termios.tcgetattr(self.child.child_fd) == self.before
        self.child.close()


def test_what_cannot_be_attached_to_is_reported_in_one_line(seen: SeenRun) -> None:
    def refused(*words: str) -> str:
        done = in_process.tbench("attach", *words, directory=seen.folder)
        assert (done.returncode, done.stdout) == (2, "")
        return done.stderr

    assert "did you mean web-log-digest/0?" in refused("web-log-diges/0", "--once")
    assert "attach needs a terminal; --once prints the screen and returns" in refused(TRIAL)
    assert "--take: cannot be combined with --once" in refused(TRIAL, "--take", "--once")
    assert "is a whole run; name a trial" in refused("runs/seen")
    assert json.loads(tbench("attach", "web-log-digest", "--json", cwd=seen.folder))["columns"] == 160


def test_two_look_on_one_takes_it_and_gives_it_back(seen: SeenRun) -> None:
    tmp_path = seen.folder
    person = Person(tmp_path, "--take")
    person.child.expect("the terminal is yours")
    looking = Person(tmp_path, size=(20, 60))
    looking.child.expect("watching")
    person.child.send("echo by-'hand'; cat\r")
    person.child.expect("by-hand")
    looking.child.expect("by-hand")
    assert "by-hand" in tbench("attach", TRIAL, "--once", cwd=tmp_path)
    # With the terminal taken, Ctrl-C is passed on; the window may be resized meanwhile.
    person.child.setwinsize(12, 70)
    person.child.send("\x03")
    person.child.expect(r"\^C")
    person.child.send("stty size\r")
    person.child.expect("40 160")
    person.child.send("\x1d")
    person.has_left("left; the model will see what you typed")
    # Without it, Ctrl-C leaves; a signal and the end of the trial restore the terminal, too.
    looking.child.send("\x03")
    looking.has_left("web-log-digest/0: left\r")
    signalled = Person(tmp_path)
    signalled.child.expect("watching")
    (pid,) = Path(f"/proc/{signalled.child.pid}/task/{signalled.child.pid}/children").read_text().split()
    os.kill(int(pid), signal.SIGTERM)
    signalled.has_left("interrupted")
    last = Person(tmp_path)
    last.child.expect("watching")
    ask(tmp_path / "runs/seen", Continue(trial="web-log-digest"))
    last.has_left("the terminal was closed because the agent has ended")
    seen.process.wait(timeout=BOUND_SEC)
    (result,) = read_run(tmp_path / "runs/seen").results
    assert result.human_touched
    trajectory = read_trajectory(trial_directory(tmp_path / "runs/seen", "web-log-digest", 0))
    assert trajectory is not None
    (typed,) = trajectory.interventions
    assert typed.kind == "typed"
    assert typed.text.startswith("echo by-'hand'; cat\n\\u0003stty size\n")
    assert "\n40 160\n" in typed.text
    assert trajectory.waited_sec > 0
    assert "web-log-digest/0: has ended (reward" in tbench("attach", TRIAL, cwd=tmp_path, ok=False)
