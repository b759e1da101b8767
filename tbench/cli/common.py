"""Options and functions that several commands share."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tbench.cli.parsing.commands import Command, argument, flag, option
from tbench.cli.printing import print_line, print_progress
from tbench.errors import UsageError

if TYPE_CHECKING:
    from pydantic import BaseModel

    from tbench.cli.parsing.configured import GivenSettings
    from tbench.config.document import RunDocument
    from tbench.config.layers import Resolved
    from tbench.config.settings import RunConfig, SandboxConfig, TasksConfig
    from tbench.tasks.sources import TaskSet

Config = TypeVar("Config", bound="BaseModel")
task_option = option("--task -t GLOB", "Only tasks whose name matches this glob; repeatable.", multiple=True)
json_option = flag("--json", "Print one JSON object instead of text.", name="as_json")
engines_option = option(
    "--engine ADDRESS",
    "Engine address as for tbench run; repeatable. Default: DOCKER_HOST, or else the first that answers.",
    name="engines",
    multiple=True,
)


def runs_argument(help: str) -> Callable[[Command], Command]:
    """Return an argument `runs` for one or more paths of runs."""
    return argument("runs", "RUN...", help, required=True)


def sandbox_config(given: Mapping[str, Any]) -> SandboxConfig:
    """Return the sandbox settings of an interactive command: its options, and the proxy from the environment.

    Raises UsageError.
    """
    from tbench.config.layers import Layers
    from tbench.config.settings import RunConfig

    layers = Layers(RunConfig)
    values = layers.environment(os.environ, {"sandbox.container_proxy"})
    options = {name: value for name, value in given.items() if value is not None}
    values += [
        layers.option(f"sandbox.{name}", value, f"--{name.replace('_', '-')}") for name, value in options.items()
    ]
    return layers.resolve(values).config.sandbox


def read_selected_tasks(chosen: TasksConfig, earlier: RunDocument | None = None) -> TaskSet:
    """Read the tasks that a configuration chooses, in the dataset version of `earlier` if that run is resumed.

    Prints on stderr what is fetched. Raises UsageError.
    """
    from tbench.datasets.known_dataset import Access
    from tbench.datasets.read_tasks import read_selected
    from tbench.datasets.reference import stored_source
    from tbench.tasks.sources import TaskChoice

    is_same = earlier is not None and earlier.config.tasks.source == stored_source(chosen.source)
    access = Access(chosen.registry, chosen.refresh, chosen.offline, print_progress)
    choice = TaskChoice(chosen.include, chosen.exclude, chosen.limit)
    return read_selected(chosen.source, choice, access, earlier.dataset if earlier and is_same else None)


def with_endpoint(given: GivenSettings[Config]) -> GivenSettings[Config]:
    """Return the settings, with a model server on this machine if the agent needs an endpoint and has none."""
    from tbench.agents.setup import LOCAL_ENDPOINT

    every: list[Any] = [resolved.config for resolved in given.resolve_each()]
    is_model = getattr(getattr(every[0], "agent", None), "name", "model") == "model"
    if not is_model or all(each.model.base_url or getattr(each.model, "endpoints", ()) for each in every):
        return given
    from tbench.agents.endpoints import listed_models  # imports the clients, which an oracle does not need

    if not asyncio.run(listed_models(LOCAL_ENDPOINT)):
        return given
    if os.environ.get("OPENAI_API_KEY"):
        raise UsageError(f"no endpoint: {LOCAL_ENDPOINT} answers; to send OPENAI_API_KEY there, give it as --base-url")
    print_line(f"endpoint: {LOCAL_ENDPOINT}, as it answers and no other is given", err=True)
    found = given.layers.option("model.base_url", LOCAL_ENDPOINT, "found")
    return replace(given, values=[found, *given.values])


def choose_endpoint(url: str | None, model: str | None) -> tuple[str | None, str | None]:
    """Return URL and model for a new configuration file: given, found, or asked for on a terminal."""
    from tbench.agents.endpoints import listed_models
    from tbench.agents.setup import LOCAL_ENDPOINT

    url = url or os.environ.get("OPENAI_BASE_URL", "").strip() or None
    if url is None and asyncio.run(listed_models(LOCAL_ENDPOINT)):
        url = LOCAL_ENDPOINT
    may_ask = sys.stdin.isatty()
    if url is None and may_ask:
        asked = "Endpoint, such as http://HOST:8000/v1 (empty for none)"
        url = click.prompt(asked, default="", show_default=False, err=True).strip() or None
    if url is not None and model is None:
        key = None if url == LOCAL_ENDPOINT else os.environ.get("OPENAI_API_KEY")
        models = asyncio.run(listed_models(url, key))
        if len(models) > 1 and may_ask:
            return url, click.prompt("Model", type=click.Choice(models), err=True)
        model = models[0] if len(models) == 1 else None
    return url, model


def write_new(file: Path, text: str) -> None:
    """Write a new file. Raises UsageError if it exists or cannot be written."""
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        raise UsageError(f"{file}: already exists; name a new file (nothing is overwritten)") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror or error}") from None


def reject_pull_with_build(resolved: Resolved[RunConfig]) -> None:
    """Raise UsageError for `--pull always` with `--build`, if both are given as flags.

    If one of them comes from a file or the environment, the flag wins.
    """
    sandbox, origins = resolved.config.sandbox, resolved.origins
    given = [origins.get(path, "") for path in ("sandbox.build", "sandbox.pull")]
    if sandbox.build and sandbox.pull == "always" and all(origin.startswith("-") for origin in given):
        raise UsageError("--pull always: has no effect with --build, which pulls nothing; leave out one of them")


async def stdin_chunks() -> AsyncIterator[bytes]:
    """Yield pieces of stdin as they arrive."""
    loop, typed = asyncio.get_running_loop(), asyncio.Queue[bytes]()
    try:
        # Read in the callback: later stdin may no longer be readable, and nothing here may block.
        loop.add_reader(0, lambda: typed.put_nowait(read_stdin()))
    except PermissionError:  # a file, or /dev/null: always readable
        while data := os.read(0, 1 << 16):
            yield data
        return
    try:
        while data := await typed.get():
            yield data
    finally:
        loop.remove_reader(0)


def read_stdin() -> bytes:
    """Read what stdin holds now; empty if its terminal was closed."""
    try:
        return os.read(0, 1 << 16)
    except OSError:
        return b""
