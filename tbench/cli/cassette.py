"""`tbench cassette`: replies of a model in a file, served again."""

from __future__ import annotations

from pathlib import Path

import click

from tbench.cli.parsing.commands import Argument, Lazy, LazyGroup, TbenchCommand
from tbench.cli.parsing.values import A_PATH, Integer
from tbench.cli.printing import print_line

COMMANDS = {
    "play": Lazy("tbench.cli.cassette", "play", "Serve the replies in a cassette as an OpenAI-compatible endpoint."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def cassette() -> None:
    """Serve recorded replies of a model again."""


@click.command(cls=TbenchCommand)
@click.argument("file", cls=Argument, metavar="FILE", type=A_PATH, help="A cassette, such as the debugger saves.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=Integer(min=0, max=65535), default=8124, help="Port; 0 picks a free one.")
def play(file: Path, host: str, port: int) -> None:
    """Serve the replies in a cassette as an OpenAI-compatible endpoint."""
    from tbench.cassettes.cassette import Cassette, CassetteUnreadable
    from tbench.cassettes.player import CassettePlayer
    from tbench.errors import UsageError
    from tbench.text import counted

    try:
        found = Cassette.read(file)
        player = CassettePlayer(found, (host, port))
    except CassetteUnreadable as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{host}:{port}: cannot listen: {error.strerror or error}; choose another --port") from None
    names = ", ".join(str(model["id"]) for model in found.models)
    try:
        print_line(f"{names} at {player.base_url}: {counted(len(found.exchanges), 'exchange')} of {file}, no model")
        player.serve_forever()
    finally:
        player.close()
        print_line(f"cassette: {player.answered} answered, {player.refused} refused", err=True)
