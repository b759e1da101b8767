"""`tbench config`: show and document the configuration of a run, without starting anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import click

from tbench.cli.common import choose_endpoint, write_new
from tbench.cli.parsing.commands import LazyGroup, TbenchCommand, argument
from tbench.cli.parsing.configured import ConfiguredCommand, GivenSettings
from tbench.cli.printing import print_json, print_line, print_text
from tbench.config.settings import RunConfig

COMMANDS = {
    "show": "tbench.cli.config:show",
    "schema": "tbench.cli.config:schema",
    "init": "tbench.cli.config:init",
}


@click.group(cls=LazyGroup, table=COMMANDS)
def config() -> None:
    """Show a run's settings, or write them to a file."""


@click.command(cls=ConfiguredCommand, configuration=RunConfig)
def show(given: GivenSettings[RunConfig]) -> None:
    """Print the configuration that `tbench run` would use, and the origin of each value."""
    from tbench.config.formatting import setting_lines

    for line in setting_lines(given.resolve()):
        print_text(line)


@click.command(cls=TbenchCommand)
def schema() -> None:
    """Print the JSON schema of the configuration."""

    from tbench.config.setting import json_schema

    print_json(json_schema(RunConfig))


@click.command(cls=ConfiguredCommand, configuration=RunConfig)
@argument("file", "FILE", "A new file; default: print it.", required=False)
def init(file: Path | None, given: GivenSettings[RunConfig]) -> None:
    """Write a configuration file with every setting, its help and its default; options that you give are set."""
    from tbench.config.formatting import commented_file

    model = given.resolve().config.model
    found = zip(("model.base_url", "model.name"), choose_endpoint(model.base_url, model.name), strict=True)
    values = [given.layers.option(path, value, path) for path, value in found if value and not model.endpoints]
    text = commented_file(RunConfig, resolved=replace(given, values=[*given.values, *values]).resolve())
    if file is None:
        print_text(text, nl=False)
        return
    write_new(file, text)
    print_line(f"written: {file}")
