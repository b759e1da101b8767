"""`tbench why`: on one screen, what made a trial fail."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_NAME

if TYPE_CHECKING:
    from reports.trial.verdict import VerifierView
    from tbench.storage.stored_trial import StoredTrial

_TESTS, _STEPS, _COLUMNS = 6, 3, 110
_PROMPT = re.compile(r"\S+[@:]\S*[#$] ?")
_LIMITS = {
    "step_limit": "it had no step left (--steps)",
    "token_limit": "it had no token left (--max-completion-tokens)",
    "context_limit": "its context was full",
    "agent_timeout": "its time was up",
    "format_limit": "too many replies in a row could not be read",
    "terminal_lost": "it had lost its terminal",
}
"""What outcomes mean that are an end before the end."""


@click.command(cls=TbenchCommand)
@click.argument("trial", cls=Argument, metavar="TRIAL", type=A_NAME, help="RUN/TASK/SEED.")
def why(trial: str) -> None:
    """Say on one screen what became of a trial: failed tests, limits, errors of form, signs, the last steps."""
    from tbench.cli.printing import print_coloured
    from tbench.storage.stored_trial import find_trial

    print_coloured(why_lines(find_trial(trial)))


def why_lines(trial: StoredTrial) -> Iterator[str]:
    """The lines of that screen."""
    from tbench.cli.after.steps import head_lines

    yield from head_lines(trial)
    yield from _end(trial)
    yield from _tests(trial)
    yield from _warnings(trial)
    yield from _signs(trial)
    yield from _last_steps(trial)
    yield ""
    last = max((step.index for step in trial.steps if step.actions), default=len(trial.steps))
    yield f"tbench show {trial.name} --step {last}" if last else f"its files: {trial.directory}"
    if trial.result is not None and trial.result.reward is not None and not trial.result.passed and trial.steps:
        yield f"tbench blame {trial.name}"


def _end(trial: StoredTrial) -> Iterator[str]:
    result = trial.result
    if result is None:
        return
    if result.error is not None:
        yield _marked("error", f"{result.error.type}: {result.error.message}", fg="red")
    if (words := _LIMITS.get(str(result.outcome))) is not None:
        yield _marked("limit", f"{result.outcome}: {words}", fg="red")
    if result.out_of_memory:
        yield _marked("limit", "a process was ended for want of memory", fg="red")


def _tests(trial: StoredTrial) -> Iterator[str]:
    found = _verifiers(trial)
    for name, view in found:
        label = f"{name}: " if name else ""
        failed = [test for test in view.tests if test.state in ("fail", "error")]
        if view.tests:
            yield _marked("tests", f"{label}{len(failed)} of {len(view.tests)} failed ({view.source})")
        for test in failed[:_TESTS]:
            yield f"  {click.style('✗', fg='red')} {_cut(test.own_name)}"
            yield from (f"      {_cut(line)}" for line in _gist(test.message)[: max(1, _TESTS // len(failed))])
        if len(failed) > _TESTS:
            yield f"  … and {len(failed) - _TESTS} more"
        if not view.tests:
            last = [line for line in f"{view.output}{view.output_end}".split("\n") if line.strip()][-_STEPS:]
            yield from (_marked("verifier", f"{label}{line}") for line in last)
    if not found:
        yield _marked("verifier", "left nothing")


def _gist(message: str) -> list[str]:
    """The lines of a test's message that say what went wrong: those that pytest marks as errors, else the last one."""
    lines = [line.strip() for line in message.split("\n") if line.strip()]
    return [line[2:].strip() for line in lines if line.startswith("E ")] or lines[-1:]


def _verifiers(trial: StoredTrial) -> list[tuple[str, VerifierView]]:
    """What the verifier has left, or that of each step of the task."""
    from reports.trial.verdict import read_verifier

    places: list[tuple[str, Path]] = [("", trial.directory)]
    places += [(path.name, path) for path in sorted((trial.directory / "steps").glob("*"))]
    return [(name, view) for name, place in places if (view := read_verifier(place / "verifier")) is not None]


def _warnings(trial: StoredTrial) -> Iterator[str]:
    errors = Counter(step.format_error for step in trial.steps if step.format_error)
    if errors:
        yield _marked("form", ", ".join(f"{kind} {count}" for kind, count in errors.most_common()), fg="yellow")
    if "raw_tool_call" in errors:
        yield "  Tool calls came as text: start the server with the --tool-call-parser of this model."
    if "reply_in_reasoning" in errors:
        yield "  Whole replies came as thinking: start the server with the --reasoning-parser of this model, or none."
    kinds = Counter(warning.partition(":")[0] for step in trial.steps for warning in step.warnings)
    if kinds:
        yield _marked("warnings", ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(6)), fg="yellow")


def _signs(trial: StoredTrial) -> Iterator[str]:
    integrity = trial.result.integrity if trial.result is not None else None
    for sign in (*integrity.tamper, *integrity.remarks)[:4] if integrity is not None else ():
        yield _marked("sign", sign, fg="magenta")


def _last_steps(trial: StoredTrial) -> Iterator[str]:
    if trial.steps:
        yield _marked("last steps", "")
    for step in trial.steps[-_STEPS:]:
        typed = " ⏎ ".join(line for action in step.actions for line in action.split("\n") if line)
        code = f" → exit {step.exit_code}" if step.exit_code is not None else ""
        said = typed or step.format_error or f"typed nothing: {step.reply.content}"
        yield f"  {step.index:>3}  {click.style(_cut(said), fg='green')}{code}"
        seen = [line for line in step.observation.split("\n") if line.strip() and not _PROMPT.fullmatch(line)]
        if seen and typed:
            yield f"       | {_cut(seen[-1])}"


def _marked(label: str, text: str, **style: str) -> str:
    return f"{click.style(label, bold=True, **style)}{': ' if text else ''}{_cut(text)}"  # type: ignore[arg-type]


def _cut(text: str) -> str:
    from tbench.text import one_line

    return one_line(text, _COLUMNS - 12)
