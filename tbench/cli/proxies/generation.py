"""Requests replies for `tbench extract` and `tbench replay run`, with progress and a clean end on Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import click

from harness.model import Sampling
from harness.protocols.thinking_bash import ThinkingBash
from tbench import exit_codes
from tbench.agents.endpoints import connect
from tbench.agents.setup import NO_ENDPOINT, AgentSetup
from tbench.cli.common import read_selected_tasks
from tbench.cli.interruption import run_interruptibly
from tbench.cli.printing import print_line, print_progress
from tbench.config.layers import Resolved, preset
from tbench.config.settings import AgentConfig, LimitsConfig, ModelConfig
from tbench.errors import UsageError
from tbench.proxies.datasets.records import Dataset, read_dataset
from tbench.proxies.extraction.generation import (
    ask_all,
    default_directory,
    default_prompt,
    make_manifest,
    missing_replies,
)
from tbench.proxies.extraction.records import EXTRACTION, ExtractionDirectory, ReplyRecord
from tbench.proxies.extraction.score import BashSyntax, make_rewards
from tbench.proxies.extraction.settings import ExtractConfig
from tbench.proxies.replay.generation.client import ReplayProgress
from tbench.proxies.replay.generation.options import ReplayOptions, make_endpoints, make_sampling, make_tokenizer
from tbench.proxies.replay.generation.plan import ContextCheck, ask_for_missing, make_plan
from tbench.proxies.replay.generation.prompts import Tokenizer
from tbench.tasks.sources import TaskSet

# `tbench extract`

_REPLIES_PER_LINE = 50
_MAX_ERRORS = 3
"""Maximum number of errors shown in full; the others are only counted."""


def ask_and_store(resolved: Resolved[ExtractConfig], resume: bool) -> Path:
    """Request all missing replies, and return the directory that holds them.

    Raises UsageError, if possible before the first request.
    """
    config = resolved.config
    make_rewards(config.score.relevance, config.score.conciseness)
    BashSyntax()
    if resume and config.output.directory is None:
        raise UsageError("--resume: needs the extraction's directory as --output")
    tasks = read_selected_tasks(config.tasks)
    if config.output.directory is not None and not resume:
        EXTRACTION.refuse_to_overwrite(Path(config.output.directory))
    if not config.model.servers:
        raise UsageError(NO_ENDPOINT)
    setup = AgentSetup.from_config(*_agent_and_model(resolved), LimitsConfig())
    return run_interruptibly(_ask_and_store(config, setup, tasks))


def _agent_and_model(resolved: Resolved[ExtractConfig]) -> tuple[AgentConfig, ModelConfig]:
    """Return the agent and model settings of a run with this protocol.

    thinking-bash defaults to the prompt and the rendering that it was trained with.
    """
    config = resolved.config
    model, agent = config.model.model_dump(), config.agent.model_dump()
    if config.agent.protocol == ThinkingBash.name:
        agent["prompt"] = config.agent.prompt or str(default_prompt(config.agent.protocol))
        if "model.template" not in resolved.origins:
            model["template"] = preset(ThinkingBash.name)["model"]["template"]
    return AgentConfig.model_validate(agent), ModelConfig.model_validate(model)


async def _ask_and_store(config: ExtractConfig, setup: AgentSetup, tasks: TaskSet) -> Path:
    chat, served = await connect(setup.model, print_progress)
    assert setup.protocol is not None
    path = Path(config.output.directory) if config.output.directory else default_directory(served.id)
    try:
        manifest = make_manifest(config.tasks.source, tasks, config.tasks.planned_seeds, setup.protocol, chat, served)
        with contextlib.closing(ExtractionDirectory.open(path, manifest)) as directory:
            missing = missing_replies(manifest, directory.answered)
            progress = ProgressLines(len(missing))

            def keep(record: ReplyRecord) -> None:
                directory.append(record)
                progress(record)

            try:
                await ask_all(chat, setup.protocol, missing, keep, concurrency=config.schedule.concurrency)
            except asyncio.CancelledError:
                print_line(f"interrupted; replies are kept; continue with --resume --output {path}", err=True)
                raise click.exceptions.Exit(exit_codes.INTERRUPTED) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}; fix this, then use --resume") from None
    finally:
        await chat.close()
    return path


class ProgressLines:
    """Prints the first errors and the number of replies on stderr."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._errors = 0

    def __call__(self, record: ReplyRecord) -> None:
        self._done += 1
        self._errors += record.error is not None
        if record.error is not None and self._errors <= _MAX_ERRORS:
            print_line(f"{record.task} seed {record.seed}: {record.error}", err=True)
        if self._done % _REPLIES_PER_LINE == 0 or self._done == self._total:
            print_line(f"{self._done}/{self._total} requested, {self._errors} without a reply", err=True)


# `tbench replay run`

_MAX_LINES = 10
"""Maximum number of lines of one kind that are shown; the rest is counted."""


def execute(options: ReplayOptions) -> int:
    """Run, and return the exit code: 0 if all steps are answered, except those that are allowed to be too long; 3 if
    others have no answer; 4 if stopped; 130 after Ctrl-C.

    Raises UsageError for mistakes of the user, before the first request.
    """
    if not options.config.model.base_url:
        raise UsageError(NO_ENDPOINT)
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
        say(f"interrupted; replies are kept; continue with --resume --output {options.output}")
        return exit_codes.INTERRUPTED
    finally:
        await endpoints.close()


def _say_check(check: ContextCheck, options: ReplayOptions) -> None:
    """Print which prompts do not fit or could not be counted. Raises UsageError for an overflow that is not allowed."""
    if check.problem:
        say(f"some prompts could not be counted: {check.problem}")
    _say_first("does not fit", [f"{key}: {problem}" for key, problem in check.overflow.items()])
    if not options.config.prompt.allow_overflow:
        check.require_room()


def _say_end(options: ReplayOptions, progress: ReplayProgress) -> int:
    """Print how the run ended, and return the exit code."""
    unanswered = progress.errors - progress.overflow
    parts = [f"{progress.answered_before + progress.answered} answered"]
    parts += [f"{unanswered} failed"] if unanswered else []
    parts += [f"{progress.overflow} do not fit the context"] if progress.overflow else []
    parts += [f"{left} not requested"] if (left := progress.planned - progress.done) else []
    rate = f"; {progress.answered / progress.seconds:.1f} per second" if progress.answered else ""
    say(f"{', '.join(parts)}{rate}")
    if progress.stopped is not None:
        say(f"stopped: {progress.stopped}; continue with --resume")
        return exit_codes.ENDPOINT_DOWN
    if unanswered or (progress.overflow and not options.config.prompt.allow_overflow):
        say("--resume requests the missing replies again")
        return exit_codes.TOO_FEW_VERDICTS
    return 0


class ProgressLine:
    """Prints progress every few seconds; on a terminal, in place of the previous line."""

    def __init__(self) -> None:
        self._is_terminal = sys.stderr.isatty()
        self._began = self._last = time.monotonic()

    def __call__(self, progress: ReplayProgress) -> None:
        now, is_last = time.monotonic(), progress.done == progress.planned
        if now - self._last < (0.2 if self._is_terminal else 10.0) and not (is_last and self._is_terminal):
            return
        self._last = now
        rate = progress.done / max(now - self._began, 1e-9)
        words = f"{progress.done}/{progress.planned} requested, {progress.errors} errors, {rate:.1f} per second"
        if self._is_terminal:
            click.echo(f"\r\x1b[Kreplay: {words}" + ("\n" if is_last else ""), nl=False, err=True)
        else:
            say(words)


def _say_first(what: str, lines: Sequence[str]) -> None:
    for line in lines[:_MAX_LINES]:
        say(f"{what}: {line}")
    if len(lines) > _MAX_LINES:
        say(f"{what}: {len(lines) - _MAX_LINES} more")


def say(text: str) -> None:
    """Write a line to stderr."""
    with contextlib.suppress(OSError):  # a reader that has gone must not fail a run
        print_line(f"replay: {text}", err=True)
