"""`tbench resume`: go on with a run that was cut short, as it was started."""

from __future__ import annotations

from pathlib import Path

import click

from tbench.cli.parsing.commands import Argument
from tbench.cli.parsing.configured import Given
from tbench.cli.parsing.retry_errors import retry_errors_option
from tbench.cli.parsing.values import A_PATH
from tbench.cli.run import RunCommand, finish, refuse_what_is_no_run
from tbench.config.setting import settings_of
from tbench.config.settings import RunConfig
from tbench.errors import UsageError

_OF_A_SHARD = ("shard", "durations")
"""Settings that say which trials are a run's own."""
_MACHINES = ("sandbox.engines", "sandbox.ray")
"""Settings that say on which machines trials are; one of them takes the place of the other."""
_MAY_CHANGE = {
    *(each.path for each in settings_of(RunConfig) if each.section == "schedule" and each.name not in _OF_A_SHARD),
    *(
        "model.base_url",
        "model.request_timeout_sec",
        "model.retry_budget_sec",
        "model.max_outage_sec",
        "model.other_weights",
    ),
    *("overrides.build_timeout_multiplier", "overrides.healthcheck_timeout_multiplier"),
    *("sandbox.pull", "sandbox.pull_concurrency", "sandbox.pull_timeout_sec", "sandbox.prefetch"),
    "sandbox.drop_images",
    *("sandbox.container_proxy", *_MACHINES),
    *("output.min_coverage", "output.log_level", "output.verbosity", "output.json_lines"),
}
"""Settings that say where and how fast a run goes on."""


@click.command(cls=RunCommand, configuration=RunConfig, only=_MAY_CHANGE)
@click.argument("run", cls=Argument, metavar="RUN", type=A_PATH, help="A run directory.")
@retry_errors_option("Also trials with these types of error; with all errors when none is named.")
def resume(run: Path, given: Given[RunConfig], retry_errors: str | None) -> None:
    """Finish the trials of a run that have no verdict: cut short, never begun, or with an error worth a retry."""
    from tbench.cli.execute import execute
    from tbench.runs.plan import stored_config
    from tbench.runs.resume import EarlierRun, RetryErrors

    refuse_what_is_no_run(run)
    earlier = EarlierRun.read(run)
    before = earlier.document.config
    config = given.resolve(_without_machines(before) if _names_machines(given) else before).config
    _refuse_changes(before, stored_config(config), given)
    config = config.with_values(output={"directory": str(run)})
    wanted = RetryErrors.parse(retry_errors, config.schedule.retry_choice)
    finish(execute(config, earlier, wanted), config.output.min_coverage)


def _names_machines(given: Given[RunConfig]) -> bool:
    return any(value.setting.path in _MACHINES for value in given.values)


def _without_machines(config: RunConfig) -> RunConfig:
    return config.with_values(sandbox={"engines": (), "ray": None})


def _refuse_changes(before: RunConfig, after: RunConfig, given: Given[RunConfig]) -> None:
    """Raise UsageError for a value, out of a file perhaps, that is another than that which the run was started with."""
    for value in given.values:
        setting = value.setting
        if setting.path in _MAY_CHANGE or setting.section in ("tasks", "output"):
            continue
        if setting.value_in(after) != setting.value_in(before):
            raise UsageError(
                f"{value.origin}: {setting.path}: is another than the run was started with; start a new run"
            )
