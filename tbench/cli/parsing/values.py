"""Types of option values; a shell can complete those with a fixed set of values."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

PATH_TYPE = click.Path(path_type=Path)
"""A path, passed as a pathlib.Path."""
NAME_TYPE = click.Path(readable=False)
"""A path or another name, such as `bundled`: the shell completes paths, and nothing is checked."""


class Integer(click.IntRange):
    """An integer within bounds, or with none."""

    name = "integer"

    def _describe_range(self) -> str:
        return super()._describe_range() if (self.min, self.max) != (None, None) else "any integer"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the placeholder that options from settings have, too."""
        return "INT"


class Number(click.FloatRange):
    """A number within bounds."""

    name = "number"

    def _describe_range(self) -> str:
        return super()._describe_range() if (self.min, self.max) != (None, None) else ""

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """Return the placeholder that options from settings have, too."""
        return "FLOAT"


class UnknownValue(click.BadParameter):
    """Raised for a value outside the known ones; the message begins with the value."""


class OneOf(click.Choice[str]):
    """One of a fixed set of words."""

    def __init__(self, *known: str) -> None:
        super().__init__(known)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in self.choices:
            raise UnknownValue(f"{value}: unknown; known: {', '.join(self.choices)}", ctx, param)
        return str(value)
