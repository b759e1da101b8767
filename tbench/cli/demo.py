"""`tbench demo`, `demo-endpoint` and `cassette`: runs and endpoints that need no model."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import click

from tbench.cli.common import engines_option
from tbench.cli.parsing.commands import Command, LazyGroup, TbenchCommand, argument, flag, option
from tbench.cli.parsing.values import NAME_TYPE, PATH_TYPE, Integer, Number, OneOf
from tbench.cli.printing import print_line


@click.command(cls=TbenchCommand)
@option("--output -o", "The run directory; must be new or empty.", NAME_TYPE)
@option("--seeds -k", "Seeds per task.  [default: 3, with --agent 1]", Integer(min=1))
@option("--concurrency -n", "Number of concurrent trials.", Integer(min=1), default=4)
@option("--agent", "Run this packaged agent; it is fetched if missing.", OneOf("mini-swe-agent"))
@engines_option
def demo(output: str | None, seeds: int | None, concurrency: int, agent: str | None, engines: tuple[str, ...]) -> None:
    """Run bundled tasks against a scripted endpoint; score them and write the report."""
    from datetime import datetime

    from reports.report import write_report
    from tbench.cli.execute import execute
    from tbench.cli.run import exit_with_outcomes
    from tbench.config.settings import RunConfig
    from tbench.demo.scripts import SCRIPTS
    from tbench.demo.server import DemoEndpoint
    from tbench.storage.run_files import RUN

    if agent is not None and (why := _why_missing(agent)):
        print_line(f"demo: skipped: {why}")
        return
    directory = output or f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}_scripted-demo"
    with DemoEndpoint(_instructions()) as endpoint:
        print_line(f"demo: scripted-demo (a script, not a model) answers at {endpoint.base_url}", err=True)
        config = RunConfig.model_validate(
            {
                "tasks": {
                    "include": sorted(path.stem for path in SCRIPTS.glob("*.toml")),
                    "seeds": seeds or (3 if agent is None else 1),
                },
                "agent": {} if agent is None else {"name": agent},
                "model": {"base_url": endpoint.base_url},
                # No task measures time, and the script replies at once, so overcommitment is harmless.
                "schedule": {"concurrency": concurrency, "cpu_overcommit": 4.0, "calibrate": "off"},
                "sandbox": {"engines": engines},
                "output": {"directory": directory},
            }
        )
        RUN.refuse_to_overwrite(Path(directory))
        outcome = execute(config)
    print_line(f"report: {write_report(Path(directory), None)}")
    exit_with_outcomes([outcome], min_coverage=0.0)


def _why_missing(agent: str) -> str:
    """Fetch an agent's package unless it is in the cache. Returns why this failed; empty if it succeeded."""
    from tbench.agents.recipe import load_recipe
    from tbench.cli.agents.commands import fetch
    from tbench.errors import UsageError

    try:
        fetch(load_recipe(agent))
    except UsageError as error:
        return str(error)
    return ""


_host_option = option("--host", "Address to listen on.", default="127.0.0.1")


def _port_option(default: int) -> Callable[[Command], Command]:
    return option("--port", "Port; 0 picks a free one.", Integer(min=0, max=65535), default=default)


@click.command("demo-endpoint", cls=TbenchCommand)
@_host_option
@_port_option(8123)
@option("--served-model-name NAME", "The model's name.", default="scripted-demo")
@option("--latency", "Seconds before each reply.", Number(min=0), default=0.0)
@option("--pass-rates FILE", "TOML file with the pass rate of each task: TASK = 0..1.", PATH_TYPE)
@option("--context-tokens", "The context of the model, in tokens.", Integer(min=256), default=32768)
@option(
    "--thinking",
    "Reply with thinking, which later prompts keep, or drop like some templates.",
    OneOf("kept", "dropped"),
)
@option("--tokens-per-sec", "The pace of replies.  [default: at once]", Number(min=0, min_open=True))
@option("--busy", "Processes per CPU to keep this machine busy with.", Integer(min=0), default=0)
def demo_endpoint(
    host: str,
    port: int,
    served_model_name: str,
    latency: float,
    pass_rates: Path | None,
    context_tokens: int,
    thinking: Literal["kept", "dropped"] | None,
    tokens_per_sec: float | None,
    busy: int,
) -> None:
    """Serve the scripted demo model over HTTP: /v1/models, /v1/chat/completions and /v1/completions."""
    from tbench.demo.replies import Serving
    from tbench.demo.server import serve
    from tbench.errors import UsageError

    rates = {} if pass_rates is None else _rates(pass_rates)
    serving = Serving(context_tokens, thinking, tokens_per_sec, served_model_name)
    try:
        with _busy_machine(busy):
            serve(host, port, _instructions(), latency_sec=latency, pass_rates=rates, serving=serving)
    except OSError as error:
        raise UsageError(f"{host}:{port}: cannot listen: {error.strerror or error}; choose another --port") from None


_BUSY = "import os\nparent = os.getppid()\nos.nice(19)\nwhile os.getppid() == parent: sum(range(10**6))"
"""A process that computes with the lowest priority until its parent has ended, even by a kill."""


@contextlib.contextmanager
def _busy_machine(per_cpu: int) -> Iterator[None]:
    processes = [subprocess.Popen([sys.executable, "-c", _BUSY]) for _ in range(per_cpu * (os.cpu_count() or 1))]
    try:
        yield
    finally:
        for each in processes:
            each.kill()
            each.wait()


def _rates(file: Path) -> dict[str, float]:
    """Read the pass rates in a file, by task. Raises UsageError."""
    from tbench.demo.scripts import SCRIPTS
    from tbench.errors import UsageError
    from tbench.files import read_toml

    rates = read_toml(file, f"--pass-rates {file}")
    known = sorted(path.stem for path in SCRIPTS.glob("*.toml"))
    for task, rate in rates.items():
        if task not in known:
            raise UsageError(f"--pass-rates {file}: {task}: has no script; known tasks: {', '.join(known)}")
        if isinstance(rate, bool) or not isinstance(rate, int | float) or not 0 <= rate <= 1:
            raise UsageError(f"--pass-rates {file}: {task}: must be a number from 0 to 1 (got {rate!r})")
    return rates


def _instructions() -> dict[str, str]:
    from tbench.tasks.sources import BUNDLED, read_tasks

    return {task.name: task.instruction for task in read_tasks(BUNDLED).tasks}


# `tbench cassette`

COMMANDS = {
    "record": "tbench.cli.demo:record",
    "play": "tbench.cli.demo:play",
}


@click.group(cls=LazyGroup, table=COMMANDS)
def cassette() -> None:
    """Record a model's replies and serve them again."""


@click.command(cls=TbenchCommand)
@argument("file", "FILE", "The cassette; must be a new file.")
@option("--base-url URL", "The endpoint to record.", required=True)
@_host_option
@_port_option(8124)
def record(file: Path, base_url: str, host: str, port: int) -> None:
    """Record the requests to an endpoint and its replies. Give clients the printed address as --base-url."""
    from tbench.cassettes.endpoints import CassetteRecorder, EndpointNotListing
    from tbench.errors import UsageError

    if file.exists():
        raise UsageError(f"{file}: already exists; name a new file")
    key = os.environ.get("OPENAI_API_KEY")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        recorder = CassetteRecorder(file, base_url, (host, port), headers=headers)
    except EndpointNotListing as error:
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
@argument("file", "FILE", "A cassette, made by tbench cassette record or saved by the debugger.")
@_host_option
@_port_option(8124)
@flag("--exact", "Require exact matches; by default, times and hashes may differ.")
def play(file: Path, host: str, port: int, exact: bool) -> None:
    """Serve the replies in a cassette as an OpenAI-compatible endpoint."""
    from tbench.cassettes.cassette import Cassette, CassetteUnreadable
    from tbench.cassettes.endpoints import CassettePlayer
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
        print_line(
            f"{names} at {player.base_url}: replaying {counted(len(found.exchanges), 'exchange')} of {file}, no model"
        )
        player.serve_forever()
    finally:
        player.close()
        alike = f" ({player.alike} with different times or hashes)" if player.alike else ""
        print_line(f"cassette: {player.answered} answered{alike}, {player.refused} refused", err=True)
