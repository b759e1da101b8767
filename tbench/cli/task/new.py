"""`tbench task new`: a small task that works, for somebody to turn into another one."""

from __future__ import annotations

import re
from pathlib import Path

import click

from tbench.cli.parsing.commands import Argument, TbenchCommand
from tbench.cli.parsing.values import A_NAME, A_PATH
from tbench.cli.printing import print_line

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")


@click.command(cls=TbenchCommand)
@click.argument(
    "name",
    cls=Argument,
    metavar="NAME",
    type=A_NAME,
    help="The task's name, and that of its directory: small letters, digits, '-', '_' and '.'.",
)
@click.option("--dir", "folder", metavar="DIR", type=A_PATH, default=".", help="Where its directory is made.")
def new(name: str, folder: Path) -> None:
    """Write a small task that works, to begin with."""
    from tbench.errors import UsageError
    from tbench.tasks.template import write_template

    if _NAME.fullmatch(name) is None:
        raise UsageError(
            f"{name}: no name of a task; it begins with a small letter or a digit, has only these and '-', '_' and "
            "'.', and at most 64 of them"
        )
    path = folder / name
    write_template(name, path)
    print_line(f"{path}: a task that works; change its files, and try it with: tbench task check {path}")
