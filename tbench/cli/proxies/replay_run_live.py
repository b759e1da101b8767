"""`tbench replay run` while it runs: asks, says on stderr how it goes, and ends with an exit code."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence

import click

from harness.model import Sampling
from tbench import exit_codes
from tbench.cli.interruption import run_interruptibly
from tbench.cli.printing import print_line
from tbench.errors import UsageError
from tbench.proxies.datasets.records import Dataset, read_dataset
from tbench.proxies.replay.asking.client import ReplayProgress
from tbench.proxies.replay.asking.context import ContextCheck
from tbench.proxies.replay.asking.options import ReplayOptions, make_endpoints, make_sampling, make_tokenizer
from tbench.proxies.replay.asking.plan import ask_for_missing, make_plan
from tbench.proxies.replay.asking.tokenizer import Tokenizer

_MOST_LINES = 10
"""Most lines of one kind that are shown; the rest is counted."""


def execute(options: ReplayOptions) -> int:
    """Run, and return the exit code: 0 all steps answered (or allowed not to fit), 3 not all, 4 stopped, 130 Ctrl-C.

    Raises UsageError for whatever the user can mend, before anything is asked.
    """
    if not options.base_urls:
        raise UsageError("no endpoint: give --base-url http://HOST:PORT/v1 or set OPENAI_BASE_URL")
    dataset = read_dataset(options.dataset)
    _say_first("left out", dataset.problems)
    return run_interruptibly(_execute(options, dataset, make_sampling(options), make_tokenizer(options)))


async def _execute(options: ReplayOptions, dataset: Dataset, sampling: Sampling, tokenizer: Tokenizer | None) -> int:
    endpoints = make_endpoints(options, sampling, say)
    try:
        plan = await make_plan(options, dataset, endpoints, tokenizer, say)
        _say_check(plan.check, options)
        progress = await ask_for_missing(options, plan, endpoints, say, ProgressLine())
        return _say_end(options, progress)
    except asyncio.CancelledError:
        say(f"interrupted; what was answered is kept, go on with --resume --output {options.output}")
        return exit_codes.INTERRUPTED
    finally:
        await endpoints.close()


def _say_check(check: ContextCheck, options: ReplayOptions) -> None:
    """Say which prompts do not fit or could not be counted. Raises UsageError for an overflow that is not allowed."""
    if check.problem:
        say(f"not every prompt could be counted: {check.problem}")
    _say_first("does not fit", [f"{key}: {words}" for key, words in check.overflow.items()])
    if not options.allow_overflow:
        check.require_room()


def _say_end(options: ReplayOptions, progress: ReplayProgress) -> int:
    """Say how the run ended, and return the exit code."""
    unanswered = progress.errors - progress.overflow
    words = [f"{progress.answered_before + progress.answered} answered"]
    words += [f"{unanswered} failed"] if unanswered else []
    words += [f"{progress.overflow} do not fit the context"] if progress.overflow else []
    words += [f"{left} not asked"] if (left := progress.planned - progress.done) else []
    rate = f"; {progress.answered / progress.seconds:.1f} per second" if progress.answered else ""
    say(f"{', '.join(words)}{rate}")
    if progress.stopped is not None:
        say(f"stopped: {progress.stopped}; go on with --resume")
        return exit_codes.AWAY
    if unanswered or (progress.overflow and not options.allow_overflow):
        say("--resume asks for the missing ones again")
        return exit_codes.UNCOVERED
    return 0


class ProgressLine:
    """A line of progress every few seconds; on a terminal it replaces the one before."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._began = self._last = time.monotonic()

    def __call__(self, progress: ReplayProgress) -> None:
        now, is_last = time.monotonic(), progress.done == progress.planned
        if now - self._last < (0.2 if self._is_terminal else 10.0) and not (is_last and self._is_terminal):
            return
        self._last = now
        rate = progress.done / max(now - self._began, 1e-9)
        words = f"{progress.done}/{progress.planned} asked, {progress.errors} errors, {rate:.1f} per second"
        if self._is_terminal:
            click.echo(f"\r\x1b[Kreplay: {words}" + ("\n" if is_last else ""), nl=False, err=True)
        else:
            say(words)


def _say_first(what: str, lines: Sequence[str]) -> None:
    for line in lines[:_MOST_LINES]:
        say(f"{what}: {line}")
    if len(lines) > _MOST_LINES:
        say(f"{what}: {len(lines) - _MOST_LINES} more")


def say(words: str) -> None:
    """Write a line to stderr."""
    with contextlib.suppress(OSError):  # a reader that went away must not cost a run
        print_line(f"replay: {words}", err=True)
