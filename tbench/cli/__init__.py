"""The command line: the only package that prints or exits.

A command's module and its imports are loaded when the command runs, so that `tbench --help` stays fast.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

import click

from tbench import exit_codes, hidden_package
from tbench.cli.parsing.commands import SETTINGS, LazyGroup, flag

_COMPLETE = "_TBENCH_COMPLETE"
_NEW_OBJECTS = 50_000
"""Number of new objects that starts a garbage collection; loading a command makes many objects and little garbage."""

COMMANDS = {
    "Run": {
        "run": "tbench.cli.run:run",
        "resume": "tbench.cli.run:resume",
        "merge": "tbench.cli.run:merge",
        "regrade": "tbench.cli.run:regrade",
        "calibrate": "tbench.cli.task_check:calibrate",
        "nightly": "tbench.cli.nightly:nightly",
        "gate": "tbench.cli.nightly:gate",
    },
    "Read": {
        "summary": "tbench.cli.pages:summary",
        "explain": "tbench.cli.comparing.explain:explain",
        "compare": "tbench.cli.comparing.compare:compare",
        "flaky": "tbench.cli.comparing.compare:flaky",
        "power": "tbench.cli.comparing.compare:power",
        "history": "tbench.cli.history:history",
        "report": "tbench.cli.pages:report",
        "site": "tbench.cli.pages:site",
        "view": "tbench.cli.pages:view",
        "import": "tbench.cli.import_:import_",
        "export": "tbench.cli.export:export",
    },
    "Debug": {
        "why": "tbench.cli.show:why",
        "show": "tbench.cli.show:show",
        "note": "tbench.cli.note:note",
        "play": "tbench.cli.recording:play",
        "diff": "tbench.cli.show:diff",
        "debug": "tbench.cli.fork:debug",
        "fork": "tbench.cli.fork:fork",
        "blame": "tbench.cli.fork:blame",
    },
    "Steer": {
        "ps": "tbench.cli.steering:ps",
        "pause": "tbench.cli.steering:pause",
        "continue": "tbench.cli.steering:continue_",
        "stop": "tbench.cli.steering:stop",
        "abort": "tbench.cli.steering:abort",
        "say": "tbench.cli.steering:say",
        "attach": "tbench.cli.attach:attach",
        "approve": "tbench.cli.steering:approve",
        "refuse": "tbench.cli.steering:refuse",
        "set": "tbench.cli.steering:set_",
    },
    "Proxies": {
        "extract": "tbench.cli.proxies.extract:extract",
        "replay": "tbench.cli.proxies.replay:replay",
        "leaderboard": "tbench.cli.proxies.replay:leaderboard",
        "correlate": "tbench.cli.proxies.replay:correlate",
    },
    "Tasks": {
        "task": "tbench.cli.task:task",
        "dataset": "tbench.cli.dataset:dataset",
        "agent": "tbench.cli.agents.commands:agent",
        "shell": "tbench.cli.task:shell",
    },
    "Demo": {
        "demo": "tbench.cli.demo:demo",
        "demo-endpoint": "tbench.cli.demo:demo_endpoint",
        "cassette": "tbench.cli.demo:cassette",
    },
    "Machine": {
        "setup": "tbench.cli.machine:setup",
        "doctor": "tbench.cli.machine:doctor",
        "clean": "tbench.cli.machine:clean",
        "config": "tbench.cli.config:config",
    },
}
"""Where each command is defined, by heading and name."""
_EPILOG = (
    "-h, --help after a command shows its options; --version prints the version. Exit codes: 0 finished, 1 a bug, "
    "2 something to fix, 3 too few verdicts, 4 endpoint down, 5 alarm of the gate, 6 stopped as "
    "planned, 130 interrupted"
)


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from tbench import __version__

        click.echo(f"tbench {__version__}")
        context.exit()


@click.group(cls=LazyGroup, headings=COMMANDS, context_settings=SETTINGS, epilog=_EPILOG)
@flag("--version", "Print the version.", callback=_version, is_eager=True, expose_value=False)
def app() -> None:
    """Run benchmarks of terminal agents with any OpenAI-compatible endpoint."""


def main() -> None:
    """Run the command line and exit with one of the codes listed in its help."""
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)  # no final garbage collection: the process ends anyway
    if problem := hidden_package():
        click.echo(problem, err=True)
        sys.exit(exit_codes.USAGE)
    try:
        sys.exit(_code())
    except (KeyboardInterrupt, click.Abort):
        click.echo("tbench: interrupted", err=True)
        sys.exit(exit_codes.INTERRUPTED)
    except BrokenPipeError:
        # `tbench … | head`: the reader has gone. Discard what is still to be flushed.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:  # noqa: BLE001 - a bug is shown as Python shows it
        # Imported late: it takes longer than all of --help.
        import traceback

        from tbench.cli.printing import print_folded
        from tbench.errors import TbenchError
        from tbench.text import escape_invisible, one_line

        # Errors that tbench raises on purpose are not bugs and get no traceback.
        if not isinstance(error, TbenchError):
            click.echo(escape_invisible(traceback.format_exc()), err=True, nl=False)
            sys.exit(exit_codes.BUG)
        print_folded(f"tbench: {one_line(str(error), 1000)}", err=True)
        for line in getattr(error, "looked_at", ()):
            print_folded(f"  {one_line(line)}", err=True)
        sys.exit(exit_codes.USAGE)


def _code() -> int:
    """Run the command, or complete it for a shell, and return the exit code.

    Replaces click's main(), which exits with 1 on a broken pipe and treats any EOFError as Ctrl-C.
    """
    try:
        if instruction := os.environ.get(_COMPLETE):
            from click.shell_completion import shell_complete

            return shell_complete(app, {}, "tbench", _COMPLETE, instruction)
        words = sys.argv[1:]
        if words[:1] == ["help"]:
            words = [*words[1:], "--help"]
        with app.make_context("tbench", words) as context:
            app.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as mistake:
        assert mistake.ctx is not None
        click.echo(mistake.ctx.get_help())  # on stdout, for a pager
        return 2
    except click.ClickException as mistake:
        from tbench.cli.parsing.usage_errors import error_line
        from tbench.cli.printing import print_folded

        print_folded(error_line(mistake), err=True)
        return 2
    return 0
