"""Usage errors as one line each, with a suggestion of what was probably meant."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

import click

from tbench.cli.parsing.values import UnknownValue
from tbench.text import one_line

_INSTEAD = {
    **dict.fromkeys(("--api-key", "--api-key-name"), "the key comes from the variable OPENAI_API_KEY"),
    "--env-file": "run 'set -a; . FILE; set +a' first, which sets its variables",
}
"""Advice for options that other harnesses have."""


def error_line(mistake: click.ClickException) -> str:
    """Return the error as one line that begins with the command."""
    context = mistake.ctx if isinstance(mistake, click.UsageError) else None
    return one_line(f"{context.command_path if context else 'tbench'}: {_message(mistake)}", 1000)


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that starts with this one, else the most similar one, if any."""
    candidates = list(known)
    begun = [each for each in candidates if len(word) > 2 and each.startswith(word)]
    return next(iter(begun or get_close_matches(word, candidates, n=1)), None)


def suggestion(word: str, known: Iterable[str], context: click.Context) -> str:
    """Suggest the nearest known word, or the help that lists all of them."""
    if near := nearest(word, known):
        return f"did you mean {near}?"
    everything = any("--help-all" in each.opts for each in context.command.params)
    return f"see {context.command_path} {'--help-all' if everything else '--help'}"


def _message(mistake: click.ClickException) -> str:
    match mistake:
        case click.NoSuchOption(option_name=name) if name in _INSTEAD:
            return f"no such option {name}; {_INSTEAD[name]}"
        case click.NoSuchOption(option_name=name, ctx=click.Context() as context):
            known = [option for each in context.command.get_params(context) for option in _options(each)]
            return f"no such option {name}; {suggestion(name, known, context)}"
        case click.MissingParameter(param=click.Parameter() as parameter, ctx=click.Context() as context):
            kind = parameter.param_type_name
            return f"missing {kind} {_name(parameter)}; see {context.command_path} --help"
        case UnknownValue(param=click.Parameter() as parameter):
            return f"{_name(parameter)} {_as_clause(mistake)}"
        case click.BadParameter(param=click.Parameter() as parameter):
            return f"{_name(parameter)}: {_as_clause(mistake)}"
    return _as_clause(mistake)


def _as_clause(mistake: click.ClickException) -> str:
    """Return click's message in a form that can end another sentence."""
    message = mistake.message.removesuffix(".")
    return message[:1].lower() + message[1:] if message[1:2].islower() else message


def _options(parameter: click.Parameter) -> list[str]:
    return [*parameter.opts, *parameter.secondary_opts] if isinstance(parameter, click.Option) else []


def _name(parameter: click.Parameter) -> str:
    """Return the parameter as the user writes it: `--seeds`, `RUN`."""
    return max(parameter.opts, key=len) if isinstance(parameter, click.Option) else parameter.human_readable_name
