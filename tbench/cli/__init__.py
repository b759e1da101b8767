"""The command line: the only place that prints or exits.

Commands import what they need when they run, so that `tbench --help` stays fast.
"""

from __future__ import annotations

import re
import sys

import typer

from tbench.cli import clean, demo, doctor, regrade, report, resume, run, setup, shell, summary, task
from tbench.cli.proxies import correlate, extract, leaderboard, replay

app = typer.Typer(
    name="tbench",
    help="A live, sandboxed benchmark runner for terminal agents behind any OpenAI-compatible endpoint.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
run.register(app)
resume.register(app)
regrade.register(app)
summary.register(app)
report.register(app)
extract.register(app)
replay.register(app)
leaderboard.register(app)
correlate.register(app)
demo.register(app)
setup.register(app)
doctor.register(app)
task.register(app)
shell.register(app)
clean.register(app)


def _version(value: bool) -> None:
    if value:
        from tbench import __version__

        typer.echo(f"tbench {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: bool = typer.Option(False, "--version", help="Print the version.", callback=_version, is_eager=True),
) -> None:
    pass


def _with_types_joined(arguments: list[str]) -> list[str]:
    """Join the types after `--retry-errors` (none, one or several) to one word for the parser: `all`, or a,b,c."""
    joined: list[str] = []
    rest = iter(arguments)
    for word in rest:
        joined.append(word)
        if word != "--retry-errors":
            continue
        types, after = [], next(rest, None)
        while after is not None and re.fullmatch(r"[a-z_,]+", after):
            types.append(after)
            after = next(rest, None)
        joined.append(",".join(types) or "all")
        if after is not None:
            joined.append(after)
    return joined


def main() -> None:
    """Run the command line.

    Exit codes: 0 finished, 1 a bug, 2 something the user or the machine has to change, 3 coverage below
    --min-coverage, 4 stopped because the endpoint is away, 130 interrupted.
    """
    try:
        app(args=_with_types_joined(sys.argv[1:]))
    except KeyboardInterrupt:
        typer.echo("tbench: interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # `tbench … | head`: the reader has enough.
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:
        # Imported only now: it takes longer than all of --help.
        from tbench.errors import TbenchError
        from tbench.text import one_line

        # Whatever tbench raises on purpose is no bug, however deep it came from: no traceback.
        if not isinstance(error, TbenchError):
            raise
        typer.echo(f"tbench: {one_line(str(error), 1000)}", err=True)
        sys.exit(2)
