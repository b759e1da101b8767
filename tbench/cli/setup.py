"""`tbench setup`: everything that a machine needs once, each part only where it is missing."""

from __future__ import annotations

import click

from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.printing import print_line


@click.command(cls=TbenchCommand)
def setup() -> None:
    """Make sure that an engine answers, base images are there and the tools volume is built."""
    import asyncio

    from tbench.errors import UsageError
    from tbench.sandbox.docker.engine import Engine, EngineError
    from tbench.sandbox.docker.networking.bridge import ensure_network
    from tbench.sandbox.docker.tools import ensure_base_images, ensure_engine_runs, ensure_tools

    def say(text: str) -> None:
        print_line(text, err=True)

    ensure_engine_runs(say)
    engine = Engine.connect()

    async def prepare() -> str:
        await ensure_base_images(engine, say)
        await ensure_network(engine)
        return await ensure_tools(engine, say)

    try:
        volume = asyncio.run(prepare())
    except EngineError as error:
        raise UsageError(f"the engine failed: {error}") from None
    finally:
        engine.close()
    say(f"setup: engine {engine.info.version}, {engine.info.cpus} cpus, tools in {volume}: ready")
