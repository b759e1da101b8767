"""`tbench extract` while it asks: connects the endpoint, says on stderr how it goes, ends in order on Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
from dataclasses import dataclass, replace
from pathlib import Path

import click

from harness.protocols.thinking_bash import ThinkingBash
from tbench.agents.presets import THINKING_BASH
from tbench.cli.execute import connect, say_before_the_run
from tbench.cli.interruption import EXIT_INTERRUPTED, run_interruptibly
from tbench.cli.options import AgentSetup, RunOptions
from tbench.errors import UsageError
from tbench.events import Events
from tbench.proxies.extraction.asking import ask_all, default_prompt, still_open
from tbench.proxies.extraction.directory import EXTRACTION, ExtractionDirectory
from tbench.proxies.extraction.plan import default_directory, make_manifest
from tbench.proxies.extraction.records import ReplyRecord
from tbench.proxies.extraction.score import rewards_named
from tbench.proxies.extraction.syntax import BashSyntax
from tbench.tasks.sources import TaskSet, read_tasks

_REPLIES_PER_LINE = 50
_MOST_ERRORS = 3
"""Most errors that are shown in full; the others are counted."""


@dataclass(frozen=True)
class AskOptions:
    """What the user asked of an extraction."""

    run: RunOptions
    output: Path | None
    resume: bool
    relevance: str
    conciseness: str


def ask_and_store(options: AskOptions) -> Path:
    """Ask for all replies that are missing, and return the directory that holds them.

    Raises UsageError, where possible before anything is asked.
    """
    rewards_named(options.relevance, options.conciseness)
    BashSyntax()
    if options.resume and options.output is None:
        raise UsageError("--resume: which extraction? Give its directory with --output")
    tasks = read_tasks(options.run.source, options.run.patterns)
    if options.output is not None and not options.resume:
        EXTRACTION.refuse_to_overwrite(options.output)
    run = _with_defaults(options.run)
    return run_interruptibly(_ask_and_store(run, AgentSetup.of(run), tasks, options.output))


def _with_defaults(options: RunOptions) -> RunOptions:
    """The options with the prompt and the rendering that thinking-bash was trained with, where none are given."""
    model = options.model
    if model.protocol != ThinkingBash.name:
        return options
    prompt = model.prompt or str(default_prompt(model.protocol))
    rendering = {**THINKING_BASH.rendering, **model.rendering}
    return replace(options, model=replace(model, prompt=prompt, rendering=rendering))


async def _ask_and_store(options: RunOptions, setup: AgentSetup, tasks: TaskSet, output: Path | None) -> Path:
    chat, served = await connect(options.model, setup, Events(say_before_the_run))
    assert chat is not None and served is not None and setup.protocol is not None
    path = output or default_directory(served.id)
    try:
        manifest = make_manifest(options.source, tasks, options.seeds, setup.protocol, chat, served)
        with contextlib.closing(ExtractionDirectory.open(path, manifest)) as directory:
            missing = still_open(manifest, directory.answered)
            progress = ProgressLines(len(missing))

            def keep(record: ReplyRecord) -> None:
                directory.append(record)
                progress(record)

            try:
                await ask_all(chat, setup.protocol, missing, keep, concurrency=options.concurrency)
            except asyncio.CancelledError:
                click.echo(f"interrupted; what was answered is kept, go on with --resume --output {path}", err=True)
                raise click.exceptions.Exit(EXIT_INTERRUPTED) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}; make room, then --resume") from None
    finally:
        await chat.close()
    return path


class ProgressLines:
    """The first errors, and how many replies there are, on stderr."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._errors = 0

    def __call__(self, record: ReplyRecord) -> None:
        self._done += 1
        self._errors += record.error is not None
        if record.error is not None and self._errors <= _MOST_ERRORS:
            click.echo(f"{record.task} seed {record.seed}: {record.error}", err=True)
        if self._done % _REPLIES_PER_LINE == 0 or self._done == self._total:
            click.echo(f"{self._done}/{self._total} asked, {self._errors} without a reply", err=True)
