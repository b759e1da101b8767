"""Kinds of values that options take; a shell can complete those that are one of a few."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    pass

A_PATH = click.Path(path_type=Path)
"""A path as pathlib has it."""
A_NAME = click.Path(readable=False)
"""A path that may also be something else, such as `bundled`: the shell completes paths, and nothing is checked."""


class Integer(click.IntRange):
    """A whole number within bounds."""

    name = "integer"


class Number(click.FloatRange):
    """A number within bounds."""

    name = "number"


class UnknownValue(click.BadParameter):
    """A value that is none of those that there are; the message begins with it."""


class OneOf(click.Choice[str]):
    """One of a few words; whatever else is refused."""

    def __init__(self, *known: str) -> None:
        super().__init__(known)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            raise UnknownValue(f"{value}: unknown; known: {', '.join(self.choices)}", ctx, param)
        return str(value)
