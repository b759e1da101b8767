"""Options and steps that several commands share."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tbench.cli.parsing.commands import Argument
from tbench.cli.parsing.values import A_PATH
from tbench.errors import UsageError

if TYPE_CHECKING:
    from tbench.config.layers import Resolved
    from tbench.config.settings import RunConfig, SandboxConfig

Command = TypeVar("Command", bound=Callable[..., Any])
task_option = click.option("--task", "-t", multiple=True, help="Only tasks whose name matches this glob (repeatable).")
json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON object instead of tables.")
engines_option = click.option(
    "--engine",
    "engines",
    metavar="ADDRESS",
    multiple=True,
    help="Of this engine, given as for tbench run; repeatable. Without it, DOCKER_HOST says.",
)


def runs_argument(help: str) -> Callable[[Command], Command]:
    """One or more paths of runs, as `runs`."""
    return click.argument("runs", cls=Argument, metavar="RUN...", type=A_PATH, nargs=-1, required=True, help=help)


def sandbox_of(given: Mapping[str, Any]) -> SandboxConfig:
    """What a sandbox by hand may have, of the options for that, and the proxy also of the environment.

    Raises UsageError.
    """
    from tbench.config.layers import Layers
    from tbench.config.settings import RunConfig

    layers = Layers(RunConfig)
    values = layers.environment(os.environ, {"sandbox.container_proxy"})
    options = {name: words for name, words in given.items() if words is not None}
    values += [
        layers.option(f"sandbox.{name}", words, f"--{name.replace('_', '-')}") for name, words in options.items()
    ]
    return layers.resolve(values).config.sandbox


def write_new(file: Path, text: str) -> None:
    """Write a file that is not there yet. Raises UsageError."""
    try:
        with file.open("x", encoding="utf-8") as new:
            new.write(text)
    except FileExistsError:
        raise UsageError(f"{file}: is there already; name a new file (nothing is overwritten)") from None
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error.strerror or error}") from None


def refuse_pull_beside_build(resolved: Resolved[RunConfig]) -> None:
    """Refuse to be told to pull always what is always built. Raises UsageError.

    A file or the environment may say one of them: the flag wins.
    """
    sandbox, origins = resolved.config.sandbox, resolved.origins
    said = [origins.get(path, "") for path in ("sandbox.build", "sandbox.pull")]
    if sandbox.build and sandbox.pull == "always" and all(origin.startswith("-") for origin in said):
        raise UsageError("--pull always: without effect, as --build pulls nothing; leave out one or the other")


async def pieces_of_stdin() -> AsyncIterator[bytes]:
    """Pieces of stdin, as they arrive."""
    loop, typed = asyncio.get_running_loop(), asyncio.Queue[bytes]()
    try:
        # Read where it is known to be readable: a moment later it may not be, and nothing here may block.
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
    """What can be read from stdin now; nothing where its terminal was closed."""
    try:
        return os.read(0, 1 << 16)
    except OSError:
        return b""
