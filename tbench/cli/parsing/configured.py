"""Commands whose options are generated from the settings of a configuration."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from pydantic import BaseModel, ValidationError

from tbench.cli.parsing.commands import Argument, TbenchCommand, insert_optional_values
from tbench.cli.printing import print_text
from tbench.config.layers import Layers, Resolved, Value
from tbench.config.setting import Setting, iter_settings, section_panels
from tbench.config.settings import CostConfig, RunConfig
from tbench.errors import UsageError

Config = TypeVar("Config", bound=BaseModel)


@dataclass(frozen=True)
class GivenSettings(Generic[Config]):
    """Settings from environment variables, files and flags of a command, lowest layer first."""

    layers: Layers[Config]
    values: Sequence[Value]

    def resolve(self, base: Config | None = None) -> Resolved[Config]:
        """Return the configuration, with the given settings on top of `base` or the defaults. Raises UsageError."""
        return self.layers.resolve(self.values, base)

    def resolve_each(self) -> list[Resolved[Config]]:
        """Return a configuration for each given agent with each given model, agents outermost. Raises UsageError."""
        return self.layers.resolve_each(self.values)


class ConfiguredCommand(TbenchCommand, Generic[Config]):
    """A command with an option for each setting; its function receives the given settings as `given`.

    With more than MAX_SHOWN options, `--help` shows only the common ones, and `--help-all` shows all of them.
    """

    def __init__(
        self, *arguments: Any, configuration: type[Config], only: Collection[str] | None = None, **more: Any
    ) -> None:
        """Make options for the settings with paths in `only`, or for all settings if it is None."""
        super().__init__(*arguments, **more)
        self.shows_defaults = only is None  # with `only`, values often come from a stored run
        self._configuration = configuration
        self._settings = [each for each in iter_settings(configuration) if only is None or each.path in only]
        self._asks_model = any(each.section == "model" for each in self._settings)
        without_flags = [each.path for each in self._settings if only is not None and not each.flags]
        self._own = [*self.params, _config_option(without_flags)]
        self.params = [*self._own, *(each for setting in self._settings for each in _parameters(setting))]
        self._help_all: click.Option | None = None
        if (count := sum(isinstance(each, click.Option) for each in self.params)) > MAX_SHOWN:
            self._help_all = _help_all_option(count)
            self.params.append(self._help_all)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        bare = {each.flags[0]: partial(_take_value, each) for each in self._settings if each.option.bare is not None}
        off = {
            f"--no-{each.flags[0][2:]}": f"{each.flags[0]}=off" for each in self._settings if each.option.bare == "on"
        }
        return super().parse_args(ctx, insert_optional_values([off.get(word, word) for word in args], bare))

    def invoke(self, ctx: click.Context) -> Any:
        layers = Layers(self._configuration, beside=_all_configurations())
        passed = ctx.params
        values = [
            *layers.environment(os.environ, {setting.path for setting in self._settings}),
            *_from_config(layers, passed[_CONFIG_NAME]),
            *_from_flags(layers, self._settings, ctx),
        ]
        own = {each.name: passed[each.name] for each in self._own if each.name in passed and each.name != _CONFIG_NAME}
        ctx.params = {**own, "given": GivenSettings(layers, values)}
        return super().invoke(ctx)

    def panels(self, ctx: click.Context) -> Iterator[tuple[str, Sequence[Setting | click.Parameter]]]:
        """Yield the panels of the help: the common options, then one panel per section of the configuration."""
        own = [each for each in (*self._own, self.get_help_option(ctx), self._help_all) if each is not None]
        daily = [setting for setting in self._settings if setting.option.daily or setting.option.argument]
        yield "Common options", sorted([*daily, *own], key=_rank)
        if self._help_all is not None and SHOWS_ALL not in ctx.meta:
            return
        rest = {each.path for each in self._settings} - {each.path for each in daily}
        for _, title, settings in section_panels(self._configuration):
            yield title, [each for each in settings if each.path in rest and each.flags]

    def parameters(self, setting: Setting) -> list[click.Parameter]:
        """Return the option that sets a setting, the argument, or both."""
        return [each for each in reversed(self.params) if each.name in (_name(setting), _option_name(setting))]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, panel in self.panels(ctx):
            rows = [self._record(each, ctx) for each in panel]
            _panel(formatter, title, [row for row in rows if row is not None])

    def _record(self, row: Setting | click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
        if isinstance(row, Setting):
            names, help = _record(row, asks_model=self._asks_model)
            return names, help + (_shown_default(row) if self.shows_defaults else "")
        return row.record(ctx) if isinstance(row, Argument) else row.get_help_record(ctx)


COST_SETTINGS = {each.path for each in iter_settings(RunConfig) if each.section == "cost"}
"""Prices, which a stored run can also get afterwards."""


def given_cost(given: GivenSettings[RunConfig], stored: CostConfig) -> CostConfig:
    """Return the prices of a stored run, with the given ones on top. Raises UsageError, also for other settings.

    In a file, settings of other sections are ignored, as they are for other commands.
    """
    values = [value for value in given.values if value.setting.path in COST_SETTINGS]
    if others := [value.origin for value in given.values if value not in values and value.origin.startswith("-c ")]:
        raise UsageError(f"{others[0]}: has no effect on a stored run; only prices can be set, such as cost.hour_price")
    return given.layers.resolve(values, RunConfig(cost=stored)).config.cost


MAX_SHOWN = 25
"""Largest number of options that `--help` shows in full."""
SHOWS_ALL = f"{__name__}.shows_all"
"""Key of click's context that is set while the help shows all options."""
_NAMES_WIDTH = 36
"""Largest width of the help's first column."""
_CONFIG_NAME = "config"


def _config_option(names: Sequence[str]) -> click.Option:
    """Return the option for files and assignments; its help lists the settings that have no option of their own."""
    values = f", with NAME one of {', '.join(names)}" if names else ""
    what = f"A TOML file, or section.name=value{values}; repeatable, the last wins."
    metavar = "FILE|NAME=VALUE"
    return click.Option(["-c", "--config", _CONFIG_NAME], multiple=True, metavar=metavar, help=what, type=click.Path())


class _Text(click.types.StringParamType):
    """Any text; the configuration checks it. A shell completes the setting's known values."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if self._setting.option.is_path:
            return [CompletionItem(incomplete, type="file")]
        words = self._setting.choices or self._setting.option.words()
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _all_configurations() -> Iterator[type[BaseModel]]:
    # Imported late, because few commands need more than one of them.
    from tbench.proxies.extraction.settings import ExtractConfig
    from tbench.proxies.replay.generation.settings import ReplayConfig

    yield from (RunConfig, ExtractConfig, ReplayConfig)


def _parameters(setting: Setting) -> Iterator[click.Parameter]:
    """Yield the argument of a setting, its option, or both."""
    option = setting.option
    if option.argument is not None:
        metavar = f"[{option.argument}]" if setting.default else option.argument
        yield click.Argument([_name(setting)], required=False, metavar=metavar, type=_Text(setting))
    if setting.flags and (option.argument is None or option.flags):
        yield _option(setting)


def _option(setting: Setting) -> click.Option:
    option, name = setting.option, _option_name(setting)
    if setting.off_flags:
        return click.Option([*map("/".join, zip(setting.flags, setting.off_flags, strict=True)), name], default=None)
    return click.Option(
        [*setting.flags, name],
        multiple=setting.kind is tuple or option.several is not None or option.per_model or option.per_agent,
        type=_Text(setting),
    )


def _name(setting: Setting) -> str:
    return f"{setting.section}__{setting.name}"


def _option_name(setting: Setting) -> str:
    """Return the name of the option's parameter, which differs from the argument's."""
    return _name(setting) if setting.option.argument is None else f"{_name(setting)}__option"


def _from_config(layers: Layers[Config], given: Iterable[str]) -> Iterator[Value]:
    for each in given:
        yield from layers.file(Path(each)) if Path(each).exists() else layers.assignment(each)


def _from_flags(layers: Layers[Config], settings: Iterable[Setting], ctx: click.Context) -> Iterator[Value]:
    settings = list(settings)
    repeated = [ctx.params[_option_name(each)] for each in settings if each.option.per_model]
    models = max(map(len, repeated), default=0)
    for setting in settings:
        name, option = _option_name(setting), setting.option
        has_argument = option.argument is not None and _is_given(_name(setting), ctx)
        if has_argument:
            yield layers.option(setting.path, ctx.params[_name(setting)], option.argument or "")
        if not _is_given(name, ctx):
            continue
        if has_argument:
            raise UsageError(f"{option.argument} and {setting.flags[0]} mean the same; give only one of them")
        given = ctx.params[name]
        if option.argument is not None:
            _reject_ambiguous_dataset(setting.flags[0], given)
        flag = setting.off_flags[0] if given is False else setting.flags[0]
        if models > 1 and (option.per_model or option.several) and len(given) > 1:
            if len(given) != models:
                raise UsageError(f"{flag} is given {len(given)} times for {models} models; give it once or for each")
            for number, each in enumerate(given):
                yield replace(layers.option(setting.path, each, flag), model=number)
            continue
        if option.per_agent and len(given) > 1:
            for number, each in enumerate(given):
                yield replace(layers.option(setting.path, each, flag), agent=number)
            continue
        is_word = setting.off_flags and setting.kind is not bool
        yield layers.option(setting.path, flag.removeprefix("--") if is_word else given, flag)


def _reject_ambiguous_dataset(flag: str, given: str) -> None:
    """Raise UsageError for a dataset's name that is also a directory here."""
    from tbench.datasets.reference import looks_like_a_name  # not needed for --help

    if looks_like_a_name(given) and Path(given).is_dir():
        raise UsageError(
            f"{flag} {given} is also a directory here; write ./{given} for the directory, "
            "or run the command elsewhere for the dataset"
        )


def _is_given(name: str, ctx: click.Context) -> bool:
    return name in ctx.params and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _take_value(setting: Setting, rest: list[str]) -> str:
    """Take the value of an option with an optional value from the next word, or return the bare value."""
    return rest.pop(0) if rest and _is_value(setting, rest[0]) else setting.option.bare or ""


def _is_value(setting: Setting, word: str) -> bool:
    try:
        setting.adapter.validate_python(word)
    except ValidationError:
        return False
    return True


def _rank(row: Setting | click.Parameter) -> int:
    """Rank a row of the help: arguments first, then required options, then the others."""
    if isinstance(row, Setting):
        return 0 if row.option.argument else 2
    return 0 if isinstance(row, click.Argument) else 1 if row.required else 2


def _help_all_option(count: int) -> click.Option:
    def show(context: click.Context, _: click.Parameter, value: bool) -> None:
        if value:
            context.meta[SHOWS_ALL] = True
            print_text(context.get_help())
            context.exit()

    about = f"Show all {count} options and exit."
    return click.Option(["--help-all"], is_flag=True, is_eager=True, expose_value=False, callback=show, help=about)


def _record(setting: Setting, *, asks_model: bool) -> tuple[str, str]:
    """Return a setting's row in the help: its options, and one sentence."""
    option = setting.option
    if option.without_model is not None and not asks_model:
        shown, summary = option.without_model
    else:
        shown, summary = metavar(setting), setting.summary
    if option.argument is not None and not option.flags:
        return option.argument, summary
    off = () if setting.kind is bool else setting.off_flags
    names = ", ".join((*sorted(setting.flags, key=len), *sorted(off, key=len)))
    argument = f" or {option.argument}" if option.argument else ""
    choices = ", ".join(option.choices())
    about = f"{summary} One of {choices}." if choices else summary
    return f"{names} {shown}".rstrip() + argument, about


def metavar(setting: Setting) -> str:
    """Return the placeholder of the value in the help; empty for an option without a value."""
    if setting.off_flags:
        return ""
    names = {int: "INT", float: "FLOAT", dict: "JSON"}
    return setting.option.metavar or "|".join(setting.choices) or names.get(setting.kind, "TEXT")


def _shown_default(setting: Setting) -> str:
    default = setting.file_default
    if setting.option.argument is not None or default is None or default is False or default in ([], {}, ""):
        return ""
    return f" [{default:g}]" if isinstance(default, float) else f" [{default}]"


def _panel(formatter: click.HelpFormatter, title: str, records: Sequence[tuple[str, str]]) -> None:
    if records:
        with formatter.section(title):
            formatter.write_dl(records, col_max=_NAMES_WIDTH)
