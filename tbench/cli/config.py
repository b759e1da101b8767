"""`tbench config`: the configuration of a run, shown and explained without starting anything."""

from __future__ import annotations

from pathlib import Path

import click

from tbench.cli.common import write_new
from tbench.cli.parsing.commands import Argument, Lazy, LazyGroup, TbenchCommand
from tbench.cli.parsing.configured import ConfiguredCommand, Given
from tbench.cli.parsing.values import A_PATH
from tbench.cli.printing import print_line, print_text
from tbench.config.settings import RunConfig

COMMANDS = {
    "show": Lazy(
        "tbench.cli.config", "show", "Print the configuration that `tbench run` would have, and where it came from."
    ),
    "schema": Lazy("tbench.cli.config", "schema", "Print the JSON schema of the configuration."),
    "init": Lazy("tbench.cli.config", "init", "Write a file with every setting, its help and its default."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def config() -> None:
    """Show, describe and begin configurations of runs."""


@click.command(cls=ConfiguredCommand, configuration=RunConfig)
def show(given: Given[RunConfig]) -> None:
    """Print the configuration that `tbench run` would have, and where it came from."""
    from tbench.config.text import shown

    for line in shown(given.resolve()):
        print_text(line)


@click.command(cls=TbenchCommand)
def schema() -> None:
    """Print the JSON schema of the configuration."""
    import json

    from tbench.config.setting import schema_of

    print_text(json.dumps(schema_of(RunConfig), indent=2, ensure_ascii=False))


@click.command(cls=TbenchCommand)
@click.argument(
    "file", cls=Argument, metavar="FILE", type=A_PATH, required=False, help="A new file; without one, it is printed."
)
def init(file: Path | None) -> None:
    """Write a file with every setting, its help and its default."""
    from tbench.config.text import commented_file

    text = commented_file(RunConfig)
    if file is None:
        print_text(text, nl=False)
        return
    write_new(file, text)
    print_line(f"written: {file}")
