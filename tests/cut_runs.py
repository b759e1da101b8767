"""Runs of a scripted model whose process is ended in the middle, and what became of them."""

from __future__ import annotations

import contextlib
import json
import os
import random
import re
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fault_server import FaultServer, Seen, answer, completion

from tbench.results import TrialResult
from tbench.sandbox.underway import UnderWay, trials_under_way
from tbench.storage.read_run import read_results

TBENCH = str(Path(sys.executable).with_name("tbench"))
STEPS = 12
CLAIMS = 2
"""Replies with which the model says that it has done the task."""
END_STATE = "/logs/verifier/end-state"
_NAMED = re.compile(r"\bcut-task-\d+\b")
_BOUND_SEC = 300
_LINES = "".join(f"echo line-$STEP-{number} >>/app/out\n" for number in range(10))
_KINDS = (
    "echo one-$STEP >>/app/out\n",
    _LINES,
    "sleep 0.3; echo slow-$STEP >>/app/out\n",
    "cat >>/app/out <<END\nthere-$STEP äöü\nEND\n",
)


def _commands(step: int) -> str:
    return _KINDS[step % len(_KINDS)].replace("$STEP", str(step))


def wanted(steps: int = STEPS) -> str:
    """The file that a model's steps write, each once."""
    lines: list[str] = []
    for step in range(1, steps + 1):
        kind = step % len(_KINDS)
        ten = [f"line-{step}-{number}" for number in range(10)]
        lines += ([f"one-{step}"], ten, [f"slow-{step}"], [f"there-{step} äöü"])[kind]
    return "".join(f"{line}\n" for line in lines)


def verifier_script(sleep_sec: float = 0.2) -> str:
    """A verifier that compares the file, which it keeps, and has taken a while before."""
    return (
        f"sleep {sleep_sec}\ncp /app/out {END_STATE}\n"
        f"if printf %s '{wanted()}' | cmp -s - /app/out; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"
    )


class Model:
    """A model that is at the step that its conversation shows."""

    steps_and_keys = STEPS, ""
    """Number of steps before the claims, and what each types if it is always the same."""

    def __init__(self, step_two: str = "") -> None:
        self._step_two = step_two
        self.requests_of: Counter[str] = Counter()
        """Number of requests by task, for instructions that name one."""
        self.answers = threading.Event()
        """While it is not set, requests wait for their replies."""
        self.answers.set()

    @property
    def requests(self) -> int:
        return sum(self.requests_of.values())

    def __call__(self, seen: Seen) -> bytes:
        messages = seen.json["messages"]
        named = _NAMED.search("".join(str(message["content"]) for message in messages[:2]))
        self.requests_of[named[0] if named else ""] += 1
        self.answers.wait(_BOUND_SEC)
        step = sum(message["role"] == "assistant" for message in messages) + 1
        steps, keys = self.steps_and_keys
        keys = keys or (self._step_two if step == 2 and self._step_two else _commands(step))
        commands = [{"keystrokes": keys, "duration": 20.0}] if step <= steps else []
        reply = {"analysis": "", "plan": "", "commands": commands, "task_complete": step > steps}
        return answer(200, completion(json.dumps(reply), **self.counts(messages)))

    def counts(self, messages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
        """The tokens of a request and its reply, if the model counts them."""
        return {}


class CutRun:
    """A run in processes of its own, one after the other."""

    def __init__(self, directory: Path, tasks: Path, server: FaultServer, model: Model, *options: str) -> None:
        server.always_list({"id": "m", "max_model_len": 100_000})
        server.answer_by(model)
        self.directory, self.model = directory, model
        words = ["--dataset", str(tasks), "--base-url", server.base_url, "--verify", "shared", *options]
        self.environment: Mapping[str, str] = {}
        """Variables of the processes besides those of this one."""
        self._first = ["run", *words, "--output", str(directory), "--calibrate", "off"]
        self.process: subprocess.Popen[str] | None = None

    def start(self, *options: str) -> subprocess.Popen[str]:
        """Start or resume the run, in a process that `end` ends."""
        words = ["resume", str(self.directory), *options] if self.directory.exists() else [*self._first, *options]
        self.process = subprocess.Popen(
            [TBENCH, *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            cwd=self.directory.parent,
            env={**os.environ, **self.environment},
        )
        return self.process

    def begin(self) -> None:
        """Start or resume the run; returns when its trials may begin, or it has ended."""
        before = self._times_begun
        self.start()
        self.wait(lambda: self._times_begun > before)

    @property
    def _times_begun(self) -> int:
        with contextlib.suppress(OSError):
            return (self.directory / "journal.jsonl").read_bytes().count(b'"run_started"')
        return 0

    def finish(self, *options: str) -> str:
        """Resume the run until its end; what was printed."""
        process = self.start(*options)
        printed, _ = process.communicate(timeout=_BOUND_SEC)
        assert process.returncode == 0, printed
        return printed

    def wait(self, when: Callable[[], bool]) -> subprocess.Popen[str]:
        """Returns the process when something is true, or it has ended."""
        process, ends_at = self.process, time.monotonic() + _BOUND_SEC
        assert process is not None
        while process.poll() is None and not when():
            assert time.monotonic() < ends_at
            time.sleep(0.01)
        return process

    def end(self, when: Callable[[], bool], number: int = signal.SIGKILL) -> int:
        """Send a signal to the process when something is true; its exit code."""
        process = self.wait(when)
        process.send_signal(number)
        process.communicate(timeout=_BOUND_SEC)
        return process.returncode

    @property
    def notes(self) -> list[UnderWay]:
        return [*trials_under_way(self.directory)]

    @property
    def is_verifying(self) -> bool:
        return any(note.phase == "verifier" for note in self.notes)

    @property
    def results(self) -> list[TrialResult]:
        return read_results(self.directory / "results.jsonl")

    @property
    def results_on_disk(self) -> list[Path]:
        """Results that may not have a line yet."""
        return [*self.directory.glob("trials/**/result.json")]

    @property
    def replies_on_disk(self) -> set[tuple[str, int]]:
        """Trials whose last checkpoint has a reply, which may not have been followed; each with its step."""
        found = set()
        for path in self.directory.glob("trials/**/checkpoints.jsonl"):
            *_, last, _ = ["", *path.read_text().split("\n")]
            with contextlib.suppress(ValueError):
                if (pending := json.loads(last).get("pending")) is not None:
                    found.add((str(path), pending["index"]))
        return found

    def result(self) -> TrialResult:
        """The only result."""
        found = self.results
        assert len(found) == 1, [(each.attempt, each.error, each.went_on) for each in found]
        return found[0]


class Kills:
    """Kills a run at random moments of its trials, until it has ended."""

    def __init__(self, run: CutRun, at: random.Random, after_each: Callable[[], None] = lambda: None) -> None:
        self.run, self._at, self.after_each = run, at, after_each
        self.number = 0
        self.of_task: Counter[str] = Counter()
        """How often each task's trial was cut while its model was asked."""
        self.moments: Counter[str] = Counter()

    def until(self, most: int) -> None:
        while self.number < most:
            self.run.begin()
            name, happens = self._at.choice(self._moments())
            if self.run.end(self._or_late(happens)) == 0:
                return
            self.number += 1
            self.moments[name] += 1
            self.of_task.update(note.task for note in self.run.notes if note.phase == "agent")
            self.after_each()

    def _moments(self) -> list[tuple[str, Callable[[], bool]]]:
        asked, pending, verdicts = self.run.model.requests, self.run.replies_on_disk, len(self.run.results_on_disk)
        began = time.monotonic()
        any_sec = self._at.uniform(0.2, 5)
        return [
            ("a request", self._soon(lambda: self.run.model.requests > asked, 0.05)),
            ("a reply written", self._soon(lambda: bool(self.run.replies_on_disk - pending), 0.0)),
            ("in mid-typing", self._soon(lambda: bool(self.run.replies_on_disk - pending), 0.06)),
            ("a command or wait", self._soon(lambda: self.run.model.requests > asked + 3, 1.5)),
            ("the verifier", self._soon(lambda: self.run.is_verifying, 1.5)),
            ("teardown", self._soon(lambda: len(self.run.results_on_disk) > verdicts, 0.2)),
            ("any", lambda: time.monotonic() - began > any_sec),
        ]

    def _soon(self, happens: Callable[[], bool], most_sec: float) -> Callable[[], bool]:
        ends_at, wait_sec = [0.0], self._at.uniform(0, most_sec)

        def has_happened() -> bool:
            if not ends_at[0] and happens():
                ends_at[0] = time.monotonic() + wait_sec
            return bool(ends_at[0]) and time.monotonic() >= ends_at[0]

        return has_happened

    def _or_late(self, happens: Callable[[], bool]) -> Callable[[], bool]:
        late = time.monotonic() + 8
        return lambda: happens() or time.monotonic() > late
