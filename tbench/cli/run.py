"""`tbench run`, `resume`, `merge` and `regrade`: a run is started, finished, put together, verified again."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tbench import exit_codes
from tbench.cli.common import json_option, refuse_pull_beside_build, runs_argument, task_option
from tbench.cli.parsing.commands import Argument, TbenchCommand, with_values
from tbench.cli.parsing.configured import ConfiguredCommand, Given
from tbench.cli.parsing.values import A_NAME, A_PATH, UnknownValue
from tbench.cli.printing import print_line
from tbench.config.layers import OWN_LOOP
from tbench.config.setting import settings_of
from tbench.config.settings import RunConfig
from tbench.errors import UsageError

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

    from tbench.config.layers import Resolved
    from tbench.results import TrialResult
    from tbench.runs.admission import RetryErrors
    from tbench.runs.resume import EarlierRun
    from tbench.runs.run import RunOutcome

# `tbench merge`: the shards of a run as one run.


@click.command(cls=TbenchCommand)
@runs_argument("The directories of all shards (tbench run --shard I/N).")
@click.option("--output", "-o", metavar="DIR", type=A_PATH, required=True, help="A new directory for the whole run.")
@click.option(
    "--incomplete", is_flag=True, help="Also where shards or results are missing; tbench resume does the rest."
)
@json_option
def merge(runs: tuple[Path, ...], output: Path, incomplete: bool, as_json: bool) -> None:
    """Put the shards of a run together, and print its score."""
    from tbench.cli.execute import print_summary
    from tbench.shards import merge as put_together

    try:
        put_together(runs, output, incomplete=incomplete)
    except OSError as error:
        raise UsageError(f"{error.filename or output}: {error.strerror or error}") from None
    print_summary(output, "json" if as_json else "text")


# `tbench regrade`: run the verifier again where a sandbox was kept, or what was handed over is stored.


@click.command(cls=TbenchCommand)
@click.argument("run", cls=Argument, metavar="RUN", type=A_NAME, help="A run directory.")
@task_option
@click.option("--seed", type=int, help="Only trials with this seed.")
def regrade(run: str, task: tuple[str, ...], seed: int | None) -> None:
    """Verify trials again: run with --keep or --snapshot, or with verifiers of their own."""

    from tbench.cli.execute import print_summary
    from tbench.cli.interruption import run_interruptibly
    from tbench.fleet.engines import MachinesOfRun
    from tbench.runs.regrade import regrade as verify_again
    from tbench.sandbox.docker.backend import DockerBackend

    def say(text: str) -> None:
        print_line(text, err=True)

    changes = run_interruptibly(
        verify_again(DockerBackend.connect, Path(run), tuple(task or ()), seed, say, MachinesOfRun)
    )
    for change in changes:
        became = _words(change.after) if change.after else f"as it was: {change.why_not}"
        print_line(f"{change.before.task} seed {change.before.seed}: {_words(change.before)} -> {became}")
    print_summary(Path(run))


def _words(result: TrialResult) -> str:
    if result.reward is not None:
        return f"{result.reward:g}"
    return result.error.type if result.error else "no verdict"


# `--retry-errors`, which takes none, one or several types of error as words behind it.

T = TypeVar("T", bound="Callable[..., Any] | click.Command")
_OPTION = "--retry-errors"
_ALL = "all"


class CommandWithRetryErrors(TbenchCommand):
    """A command that has `--retry-errors`: the words behind it are its own as far as they are types of error."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = list(args)
        try:
            return super().parse_args(ctx, with_values(args, {_OPTION: _take_types}))
        except click.UsageError as mistake:
            if "unexpected extra argument" in mistake.message and _OPTION in words[:-1]:
                # One word too many, and so the one behind the option was meant as a type after all.
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
    """The option, for a CommandWithRetryErrors: its value is None, `all`, or types with commas."""
    return click.option(_OPTION, type=_TypesOfError(), metavar="[TYPE]...", help=help)


def _take_types(rest: list[str]) -> str:
    """Take the types off the words behind the option."""
    types: list[str] = []
    while rest and _is_meant(rest[0]):
        types.append(rest.pop(0))
    return ",".join(types) or _ALL


def _is_meant(word: str) -> bool:
    """Whether a word is meant as types of error, maybe as misspelled ones."""
    if word.startswith("-") or not word.strip(",") or Path(word).name != word:
        return False
    unknown = _unknown(word)
    # What is no type may be the run, or the tasks: only what looks like a type is taken for one.
    return not unknown or (("," in word or any(map(_nearest, unknown))) and not Path(word).exists())


def _unknown(types: str) -> list[str]:
    return [type_ for type_ in types.split(",") if type_ and type_ not in _known()]


def _nearest(type_: str) -> str | None:
    from tbench.cli.parsing.mistakes import nearest

    return nearest(type_, _known())


def _known() -> list[str]:
    # Imported only now: it takes longer than all of --help.
    from tbench.errors import KINDS

    return [_ALL, *KINDS]


class RunCommand(CommandWithRetryErrors, ConfiguredCommand[RunConfig]):
    """A command that runs trials of a configuration."""


@click.command(cls=RunCommand, configuration=RunConfig)
@click.option("--resume", is_flag=True, help="Go on with the run in --output, where there is one.")
@retry_errors_option("With --resume: also retry these types of error, or all.")
@click.option("--dry-run", is_flag=True, help="Say what would be done, and start nothing.")
def run(given: Given[RunConfig], resume: bool, retry_errors: str | None, dry_run: bool) -> None:
    """Run tasks against a model and print the score. The API key comes from OPENAI_API_KEY."""
    from tbench.runs.admission import RetryErrors

    resolved = given.resolve()
    wanted = RetryErrors.parse(retry_errors, resolved.config.schedule.retry_choice)
    if retry_errors is not None and not resume:
        raise UsageError("--retry-errors: belongs to --resume; a new run tries again by itself (--retries)")
    _refuse_what_nobody_uses(resolved)
    refuse_pull_beside_build(resolved)
    earlier = _earlier(resolved.config, resume, wanted)
    config = _as_before(resolved, earlier)
    if dry_run:
        from tbench.cli.dry_run import show_plan

        show_plan(config, earlier)
        return
    from tbench.cli.execute import execute

    finish(execute(config, earlier), config.output.min_coverage)


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


def _earlier(config: RunConfig, resume: bool, wanted: RetryErrors) -> EarlierRun | None:
    """The run to go on with; None for a new one, also where --resume finds none yet."""
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
    from tbench.runs.resume import EarlierRun

    return EarlierRun.read(directory, wanted)


def refuse_what_is_no_run(directory: Path) -> None:
    """Say which command goes on with an extraction or a replay. Raises UsageError for the directory of one."""
    from tbench.proxies.extraction.records import EXTRACTION
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


# `tbench resume`: go on with a run that was cut short, as it was started.

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
    from tbench.runs.admission import RetryErrors
    from tbench.runs.plan import stored_config
    from tbench.runs.resume import EarlierRun

    refuse_what_is_no_run(run)
    earlier = EarlierRun.read(run)
    before = earlier.document.config
    config = given.resolve(_without_machines(before) if _names_machines(given) else before).config
    _refuse_changes(before, stored_config(config), given)
    config = config.with_values(output={"directory": str(run)})
    earlier = replace(earlier, retry_errors=RetryErrors.parse(retry_errors, config.schedule.retry_choice))
    finish(execute(config, earlier), config.output.min_coverage)


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
