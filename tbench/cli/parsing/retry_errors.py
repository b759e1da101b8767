"""`--retry-errors`, which takes none, one or several types of error as words behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from tbench.cli.parsing.commands import TbenchCommand

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
            return super().parse_args(ctx, _with_types_joined(ctx, args))
        except click.UsageError as mistake:
            if "unexpected extra argument" in mistake.message:
                # One word too many, and so the one behind the option was meant as a type after all.
                _check(ctx, _types(_word_behind_the_option(words)))
            raise


class _TypeOfError(click.types.StringParamType):
    """Types of error, which a shell completes."""

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        from click.shell_completion import CompletionItem

        return [CompletionItem(type_) for type_ in _known() if type_.startswith(incomplete)]


def retry_errors_option(help: str) -> Callable[[T], T]:
    """The option, for a CommandWithRetryErrors: its value is None, `all`, or types with commas."""
    return click.option(_OPTION, type=_TypeOfError(), metavar="[TYPE]...", help=help)


def _known() -> list[str]:
    # Imported only now: it takes longer than all of --help.
    from tbench.errors import KINDS

    return [_ALL, *KINDS]


def _with_types_joined(context: click.Context, arguments: list[str]) -> list[str]:
    """Copy of the arguments in which the types behind the option are one word with it: `--retry-errors=a,b`."""
    joined: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        if word == "--":
            return [*joined, word, *rest]
        if word == _OPTION:
            types: list[str] = []
            while rest and _belongs_to_it(context, rest[0]):
                types.append(rest.pop(0))
            word = f"{_OPTION}={','.join(types) or _ALL}"
        elif word.startswith(f"{_OPTION}="):
            _check(context, _types(word.partition("=")[2]))
        joined.append(word)
    return joined


def _word_behind_the_option(arguments: list[str]) -> str:
    """The first word behind the option that is no option; empty where there is none."""
    behind = arguments[arguments.index(_OPTION) + 1 :] if _OPTION in arguments else []
    return behind[0] if behind and not behind[0].startswith("-") else ""


def _belongs_to_it(context: click.Context, word: str) -> bool:
    """Whether a word behind the option is about types of error. Raises click.UsageError for a misspelled one."""
    if word.startswith("-") or Path(word).name != word:
        return False
    types = _types(word)
    unknown = [type_ for type_ in types if type_ not in _known()]
    if types and not unknown:
        return True
    # What is no type may be the run, or the tasks: only what looks like a type is taken for one.
    if ("," in word or any(map(_nearest, unknown))) and not Path(word).exists():
        _check(context, unknown)
    return False


def _check(context: click.Context, types: Iterable[str]) -> None:
    """Raise click.UsageError for the first type that does not exist."""
    for type_ in types:
        if type_ not in _known() and not context.resilient_parsing:
            near = _nearest(type_)
            advice = f"did you mean {near}?" if near else f"known: {', '.join(_known())}"
            raise click.UsageError(f"{_OPTION} {type_}: no such type of error; {advice}", context)


def _nearest(type_: str) -> str | None:
    from tbench.cli.parsing.mistakes import nearest

    return nearest(type_, _known())


def _types(word: str) -> list[str]:
    return [type_ for type_ in word.split(",") if type_]
