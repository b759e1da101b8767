"""The page docs/commands.md, made of the commands. As a program, it writes it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from textwrap import fill
from typing import Any

import click

from tbench.cli import app
from tbench.cli.parsing.commands import Argument
from tbench.cli.parsing.configured import ConfiguredCommand, metavar
from tbench.config.setting import Setting

PAGE = Path(__file__).parents[1] / "docs" / "commands.md"
MORE = {
    "tbench": "command-line.md",
    "tbench run": "configuration.md",
    "tbench resume": "reliability.md#going-on-with-a-run",
    "tbench regrade": "integrity.md",
    "tbench calibrate": "integrity.md#calibration",
    "tbench nightly": "nightly.md",
    "tbench summary": "results.md",
    "tbench compare": "comparing.md",
    "tbench flaky": "comparing.md#flaky-tasks",
    "tbench power": "comparing.md#how-many-seeds",
    "tbench report": "results.md",
    "tbench view": "reports.md#live",
    "tbench history": "history.md",
    "tbench export": "exchange.md#export",
    "tbench export sqlite": "history.md#one-file-of-some-runs",
    "tbench export atif": "exchange.md#atif",
    "tbench export sft": "exchange.md#training-data",
    "tbench export harbor": "exchange.md#jobs-of-harbor",
    "tbench gate": "gate.md",
    "tbench import": "exchange.md#import",
    "tbench import harbor": "exchange.md#harbor",
    "tbench import results": "exchange.md#bare-results",
    "tbench extract": "extraction.md",
    "tbench replay": "replay.md",
    "tbench replay run": "replay.md",
    "tbench replay score": "replay.md",
    "tbench replay merge": "replay.md",
    "tbench replay build": "replay.md",
    "tbench leaderboard": "replay.md",
    "tbench correlate": "correlation.md",
    "tbench demo-endpoint": "endpoint.md",
    "tbench doctor": "doctor.md",
    "tbench config": "configuration.md",
    "tbench config show": "configuration.md#what-a-run-would-have",
    "tbench config init": "configuration.md#a-file",
    "tbench task": "task-format.md",
    "tbench task check": "task-format.md#checking-a-task",
    "tbench task new": "task-format.md#adding-a-task",
    "tbench task convert": "task-format.md#tasks-of-terminal-bench-1",
    "tbench shell": "task-format.md#adding-a-task",
    "tbench clean": "cleaning.md",
}
"""Where a page says more about a command."""
_INTRODUCTION = """\
# Commands

Every command and every option, in the order of `tbench -h`. `make docs` writes this page. `-h` (`--help`), which every
command has, is left out. Behind a slash stands the option for the opposite. An option without a default is not set, or
off.

What has a name under *setting* may also be given in a file, with `-c` and in the environment:
[configuration.md](configuration.md) says how values are written. [command-line.md](command-line.md) has the exit codes,
and says what a run shows.
"""
_STORED = "What is left out is as the run was started."
_RUN = "[`tbench run`](#tbench-run)"
_SIGNS = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}


@dataclass(frozen=True)
class Row:
    """A row of a table: an argument or an option."""

    names: str
    setting: str
    value: str
    default: str
    does: str


Panels = Mapping[str, Sequence[Row]]
"""The rows of a command by panel, as its help has them; one panel without a title where there are none."""
_COLUMNS = ("names", "setting", "value", "default")


def page() -> str:
    """The whole page."""
    found = list(_commands(click.Context(app, info_name="tbench", **app.context_settings)))
    run = next(_panels(context) for context in found if context.command_path == "tbench run")
    overview = [f"| {_link(context.command_path)} | {_sentence(context)} |" for context in found[1:]]
    lines = [_INTRODUCTION, "| command | does |", "|---|---|", *overview, ""]
    for context in found:
        lines += [*_head(context), *_body(context, run)]
    return "\n".join(lines).rstrip("\n") + "\n"


def _commands(context: click.Context) -> Iterator[click.Context]:
    """A context for the command, and for each within it."""
    yield context
    group = context.command
    if isinstance(group, click.Group):
        for word in group.list_commands(context):
            command = group.get_command(context, word)
            assert command is not None
            yield from _commands(click.Context(command, parent=context, info_name=word))


def _head(context: click.Context) -> list[str]:
    usage = " ".join([context.command_path, *context.command.collect_usage_pieces(context)])
    where = MORE.get(context.command_path)
    more = f" More is in [{where.partition('#')[0]}]({where})." if where else ""
    return [f"## {context.command_path}", "", f"`{usage}`", "", _wrapped(f"{_sentence(context)}{more}"), ""]


def _body(context: click.Context, run: Panels) -> Iterator[str]:
    """The tables of a command, which name what it has in common with `run` instead of showing it again."""
    command, panels = context.command, _panels(context)
    if context.command_path == "tbench run":
        for title, rows in panels.items():
            yield from [f"### {title}", "", *_table(rows, _COLUMNS)]
    elif isinstance(command, ConfiguredCommand):
        yield from _beside_run(command, panels, run)
    elif isinstance(command, click.Group) and context.parent:
        within = [_link(f"{context.command_path} {word}") for word in command.list_commands(context)]
        yield from [f"Its commands: {', '.join(within)}.", ""]
    else:
        yield from _table([row for rows in panels.values() for row in rows], _COLUMNS)


def _beside_run(command: ConfiguredCommand[Any], panels: Panels, run: Panels) -> Iterator[str]:
    columns = _COLUMNS if command.shows_defaults else _COLUMNS[:-1]
    known = [_line(row, columns) for rows in run.values() for row in rows]
    own = {title: [row for row in rows if _line(row, columns) not in known] for title, rows in panels.items()}
    if not any(own.values()):
        names = {row.names for rows in panels.values() for row in rows}
        missing = [row.names for rows in run.values() for row in rows if row.names not in names]
        yield from [f"Its options are those of {_RUN}, but for {', '.join(missing)}.", ""]
        return
    if not command.shows_defaults:
        yield from [_STORED, ""]
    for title, rows in panels.items():
        yield from [f"### {title}", "", *_table(own[title], columns)]
        if same := [row.names for row in rows if row not in own[title]]:
            yield from [_wrapped(f"As in {_RUN}: {'; '.join(same)}."), ""]


def _table(rows: Sequence[Row], columns: Sequence[str]) -> list[str]:
    """The table, without columns in which nothing stands; nothing without rows."""
    filled = [column for column in columns if any(getattr(row, column) for row in rows)]
    head = ["option" if column == "names" else column for column in filled]
    lines = [f"| {' | '.join(head)} | |", f"|{'---|' * (len(head) + 1)}", *(_line(row, filled) for row in rows), ""]
    return lines if rows else []


def _line(row: Row, columns: Iterable[str]) -> str:
    cells = [*(getattr(row, column) for column in columns), row.does]
    return f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |"


def _panels(context: click.Context) -> Panels:
    command = context.command
    if not isinstance(command, ConfiguredCommand):
        return {"": list(_rows(context, command.get_params(context)))}
    panels = {title: list(_rows(context, panel)) for title, panel in command.panels(context)}
    return {title: rows for title, rows in panels.items() if rows}


def _rows(context: click.Context, panel: Iterable[Setting | click.Parameter]) -> Iterator[Row]:
    command = context.command
    for each in panel:
        if isinstance(each, Setting):
            assert isinstance(command, ConfiguredCommand)
            yield _row_of_setting(each, command.parameters(each))
        elif isinstance(each, Argument):
            yield _row_of_argument(each)
        elif isinstance(each, click.Option) and not each.hidden and each is not command.get_help_option(context):
            yield _row_of_option(each, context)


def _row_of_setting(setting: Setting, parameters: Sequence[click.Parameter]) -> Row:
    is_option = any(isinstance(each, click.Option) for each in parameters)
    default = setting.default if setting.kind is tuple else setting.said_default
    words = () if setting.option.switch else setting.choices
    bounds = {name: getattr(each, name) for each in setting.field.metadata for name in _SIGNS if hasattr(each, name)}
    value = _value(words, metavar(setting) if is_option else "", bounds)
    if setting.kind is bool:
        shown = setting.flags[0] if default else ""
    else:
        shown = f"{default:g}" if isinstance(default, float) else default
    names = ", ".join(map(_names, parameters))
    return Row(names, _code(setting.path), value, _code(shown), setting.help)


def _row_of_argument(argument: Argument) -> Row:
    value = "required" if argument.required else ""
    return Row(_names(argument), "", value, _code(argument.to_info_dict()["default"]), argument.about)


def _row_of_option(option: click.Option, context: click.Context) -> Row:
    extra, kind = option.get_help_extra(context), option.type
    words = kind.choices if isinstance(kind, click.Choice) else ()
    bounds = {"ge": kind.min, "le": kind.max} if isinstance(kind, click.IntRange | click.FloatRange) else {}
    value = _value(words, "" if option.is_flag else option.make_metavar(context), bounds)
    variables = ", ".join(f"{_code(name)} of the environment" for name in extra.get("envvars", ()))
    default = variables or _code(extra.get("default"))
    return Row(_names(option), "", f"{value}, required" if option.required else value, default, option.help or "")


def _names(parameter: click.Parameter) -> str:
    if isinstance(parameter, click.Argument):
        return _code(parameter.human_readable_name.strip("[]"))
    forms = (", ".join(map(_code, sorted(names, key=len))) for names in (parameter.opts, parameter.secondary_opts))
    return " / ".join(filter(None, forms))


def _value(words: Iterable[str], metavar: str, bounds: Mapping[str, Any]) -> str:
    """The cell that says which values there are."""
    named = ", ".join(map(_code, words)) or _code(metavar)
    within = ", ".join(f"{_SIGNS[name]} {bound}" for name, bound in bounds.items() if bound is not None)
    return f"{named} {within}".rstrip()


def _code(word: object) -> str:
    """The word as code; empty for what stands for none."""
    return "" if word in (None, "", (), {}) else f"`{word}`"


def _wrapped(prose: str) -> str:
    return fill(prose, 120, break_long_words=False, break_on_hyphens=False)


def _sentence(context: click.Context) -> str:
    return " ".join((context.command.help or "").split())


def _link(command: str) -> str:
    return f"[`{command}`](#{command.replace(' ', '-')})"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
