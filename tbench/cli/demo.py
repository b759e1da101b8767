"""`tbench demo` and `tbench demo-endpoint`: a whole run without a model, by a script that says that it is one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    app.command()(demo)
    app.command(name="demo-endpoint")(demo_endpoint)


def demo(
    output: Annotated[str | None, typer.Option("--output", "-o", help="Run directory; must be new or empty.")] = None,
    seeds: Annotated[int, typer.Option("--seeds", "-k", min=1, help="Seeds per task.")] = 3,
    concurrency: Annotated[int, typer.Option("--concurrency", "-n", min=1, help="Trials at once.")] = 4,
) -> None:
    """Run bundled tasks against the scripted demo endpoint, score them, write the report."""
    from datetime import datetime

    from reports.page import write_report
    from tbench.cli.execute import execute
    from tbench.cli.options import ModelOptions, RunOptions
    from tbench.cli.run import finish
    from tbench.demo.scripts import SCRIPTS
    from tbench.demo.server import DemoEndpoint

    directory = output or f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}_scripted-demo"
    with DemoEndpoint(_instructions()) as endpoint:
        typer.echo(f"demo: scripted-demo (a script, not a model) answers at {endpoint.base_url}", err=True)
        outcome = execute(
            RunOptions(
                source="bundled",
                patterns=tuple(sorted(path.stem for path in SCRIPTS.glob("*.toml"))),
                seeds=tuple(range(seeds)),
                concurrency=concurrency,
                cpu_overcommit=4.0,  # nothing here is timed, and the script waits for no model
                output=directory,
                model=ModelOptions(base_url=endpoint.base_url),
            )
        )
    typer.echo(f"report: {write_report(Path(directory), None)}")
    finish(outcome, min_coverage=0.0)


def demo_endpoint(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8123,
    latency: Annotated[float, typer.Option(min=0, help="Seconds before each reply.")] = 0.0,
) -> None:
    """Serve scripted-demo over real HTTP: /v1/models, /v1/chat/completions, /v1/completions; replies from a script."""
    from tbench.demo.server import serve
    from tbench.errors import UsageError

    try:
        serve(host, port, _instructions(), latency_sec=latency)
    except OSError as error:
        raise UsageError(f"{host}:{port}: cannot listen: {error.strerror or error}; choose another --port") from None


def _instructions() -> dict[str, str]:
    from tbench.tasks.sources import BUNDLED, read_tasks

    return {task.name: task.instruction for task in read_tasks(BUNDLED).tasks}
