"""`tbench run`: tasks × seeds against an endpoint, scored."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench import exit_codes
from tbench.cli.common import refuse_pull_beside_build
from tbench.cli.parsing.configured import ConfiguredCommand, Given
from tbench.cli.parsing.retry_errors import CommandWithRetryErrors, retry_errors_option
from tbench.config.presets import OWN_LOOP
from tbench.config.setting import settings_of
from tbench.config.settings import RunConfig
from tbench.errors import UsageError

if TYPE_CHECKING:
    from tbench.config.layers import Resolved
    from tbench.runs.resume import EarlierRun
    from tbench.runs.run import RunOutcome


class RunCommand(CommandWithRetryErrors, ConfiguredCommand[RunConfig]):
    """A command that runs trials of a configuration."""


@click.command(cls=RunCommand, configuration=RunConfig)
@click.option("--resume", is_flag=True, help="Go on with the run in --output, where there is one.")
@retry_errors_option("With --resume: also trials with these errors, or with any.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and start nothing.")
def run(given: Given[RunConfig], resume: bool, retry_errors: str | None, dry_run: bool) -> None:
    """Run tasks against a model and print the score."""
    from tbench.runs.resume import RetryErrors

    resolved = given.resolve()
    wanted = RetryErrors.parse(retry_errors, resolved.config.schedule.retry_choice)
    if retry_errors is not None and not resume:
        raise UsageError("--retry-errors: belongs to --resume; a new run tries again by itself (--retries)")
    _refuse_what_nobody_uses(resolved)
    refuse_pull_beside_build(resolved)
    earlier = _earlier(resolved.config, resume)
    config = _as_before(resolved, earlier)
    if dry_run:
        from tbench.cli.dry_run import show_plan

        show_plan(config, earlier, wanted)
        return
    from tbench.cli.execute import execute

    finish(execute(config, earlier, wanted), config.output.min_coverage)


def _refuse_what_nobody_uses(resolved: Resolved[RunConfig]) -> None:
    """Refuse options of a model where none works, and of attempts where there is one. Raises UsageError.

    A file or the environment may say them: those serve other runs, too.
    """
    if not resolved.config.schedule.retries:
        origins = (resolved.origins.get(path, "") for path in ("schedule.retry_only", "schedule.retry_never"))
        if idle := [origin for origin in origins if origin.startswith("--")]:
            raise UsageError(f"{', '.join(idle)}: without effect, as --retries is 0; leave out one or the other")
    name = resolved.config.agent.name
    if name not in ("oracle", "nop"):
        return
    of_a_model = {setting.path for setting in settings_of(RunConfig) if setting.section in ("model", "limits")}
    given = [
        origin
        for path, origin in resolved.origins.items()
        if path in of_a_model | {*OWN_LOOP, "agent.preset"} and origin.startswith("--")
    ]
    if given:
        raise UsageError(
            f"{', '.join(given)}: without effect, as --agent {name} asks no model; leave out one or the other"
        )


def _earlier(config: RunConfig, resume: bool) -> EarlierRun | None:
    """The run to go on with; None for a new one, also where --resume finds none yet."""
    from tbench.runs.resume import EarlierRun
    from tbench.storage.run_files import RUN

    if config.output.directory is None:
        if resume:
            raise UsageError("--resume: which run? Give its directory with --output, or use tbench resume RUN")
        return None
    directory = Path(config.output.directory)
    if not resume or RUN.is_new(directory):
        RUN.refuse_to_overwrite(directory)
        return None
    refuse_what_is_no_run(directory)
    return EarlierRun.read(directory)


def refuse_what_is_no_run(directory: Path) -> None:
    """Say which command goes on with an extraction or a replay. Raises UsageError for the directory of one."""
    from tbench.proxies.extraction.directory import EXTRACTION
    from tbench.proxies.replay.directory import REPLAY
    from tbench.storage.run_files import RUN

    if (directory / RUN.manifest).exists():
        return
    for layout, what, command in ((EXTRACTION, "an extraction", "extract"), (REPLAY, "a replay", "replay run")):
        if (directory / layout.manifest).exists():
            raise UsageError(
                f"{directory}: holds {what}, not a run; tbench {command} goes on with it: "
                f"give its command again, with --output {directory} --resume"
            )


def _as_before(resolved: Resolved[RunConfig], earlier: EarlierRun | None) -> RunConfig:
    """The configuration; a run that goes on keeps its shell state whatever its preset says now."""
    config = resolved.config
    is_presets = resolved.origins.get("agent.shell_state", "").startswith("preset ")
    if earlier is not None and is_presets and earlier.document.locked.shell_state != "fresh":
        return config.with_values(agent={"shell_state": "persistent"})
    return config


def finish(outcome: RunOutcome, min_coverage: float) -> None:
    """Exit with the code that the outcome deserves."""
    if outcome.interrupted:
        raise click.exceptions.Exit(exit_codes.INTERRUPTED)
    if any(result.error is not None and result.error.type == "internal" for result in outcome.results):
        raise click.exceptions.Exit(exit_codes.BUG)
    if outcome.stopped is not None:
        raise click.exceptions.Exit(exit_codes.AWAY)
    scored = sum(result.reward is not None for result in outcome.results)
    if outcome.results and (not scored or scored / len(outcome.results) < min_coverage):
        raise click.exceptions.Exit(exit_codes.UNCOVERED)
