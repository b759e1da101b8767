"""Recordings of the tool in a real terminal, for the documentation: what a user presses, and what is seen then."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from moving_picture import Frame, moving_picture
from pictures import DEADLINE_SEC, TBENCH, Screen

from tbench.demo.server import DemoEndpoint
from tbench.tasks.sources import BUNDLED, read_tasks

TASK = "web-log-digest"
_LOOK_SEC = 0.1
_READ_SEC = 1.6
"""For how long a screen stands before the next key."""
_TYPE_SEC = 0.06
"""Time between two letters of what is typed."""


class Press(NamedTuple):
    """Keys, as tmux names them, and what is to be seen afterwards."""

    keys: str
    sees: str
    is_text: bool = False


_DEBUG = (
    Press("", r"next: step 1"),
    Press("s", r"next: step 2"),
    Press("v", r"verify at 2: reward 0"),
    Press("s", r"next: step 3"),
    Press("k", r"how many more"),
    Press("2", r"> 2", is_text=True),
    Press("Enter", r"sample 3 of 3"),
    Press("1", r"sample 1 of 3"),
    Press("b", r"back to the reply of step"),
    Press("2", r"> 2", is_text=True),
    Press("Enter", r"next: step 2"),
    Press("d", r"reason for discarding"),
    Press("Sort by minute first.", r"> Sort by minute first", is_text=True),
    Press("Enter", r"next: step 3"),
    Press("g", r"ended: submitted, reward"),
)
_ATTACH = (
    Press("tbench ps", r"\$ tbench ps", is_text=True),
    Press("Enter", r"app#\s*\n\$\s*\Z"),
    Press("tbench attach web-log-digest --take", r"--take", is_text=True),
    Press("Enter", r"yours"),
    Press("wc -l logs/*", r"wc -l", is_text=True),
    Press("Enter", r"total"),
    Press("C-]", r"\$\s*\Z"),
    Press("tbench ps", r"\$ tbench ps\s*\Z", is_text=True),
    Press("Enter", r"touched.*\n\$\s*\Z"),
)
_LOST = f"runs/tonight/{TASK}/1"
_AFTER = (
    Press(f"tbench why {_LOST}", r"tbench why \S+\s*\Z", is_text=True),
    Press("Enter", r"d debugs it .*\s*\Z"),
    Press("Space", r"leaves\s*\n\$\s*\Z"),
    Press("clear", r"clear\s*\Z", is_text=True),
    Press("Enter", r"\A\$\s*\Z"),
    Press(f"tbench blame {_LOST} --k 4", r"--k 4\s*\Z", is_text=True),
    Press("Enter", r"debug it with.*\n\$\s*\Z"),
    Press(f"tbench fork {_LOST} --at-step 2 --k 4", r"--at-step 2 --k 4\s*\Z", is_text=True),
    Press("Enter", r"succeeded; files[^$]*\$\s*\Z"),
)


def record(screen: Screen, presses: Sequence[Press]) -> list[Frame]:
    """The screens while the keys are pressed, each as soon as the one before has led to what was expected."""
    frames: list[Frame] = []
    for press in presses:
        for keys in press.keys if press.is_text else filter(None, [press.keys]):
            screen.press("Space" if keys == " " else keys)
            if press.is_text:
                frames.append(Frame(screen.read(colours=True), _TYPE_SEC))
                time.sleep(_TYPE_SEC)
        until = time.monotonic() + DEADLINE_SEC
        while not re.search(press.sees, screen.read().rstrip("\n"), re.MULTILINE):
            if time.monotonic() > until:
                raise SystemExit(f"never seen: {press.sees}\n{screen.read()}")
            time.sleep(_LOOK_SEC)
            frames.append(Frame(screen.read(colours=True), _LOOK_SEC))
        frames.append(Frame(screen.read(colours=True), _LOOK_SEC if press.is_text else _READ_SEC))
    return frames


def debugged(size: tuple[int, int]) -> str:
    """The debugger: a step, a verdict in a copy, samples, going back, a refusal, the end."""
    with _demo() as demo, tempfile.TemporaryDirectory() as directory:
        words = ["debug", TASK, "--base-url", demo.base_url, "--output", f"{directory}/debugged"]
        screen = Screen(size, shlex.join([*TBENCH, *words]))
        try:
            frames = record(screen, _DEBUG)
            screen.press("q")
        finally:
            screen.close()
    return moving_picture(frames, size, f"tbench debug {TASK}")


def attached(size: tuple[int, int]) -> str:
    """A run beside which somebody lists trials, takes a terminal, types and gives it back."""
    with _demo(latency_sec=3.0) as demo, tempfile.TemporaryDirectory() as directory:
        words = ["run", "--task", TASK, "--base-url", demo.base_url, "--output", "runs/tonight"]
        quiet = subprocess.DEVNULL
        run = subprocess.Popen([*TBENCH, *words], cwd=directory, stdout=quiet, stderr=quiet)
        screen = Screen(size, _shell(directory))
        try:
            while not (Path(directory) / "runs/tonight/trials" / TASK / "seed-0/session.cast").exists():
                time.sleep(_LOOK_SEC)
            frames = record(screen, _ATTACH)
        finally:
            screen.close()
            run.terminate()
            run.wait()
    return moving_picture(frames, size, "tbench attach")


def looked_into(size: tuple[int, int]) -> str:
    """A trial that has failed: why, at which step it was lost, and how often another reply to that step succeeds."""
    with _demo() as demo, tempfile.TemporaryDirectory() as directory:
        words = ["run", "--task", TASK, "--seeds", "2", "--base-url", demo.base_url, "--output", "runs/tonight"]
        subprocess.run([*TBENCH, *words], cwd=directory, capture_output=True, check=True, timeout=DEADLINE_SEC)
        screen = Screen(size, _shell(directory))
        try:
            frames = record(screen, _AFTER)
        finally:
            screen.close()
    return moving_picture(frames, size, f"tbench why {_LOST}")


def _shell(directory: str) -> str:
    """A command that is a shell in a directory, in which tbench is found and nothing of the user's own."""
    path = f"{Path(sys.executable).parent}:/usr/bin:/bin"
    return f"cd {directory} && exec env -i PATH={path} HOME=/tmp TERM=tmux-256color PS1='$ ' bash --norc"


def _demo(latency_sec: float = 0.0) -> DemoEndpoint:
    return DemoEndpoint({each.name: each.instruction for each in read_tasks(BUNDLED).tasks}, latency_sec=latency_sec)
