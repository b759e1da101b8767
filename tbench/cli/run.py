"""`tbench run`, `resume`, `merge` and `regrade`: start, finish, merge and verify runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tbench import exit_codes
from tbench.cli.common import json_option, reject_pull_with_build, runs_argument, task_option, with_endpoint
from tbench.cli.parsing.commands import TbenchCommand, argument, flag, insert_optional_values, option
from tbench.cli.parsing.configured import COST_SETTINGS, ConfiguredCommand, GivenSettings
from tbench.cli.parsing.values import NAME_TYPE, PATH_TYPE, Integer, UnknownValue
from tbench.cli.printing import print_line, print_progress
from tbench.config.layers import AGENT_LOOP_SETTINGS
from tbench.config.setting import iter_settings
from tbench.config.settings import RunConfig
from tbench.errors import UsageError
from tbench.results import AGENTS_WITHOUT_MODEL

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tbench.config.layers import Resolved
    from tbench.results import TrialResult
    from tbench.runs.admission import RetryErrors
    from tbench.runs.resume import EarlierRun
    from tbench.runs.run import RunOutcome

# `tbench merge`


@click.command(cls=TbenchCommand)
@runs_argument("The directories of all shards (tbench run --shard I/N).")
@option("--output -o DIR", "A new directory for the whole run.", PATH_TYPE, required=True)
@flag("--incomplete", "Merge even if shards or results are missing; tbench resume can complete them.")
@json_option
def merge(runs: tuple[Path, ...], output: Path, incomplete: bool, as_json: bool) -> None:
    """Merge the shards of a run and print its score."""
    from tbench.cli.execute import print_summary
    from tbench.shards import merge as put_together

    try:
        put_together(runs, output, incomplete=incomplete)
    except OSError as error:
        raise UsageError(f"{error.filename or output}: {error.strerror or error}") from None
    print_summary(output, "json" if as_json else "text")


# `tbench regrade`


@click.command(cls=TbenchCommand)
@argument("run", "RUN", "A run directory.", type=NAME_TYPE)
@task_option
@option("--seed", "Only trials with this seed.", Integer(min=0))
def regrade(run: str, task: tuple[str, ...], seed: int | None) -> None:
    """Verify stored trials again: those run with --keep or --snapshot, or with a separate verifier container."""
    from tbench.cli.execute import print_summary
    from tbench.cli.interruption import run_interruptibly
    from tbench.fleet.engines import MachineConnector
    from tbench.runs.regrade import regrade as verify_again

    changes = run_interruptibly(verify_again(MachineConnector, Path(run), tuple(task or ()), seed, print_progress))
    for change in changes:
        became = _verdict_text(change.after) if change.after else f"unchanged: {change.why_not}"
        print_line(f"{change.before.task} seed {change.before.seed}: {_verdict_text(change.before)} -> {became}")
    print_summary(Path(run))


def _verdict_text(result: TrialResult) -> str:
    if result.reward is not None:
        return f"{result.reward:g}"
    return result.error.type if result.error else "no verdict"


# `--retry-errors` is followed by zero or more types of error.

T = TypeVar("T", bound="Callable[..., Any] | click.Command")
_OPTION = "--retry-errors"
_ALL = "all"


class CommandWithRetryErrors(TbenchCommand):
    """A command with `--retry-errors`, which takes the words after it, up to the first that is not a type of error."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, insert_optional_values(args, {_OPTION: _take_types}))
        except click.UsageError as mistake:
            if "unexpected extra argument" in mistake.message and _OPTION in words[:-1]:
                # One word too many: the word after the option was probably a misspelled type.
                behind = words[words.index(_OPTION) + 1]
                option = next(each for each in self.params if _OPTION in each.opts)
                option.type.convert("" if behind.startswith("-") else behind, option, ctx)
            raise


class _TypesOfError(click.types.StringParamType):
    """Types of error with commas, which a shell completes."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if unknown := _unknown(value):
            near = _nearest(unknown[0])
            advice = f"did you mean {near}?" if near else f"known: {', '.join(_known())}"
            raise UnknownValue(f"{unknown[0]}: no such type of error; {advice}", ctx, param)
        return str(value)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(type_) for type_ in _known() if type_.startswith(incomplete)]


def retry_errors_option(help: str) -> Callable[[T], T]:
    """Return the option for a CommandWithRetryErrors; its value is None, `all`, or types separated by commas."""
    return click.option(_OPTION, type=_TypesOfError(), metavar="[TYPE]...", help=help)


def _take_types(rest: list[str]) -> str:
    """Remove the types of error from the words after the option, and return them separated by commas."""
    types: list[str] = []
    while rest and _is_meant(rest[0]):
        types.append(rest.pop(0))
    return ",".join(types) or _ALL


def _is_meant(word: str) -> bool:
    """Whether a word stands for types of error, perhaps misspelled ones."""
    if word.startswith("-") or not word.strip(",") or Path(word).name != word:
        return False
    unknown = _unknown(word)
    # Other words may name the run or the tasks.
    return not unknown or (("," in word or any(map(_nearest, unknown))) and not Path(word).exists())


def _unknown(types: str) -> list[str]:
    return [type_ for type_ in types.split(",") if type_ and type_ not in _known()]


def _nearest(type_: str) -> str | None:
    from tbench.cli.parsing.usage_errors import nearest

    return nearest(type_, _known())


def _known() -> list[str]:
    # Imported late: it takes longer than all of --help.
    from tbench.errors import KINDS

    return [_ALL, *KINDS]


class RunCommand(CommandWithRetryErrors, ConfiguredCommand[RunConfig]):
    """A command that runs the trials of a configuration."""


@click.command(cls=RunCommand, configuration=RunConfig)
@flag("--resume", "Continue the run in --output, if it exists.")
@retry_errors_option("With --resume: also retry these types of error, or all.")
@flag("--dry-run", "Print what would be done, and start nothing.")
def run(given: GivenSettings[RunConfig], resume: bool, retry_errors: str | None, dry_run: bool) -> None:
    """Run tasks against a model and print the score. The API key comes from OPENAI_API_KEY."""
    from tbench.runs.admission import RetryErrors

    each = with_endpoint(given).resolve_each()
    resolved = each[0]
    wanted = RetryErrors.parse(retry_errors, resolved.config.schedule.retry_choice)
    if retry_errors is not None and not resume:
        raise UsageError("--retry-errors: only works with --resume; a new run retries by itself (--retries)")
    _reject_unused_options(each)
    reject_pull_with_build(resolved)
    # For an agent without a model, one run suffices: a file may list models for other runs.
    first = resolved.config.model
    each = [one for one in each if one.config.agent.name not in AGENTS_WITHOUT_MODEL or one.config.model == first]
    if len(each) > 1:
        from tbench.cli.models import in_own_directories

        each = in_own_directories(each, resume=resume)
    runs = [_planned(resolved, resume, wanted) for resolved in each]
    if dry_run:
        from tbench.cli.dry_run import show_plans

        show_plans(runs)
        return
    if len(runs) > 1:
        from tbench.cli.models import run_models

        exit_with_outcomes(run_models(runs), resolved.config.output.min_coverage)
        return
    from tbench.cli.execute import execute

    exit_with_outcomes([execute(*runs[0])], resolved.config.output.min_coverage)


def _planned(resolved: Resolved[RunConfig], resume: bool, wanted: RetryErrors) -> tuple[RunConfig, EarlierRun | None]:
    earlier = _earlier_run(resolved.config, resume, wanted)
    return _with_earlier_shell_state(resolved, earlier), earlier


def _reject_unused_options(each: Sequence[Resolved[RunConfig]]) -> None:
    """Raise UsageError for model flags if no agent uses a model, and for retry flags with `--retries 0`.

    Such settings in files and the environment are ignored, because other runs share these.
    """
    resolved, names = each[0], list(dict.fromkeys(one.config.agent.name for one in each))
    if not resolved.config.schedule.retries:
        origins = (resolved.origins.get(path, "") for path in ("schedule.retry_only", "schedule.retry_never"))
        if idle := [origin for origin in origins if origin.startswith("--")]:
            raise UsageError(f"{', '.join(idle)}: no effect with --retries 0; leave out one or the other")
    if any(name not in AGENTS_WITHOUT_MODEL for name in names):
        return
    of_a_model = {setting.path for setting in iter_settings(RunConfig) if setting.section in ("model", "limits")}
    given = [
        origin
        for path, origin in resolved.origins.items()
        if path in of_a_model | {*AGENT_LOOP_SETTINGS, "agent.preset"} and origin.startswith("--")
    ]
    if given:
        raise UsageError(
            f"{', '.join(given)}: no effect with --agent {names[0]}, which uses no model; leave out one or the other"
        )


def _earlier_run(config: RunConfig, resume: bool, wanted: RetryErrors) -> EarlierRun | None:
    """Return the run to resume; None for a new run, also if `--resume` finds none yet."""
    from tbench.storage.run_files import RUN

    if config.output.directory is None:
        if resume:
            raise UsageError("--resume: needs the run's directory as --output; or use tbench resume RUN")
        return None
    directory = Path(config.output.directory)
    if not resume or RUN.is_new(directory):
        RUN.refuse_to_overwrite(directory)
        return None
    require_run_directory(directory)
    from tbench.runs.resume import EarlierRun

    return EarlierRun.read(directory, wanted)


def require_run_directory(directory: Path) -> None:
    """Raise UsageError for an extraction, a replay or a folder of runs, naming the command that resumes it."""
    from tbench.proxies.extraction.records import EXTRACTION
    from tbench.proxies.replay.directory import REPLAY
    from tbench.storage.run_files import RUN

    if (directory / RUN.manifest).exists():
        return
    for layout, what, command in ((EXTRACTION, "an extraction", "extract"), (REPLAY, "a replay", "replay run")):
        if (directory / layout.manifest).exists():
            raise UsageError(
                f"{directory}: is {what}, not a run; to resume it, repeat its tbench {command} command "
                f"with --output {directory} --resume"
            )
    if any(directory.glob(f"*/{RUN.manifest}")):
        raise UsageError(
            f"{directory}: is a folder of runs; name one of them, or repeat the tbench run command of all of them with "
            f"--output {directory} --resume"
        )


def _with_earlier_shell_state(resolved: Resolved[RunConfig], earlier: EarlierRun | None) -> RunConfig:
    """Return the configuration; a resumed run keeps its shell state even if its preset has changed."""
    config = resolved.config
    is_presets = resolved.origins.get("agent.shell_state", "").startswith("preset ")
    if earlier is not None and is_presets and earlier.document.locked.shell_state != "fresh":
        return config.with_values(agent={"shell_state": "persistent"})
    return config


def exit_with_outcomes(outcomes: Iterable[RunOutcome | None], min_coverage: float) -> None:
    """Exit with the worst code for the outcomes, unless all are 0; None is a run that could not start."""
    codes = {_exit_code(outcome, min_coverage) if outcome is not None else exit_codes.USAGE for outcome in outcomes}
    code = exit_codes.INTERRUPTED if exit_codes.INTERRUPTED in codes else exit_codes.worst(codes)
    if code:
        raise click.exceptions.Exit(code)


def _exit_code(outcome: RunOutcome, min_coverage: float) -> int:
    if outcome.interrupted:
        return exit_codes.STOPPED if outcome.planned_stop else exit_codes.INTERRUPTED
    if any(result.error is not None and result.error.type == "internal" for result in outcome.results):
        return exit_codes.BUG
    if outcome.stopped is not None:
        return exit_codes.ENDPOINT_DOWN
    scored = sum(result.reward is not None for result in outcome.results)
    if outcome.results and (not scored or scored / len(outcome.results) < min_coverage):
        return exit_codes.TOO_FEW_VERDICTS
    return 0


# `tbench resume`

_SHARD_SETTINGS = ("shard", "durations")
"""Schedule settings that decide which trials belong to a run."""
_MACHINE_SETTINGS = ("sandbox.engines", "sandbox.ray")
"""Settings that choose the machines of trials; one that is given for a resumed run replaces both."""
_CHANGEABLE_SETTINGS = {
    *(
        each.path
        for each in iter_settings(RunConfig)
        if each.section == "schedule" and each.name not in _SHARD_SETTINGS
    ),
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
    *COST_SETTINGS,
    *("sandbox.container_proxy", *_MACHINE_SETTINGS),
    *("output.min_coverage", "output.log_level", "output.verbosity", "output.json_lines"),
}
"""Settings that may differ when a run is resumed: they decide where and how fast it runs."""


@click.command(cls=RunCommand, configuration=RunConfig, only=_CHANGEABLE_SETTINGS)
@argument("run", "RUN", "A run directory.")
@retry_errors_option("Also retry these types of error, or all if none is named.")
def resume(run: Path, given: GivenSettings[RunConfig], retry_errors: str | None) -> None:
    """Finish a run: continue interrupted trials, and run those that are missing or ended with a retryable error."""
    from tbench.cli.execute import execute
    from tbench.runs.admission import RetryErrors
    from tbench.runs.plan import stored_config
    from tbench.runs.resume import EarlierRun

    require_run_directory(run)
    earlier = EarlierRun.read(run)
    before = earlier.document.config
    # Other machines replace those that the run began with.
    gives_machines = any(value.setting.path in _MACHINE_SETTINGS for value in given.values)
    base = before.with_values(sandbox={"engines": (), "ray": None}) if gives_machines else before
    config = given.resolve(base).config
    _reject_changed_settings(before, stored_config(config), given)
    config = config.with_values(output={"directory": str(run)})
    earlier = replace(earlier, retry_errors=RetryErrors.parse(retry_errors, config.schedule.retry_choice))
    exit_with_outcomes([execute(config, earlier)], config.output.min_coverage)


def _reject_changed_settings(before: RunConfig, after: RunConfig, given: GivenSettings[RunConfig]) -> None:
    """Raise UsageError for a given value, perhaps from a file, that differs from the value the run was started with."""
    for value in given.values:
        setting = value.setting
        if setting.path in _CHANGEABLE_SETTINGS or setting.section in ("tasks", "output"):
            continue
        if setting.value_in(after) != setting.value_in(before):
            raise UsageError(
                f"{value.origin}: {setting.path}: differs from the value the run was started with; start a new run"
            )
