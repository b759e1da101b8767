"""Mistakes at the command line in one line each, with what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import click

from tbench.cli.parsing.values import UnknownValue
from tbench.text import one_line


def line_of(mistake: click.ClickException) -> str:
    """The mistake in one line that begins with the command."""
    context = mistake.ctx if isinstance(mistake, click.UsageError) else None
    return one_line(f"{context.command_path if context else 'tbench'}: {_words(mistake)}", 1000)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that begins with this one, or else is most like it, if one is."""
    words = list(known)
    begun = [each for each in words if len(word) > 2 and each.startswith(word)]
    return next(iter(begun or get_close_matches(word, words, n=1)), None)


def nearest_or_all(word: str, known: Iterable[str], context: click.Context) -> str:
    """What to do about an unknown word: take the nearest, or look at the help."""
    near = nearest(word, known)
    flag = "--help-all" if any("--help-all" in each.opts for each in context.command.params) else "--help"
    return f"did you mean {near}?" if near else f"{context.command_path} {flag} lists what there is"


def _words(mistake: click.ClickException) -> str:
    match mistake:
        case click.NoSuchOption(option_name=name, ctx=click.Context() as context):
            known = [option for each in context.command.get_params(context) for option in _options(each)]
            return f"no such option {name}; {nearest_or_all(name, known, context)}"
        case click.MissingParameter(param=click.Parameter() as parameter, ctx=click.Context() as context):
            kind = parameter.param_type_name
            return f"missing {kind} {_name(parameter)}; {context.command_path} --help says what it is"
        case UnknownValue(param=click.Parameter() as parameter):
            return f"{_name(parameter)} {_as_clause(mistake)}"
        case click.BadParameter(param=click.Parameter() as parameter):
            return f"{_name(parameter)}: {_as_clause(mistake)}"
    return _as_clause(mistake)


def _as_clause(mistake: click.ClickException) -> str:
    """Click's own sentence as the end of another one."""
    words = mistake.message.removesuffix(".")
    return words[:1].lower() + words[1:] if words[1:2].islower() else words


def _options(parameter: click.Parameter) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts] if isinstance(parameter, click.Option) else []


def _name(parameter: click.Parameter) -> str:
    """The parameter as the user writes it: `--seeds`, `RUN`."""
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name
