"""`tbench show`, `diff` and `why`: print the steps of stored trials."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import termios
import tty
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from harness.thoughts import step_texts
from tbench.cli.parsing.commands import TbenchCommand, argument, flag, option
from tbench.cli.parsing.values import NAME_TYPE, Integer
from tbench.text import replace_unseen

if TYPE_CHECKING:
    from harness.trajectory import Step
    from reports.trial.verdict import VerifierView
    from tbench.results import TrialResult
    from tbench.storage.stored_trial import StoredTrial

_SHORT_LINES = 12
"""Maximum lines of a text in the list of all steps."""
StyledLine = str
"""A line with escape sequences for its style; click removes them if the output shows no colours."""


def head_lines(trial: StoredTrial) -> Iterator[StyledLine]:
    """Yield the trial's name, the notes on it, agent and outcome."""
    result = trial.result
    yield click.style(trial.name, bold=True)
    for note in trial.notes:
        yield _with_label("note", note.words, fg="cyan")
    if result is None:
        yield "no result: the trial is still running, or was interrupted"
        return
    model = f", {result.model}" if result.model else ""
    yield f"{result.agent}{model}; {outcome_words(trial)}"


def outcome_words(trial: StoredTrial) -> str:
    """Describe a trial's verdict, outcome, steps and duration."""
    return f"no result after {len(trial.steps)} steps" if trial.result is None else result_words(trial.result)


def result_words(result: TrialResult) -> str:
    """Describe a result's verdict, outcome, steps and duration."""
    if result.error is not None:
        what = f"no verdict ({result.error.type})"
    elif result.reward is None:
        what = "no verdict"
    else:
        what = f"{'passed' if result.passed else 'failed'}, reward {result.reward:g}"
    touched = ", touched by a person" if result.human_touched else ""
    touched += "".join(f", {each.words}" for each in result.went_on[-1:])
    ended = f"{result.outcome}, " if result.outcome else ""
    return f"{what}{touched} ({ended}{result.steps} steps, {result.timings.wall_sec:.0f} s)"


def step_lines(step: Step, count: int, *, whole: bool = False) -> Iterator[StyledLine]:
    """Yield the lines of a step, with its full texts if `whole`."""
    code = "" if step.exit_code is None else f", exit {step.exit_code}"
    usage = step.reply.usage
    tokens = f", {usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens" if usage.completion_tokens else ""
    tokens = ", tokens not counted" if usage.uncounted else tokens
    yield click.style(
        f"step {step.index} of {count}: model {step.model_sec:.1f} s, commands {step.command_sec:.1f} s{code}{tokens}",
        bold=True,
    )
    texts = step_texts(step)
    for thought in texts.thoughts:
        yield from _text(thought, "  ", whole, italic=True, dim=True)
    if whole and any(part.label for part in texts.parts):
        yield click.style("  reply:", dim=True)
        yield from _text(step.reply.content, "  ", whole, dim=True)
    if step.format_error:
        yield click.style(f"  format error: {step.format_error}", fg="red")
    for action in step.actions:
        yield from _text(action.rstrip("\n"), "  > ", whole, fg="green")
    for warning in step.warnings:
        yield click.style(f"  warning: {_escape_controls(warning)}", fg="yellow")
    if step.observation:
        yield from _text(step.observation.rstrip("\n"), "  | ", whole)


def _text(text: str, lead: str, whole: bool, **style: object) -> Iterator[StyledLine]:
    lines = text.split("\n")
    shown = lines if whole else _shorten(lines)
    for line in shown:
        styled = click.style(_escape_controls(line), **style) if style and line else _escape_controls(line)  # type: ignore[arg-type]
        yield f"{lead}{styled}"


def _shorten(lines: Sequence[str]) -> list[str]:
    """Return the first and the last lines, and between them a line with the number of omitted ones."""
    if len(lines) <= _SHORT_LINES:
        return list(lines)
    half = _SHORT_LINES // 2
    return [*lines[:half], f"… {len(lines) - 2 * half} lines …", *lines[-half:]]


def _escape_controls(line: str) -> str:
    """Escape a line from a model or a container, so that it cannot control the terminal."""
    return replace_unseen(line.replace("\t", "    "), "·")


def matches(step: Step, pattern: re.Pattern[str]) -> bool:
    """Whether any text of a step matches."""
    texts = (step.reply.content, step.reply.reasoning or "", step.observation, *step.actions, *step.warnings)
    return any(pattern.search(text) for text in texts)


# `tbench show`


@click.command(cls=TbenchCommand)
@argument("trial", "TRIAL", "The trial, as RUN/TASK/SEED.", type=NAME_TYPE)
@option("--step", "Show this step in full, with the screen at its end.", Integer(min=1))
@option("--grep RE", "Only steps that match this regular expression.")
def show(trial: str, step: int | None, grep: str | None) -> None:
    """Show the steps of a trial: what the model thought, typed and saw."""
    from tbench.cli.printing import coloured_line, print_coloured
    from tbench.errors import UsageError
    from tbench.storage.stored_trial import find_trial

    try:
        pattern = re.compile(grep) if grep is not None else None
    except re.error as error:
        raise UsageError(f"--grep {grep}: invalid regular expression: {error}") from None
    found = find_trial(trial)
    if step is not None and step > len(found.steps):
        raise UsageError(f"--step {step}: {found.name} has {len(found.steps)} steps")
    if pattern is not None and not any(True for _ in _matching(found, pattern)):
        raise UsageError(f"--grep {grep}: no match in {found.name}")
    lines = _lines(found, step, pattern)
    if sys.stdout.isatty():
        click.echo_via_pager(f"{coloured_line(line)}\n" for line in lines)  # less obeys colours if LESS lets it
    else:
        print_coloured(lines)


def _matching(trial: StoredTrial, pattern: re.Pattern[str]) -> Iterator[int]:
    return (each.index for each in trial.steps if matches(each, pattern))


def _lines(trial: StoredTrial, step: int | None, pattern: re.Pattern[str] | None) -> Iterator[str]:
    chosen = set(_matching(trial, pattern)) if pattern is not None else {each.index for each in trial.steps}
    yield from head_lines(trial)
    for each in trial.steps:
        if each.index in chosen and step in (None, each.index):
            yield ""
            yield from step_lines(each, len(trial.steps), whole=step is not None)
    if step is not None:
        yield from _screen(trial, step)


def _screen(trial: StoredTrial, step: int) -> Iterator[str]:
    from tbench.cli.recording import SessionRecording

    try:
        lines = SessionRecording(trial.directory).screen_after(step)
    except OSError:
        lines = None
    yield ""
    if lines is None:
        yield click.style("the recording does not show the screen at its end", dim=True)
        return
    yield click.style("screen at its end:", bold=True)
    yield from lines


# `tbench diff`

_LEAST_COLUMNS, _MAX_COLUMNS = 60, 200


@click.command(cls=TbenchCommand)
@argument("first", "TRIAL", "The trial, as RUN/TASK/SEED.", type=NAME_TYPE)
@argument("second", "OTHER", "Another trial, usually of the same task.", type=NAME_TYPE)
def diff(first: str, second: str) -> None:
    """Show the first step at which two trials differ: input and output, side by side."""
    from tbench.cli.printing import print_coloured
    from tbench.storage.stored_trial import find_trial

    columns = max(_LEAST_COLUMNS, min(_MAX_COLUMNS, shutil.get_terminal_size().columns))
    print_coloured(diff_lines(find_trial(first), find_trial(second), columns))


def diff_lines(first: StoredTrial, second: StoredTrial, columns: int) -> Iterator[str]:
    """Yield the first step at which two trials differ, side by side."""
    from tbench.divergence import first_differing_lines

    width = (columns - 3) // 2
    yield from _side_by_side([first.name, outcome_words(first)], [second.name, outcome_words(second)], width)
    mine, others = first.steps, second.steps
    if gone := [each.name for each, steps in ((first, mine), (second, others)) if not steps]:
        yield from ("", f"nothing to compare: {' and '.join(gone)} {'has' if len(gone) == 1 else 'have'} no steps")
        return
    for old, new in zip(mine, others, strict=False):
        seen = first_differing_lines(old.observation, new.observation)
        if seen is not None or old.actions != new.actions:
            what = "different input"
            if old.actions == new.actions and seen is not None:
                what = f"the same input, but {seen[0]} was seen in one and {seen[1]} in the other"
            yield from ("", click.style(f"they differ at step {old.index}: {what}", bold=True))
            yield from _side_by_side(_step(old), _step(new), width)
            return
    if len(mine) != len(others):
        yield from ("", f"the same up to step {min(len(mine), len(others))}, where one of them ends")
        return
    yield from ("", f"the same in all {len(mine)} steps")


def _step(step: Step) -> list[str]:
    lines = [line for thought in step_texts(step).thoughts for line in thought.split("\n") if line.strip()]
    lines += [f"> {line}" for action in step.actions for line in action.rstrip("\n").split("\n")]
    if step.format_error:
        lines.append(f"format error: {step.format_error}")
    return [*lines, *(f"| {line}" for line in step.observation.rstrip("\n").split("\n"))]


def _side_by_side(left: list[str], right: list[str], width: int) -> Iterator[str]:
    from tbench.divergence import normalised_line

    for number in range(max(len(left), len(right))):
        mine, other = (lines[number] if number < len(lines) else "" for lines in (left, right))
        mark = " " if normalised_line(mine) == normalised_line(other) else click.style("│", fg="red")
        cells = [replace_unseen(text.replace("\t", "    "), "·")[:width] for text in (mine, other)]
        yield f"{cells[0]:<{width}} {mark} {cells[1]}".rstrip()


# `tbench why`

_STEPS, _COLUMNS = 3, 98
_MAX_FAILED = 20
_PROMPT = re.compile(r"\S+[@:]\S*[#$] ?")
_LIMITS = {
    "step_limit": "no steps left (--steps)",
    "token_limit": "no tokens left (--max-completion-tokens)",
    "context_limit": "the context was full",
    "agent_timeout": "the agent's time was up",
    "format_limit": "too many unusable replies in a row",
    "terminal_lost": "the terminal was lost",
    "disk_limit": "its container had no disk left (storage_mb)",
}
"""Meaning of the outcomes that end a trial early."""


@click.command(cls=TbenchCommand)
@argument("trial", "TRIAL", "The trial, as RUN/TASK/SEED; RUN or RUN/TASK lists the failed ones.", type=NAME_TYPE)
@flag("--debug", "Debug a fork of the trial from its last step on.", name="debugs")
def why(trial: str, debugs: bool) -> None:
    """Explain a trial's outcome on one screen: failed tests, limits, format errors, tampering, the last steps."""
    from tbench.cli.printing import print_coloured
    from tbench.errors import UsageError
    from tbench.storage.run_files import is_run
    from tbench.storage.stored_trial import find_trial

    path = Path(trial)
    lists_run, lists_task = is_run(path), is_run(path.parent) and (path.parent / "trials" / path.name).is_dir()
    if debugs and (lists_run or lists_task):
        raise UsageError(f"--debug: {trial} is not one trial; write RUN/TASK/SEED")
    if lists_run:
        print_coloured(failed_lines(path))
    elif lists_task:
        print_coloured(failed_lines(path.parent, path.name))
    else:
        _explain(find_trial(trial), debugs=debugs)


def _explain(trial: StoredTrial, *, debugs: bool) -> None:
    """Print why a trial ended as it did, and debug a fork of it if the user wants to."""
    from tbench.cli.fork import debug_command, fork
    from tbench.cli.printing import print_coloured
    from tbench.errors import UsageError

    print_coloured(why_lines(trial))
    if not (words := debug_command(trial, last_step(trial))):
        if debugs:
            raise UsageError(
                f"--debug: {trial.name} cannot be forked: it has no steps, or no step of its task is named"
            )
        return
    print_coloured([words])
    if debugs or (trial.result is not None and not trial.result.passed and _wants_debugger()):
        with fork.make_context("fork", shlex.split(words)[2:], parent=click.get_current_context()) as context:
            fork.invoke(context)


def _wants_debugger() -> bool:
    """Whether the user presses d; without a terminal, no one is asked."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    before = termios.tcgetattr(0)
    tty.setcbreak(0, termios.TCSADRAIN)  # first, so that a key pressed at once is neither echoed nor lost
    try:
        click.echo(click.style("d debugs it from that step on; any other key leaves", dim=True))
        return os.read(0, 1) == b"d"
    except KeyboardInterrupt:
        return False
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)


def last_step(trial: StoredTrial) -> int:
    """Return the number of the last step that typed something, else of the last one; 0 without steps."""
    return max((step.index for step in trial.steps if step.actions), default=len(trial.steps))


def failed_lines(run: Path, task: str | None = None) -> Iterator[StyledLine]:
    """Yield the trials of a run that have not passed, worst first."""
    from tbench.storage.read_run import read_run
    from tbench.storage.summaries import make_summary

    stored = read_run(run)
    finals = {(each.task, each.seed): each for each in stored.results if each.final and task in (None, each.task)}
    ranked = [finals[key] for key in make_summary(stored, intervals=False).failures if key in finals]
    failed = [each for each in ranked if not each.passed]
    names = [f"{run}/{each.task}/{each.seed}" for each in failed]
    width = max(map(len, names), default=0)
    yield f"{len(failed)} of {len(finals)} trials failed{', worst first' if failed else ''}"
    for name, result in list(zip(names, failed, strict=True))[:_MAX_FAILED]:
        yield f"  {name:<{width}}  {result_words(result)}"
    if len(failed) > _MAX_FAILED:
        yield f"  … and {len(failed) - _MAX_FAILED} more"
    if names:
        yield f"tbench why {names[0]}"


def why_lines(trial: StoredTrial) -> Iterator[str]:
    """Yield the explanation of a trial's outcome, one screen long."""
    yield from head_lines(trial)
    yield from _end(trial)
    yield from _tests(trial)
    yield from _warnings(trial)
    yield from _signs(trial)
    yield from _last_steps(trial)
    yield ""
    last = last_step(trial)
    yield f"tbench show {trial.name} --step {last}" if last else f"files: {trial.directory}"
    if trial.result is not None and trial.result.reward is not None and not trial.result.passed and trial.steps:
        yield f"tbench blame {trial.name}"


def _end(trial: StoredTrial) -> Iterator[str]:
    result = trial.result
    if result is None:
        return
    if result.error is not None:
        yield _with_label("error", f"{result.error.type}: {result.error.message}", fg="red")
    if (meaning := _LIMITS.get(str(result.outcome))) is not None:
        yield _with_label("limit", f"{result.outcome}: {meaning}", fg="red")
    if result.out_of_memory:
        yield _with_label("limit", "a process was killed because memory ran out", fg="red")


def _tests(trial: StoredTrial) -> Iterator[str]:
    from tbench.checked_tests import failed_tests
    from tbench.cli.printing import failed_test_lines, last_lines

    found = _verifiers(trial)
    for name, view in found:
        label = f"{name}: " if name else ""
        failed = failed_tests(view.tests)
        if view.tests:
            yield _with_label("tests", f"{label}{len(failed)} of {len(view.tests)} failed ({view.source})")
            yield from failed_test_lines(failed, len(failed))
        else:
            last = last_lines(f"{view.output}{view.output_end}")
            yield from (_with_label("verifier", f"{label}{line}") for line in last)
    if not found:
        yield _with_label("verifier", "left no output")


def _verifiers(trial: StoredTrial) -> list[tuple[str, VerifierView]]:
    """Return the output of the verifier, or of each task step's verifier, by step name."""
    from reports.trial.verdict import read_verifier

    places: list[tuple[str, Path]] = [("", trial.directory)]
    places += [(path.name, path) for path in sorted((trial.directory / "steps").glob("*"))]
    return [(name, view) for name, place in places if (view := read_verifier(place / "verifier")) is not None]


def _warnings(trial: StoredTrial) -> Iterator[str]:
    errors = Counter(step.format_error for step in trial.steps if step.format_error)
    if errors:
        yield _with_label(
            "format errors", ", ".join(f"{kind} {count}" for kind, count in errors.most_common()), fg="yellow"
        )
    if "raw_tool_call" in errors:
        yield "  Tool calls arrived as text: start the server with this model's --tool-call-parser."
    if "reply_in_reasoning" in errors:
        yield "  Whole replies arrived as thinking: start the server with this model's --reasoning-parser, or none."
    kinds = Counter(warning.partition(":")[0] for step in trial.steps for warning in step.warnings)
    if kinds:
        yield _with_label("warnings", ", ".join(f"{kind} {count}" for kind, count in kinds.most_common(6)), fg="yellow")


def _signs(trial: StoredTrial) -> Iterator[str]:
    from tbench.results import control_lines

    integrity = trial.result.integrity if trial.result is not None else None
    if integrity is None:
        return
    for sign in (*integrity.tamper, *integrity.remarks)[:4]:
        yield _with_label("sign", sign, fg="magenta")
    for words in control_lines(integrity):
        yield _with_label("control tests", words)


def _last_steps(trial: StoredTrial) -> Iterator[str]:
    if trial.steps:
        yield _with_label("last steps", "")
    for step in trial.steps[-_STEPS:]:
        typed = " ⏎ ".join(line for action in step.actions for line in action.split("\n") if line)
        code = f" → exit {step.exit_code}" if step.exit_code is not None else ""
        text = typed or step.format_error or f"typed nothing: {' '.join(step_texts(step).thoughts)}"
        yield f"  {step.index:>3}  {click.style(_cut(text), fg='green')}{code}"
        seen = [line for line in step.observation.split("\n") if line.strip() and not _PROMPT.fullmatch(line)]
        if seen and typed:
            yield f"       | {_cut(seen[-1])}"


def _with_label(label: str, text: str, **style: str) -> str:
    return f"{click.style(label, bold=True, **style)}{': ' if text else ''}{_cut(text)}"  # type: ignore[arg-type]


def _cut(text: str) -> str:
    from tbench.text import one_line

    return one_line(text, _COLUMNS)
