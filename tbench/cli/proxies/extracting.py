"""From resolved options to stored replies: connects the endpoint, asks, stores."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import typer

from harness.chat import ChatModel
from harness.protocols.thinking_bash import ThinkingBash
from tbench import __version__
from tbench.agents.presets import THINKING_BASH
from tbench.cli.execute import connect, say_before_the_run
from tbench.cli.interruption import EXIT_INTERRUPTED, interruptible
from tbench.cli.options import AgentSetup, RunOptions
from tbench.cli.proxies.extracted import rewards_of
from tbench.errors import UsageError
from tbench.events import Events
from tbench.files import is_unused, refuse_to_overwrite
from tbench.proxies.extraction.asking import ask_all, default_prompt, entries, still_open
from tbench.proxies.extraction.records import Directory, ExtractionManifest, ReplyRecord, check_same
from tbench.proxies.extraction.syntax import BashSyntax
from tbench.tasks.sources import BUNDLED, TaskSet, read_tasks

_TELL_EVERY = 50
"""Replies."""


@dataclass(frozen=True)
class AskOptions:
    """What the user asked for."""

    run: RunOptions
    output: Path | None
    resume: bool
    relevance: str
    conciseness: str


def ask_and_store(options: AskOptions) -> Path:
    """The directory with the replies. Raises UsageError, before anything is asked for what can be told then."""
    rewards_of(options.relevance, options.conciseness)
    BashSyntax()
    if options.resume and options.output is None:
        raise UsageError("--resume: which extraction? Give its directory with --output")
    tasks = read_tasks(options.run.source, options.run.patterns)
    if options.output is not None and not options.resume:
        refuse_to_overwrite(options.output)
    wanted = _with_defaults(options.run)
    setup = AgentSetup.of(wanted)
    return asyncio.run(_ask_and_store(options, wanted, setup, tasks))


def _with_defaults(options: RunOptions) -> RunOptions:
    """The prompt and the rendering that thinking-bash was trained with, where nothing else is asked for."""
    model = options.model
    if model.protocol != ThinkingBash.name:
        return options
    prompt = model.prompt or str(default_prompt(model.protocol))
    rendering = {**THINKING_BASH.rendering, **model.rendering}
    return replace(options, model=replace(model, prompt=prompt, rendering=rendering))


async def _ask_and_store(options: AskOptions, wanted: RunOptions, setup: AgentSetup, tasks: TaskSet) -> Path:
    chat, served = await connect(wanted.model, setup, Events(say_before_the_run))
    assert chat is not None and served is not None and setup.protocol is not None
    try:
        manifest = _manifest(wanted, setup, tasks, chat, served.model_dump())
        path = options.output or Path(_default_directory(served.id))
        directory = _directory(path, manifest)
        replies, _ = directory.replies()
        answered = [key for key, record in replies.items() if record.error is None]
        wanted_replies = still_open(manifest, answered)
        tell = _Telling(len(wanted_replies))
        with interruptible() as is_interrupted:
            try:
                await ask_all(
                    chat, setup.protocol, wanted_replies, directory, concurrency=wanted.concurrency, on_reply=tell.reply
                )
            except asyncio.CancelledError:
                if not is_interrupted():
                    raise
                typer.echo(f"interrupted; what was answered is kept, go on with --resume --output {path}", err=True)
                raise typer.Exit(EXIT_INTERRUPTED) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error.strerror or error}; make room, then --resume") from None
    finally:
        await chat.close()
    return path


def _manifest(
    wanted: RunOptions, setup: AgentSetup, tasks: TaskSet, chat: ChatModel, served: dict[str, Any]
) -> ExtractionManifest:
    assert setup.protocol is not None and setup.sampling is not None and setup.rendering is not None
    return ExtractionManifest(
        source=wanted.source if wanted.source == BUNDLED else str(Path(wanted.source).resolve()),
        tasks=entries(tasks),
        seeds=wanted.seeds,
        protocol=setup.protocol.name,
        prompt_hash=setup.protocol.prompt_hash,
        sampling=setup.sampling.model_dump(mode="json"),
        rendering=setup.rendering.model_dump(mode="json"),
        model=served["id"],
        base_url=chat.url,
        served=served,
        tbench_version=__version__,
        created_at=datetime.now(UTC).isoformat(),
    )


def _directory(path: Path, manifest: ExtractionManifest) -> Directory:
    """A new one, or the one that goes on; its manifest has the seeds of both."""
    if is_unused(path):
        return Directory.create(path, manifest)
    before = Directory(path).manifest()
    check_same(before, manifest, path)
    return Directory.create(path, manifest.model_copy(update={"created_at": before.created_at}))


class _Telling:
    """Progress on stderr, now and then."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._done = self._errors = 0

    def reply(self, record: ReplyRecord) -> None:
        self._done += 1
        self._errors += record.error is not None
        if record.error is not None and self._errors <= 3:
            typer.echo(f"{record.task} seed {record.seed}: {record.error}", err=True)
        if self._done % _TELL_EVERY == 0 or self._done == self._total:
            typer.echo(f"{self._done}/{self._total} asked, {self._errors} without a reply", err=True)


def _default_directory(model: str) -> str:
    slug = re.sub(r"[^\w.-]+", "-", model).strip("-.") or "model"
    return f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}_{slug}_extract"
