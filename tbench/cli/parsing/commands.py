"""Commands whose help describes arguments, and groups that import a command's module only when it runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

Command = TypeVar("Command", bound=Callable[..., Any])
SETTINGS: Mapping[str, Any] = {
    "help_option_names": ["-h", "--help"],
    "max_content_width": sys.maxsize,  # limited only by the terminal or COLUMNS
    "show_default": True,
}
"""Context settings of the outermost command; its subcommands inherit them."""


class Argument(click.Argument):
    """An argument with a description in the help."""

    def __init__(self, param_decls: list[str], help: str, **attrs: Any) -> None:
        super().__init__(param_decls, **attrs)
        self.about = help

    def make_metavar(self, ctx: click.Context) -> str:
        name = self.human_readable_name
        return name if self.required else f"[{name}]"

    def record(self, context: click.Context) -> tuple[str, str]:
        """Return the argument's row in the help."""
        default = self.to_info_dict()["default"]  # get_default() returns click's internal marker for no default
        extra = "required" if self.required else f"default: {default}" if default is not None else ""
        return self.human_readable_name, f"{self.about}  [{extra}]" if extra else self.about


def argument(
    name: str, metavar: str, help: str, *, type: click.ParamType[Any] | type | None = None, **attrs: Any
) -> Callable[[Command], Command]:
    """Return an argument, by default a path; a metavar that ends in `...` takes any number of values."""
    from tbench.cli.parsing.values import PATH_TYPE

    attrs = {"nargs": -1 if metavar.endswith("...") else 1, "type": type or PATH_TYPE, **attrs}
    return click.argument(name, cls=Argument, metavar=metavar, help=help, **attrs)


def option(
    usage: str, help: str, type: click.ParamType[Any] | type | None = None, *, name: str = "", **attrs: Any
) -> Callable[[Command], Command]:
    """Return an option, written as in the help: `--output -o DIR`. `name` is its parameter's name, if that differs."""
    words = usage.split()
    flags = [word for word in words if word.startswith("-")]
    metavar = " ".join(words[len(flags) :]) or None
    return click.option(*flags, *filter(None, [name]), metavar=metavar, type=type, help=help, **attrs)


def flag(usage: str, help: str, *, name: str = "", **attrs: Any) -> Callable[[Command], Command]:
    """Return an option without a value."""
    return option(usage, help, name=name, is_flag=True, **attrs)


def insert_optional_values(arguments: list[str], options: Mapping[str, Callable[[list[str]], str]]) -> list[str]:
    """Return a copy of the arguments in which options with an optional value are written as `--name=VALUE`.

    Each function in `options` removes the option's value from the remaining arguments and returns it.
    """
    words, rest = list[str](), list(arguments)
    while rest and rest[0] != "--":
        word = rest.pop(0)
        words.append(f"{word}={options[word](rest)}" if word in options else word)
    return [*words, *rest]


class TbenchCommand(click.Command):
    """A command whose help lists its arguments."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.UsageError as mistake:
            mistake.ctx = mistake.ctx or ctx  # click's parser omits it in some errors
            raise

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [each.record(ctx) for each in self.get_params(ctx) if isinstance(each, Argument)]
        if rows:
            with formatter.section("Arguments"):
                formatter.write_dl(rows)
        super().format_options(ctx, formatter)


class LazyCommand:
    """A command whose module is imported only when it runs."""

    def __init__(self, where: str) -> None:
        """`where` is MODULE:FUNCTION."""
        self.where = where

    def load(self) -> click.Command:
        """Import the command."""
        command: click.Command = resolve_name(self.where)
        return command

    @property
    def help(self) -> str:
        """First sentence of the function's docstring, read from the source because an import takes much longer."""
        module, _, function = self.where.partition(":")
        docstring = _source(module).partition(f"\ndef {function}(")[2].split('"""', 2)[1]
        return docstring.partition("\n")[0].partition(". ")[0].removesuffix(".") + "."

    @property
    def short_help(self) -> str:
        """The first clause of the help, for a long list of commands."""
        return self.help.partition(":")[0].partition(";")[0].removesuffix(".")


@cache
def _source(module: str) -> str:
    below = module.removeprefix("tbench.cli.").replace(".", "/")
    return (Path(__file__).parents[1] / f"{below}.py").read_text("utf-8")


class LazyGroup(click.Group):
    """A group that imports a command's module when it runs, and none to list them."""

    def __init__(
        self,
        *args: Any,
        table: Mapping[str, str] | None = None,
        headings: Mapping[str, Mapping[str, str]] | None = None,
        **attrs: Any,
    ) -> None:
        """`table` maps commands to MODULE:FUNCTION. `headings` has such a table for each heading of a short help."""
        super().__init__(*args, **attrs)
        self.headings = headings or {}
        places = table or {name: where for names in self.headings.values() for name, where in names.items()}
        self.table = {name: LazyCommand(where) for name, where in places.items()}

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        return self.table[cmd_name].load() if cmd_name in self.table else None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] in self.table or args[0].startswith("-") or ctx.resilient_parsing:
            return super().resolve_command(ctx, args)
        from tbench.cli.parsing.usage_errors import suggestion

        raise click.UsageError(f"no such command {args[0]}; {suggestion(args[0], self.table, ctx)}", ctx)

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        if not self.headings:
            super().format_options(ctx, formatter)
            return
        left = max(map(len, self.headings)) + 1
        rows = [
            (f"{'' if number else heading:<{left}}{name}", self.table[name].short_help)
            for heading, names in self.headings.items()
            for number, name in enumerate(names)
        ]
        formatter.write_paragraph()
        with formatter.indentation():
            formatter.write_dl(rows)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, where.help) for name, where in self.table.items()])

    def shell_complete(self, ctx: click.Context, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        found = [
            CompletionItem(name, help=where.help) for name, where in self.table.items() if name.startswith(incomplete)
        ]
        # Bypasses click.Group, which would import every command.
        return found + click.Command.shell_complete(self, ctx, incomplete)
