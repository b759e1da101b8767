"""`tbench setup`, `doctor` and `clean`: prepare, check and tidy up the machine and its engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import click

from tbench import exit_codes
from tbench.cli.common import engines_option
from tbench.cli.interruption import run_interruptibly
from tbench.cli.parsing.commands import TbenchCommand, flag, option
from tbench.cli.printing import print_json, print_line, print_lines, print_progress, print_table

if TYPE_CHECKING:
    from tbench.config.settings import RunConfig
    from tbench.doctor import Finding
    from tbench.doctor.connection import ProcessContext
    from tbench.doctor.endpoint import Feature

# `tbench setup`


@click.command(cls=TbenchCommand)
@engines_option
def setup(engines: tuple[str, ...]) -> None:
    """Prepare the machine: install and start an engine if needed, pull base images, build the tools volume."""

    from tbench.config.settings import SandboxConfig
    from tbench.errors import UsageError
    from tbench.fleet.engines import Engines
    from tbench.sandbox.docker.engine import Engine, EngineError
    from tbench.sandbox.docker.networks import ensure_network
    from tbench.sandbox.docker.podman import podman_remedy
    from tbench.sandbox.docker.tools import ensure_base_images, ensure_engine_runs, ensure_tools
    from tbench.sandbox.oci.backend import set_up

    async def prepare(name: str, engine: Engine) -> str:
        def tell(text: str) -> None:
            print_progress(f"{name}{text}")

        await ensure_base_images(engine, tell)
        await ensure_network(engine)
        return await ensure_tools(engine, tell)

    if not engines:
        ensure_engine_runs(print_progress)
    with contextlib.closing(Engines.connect(SandboxConfig(engines=engines))) as connected:
        if connected.store is not None:
            run_interruptibly(set_up(connected.store, print_progress))
            print_progress(f"setup: {connected.store.root}: ready")
            return
        for name, engine in zip(connected.names, connected.all, strict=True):
            try:
                volume = run_interruptibly(prepare(name, engine))
            except EngineError as error:
                remedy = podman_remedy(str(error), is_rootless=engine.info.is_rootless)
                raise UsageError(f"{name}the engine failed: {error}{f'; {remedy}' if remedy else ''}") from None
            print_progress(
                f"setup: {name}engine {engine.info.version}, {engine.info.cpus} cpus, tools in {volume}: ready"
            )


# `tbench doctor`


@click.command(cls=TbenchCommand)
@option("--base-url", "Also check this endpoint.", envvar="OPENAI_BASE_URL", show_envvar=True)
@option(
    "--model -m NAME",
    "Also test a model's features: seeds, tools, logprobs …; NAME may be omitted if there is only one.",
    is_flag=False,
    flag_value="",
)
@option("--agent NAME", "Also try a packaged agent with the model, on a tiny task.")
@option("--engine ADDRESS", "Engine address as for tbench run. Default: DOCKER_HOST, or else the first that answers.")
@flag("--json", "Print one JSON object instead of lines.", name="as_json")
def doctor(base_url: str | None, model: str | None, agent: str | None, engine: str | None, as_json: bool) -> None:
    """Check machine, engine, network and endpoint; exit with 2 if a check fails."""
    import asyncio
    import os
    from pathlib import Path

    from tbench.agents.endpoints import listed_models
    from tbench.agents.setup import LOCAL_ENDPOINT
    from tbench.config.settings import NO_ENGINE
    from tbench.doctor.examination import Subject, examination, examination_without_engine
    from tbench.errors import UsageError
    from tbench.sandbox.oci.store import Store

    key = os.environ.get("OPENAI_API_KEY")
    if not base_url and not key and asyncio.run(listed_models(LOCAL_ENDPOINT)):
        base_url = LOCAL_ENDPOINT
    for name, value in (("--model", model), ("--agent", agent)):
        if value is not None and not base_url:
            raise UsageError(f"{name}: needs --base-url or OPENAI_BASE_URL")
    config = None if agent is None else _agent_config(agent, base_url, model, engine)
    subject = Subject(Path("runs"), base_url, model or None, key)
    if engine is not None and engine.startswith(NO_ENGINE):
        findings = run_interruptibly(examination_without_engine(subject, Store.at(engine)))
    else:
        with _process_context(engine) as here:
            findings = run_interruptibly(examination(subject, here))
    failed = [finding.name for finding in findings if finding.status == "fail"]
    if config is not None and "endpoint" not in failed:
        findings += run_interruptibly(_try_agent(config))
        failed = [finding.name for finding in findings if finding.status == "fail"]
    features: list[Feature] = []
    if model is not None and base_url and "endpoint" not in failed:
        features = run_interruptibly(_features(base_url, model or None, key))
    _print_json(findings, features) if as_json else _print_lines(findings, features)
    if failed:
        raise click.exceptions.Exit(exit_codes.USAGE)


def _agent_config(agent: str, base_url: str | None, model: str | None, engine: str | None) -> RunConfig:
    """Return the configuration of an agent's trial, with its package in the cache. Raises UsageError."""
    from tbench.agents.recipe import is_recipe, known_recipes
    from tbench.agents.setup import package_of
    from tbench.config.settings import RunConfig
    from tbench.doctor.agent import MAX_TOKENS, STEPS
    from tbench.errors import UsageError

    if not is_recipe(agent):
        raise UsageError(
            f"--agent {agent}: is not a packaged one; known: {', '.join(known_recipes())}, or a recipe.toml"
        )
    config = RunConfig().with_values(
        agent={"name": agent},
        model={"base_url": base_url, "name": model or None, "max_tokens": MAX_TOKENS},
        limits={"steps": STEPS},
        schedule={"retries": 0},
        verify={"mode": "shared"},
        sandbox={"engines": (engine,) if engine else ()},
    )
    package_of(config.agent)
    return config


async def _try_agent(config: RunConfig) -> list[Finding]:
    """Run an agent once on a tiny task, and report the features that its model lacks."""
    import tempfile
    from pathlib import Path

    from tbench.agents.recipe import load_recipe
    from tbench.api.runner import Runner, TrialFailed
    from tbench.doctor import CheckStatus, Finding
    from tbench.doctor.agent import Tried, judge, write_tiny_task
    from tbench.errors import TbenchError
    from tbench.storage.read_run import read_run, read_steps
    from tbench.storage.run_files import trial_directory
    from tbench.tasks.task import Task

    recipe = load_recipe(config.agent.name)
    print_line(f"agent: trying {recipe.title} on a tiny task", err=True)
    with tempfile.TemporaryDirectory(prefix="tbench-doctor-") as folder:
        task, error = Task.read(write_tiny_task(Path(folder))), ""
        try:
            async with Runner(config, directory=Path(folder, "run")) as runner:
                try:
                    result = (await runner.trial(task)).result
                except TrialFailed as failed:
                    result, error = failed.result, str(failed)
                run = runner.directory
            steps = read_steps(trial_directory(run, result.task, result.seed, result.attempt))
            document = read_run(run).document
        except TbenchError as failed:
            return [Finding(recipe.title, CheckStatus.FAIL, str(failed), "do what the message says")]
    served = document.locked.served if document is not None else None
    context_tokens = served.context_tokens if served is not None else None
    tried = Tried(steps, result.outcome, bool(result.reward), error, context_tokens, recipe.calls_tools)
    return judge(recipe.title, tried)


@contextlib.contextmanager
def _process_context(engine: str | None) -> Iterator[ProcessContext]:
    """Yield this process and its engine, connected for the block. Raises UsageError if the connection fails."""
    from dataclasses import replace

    from tbench.doctor.connection import ProcessContext
    from tbench.fleet.forward import SshForward
    from tbench.fleet.machine import EngineAddress

    address = EngineAddress.parse(engine) if engine is not None else None
    here = ProcessContext.of_this_process(host=address.text if address is not None else None)
    if address is None or address.scheme != "ssh":
        yield here
        return
    with contextlib.closing(SshForward(address)) as forward:
        forward.connect()
        yield replace(here, host=forward.host, over_ssh=address.text)


async def _features(base_url: str, model: str | None, key: str | None) -> list[Feature]:
    from tbench.doctor.endpoint import probe_features, served_model

    name = await served_model(base_url, model, key)
    return [] if name is None else await probe_features(base_url, name, key)


def _print_json(findings: list[Finding], features: list[Feature]) -> None:
    from dataclasses import asdict

    whole: dict[str, Any] = {
        "ok": all(finding.status != "fail" for finding in findings),
        "checks": [asdict(each) for each in findings],
    }
    if features:
        whole |= {"features": [asdict(each) for each in features], **_fits(features)}
    print_json(whole)


def _fits(features: list[Feature]) -> dict[str, dict[str, str]]:
    """Return every protocol and preset with the reason why it does not fit; an empty reason means that it fits."""
    from tbench.config.layers import PRESETS, preset
    from tbench.doctor.endpoint import usable_protocols

    protocols = usable_protocols(features)
    completions = next((each.can for each in features if each.name == "completions"), "yes")
    presets = {}
    for name in PRESETS:
        values = preset(name)
        why = protocols[values["agent"]["protocol"]]
        if not why and values.get("model", {}).get("template", "server") != "server" and completions == "no":
            why = "it renders prompts, which needs /v1/completions"
        presets[name] = why
    return {"protocols": protocols, "presets": presets}


def _print_features(features: list[Feature]) -> None:
    from tbench.text import plain

    print_line("")
    print_table(("feature", "can", "seen"), [(each.name, each.can, plain(each.seen, 200)) for each in features])
    print_line("")
    for kind, found in _fits(features).items():
        print_line(f"usable {kind}: {', '.join(name for name, why in found.items() if not why) or 'none'}")
        for name, why in found.items():
            if why:
                print_line(f"  not {name}: {why}")


def _print_lines(findings: list[Finding], features: list[Feature]) -> None:
    from tbench.text import plain

    width = max(len(finding.name) for finding in findings)
    for finding in findings:
        print_line(f"{finding.status:<8}{finding.name:<{width}}  {plain(finding.seen, 400)}")
        if finding.advice:
            print_line(f"{'':<{8 + width}}  -> {plain(finding.advice, 400)}")
    counts = {status: sum(finding.status == status for finding in findings) for status in ("fail", "warn", "skipped")}
    summary = ", ".join(f"{number} {status}" for status, number in counts.items() if number)
    print_line(f"{len(findings)} checks: {summary or 'all ok'}")
    if features:
        _print_features(features)


# `tbench clean`


@click.command(cls=TbenchCommand)
@flag(
    "--all",
    "Also remove shared and kept objects, built images, and objects that other machines' runs may be using.",
    name="everything",
)
@flag("--kept", "Also remove kept and interrupted trials' containers, and snapshots.")
@option("--run", "Only remove objects of the run with this name.")
@flag("--dry-run", "Only print what would be removed.")
@engines_option
def clean(everything: bool, kept: bool, run: str | None, dry_run: bool, engines: tuple[str, ...]) -> None:
    """Remove what ended runs left behind: containers, networks, unnamed images; nothing of a run in progress."""
    from functools import partial

    from tbench.config.settings import SandboxConfig
    from tbench.fleet.engines import Engines
    from tbench.sandbox.docker.cleaning import clean as clean_engine
    from tbench.sandbox.leftovers import Scope
    from tbench.sandbox.oci.cleaning import clean as clean_store

    scope, removed, failed = Scope(everything=everything, kept=kept, run=run), 0, 0
    with contextlib.closing(Engines.connect(SandboxConfig(engines=engines))) as connected:
        cleanings = [
            (name, partial(clean_engine, engine)) for name, engine in zip(connected.names, connected.all, strict=False)
        ]
        for engine in connected.all:
            if engine.notice:
                print_line(engine.notice, err=True)
        if connected.store is not None:
            cleanings = [("", partial(clean_store, connected.store))]
        for name, cleaning in cleanings:
            done = run_interruptibly(cleaning(scope, dry_run=dry_run))
            print_lines(f"{name}{'would remove' if dry_run else 'removed'} {line}" for line in done.removed)
            print_lines(f"{name}kept {line}" for line in done.kept)
            print_lines((f"tbench: {name}could not remove {line}" for line in done.failed), err=True)
            removed, failed = removed + len(done.removed), failed + len(done.failed)
    if failed:
        raise click.exceptions.Exit(exit_codes.USAGE)
    if not removed:
        print_line("nothing to remove")
