"""docs/debugging.md: each of its commands does what the page says, one after the other, on real trials."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pexpect
import pytest

from tbench.control.client import ask
from tbench.control.wire import ListTrials, TrialUnderWay
from tbench.demo.server import DemoEndpoint
from tbench.errors import UsageError
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.owner import LABEL_RUN
from tbench.storage.read_run import read_run
from tbench.tasks.sources import BUNDLED, read_tasks

PAGE = Path(__file__).parents[1] / "docs" / "debugging.md"
BOUND_SEC = 120
TRIAL = "runs/NAME/TASK/SEED"
pytestmark = pytest.mark.engine


def shown_commands() -> list[str]:
    """The lines of the page that a user types, without their comments."""
    blocks = re.findall(r"^```sh[^\n]*\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    return [line.partition("  #")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


class Reader:
    """Somebody who goes through the page and types its commands, in a folder with the bundled tasks."""

    def __init__(self, folder: Path, base_url: str) -> None:
        self._folder = folder
        self._left = shown_commands()
        self._put = {"http://localhost:8000/v1": base_url}

    def reads(self, shown: str, **put: str) -> list[str]:
        """The words of a command that the page shows, with `put` in the places of its examples."""
        self._left.remove(shown)
        line = shown
        for example, instead in {**self._put, **put}.items():
            line = line.replace(example, instead)
        words = re.findall(r'"[^"]*"|\S+', line)
        assert words[0] == "tbench"
        return [sys.executable, "-m", *(word.strip('"') for word in words)]

    def runs(self, words: list[str], typed: str = "") -> str:
        done = subprocess.run(words, cwd=self._folder, input=typed, capture_output=True, text=True, timeout=BOUND_SEC)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout + done.stderr

    @contextlib.contextmanager
    def starts(self, words: list[str]) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(words, cwd=self._folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
            process.communicate(timeout=BOUND_SEC)

    def until(self, name: str, condition: Callable[[TrialUnderWay], bool]) -> None:
        """Wait until the trial of a run has come to something."""
        ends_at = time.monotonic() + BOUND_SEC
        while time.monotonic() < ends_at:
            with contextlib.suppress(UsageError):
                state = ask(self._folder / "runs" / name, ListTrials()).state
                if state is not None and state.trials and condition(state.trials[0]):
                    return
            time.sleep(0.02)
        raise AssertionError(f"never came to it: {name}")

    def has_read_all(self) -> None:
        assert self._left == []


@pytest.fixture
def folder(tmp_path: Path, engine: Engine, tools_volume: str) -> Iterator[Path]:
    (tmp_path / "tasks").symlink_to(PAGE.parents[1] / "tasks")
    (tmp_path / "runs").mkdir()
    before = {each["Id"] for each in engine.api.containers(all=True, filters={"label": LABEL_RUN})}
    yield tmp_path
    names = {run.name for run in (tmp_path / "runs").iterdir()}
    left = engine.api.containers(all=True, filters={"label": LABEL_RUN})
    assert [each for each in left if each["Id"] not in before and each["Labels"][LABEL_RUN] in names] == []


@pytest.fixture(scope="module")
def demo() -> Iterator[DemoEndpoint]:
    with DemoEndpoint({task.name: task.instruction for task in read_tasks(BUNDLED).tasks}) as demo:
        yield demo


@pytest.fixture
def slow_demo() -> Iterator[DemoEndpoint]:
    """One that takes its time, so that a run of it can be spoken to."""
    with DemoEndpoint({task.name: task.instruction for task in read_tasks(BUNDLED).tasks}, latency_sec=0.3) as demo:
        yield demo


@pytest.mark.slow
def test_each_command_of_the_page_does_what_it_says(folder: Path, demo: DemoEndpoint, slow_demo: DemoEndpoint) -> None:
    reader = Reader(folder, demo.base_url)
    debug_is_learned(reader)
    replies_are_saved_and_played(reader, folder)
    replies_are_approved(reader, folder)
    a_run_is_spoken_to(reader, folder, slow_demo)
    a_trial_is_read(reader, folder)
    a_trial_is_forked(reader, folder)
    the_task_is_tried(reader, folder)
    a_run_is_recorded(reader, folder)
    reader.has_read_all()


def debug_is_learned(reader: Reader) -> None:
    line = "tbench debug tasks/tidy-notes --base-url http://localhost:8000/v1"
    said = reader.runs([*reader.reads(line), "-o", "runs/first"], typed="run\n")
    assert "ended: submitted, reward 1" in said
    said = reader.runs(reader.reads(f'{line} --do "step; verify; run to 4; type ls\\n; screen; run"'))
    assert "verify at 2: reward 0" in said
    assert "ended: submitted, reward 1" in said


def replies_are_saved_and_played(reader: Reader, folder: Path) -> None:
    said = reader.runs([*_debug(reader), "-o", "runs/saved", "--do", "run to 4; cassette; run"])
    assert "4 of its model's replies saved" in said
    put = {"NAME": "saved", "TASK": "tidy-notes"}
    play = reader.reads("tbench cassette play runs/NAME/trials/TASK/seed-0/cassette.jsonl", **put)
    again = reader.reads("tbench run tasks/tidy-notes --base-url http://127.0.0.1:8124/v1")
    with reader.starts([*play, "--port", "0"]) as player:
        assert player.stdout is not None
        found = re.search(r"http://\S+/v1", player.stdout.readline())
        assert found is not None
        words = [word.replace("http://127.0.0.1:8124/v1", found[0]) for word in again]
        # Its last reply was not saved, so that one is refused.
        with reader.starts([*words, "-o", "runs/again"]) as run:
            run.communicate(timeout=BOUND_SEC)
    (result,) = read_run(folder / "runs/again").results
    assert result.steps == 4
    assert result.error is not None
    assert "not on this cassette: the recording ends with message 7 of this conversation" in result.error.message


def _debug(reader: Reader) -> list[str]:
    return [
        sys.executable,
        "-m",
        "tbench",
        "debug",
        "tasks/tidy-notes",
        "--base-url",
        reader._put["http://localhost:8000/v1"],
    ]


def replies_are_approved(reader: Reader, folder: Path) -> None:
    line = "tbench run tasks/tidy-notes --base-url http://localhost:8000/v1 --approve ask"
    approve, refuse = f"tbench approve {TRIAL}", f'tbench refuse {TRIAL} "Do not touch the originals."'
    put = {TRIAL: "runs/asked/tidy-notes/0"}
    with reader.starts([*reader.reads(line), "-o", "runs/asked"]) as run:
        reader.until("asked", lambda trial: trial.waits)
        assert "the reply of step 1 is followed" in reader.runs(reader.reads(approve, **put))
        reader.until("asked", lambda trial: trial.waits and trial.step == 2)
        assert "the reply of step 2 is discarded" in reader.runs(reader.reads(refuse, **put))
        reader.until("asked", lambda trial: trial.waits and trial.step == 3)
        run.send_signal(signal.SIGINT)
        run.communicate(timeout=BOUND_SEC)


def a_run_is_spoken_to(reader: Reader, folder: Path, slow_demo: DemoEndpoint) -> None:
    put = {TRIAL: "runs/spoken/tidy-notes/0"}
    words = [
        sys.executable,
        "-m",
        "tbench",
        "run",
        "tasks/tidy-notes",
        "--base-url",
        slow_demo.base_url,
    ]
    with reader.starts([*words, "-o", "runs/spoken"]) as run:
        reader.until("spoken", lambda trial: trial.step >= 1)
        assert "will be held at its next model call" in reader.runs(reader.reads(f"tbench pause {TRIAL}", **put))
        reader.until("spoken", lambda trial: trial.held)
        assert "tidy-notes/0  agent held" in reader.runs(reader.reads("tbench ps"))
        told = reader.runs(reader.reads(f'tbench say {TRIAL} "The log is in /var/log."', **put))
        assert "gets this with the next observation" in told
        assert "/app#" in reader.runs(reader.reads(f"tbench attach {TRIAL} --once", **put))
        attaches(reader.reads(f"tbench attach {TRIAL}", **put), folder)
        attaches(reader.reads(f"tbench attach {TRIAL} --take", **put), folder, typed="echo by hand\r")
        assert "goes on" in reader.runs(reader.reads("tbench continue"))
        reader.runs([sys.executable, "-m", "tbench", "continue", put[TRIAL]])
        run.communicate(timeout=BOUND_SEC)
    (result,) = read_run(folder / "runs/spoken").results
    assert (result.reward, result.human_touched) == (1.0, True)


def a_trial_is_read(reader: Reader, folder: Path) -> None:
    put = {"runs/NAME/TASK/SEED2": "runs/spoken/tidy-notes/0", TRIAL: "runs/first/tidy-notes/0"}
    assert "passed, reward 1" in reader.runs(reader.reads(f"tbench why {TRIAL}", **put))
    grep = reader.reads(f'tbench show {TRIAL} --grep "error|No such file"', **put)
    assert "step 1 of 5" in reader.runs([word.replace("error|No such file", "jam.md") for word in grep])
    assert "screen at its end:" in reader.runs(reader.reads(f"tbench show {TRIAL} --step 3", **put))
    attaches([*reader.reads(f"tbench play {TRIAL} --from-step 3", **put), "--speed", "9"], folder, leaves="")
    said = reader.runs(reader.reads("tbench diff runs/NAME/TASK/SEED runs/NAME/TASK/SEED2", **put))
    assert "they differ at step 1" in said or "the same in all" in said


def a_trial_is_forked(reader: Reader, folder: Path) -> None:
    put = {TRIAL: "runs/first/tidy-notes/0", "--k 5": "--k 2"}
    said = reader.runs(reader.reads(f"tbench fork {TRIAL} --at-step 3 --k 5", **put))
    assert "2 of 2 forks at step 3 of runs/first/tidy-notes/0 succeeded" in said
    debug = reader.reads(f"tbench fork {TRIAL} --at-step 3 --debug", **put)
    said = reader.runs([*debug, "-o", "runs/by-hand"], typed="draft\nrun\n")
    assert "step 3" in said
    assert "ended: submitted, reward 1" in said
    shell = reader.reads(f"tbench fork {TRIAL} --at-step 3 --shell", **put)
    attaches(shell, folder, typed="echo by hand\r", then="q\r")
    blame = reader.reads(f"tbench blame {TRIAL} --k 5", **put)
    done = subprocess.run(blame, cwd=folder, capture_output=True, text=True, timeout=BOUND_SEC)
    assert "passed; blame is for trials that failed" in done.stderr


def the_task_is_tried(reader: Reader, folder: Path) -> None:
    said = reader.runs(reader.reads("tbench task solve tasks/tidy-notes"))
    assert said.startswith("reward 1\n")
    words = reader.reads("tbench task shell tasks/tidy-notes")
    verify = reader.reads("tbench task verify tasks/tidy-notes")
    terminal = pexpect.spawn(words[0], words[1:], cwd=str(folder), encoding="utf-8", timeout=BOUND_SEC)
    try:
        terminal.expect("/app# ")
        done = subprocess.run(verify, cwd=folder, capture_output=True, text=True, timeout=BOUND_SEC)
        assert (done.returncode, done.stdout.splitlines()[-1]) == (2, "reward 0")
        terminal.send("exit\r")
        terminal.expect("q to remove it")
        terminal.send("q\r")
        terminal.expect(pexpect.EOF)
    finally:
        terminal.close(force=True)
    assert terminal.exitstatus == 0


def a_run_is_recorded(reader: Reader, folder: Path) -> None:
    record = reader.reads("tbench cassette record night.jsonl --base-url http://localhost:8000/v1")
    with reader.starts([*record, "--port", "0"]) as recorder:
        assert recorder.stdout is not None
        found = re.search(r"at (http://\S+/v1)", recorder.stdout.readline())
        assert found is not None
        words = [sys.executable, "-m", "tbench", "run", "tasks/tidy-notes", "--base-url", found[1]]
        reader.runs([*words, "-o", "runs/recorded"])
    assert len((folder / "night.jsonl").read_text().splitlines()) > 10


def attaches(words: list[str], folder: Path, typed: str = "", leaves: str = "\x1d", then: str = "") -> None:
    """Look on at a trial's terminal, or type there, and leave, or see it come to its end."""
    terminal = pexpect.spawn(
        words[0], words[1:], cwd=str(folder), encoding="utf-8", timeout=BOUND_SEC, dimensions=(24, 80),
        env={**os.environ, "TERM": "xterm-256color"},
    )  # fmt: skip
    try:
        terminal.expect("yours" if typed else "/app#")
        if typed:
            terminal.send(typed)
            terminal.expect("\nby hand|by hand\x1b")
        if leaves:
            terminal.send(leaves)
        if then:
            terminal.expect("q to remove it")
            terminal.send(then)
        terminal.expect(pexpect.EOF)
    finally:
        terminal.close(force=True)
    assert terminal.exitstatus == 0


def test_the_example_in_python_runs(
    folder: Path, demo: DemoEndpoint, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (code,) = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(folder)
    exec(compile(code.replace("http://localhost:8000/v1", demo.base_url), str(PAGE), "exec"), {"__name__": "example"})
    said = capsys.readouterr().out.splitlines()
    assert said[-2:] == ["0.0", "1.0"]
