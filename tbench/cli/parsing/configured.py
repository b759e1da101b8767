"""Commands whose options are the settings of a configuration: nothing about a setting is written down here."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import click
from click.core import ParameterSource
from click.shell_completion import CompletionItem
from pydantic import BaseModel, ValidationError

from tbench.cli.parsing.commands import Argument, TbenchCommand, with_values
from tbench.config.layers import Layers, Resolved, Value
from tbench.config.setting import Setting, panels_of, settings_of
from tbench.config.settings import RunConfig
from tbench.errors import UsageError

Config = TypeVar("Config", bound=BaseModel)


@dataclass(frozen=True)
class Given(Generic[Config]):
    """The settings that a command was started with, lowest layer first."""

    layers: Layers[Config]
    values: Sequence[Value]

    def resolve(self, base: Config | None = None) -> Resolved[Config]:
        """The configuration, over `base` if one is given. Raises UsageError."""
        return self.layers.resolve(self.values, base)


class ConfiguredCommand(TbenchCommand, Generic[Config]):
    """A command with an option for each setting; its function gets what was given as `given`."""

    def __init__(
        self, *arguments: Any, configuration: type[Config], only: Collection[str] | None = None, **more: Any
    ) -> None:
        """`only` names the settings that have options, by path, where the others are stored; without it, all have."""
        super().__init__(*arguments, **more)
        self.shows_defaults = only is None  # where some are stored, so is the value of each that is not given
        self._configuration = configuration
        self._settings = [each for each in settings_of(configuration) if only is None or each.path in only]
        self._own = [*self.params, _CONFIG]
        self.params = [*self._own, *(each for setting in self._settings for each in _parameters(setting))]

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        bare = {each.flags[0]: partial(_value_behind, each) for each in self._settings if each.option.bare is not None}
        return super().parse_args(ctx, with_values(args, bare))

    def invoke(self, ctx: click.Context) -> Any:
        layers = Layers(self._configuration, beside=_all_configurations())
        passed = ctx.params
        values = [
            *layers.environment(os.environ, {setting.path for setting in self._settings}),
            *_from_config(layers, passed[_CONFIG_NAME]),
            *_from_flags(layers, self._settings, ctx),
        ]
        own = {each.name: passed[each.name] for each in self._own if each.name in passed and each is not _CONFIG}
        ctx.params = {**own, "given": Given(layers, values)}
        return super().invoke(ctx)

    def panels(self, ctx: click.Context) -> Iterator[tuple[str, Sequence[Setting | click.Parameter]]]:
        """Daily options first, then a panel for each part of the configuration."""
        own = [each for each in (*self._own, self.get_help_option(ctx)) if each is not None]
        daily = [setting for setting in self._settings if setting.option.daily]
        yield "Daily", sorted([*daily, *own], key=_place)
        behind = {each.path for each in self._settings} - {each.path for each in daily}
        for _, title, settings in panels_of(self._configuration):
            yield title, [each for each in settings if each.path in behind]

    def parameters(self, setting: Setting) -> list[click.Parameter]:
        """The option that sets it, the argument, or both."""
        return [each for each in reversed(self.params) if each.name in (_name(setting), _option_name(setting))]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        for title, panel in self.panels(ctx):
            rows = [self._row(each) if isinstance(each, Setting) else _own_record(each, ctx) for each in panel]
            _panel(formatter, title, [row for row in rows if row is not None])

    def _row(self, setting: Setting) -> tuple[str, str]:
        names, help = _record(setting)
        return names, help + (_shown_default(setting) if self.shows_defaults else "")


_NAMES_WIDTH = 36
_FIRST = ("-d", "-t", "-x", "-l", "-k", "-n", "-c", "-o", "-m", "-a")
"""The order of the daily options that have a letter; arguments stand before them, all others behind."""
_CONFIG_NAME = "config"
_CONFIG = click.Option(
    ["-c", "--config", _CONFIG_NAME],
    multiple=True,
    metavar="FILE|NAME=VALUE",
    help="A TOML file, or section.name=value; repeatable, the last one wins.",
    type=click.Path(),
)


class _Text(click.types.StringParamType):
    """Any text, which is checked where the configuration is; a shell completes what the setting knows."""

    def __init__(self, setting: Setting) -> None:
        self._setting = setting

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        if self._setting.option.is_path:
            return [CompletionItem(incomplete, type="file")]
        words = self._setting.choices or self._setting.option.words()
        return [CompletionItem(word) for word in words if word.startswith(incomplete)]


def _all_configurations() -> Sequence[type[BaseModel]]:
    # Imported only now: --help needs one of them.
    from tbench.proxies.extraction.settings import ExtractConfig
    from tbench.proxies.replay.asking.settings import ReplayConfig

    return RunConfig, ExtractConfig, ReplayConfig


def _parameters(setting: Setting) -> Iterator[click.Parameter]:
    """The argument of a setting, its option, or both."""
    option = setting.option
    if option.argument is not None:
        metavar = f"[{option.argument}]" if setting.default else option.argument
        yield click.Argument([_name(setting)], required=False, metavar=metavar, type=_Text(setting))
    if option.argument is None or option.flags:
        yield _option(setting)


def _option(setting: Setting) -> click.Option:
    option, name = setting.option, _option_name(setting)
    if setting.off_flags:
        return click.Option([*map("/".join, zip(setting.flags, setting.off_flags, strict=True)), name], default=None)
    return click.Option(
        [*setting.flags, name], multiple=setting.kind is tuple or option.several is not None, type=_Text(setting)
    )


def _name(setting: Setting) -> str:
    return f"{setting.section}__{setting.name}"


def _option_name(setting: Setting) -> str:
    """The parameter of the option: another one where there is an argument, too."""
    return _name(setting) if setting.option.argument is None else f"{_name(setting)}__option"


def _from_config(layers: Layers[Config], given: Iterable[str]) -> Iterator[Value]:
    for each in given:
        yield from layers.file(Path(each)) if Path(each).exists() else layers.assignment(each)


def _from_flags(layers: Layers[Config], settings: Iterable[Setting], ctx: click.Context) -> Iterator[Value]:
    for setting in settings:
        name, option = _option_name(setting), setting.option
        has_argument = option.argument is not None and _is_given(_name(setting), ctx)
        if has_argument:
            yield layers.option(setting.path, ctx.params[_name(setting)], option.argument or "")
        if not _is_given(name, ctx):
            continue
        if has_argument:
            raise UsageError(f"{option.argument} and {setting.flags[0]}: say the same; give one of them")
        given = ctx.params[name]
        if option.argument is not None:
            _refuse_two_meanings(setting.flags[0], given)
        flag = setting.off_flags[0] if given is False else setting.flags[0]
        is_word = setting.off_flags and setting.kind is not bool
        yield layers.option(setting.path, flag.removeprefix("--") if is_word else given, flag)


def _refuse_two_meanings(flag: str, given: str) -> None:
    """Refuse a dataset's name that is a directory, too. Raises UsageError."""
    from tbench.datasets.reference import looks_like_a_name  # --help does without it

    if looks_like_a_name(given) and Path(given).is_dir():
        raise UsageError(f"{flag} {given}: is a directory here, too; write ./{given} for it, or go elsewhere")


def _is_given(name: str, ctx: click.Context) -> bool:
    return name in ctx.params and ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE


def _value_behind(setting: Setting, rest: list[str]) -> str:
    """The value of an option that may stand alone: the word behind it, where that can be one."""
    return rest.pop(0) if rest and _is_value(setting, rest[0]) else setting.option.bare or ""


def _is_value(setting: Setting, word: str) -> bool:
    try:
        setting.adapter.validate_python(word)
    except ValidationError:
        return False
    return True


def _place(row: Setting | click.Parameter) -> int:
    """Where a row stands among the daily ones."""
    if isinstance(row, click.Argument):
        return -1
    names = row.flags if isinstance(row, Setting) else row.opts
    return next((place for place, letter in enumerate(_FIRST) if letter in names), len(_FIRST))


def _own_record(parameter: click.Parameter, ctx: click.Context) -> tuple[str, str] | None:
    return parameter.record(ctx) if isinstance(parameter, Argument) else parameter.get_help_record(ctx)


def _record(setting: Setting) -> tuple[str, str]:
    """The two columns of a setting in the help: its options, and one sentence."""
    option = setting.option
    if option.argument is not None and not option.flags:
        return option.argument, setting.summary
    off = () if setting.kind is bool else setting.off_flags
    names = ", ".join((*sorted(setting.flags, key=len), *sorted(off, key=len)))
    argument = f", {option.argument}" if option.argument else ""
    return f"{names} {metavar(setting)}".rstrip() + argument, setting.summary


def metavar(setting: Setting) -> str:
    """What stands for the value in the help; empty for an option without one."""
    if setting.off_flags:
        return ""
    words = {int: "INT", float: "FLOAT", dict: "JSON"}
    return setting.option.metavar or "|".join(setting.choices) or words.get(setting.kind, "TEXT")


def _shown_default(setting: Setting) -> str:
    default = setting.default
    if setting.option.argument is not None or default in (None, (), {}, False, ""):
        return ""
    return f" [{default:g}]" if isinstance(default, float) else f" [{default}]"


def _panel(formatter: click.HelpFormatter, title: str, records: Sequence[tuple[str, str]]) -> None:
    if records:
        with formatter.section(title):
            formatter.write_dl(records, col_max=_NAMES_WIDTH)
