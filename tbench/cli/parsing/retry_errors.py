"""`--retry-errors`, which takes none, one or several types of error as words behind it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tbench.cli.parsing.commands import TbenchCommand, with_values
from tbench.cli.parsing.values import UnknownValue

if TYPE_CHECKING:
    from click.shell_completion import CompletionItem

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
