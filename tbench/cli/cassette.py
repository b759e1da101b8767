"""`tbench cassette`: replies of a model in a file, served again."""

from __future__ import annotations

from pathlib import Path

import click

from tbench.cli.parsing.commands import Argument, Lazy, LazyGroup, TbenchCommand
from tbench.cli.parsing.values import A_PATH, Integer
from tbench.cli.printing import print_line

COMMANDS = {
    "record": Lazy("tbench.cli.cassette", "record", "Write what clients ask an endpoint, and what it answers."),
    "play": Lazy("tbench.cli.cassette", "play", "Serve the replies in a cassette as an OpenAI-compatible endpoint."),
}


@click.group(cls=LazyGroup, table=COMMANDS)
def cassette() -> None:
    """Record what a model answers, and serve it again."""


@click.command(cls=TbenchCommand)
@click.argument("file", cls=Argument, metavar="FILE", type=A_PATH, help="The cassette, which must be new.")
@click.option("--base-url", metavar="URL", required=True, help="The endpoint that is asked.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=Integer(min=0, max=65535), default=8124, help="Port; 0 picks a free one.")
def record(file: Path, base_url: str, host: str, port: int) -> None:
    """Write what clients ask an endpoint, and what it answers. Give them the address that this prints as --base-url."""
    import os

    from tbench.cassettes.recorder import CassetteRecorder, EndpointSilent
    from tbench.errors import UsageError

    if file.exists():
        raise UsageError(f"{file}: is there already; name a new file")
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        recorder = CassetteRecorder(file, base_url, (host, port), headers=headers)
    except EndpointSilent as error:
        raise UsageError(str(error)) from None
    except OSError as error:
        raise UsageError(f"{error.filename or f'{host}:{port}'}: {error.strerror or error}") from None
    try:
        print_line(f"recording {recorder.base} at {recorder.base_url} into {file}")
        recorder.serve_forever()
    finally:
        recorder.close()
        print_line(f"cassette: {recorder.kept} exchanges in {file}", err=True)


@click.command(cls=TbenchCommand)
@click.argument("file", cls=Argument, metavar="FILE", type=A_PATH, help="A cassette, such as the debugger saves.")
@click.option("--host", default="127.0.0.1", help="Address to listen on.")
@click.option("--port", type=Integer(min=0, max=65535), default=8124, help="Port; 0 picks a free one.")
@click.option("--exact", is_flag=True, help="Refuse a request that was recorded with other times or hashes in it.")
def play(file: Path, host: str, port: int, exact: bool) -> None:
    """Serve the replies in a cassette as an OpenAI-compatible endpoint."""
    from tbench.cassettes.cassette import Cassette, CassetteUnreadable
    from tbench.cassettes.player import CassettePlayer
    from tbench.errors import UsageError
    from tbench.text import counted

    try:
        found = Cassette.read(file)
        player = CassettePlayer(found, (host, port), exact=exact)
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
        alike = f" ({player.alike} of them with other times or the like in them)" if player.alike else ""
        print_line(f"cassette: {player.answered} answered{alike}, {player.refused} refused", err=True)
