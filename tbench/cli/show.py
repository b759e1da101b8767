"""`tbench show`, `diff` and `why`: the steps of stored trials as text."""

from __future__ import annotations

import re
import shutil
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_NAME, Integer
from tbench.text import unseen_as

if TYPE_CHECKING:
    from harness.trajectory import Step
    from reports.trial.verdict import VerifierView
    from tbench.storage.stored_trial import StoredTrial

# Steps of a stored trial as lines for a terminal: what was thought, typed and shown.

_SHORT_LINES = 12
"""Lines of a text in the list of all steps; the rest is left out, and said."""
Styled = str
"""A line with the escapes of its style, which a terminal that shows no colours is spared."""


def head_lines(trial: StoredTrial) -> Iterator[Styled]:
    """Which trial it is, and what became of it."""
    result = trial.result
    yield click.style(trial.name, bold=True)
    if result is None:
        yield "no result: it is under way, or was cut short"
        return
    model = f", {result.model}" if result.model else ""
    yield f"{result.agent}{model}; {outcome_words(trial)}"


def outcome_words(trial: StoredTrial) -> str:
    """What became of it, how it ended, and how long that took."""
    result = trial.result
    if result is None:
        return f"no result after {len(trial.steps)} steps"
    if result.error is not None:
        what = f"no verdict ({result.error.type})"
    elif result.reward is None:
        what = "no verdict"
    else:
        what = f"{'passed' if result.passed else 'failed'}, reward {result.reward:g}"
    touched = ", touched by a person" if result.human_touched else ""
    ended = f"{result.outcome}, " if result.outcome else ""
    return f"{what}{touched} ({ended}{result.steps} steps, {result.timings.wall_sec:.0f} s)"


def step_lines(step: Step, count: int, *, whole: bool = False) -> Iterator[Styled]:
    """One step; with `whole` all of its texts."""
    code = "" if step.exit_code is None else f", exit {step.exit_code}"
    usage = step.reply.usage
    tokens = f", {usage.prompt_tokens:,} + {usage.completion_tokens:,} tokens" if usage.completion_tokens else ""
    tokens = ", tokens not counted" if usage.uncounted else tokens
    yield click.style(
        f"step {step.index} of {count}: model {step.model_sec:.1f} s, commands {step.command_sec:.1f} s{code}{tokens}",
        bold=True,
    )
    if step.reply.reasoning:
        yield from _text(step.reply.reasoning, "  ", whole, italic=True, dim=True)
    if whole or not step.actions:
        yield from _text(step.reply.content, "  ", whole, dim=True)
    if step.format_error:
        yield click.style(f"  format error: {step.format_error}", fg="red")
    for action in step.actions:
        yield from _text(action.rstrip("\n"), "  > ", whole, fg="green")
    for warning in step.warnings:
        yield click.style(f"  warning: {_safe(warning)}", fg="yellow")
    if step.observation:
        yield from _text(step.observation.rstrip("\n"), "  | ", whole)


def _text(text: str, lead: str, whole: bool, **style: object) -> Iterator[Styled]:
    lines = text.split("\n")
    shown = lines if whole else _shortened(lines)
    for line in shown:
        styled = click.style(_safe(line), **style) if style and line else _safe(line)  # type: ignore[arg-type]
        yield f"{lead}{styled}"


def _shortened(lines: Sequence[str]) -> list[str]:
    """The first lines and the last ones, with a line between them that tells how many are left out."""
    if len(lines) <= _SHORT_LINES:
        return list(lines)
    half = _SHORT_LINES // 2
    return [*lines[:half], f"… {len(lines) - 2 * half} lines …", *lines[-half:]]


def _safe(line: str) -> str:
    """What a model or a container wrote: nothing in it is obeyed by a terminal."""
    return unseen_as(line.replace("\t", "    "), "·")


def matches(step: Step, pattern: re.Pattern[str]) -> bool:
    """Whether anything of a step matches."""
    texts = (step.reply.content, step.reply.reasoning or "", step.observation, *step.actions, *step.warnings)
    return any(pattern.search(text) for text in texts)


# `tbench show`: the steps of a trial, to be read.


@click.command(cls=TbenchCommand)
@click.argument("trial", cls=Argument, metavar="TRIAL", type=A_NAME, help="RUN/TASK/SEED.")
@click.option("--step", type=Integer(min=1), help="All of this step, with the screen as it was behind it.")
@click.option("--grep", metavar="RE", help="Only steps in which this regular expression matches something.")
def show(trial: str, step: int | None, grep: str | None) -> None:
    """Show the steps of a trial: what its model thought, typed and saw."""
    from tbench.cli.printing import coloured_line, print_coloured
    from tbench.errors import UsageError
    from tbench.storage.stored_trial import find_trial

    try:
        pattern = re.compile(grep) if grep is not None else None
    except re.error as error:
        raise UsageError(f"--grep {grep}: is no regular expression: {error}") from None
    found = find_trial(trial)
    if step is not None and step > len(found.steps):
        raise UsageError(f"--step {step}: {found.name} has {len(found.steps)} steps")
    if pattern is not None and not any(True for _ in _matching(found, pattern)):
        raise UsageError(f"--grep {grep}: matches nothing in {found.name}")
    lines = _lines(found, step, pattern)
    if sys.stdout.isatty():
        click.echo_via_pager((f"{coloured_line(line)}\n" for line in lines), color=True)
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
    from tbench.cli.screens import SessionRecording

    try:
        lines = SessionRecording(trial.directory).screen_after(step)
    except OSError:
        lines = None
    yield ""
    if lines is None:
        yield click.style("its recording does not tell what was on the screen behind it", dim=True)
        return
    yield click.style("the screen behind it:", bold=True)
    yield from lines


# `tbench diff`: where two trials part.

_LEAST_COLUMNS, _MOST_COLUMNS = 60, 200


@click.command(cls=TbenchCommand)
@click.argument("first", cls=Argument, metavar="TRIAL", type=A_NAME, help="RUN/TASK/SEED.")
@click.argument("second", cls=Argument, metavar="OTHER", type=A_NAME, help="Another one, as a rule of the same task.")
def diff(first: str, second: str) -> None:
    """Show the first step at which two trials part, side by side: what was typed, and what was seen."""
    from tbench.cli.printing import print_coloured
    from tbench.storage.stored_trial import find_trial

    columns = max(_LEAST_COLUMNS, min(_MOST_COLUMNS, shutil.get_terminal_size().columns))
    print_coloured(diff_lines(find_trial(first), find_trial(second), columns))


def diff_lines(first: StoredTrial, second: StoredTrial, columns: int) -> Iterator[str]:
    """The two beside each other from the step on at which they part."""
    from tbench.divergence import first_differing_lines

    width = (columns - 3) // 2
    yield from _beside([first.name, outcome_words(first)], [second.name, outcome_words(second)], width)
    mine, others = first.steps, second.steps
    for old, new in zip(mine, others, strict=False):
        seen = first_differing_lines(old.observation, new.observation)
        if seen is not None or old.actions != new.actions:
            what = "something else was typed"
            if old.actions == new.actions and seen is not None:
                what = f"the same was typed, and {seen[0]} was seen in one, {seen[1]} in the other"
            yield from ("", click.style(f"they part at step {old.index}: {what}", bold=True))
            yield from _beside(_step(old), _step(new), width)
            return
    if len(mine) != len(others):
        yield from ("", f"the same up to step {min(len(mine), len(others))}, with which one of them ends")
        return
    yield from ("", f"the same in all {len(mine)} steps")


def _step(step: Step) -> list[str]:
    lines = [line for line in (step.reply.reasoning or "").split("\n") if line.strip()]
    lines += [f"> {line}" for action in step.actions for line in action.rstrip("\n").split("\n")]
    if step.format_error:
        lines.append(f"format error: {step.format_error}")
    return [*lines, *(f"| {line}" for line in step.observation.rstrip("\n").split("\n"))]


def _beside(left: list[str], right: list[str], width: int) -> Iterator[str]:
    from tbench.divergence import same_as

    for number in range(max(len(left), len(right))):
        mine, other = (lines[number] if number < len(lines) else "" for lines in (left, right))
        mark = " " if same_as(mine) == same_as(other) else click.style("│", fg="red")
        cells = [unseen_as(text.replace("\t", "    "), "·")[:width] for text in (mine, other)]
        yield f"{cells[0]:<{width}} {mark} {cells[1]}".rstrip()


# `tbench why`: on one screen, what made a trial fail.

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
