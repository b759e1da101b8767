"""`tbench debug`: one trial, step by step."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import click

from tbench.cli.parsing.commands import Argument
from tbench.cli.parsing.configured import ConfiguredCommand, Given
from tbench.cli.parsing.values import A_NAME
from tbench.config.setting import settings_of
from tbench.config.settings import RunConfig

_OF_ONE_TRIAL = {
    *(
        setting.path
        for setting in settings_of(RunConfig)
        if setting.section in ("model", "agent", "limits", "sandbox", "overrides", "verify")
    ),
    *("tasks.first_seed", "tasks.registry", "tasks.refresh", "tasks.offline", "output.directory"),
} - {"sandbox.prefetch", "sandbox.drop_images"}
"""Settings that mean something where there is one trial."""


class DebugCommand(ConfiguredCommand[RunConfig]):
    """A command that runs one trial of a configuration."""

    def __init__(self, *arguments: Any, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.shows_defaults = True


@click.command(cls=DebugCommand, configuration=RunConfig, only=_OF_ONE_TRIAL)
@click.argument(
    "what",
    cls=Argument,
    metavar="TASK",
    type=A_NAME,
    help="A task: its directory, or its name in the dataset. Or a trial under way: RUN/TASK/SEED.",
)
@click.option("--dataset", "-d", metavar="NAME", default="bundled", help="Where a task is looked up by its name.")
@click.option("--do", "commands", metavar="COMMANDS", help="Do these, with ; between them, and print what happens.")
@click.option("--plain", is_flag=True, help="Read commands from stdin, a line each; so it is without a terminal.")
def debug(what: str, given: Given[RunConfig], dataset: str, commands: str | None, plain: bool) -> None:
    """Run one trial step by step on one screen: look, decide about each reply, type, verify, go back."""
    from tbench.cli.debug.session import Manner, debug_task, debug_trial

    manner = Manner.chosen(commands, plain=plain)
    if is_trial(what):
        debug_trial(what, given, manner)
    else:
        debug_task(what, dataset, given.resolve().config, manner)


def is_trial(what: str) -> bool:
    """Whether a trial is meant, and no task: by the seed at the end, and by what is there."""
    return re.search(r".+/(?:seed-)?\d+/?\Z", what) is not None and not (Path(what) / "task.toml").is_file()
