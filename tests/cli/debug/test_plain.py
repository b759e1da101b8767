"""The line debugger, and its usage errors."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from debug_server import TRIAL, FakeRun


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    with FakeRun(tmp_path / "run") as run:
        yield run


def debug(*words: str, typed: str = "", cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tbench", "debug", *words],
        input=typed,
        capture_output=True,
        text=True,
        timeout=60,
        cwd=cwd,
    )


def test_a_script_is_told_each_step_and_what_comes_next(run: FakeRun) -> None:
    done = debug(f"{run.directory}/{TRIAL}", "--do", "step; verify; run to 3; sample 2; quit")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [
        "next: step 1",
        "  > do \\u001b[31mreply 1",
        "done",
        "step 1: model 0.0 s, commands 0.0 s, exit 0",
        "  (because it is so)",
        "  > do \\u001b[31mreply 1",
        "  warning: odd: step 1 is odd",
        "  | done 1",
        "next: step 2",
        "  > do \\u001b[31mreply 2",
        "done",
        "verify at 1: reward 0.5",
        "done",
        "step 2: model 0.0 s, commands 0.0 s, exit 0",
        "  (because it is so)",
        "  > do \\u001b[31mreply 2",
        "  | done 2",
        "next: step 3",
        "  > do \\u001b[31mreply 3",
        "done",
        "next: step 3, sample 1 of 3",
        "  > do first",
    ]


def test_a_script_that_goes_back_is_told_the_steps_of_the_new_attempt(run: FakeRun) -> None:
    done = debug(f"{run.directory}/{TRIAL}", "--do", "step; step; rewind 2; steps; quit")
    assert done.returncode == 0, done.stderr
    _, _, after = done.stdout.partition("attempt 2\n")
    assert [line for line in after.splitlines() if not line.startswith("  ")] == [
        "step 1: model 0.0 s, commands 0.0 s, exit 0",
        "differs at step 1: 'a' was 'b'",
        "next: step 2",
        "step 1: model 0.0 s, commands 0.0 s, exit 0",
    ]


def test_lines_of_stdin_are_commands_and_a_mistake_ends_them(run: FakeRun) -> None:
    typed = "# look\nscreen\n\nsteps\nhelp\nchoose x\nstep\n"
    done = debug(f"{run.directory}/{TRIAL}", typed=typed)
    assert done.returncode == 2
    assert done.stderr.splitlines()[-1] == "tbench: choose x: not understood; usage: choose N"
    assert "line 39 of the screen" in done.stdout.splitlines()
    assert "sample [N] [seed=S] [temperature=T]" in done.stdout.splitlines()
    assert run.asks("step") == []
    assert run.asks("stepping") == [{"on": True}, {"on": False}]


def test_what_is_no_trial_and_what_has_no_effect_is_one_line(run: FakeRun, tmp_path: Path) -> None:
    trial = f"{run.directory}/{TRIAL}"
    for words, problem in [
        ((f"{tmp_path}/none/task/0",), "not a run directory; give one, or RUN/TASK/SEED"),
        ((trial, "--temperature", "1"), f"--temperature: no effect, because {trial} is already running"),
        ((trial, "--do", "step", "--plain"), "--plain: has no effect with --do"),
    ]:
        done = debug(*words, cwd=tmp_path)
        assert done.returncode == 2
        assert problem in done.stderr
        assert len(done.stderr.splitlines()) == 1
