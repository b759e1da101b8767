"""Every command and option that was ever documented still exists."""

from __future__ import annotations

from pathlib import Path

import click
import pytest

from tbench.cli import app

FLAGS = (Path(__file__).parents[1] / "data" / "flags.txt").read_text().splitlines()
"""One line per option: its command and its names, as before the first rewrite of the command line."""


def command_of(words: list[str]) -> click.Command:
    found: click.Command = app
    for word in words:
        assert isinstance(found, click.Group)
        inner = found.get_command(click.Context(found), word)
        assert inner is not None, word
        found = inner
    return found


@pytest.mark.parametrize("line", FLAGS)
def test_an_option_of_the_past_is_accepted(line: str) -> None:
    words = line.split()
    names = {word for word in words if word.startswith("-")}
    command = command_of([word for word in words[1:] if word not in names])
    accepted = [{*option.opts, *option.secondary_opts} for option in command.params]
    assert any(names <= each for each in accepted) or not names, line
