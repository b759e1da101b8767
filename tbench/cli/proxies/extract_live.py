"""`tbench extract` while it asks: connects the endpoint, says on stderr how it goes, ends in order on Ctrl-C."""

from __future__ import annotations

import asyncio
import contextlib
from pathlib import Path

import click

from harness.protocols.thinking_bash import ThinkingBash
from tbench import exit_codes
from tbench.agents.setup import AgentSetup, connect
from tbench.cli.interruption import run_interruptibly
from tbench.cli.printing import print_line
from tbench.cli.tasks import chosen_tasks
from tbench.config.layers import Resolved
from tbench.config.presets import preset
from tbench.config.settings import RunConfig
from tbench.errors import UsageError
from tbench.proxies.extraction.asking import ask_all, default_prompt, still_open
from tbench.proxies.extraction.directory import EXTRACTION, ExtractionDirectory
from tbench.proxies.extraction.plan import default_directory, make_manifest
from tbench.proxies.extraction.records import ReplyRecord
from tbench.proxies.extraction.score import rewards_named
from tbench.proxies.extraction.settings import ExtractConfig
from tbench.proxies.extraction.syntax import BashSyntax
from tbench.tasks.sources import TaskSet

_REPLIES_PER_LINE = 50
_MOST_ERRORS = 3
"""Most errors that are shown in full; the others are counted."""


def ask_and_store(resolved: Resolved[ExtractConfig], resume: bool) -> Path:
    """Ask for all replies that are missing, and return the directory that holds them.

    Raises UsageError, where possible before anything is asked.
    """
    config = resolved.config
    rewards_named(config.score.relevance, config.score.conciseness)
    BashSyntax()
    if resume and config.output.directory is None:
        raise UsageError("--resume: which extraction? Give its directory with --output")
    tasks = chosen_tasks(config.tasks)
    if config.output.directory is not None and not resume:
        EXTRACTION.refuse_to_overwrite(Path(config.output.directory))
    setup = AgentSetup.of(_as_run(resolved))
    return run_interruptibly(_ask_and_store(config, setup, tasks))


def _as_run(resolved: Resolved[ExtractConfig]) -> RunConfig:
    """The configuration of a run with this model and protocol.

    Where none are given, thinking-bash has the prompt and the rendering that it was trained with.
    """
    config = resolved.config
    model, agent = config.model.model_dump(), config.agent.model_dump()
    if config.agent.protocol == ThinkingBash.name:
        agent["prompt"] = config.agent.prompt or str(default_prompt(config.agent.protocol))
        if "model.template" not in resolved.origins:
            model["template"] = preset(ThinkingBash.name)["model"]["template"]
    return RunConfig.model_validate({"model": model, "agent": agent})


async def _ask_and_store(config: ExtractConfig, setup: AgentSetup, tasks: TaskSet) -> Path:
    chat, served = await connect(setup.config.model, lambda text: print_line(text, err=True))
    assert setup.protocol is not None
    path = Path(config.output.directory) if config.output.directory else default_directory(served.id)
    try:
        manifest = make_manifest(config.tasks.source, tasks, config.tasks.planned_seeds, setup.protocol, chat, served)
        with contextlib.closing(ExtractionDirectory.open(path, manifest)) as directory:
            missing = still_open(manifest, directory.answered)
            progress = ProgressLines(len(missing))

            def keep(record: ReplyRecord) -> None:
                directory.append(record)
                progress(record)

            try:
                await ask_all(chat, setup.protocol, missing, keep, concurrency=config.schedule.concurrency)
            except asyncio.CancelledError:
                print_line(f"interrupted; what was answered is kept, go on with --resume --output {path}", err=True)
                raise click.exceptions.Exit(exit_codes.INTERRUPTED) from None
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
            print_line(f"{record.task} seed {record.seed}: {record.error}", err=True)
        if self._done % _REPLIES_PER_LINE == 0 or self._done == self._total:
            print_line(f"{self._done}/{self._total} asked, {self._errors} without a reply", err=True)
