"""`tbench setup`: everything that a machine needs once, each part only where it is missing."""

from __future__ import annotations

import click

from tbench.cli.common import engines_option
from tbench.cli.parsing.commands import TbenchCommand
from tbench.cli.printing import print_line


@click.command(cls=TbenchCommand)
@engines_option
def setup(engines: tuple[str, ...]) -> None:
    """Make sure that an engine answers, base images are there and the tools volume is built."""
    import asyncio
    import contextlib

    from tbench.config.settings import SandboxConfig
    from tbench.errors import UsageError
    from tbench.fleet.engines import Engines
    from tbench.sandbox.docker.engine import Engine, EngineError
    from tbench.sandbox.docker.networking.bridge import ensure_network
    from tbench.sandbox.docker.tools import ensure_base_images, ensure_engine_runs, ensure_tools

    def say(text: str) -> None:
        print_line(text, err=True)

    async def prepare(name: str, engine: Engine) -> str:
        def tell(text: str) -> None:
            say(f"{name}{text}")

        await ensure_base_images(engine, tell)
        await ensure_network(engine)
        return await ensure_tools(engine, tell)

    if not engines:
        ensure_engine_runs(say)
    with contextlib.closing(Engines.connect(SandboxConfig(engines=engines))) as connected:
        for name, engine in zip(connected.names, connected.all, strict=True):
            try:
                volume = asyncio.run(prepare(name, engine))
            except EngineError as error:
                raise UsageError(f"{name}the engine failed: {error}") from None
            say(f"setup: {name}engine {engine.info.version}, {engine.info.cpus} cpus, tools in {volume}: ready")
