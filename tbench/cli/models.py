"""Several models or agents in one `tbench run`: a run for each pair, one after the other, and their comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tbench.agents.setup import AgentSetup, connect_if_used
from tbench.cli.comparing.compare import print_comparison
from tbench.cli.execute import MadeImages, directory_name, execute, print_view_command, shows_next, tasks_of_run
from tbench.cli.interruption import run_interruptibly
from tbench.cli.printing import print_line, print_progress
from tbench.config.layers import Resolved
from tbench.config.settings import RunConfig
from tbench.errors import UsageError
from tbench.storage.run_files import RUN
from tbench.storage.summaries import read_summary
from tbench.text import counted

if TYPE_CHECKING:
    from tbench.runs.resume import EarlierRun
    from tbench.runs.run import RunOutcome


def _names(configs: Sequence[RunConfig]) -> tuple[str, list[str]]:
    """Return "model" or "agent" if the runs differ only in this, otherwise "run", and a name for each run."""
    models = [each.model.name or "" for each in configs]
    agents = [Path(name).stem if (name := each.agent.name).endswith(".toml") else name for each in configs]
    if len(set(agents)) == 1:
        return "model", models
    if len(set(models)) == 1:
        return "agent", agents
    return "run", [" ".join(filter(None, pair)) for pair in zip(agents, models, strict=True)]


def in_own_directories(each: Sequence[Resolved[RunConfig]], *, resume: bool) -> list[Resolved[RunConfig]]:
    """Return the configurations of several runs, each with a run directory OUTPUT/MODEL, OUTPUT/AGENT, or
    OUTPUT/AGENT-MODEL. Raises UsageError."""
    output, schedule = each[0].config.output, each[0].config.schedule
    what, names = _names([resolved.config for resolved in each])
    if schedule.shard is not None:
        raise UsageError(f"--shard: cannot be combined with {counted(len(each), what)}; run each {what} by itself")
    if output.directory is None and resume:
        return list(each)  # refused later, as for a single model
    folder = Path(output.directory or f"runs/{datetime.now():%Y-%m-%d_%H-%M-%S}_{len(each)}-{what}s")
    if (folder / RUN.manifest).exists():
        raise UsageError(f"{folder}: is the run of a single {what}; name another directory with --output")
    directories = [str(folder / directory_name(name)) for name in names]
    for directory in directories:
        if directories.count(directory) > 1:
            raise UsageError(
                f"{directory}: would be the directory of two runs; give models and agents different names "
                "(vLLM: --served-model-name)"
            )
    return [
        replace(resolved, config=resolved.config.with_values(output={"directory": directory}))
        for resolved, directory in zip(each, directories, strict=True)
    ]


def run_models(runs: Sequence[tuple[RunConfig, EarlierRun | None]]) -> list[RunOutcome | None]:
    """Execute the runs one after the other, then print their comparison.

    Returns their outcomes, up to an interruption; None is a run that could not start. Raises UsageError for mistakes of
    the user, before anything starts.
    """
    began = datetime.now()
    (config, _), documents = runs[0], [earlier.document for _, earlier in runs if earlier is not None]
    tasks = tasks_of_run(config, documents[0] if documents else None)
    run_interruptibly(_check_endpoints([config for config, _ in runs]))
    what, names = _names([config for config, _ in runs])
    outcomes: list[RunOutcome | None] = []
    made_images: MadeImages = {}
    for number, (config, earlier) in enumerate(runs, start=1):
        if config.output.verbosity != "quiet":
            if number > 1:
                print_line("", err=True)
            print_line(f"{what} {number} of {len(runs)}: {names[number - 1]}", err=True)
        try:
            is_dropped = config.sandbox.drop_images and number == len(runs)  # later models need the images, too
            config = config.with_values(sandbox={"drop_images": is_dropped})
            outcomes.append(outcome := execute(config, earlier, tasks, made_images, began))
        except UsageError as error:  # its endpoint is gone; the next model's may answer
            print_line(f"tbench: {names[number - 1]}: {error}", err=True)
            outcomes.append(None)
        else:
            if outcome.interrupted:
                break
    directories = [Path(config.output.directory or "") for config, _ in runs]
    if all(outcome is not None and not outcome.interrupted and outcome.stopped is None for outcome in outcomes):
        _print_comparison(directories, is_json=config.output.json_lines, anyway=what != "model")
    else:
        again = f"repeat the command with --output {directories[0].parent} --resume"
        print_line(f"tbench: not all {what}s are done; to finish and compare them, {again}", err=True)
    if shows_next(config):
        print_view_command(directories[0])
    return outcomes


async def _check_endpoints(configs: Sequence[RunConfig]) -> None:
    """Check each agent, and connect to the endpoint of each model. Raises UsageError."""
    for config in configs:
        setup = AgentSetup.from_config(config.agent, config.model, config.limits)
        chat, _ = await connect_if_used(setup, print_progress)
        if chat is not None:
            await chat.close()


def _print_comparison(directories: Sequence[Path], *, is_json: bool, anyway: bool) -> None:
    """Print the comparison of finished runs, or why they cannot be compared, with their scores."""
    if not is_json:
        print_line("")
    try:
        print_comparison(directories, "line" if is_json else "table", anyway=anyway)
    except UsageError as error:
        print_line(f"tbench compare: {error}", err=True)
        for directory in () if is_json else directories:
            print_line(f"{directory}: {read_summary(directory)[1].score_line}")
