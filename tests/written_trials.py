"""Writes the files of trials as a run would, without running anything: steps, recording, verifier output."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import quoteattr

from harness.trajectory import Message, Outcome, Reply, Step, Trajectory, Usage
from tbench.results import TrialResult
from tbench.storage.run_files import STEPS_NAME, trial_directory
from tbench.storage.run_store import StepLog, write_trial

RED, GREEN, PLAIN = "\x1b[1;31m", "\x1b[32m", "\x1b[0m"
PROMPT = "root@box:/app# "
CAST_NAME = "session.cast"


@dataclass(frozen=True, slots=True)
class Exchange:
    """Step of a conversation: text and input of the model, and the screen after it."""

    plan: str
    typed: str
    shown: str
    exit_code: int = 0
    warnings: tuple[str, ...] = ()
    reasoning: str | None = None


LOOKS_AND_MENDS = (
    Exchange("Look at the project.", "ls -l\n", f"total 8\n{GREEN}Makefile{PLAIN}  main.c\n"),
    Exchange(
        "Build it.",
        "make\n",
        f"{RED}main.c:3: error: expected ‘;’{PLAIN}\n",
        exit_code=2,
        warnings=("the commands were cut off",),
        reasoning="The compiler will say where to look.",
    ),
    Exchange("Mend the line.", "sed -i '3s/$/;/' main.c && make\n", "cc -o tally main.c\n"),
)


@dataclass(frozen=True, slots=True)
class WrittenTrial:
    """Files of a trial besides its result."""

    exchanges: Sequence[Exchange] = LOOKS_AND_MENDS
    instruction: str = "Mend the build of /app."
    output: str = f"{GREEN}2 passed{PLAIN} in 0.1 s\n"
    """Output of the verifier."""
    tests: dict[str, str] = field(default_factory=lambda: {"test_builds": "", "test_counts": ""})
    """Message of each test that failed; empty for one that passed."""


def write_files_of(run: Path, result: TrialResult, trial: WrittenTrial) -> Path:
    """Write the directory of a trial of a run."""
    directory = trial_directory(run, result.task, result.seed, result.attempt)
    steps = [_step(number, each) for number, each in enumerate(trial.exchanges, start=1)]
    log = StepLog(directory)
    for step in steps:
        log.append(step)
    log.close()
    (directory / CAST_NAME).write_text(recording(trial.exchanges), encoding="utf-8")
    files = {
        "verifier/stdout.txt": trial.output.encode("utf-8", "replace"),
        "verifier/junit.xml": junit(trial.tests).encode("utf-8", "replace"),
        "verifier/reward.txt": f"{result.reward}\n".encode(),
    }
    write_trial(directory, result, _trajectory(steps, trial.instruction, result.outcome), files)
    return directory


def tear(file: Path) -> None:
    """Cut a file in the middle of its last line, as a full disk or a kill does."""
    data = file.read_bytes()
    last = data.rstrip(b"\n").rfind(b"\n") + 1
    file.write_bytes(data[: last + max(1, (len(data) - last) // 2)])


def tear_steps(directory: Path) -> None:
    """Leave what a trial has whose process was killed: steps without the last one's end, and no result."""
    tear(directory / STEPS_NAME)
    tear(directory / CAST_NAME)
    for name in ("result.json", "trajectory.json"):
        (directory / name).unlink()


def _step(number: int, exchange: Exchange) -> Step:
    command = {"keystrokes": exchange.typed, "duration": 1.0}
    content = {"analysis": "", "plan": exchange.plan, "commands": [command], "task_complete": False}
    return Step(
        index=number,
        reply=Reply(
            content=json.dumps(content, indent=2),
            reasoning=exchange.reasoning,
            finish_reason="stop",
            usage=Usage(prompt_tokens=900 * number, completion_tokens=60, cached_tokens=800 * (number - 1)),
            latency_sec=0.8,
        ),
        actions=(exchange.typed,),
        warnings=exchange.warnings,
        observation=f"New terminal output:\n{PROMPT}{exchange.typed}{exchange.shown}{PROMPT}",
        exit_code=exchange.exit_code,
        model_sec=0.8,
        command_sec=0.4,
    )


def _trajectory(steps: Sequence[Step], instruction: str, outcome: Outcome | None) -> Trajectory:
    messages = [Message(role="user", content=instruction)]
    for step in steps:
        messages.append(Message(role="assistant", content=step.reply.content, reasoning=step.reply.reasoning))
        messages.append(Message(role="user", content=step.observation))
    usage = sum((step.reply.usage for step in steps), Usage())
    return Trajectory(
        protocol="keystrokes-json",
        messages=tuple(messages),
        steps=tuple(steps),
        outcome=outcome,
        usage=usage,
        warnings={"cut": sum(len(step.warnings) for step in steps)},
        model_sec=0.8 * len(steps),
        command_sec=0.4 * len(steps),
    )


def recording(exchanges: Sequence[Exchange]) -> str:
    """Return an asciicast: for each exchange a prompt, the input a second later, and the output."""
    mark = "\x1b]133;{};aid=tbench\x1b\\"
    events: list[tuple[float, str, str]] = [(0.2, "o", f"\x1b[?2004h{PROMPT}{mark.format('B')}")]
    for number, each in enumerate(exchanges):
        at = 1.0 + 1.2 * number
        events += [
            (at, "i", each.typed),
            (at + 0.01, "o", each.typed.replace("\n", "\r\n") + mark.format("C")),
            (at + 0.2, "o", each.shown.replace("\n", "\r\n")),
            (at + 0.3, "o", f"{mark.format(f'D;{each.exit_code}')}{PROMPT}{mark.format('B')}"),
        ]
    head = {"version": 2, "width": 100, "height": 30, "timestamp": 1_767_304_800}
    return "".join(f"{json.dumps(line, ensure_ascii=False)}\n" for line in (head, *events))


def junit(tests: dict[str, str]) -> str:
    """Return a report as pytest writes it with --junitxml."""
    cases = "".join(
        f'<testcase classname="test_outputs" name={quoteattr(name)} time="0.01">'
        + (f"<failure message={quoteattr(message)}>assert 1 == 2</failure>" if message else "")
        + "</testcase>"
        for name, message in tests.items()
    )
    failed = sum(map(bool, tests.values()))
    suite = f'<testsuite name="pytest" tests="{len(tests)}" failures="{failed}" time="0.1">{cases}</testsuite>'
    return f'<?xml version="1.0" encoding="utf-8"?><testsuites>{suite}</testsuites>'
