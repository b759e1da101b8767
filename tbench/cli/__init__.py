"""The command line: the only package that prints or exits.

Modules of commands, and what those need, are imported when a command runs, so that `tbench --help` stays fast.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

import click

from tbench import exit_codes, hidden_package
from tbench.cli.parsing.commands import SETTINGS, LazyCommand, LazyGroup

_COMPLETE = "_TBENCH_COMPLETE"
_NEW_OBJECTS = 50_000
"""Number of new objects that starts a garbage collection; loading a command makes many objects and little garbage."""

COMMANDS = {
    "run": LazyCommand("tbench.cli.run", "run", "Run tasks against a model and print the score."),
    "resume": LazyCommand(
        "tbench.cli.run",
        "resume",
        "Finish a run: continue interrupted trials, and run those that are missing or ended with a retryable error.",
    ),
    "merge": LazyCommand("tbench.cli.run", "merge", "Merge the shards of a run and print its score."),
    "regrade": LazyCommand(
        "tbench.cli.run",
        "regrade",
        "Verify stored trials again: those run with --keep or --snapshot, or with a separate verifier container.",
    ),
    "calibrate": LazyCommand(
        "tbench.cli.task_check",
        "calibrate",
        "Measure how oracle and nop score on tasks; exit with 2 if tasks are unhealthy or too close to their limits.",
    ),
    "nightly": LazyCommand(
        "tbench.cli.nightly",
        "nightly",
        "Run one night of a nightly benchmark: serve, run, index, compare, judge, notify; resume it if interrupted.",
    ),
    "debug": LazyCommand(
        "tbench.cli.fork",
        "debug",
        "Run one trial step by step on one screen: inspect it, decide on each reply, type, verify, rewind.",
    ),
    "why": LazyCommand(
        "tbench.cli.show",
        "why",
        "Explain a trial's outcome on one screen: failed tests, limits, format errors, tampering, the last steps.",
    ),
    "show": LazyCommand("tbench.cli.show", "show", "Show the steps of a trial: what the model thought, typed and saw."),
    "play": LazyCommand(
        "tbench.cli.recording", "play", "Play back the recording of a trial's terminal; Ctrl-C leaves."
    ),
    "diff": LazyCommand(
        "tbench.cli.show",
        "diff",
        "Show the first step at which two trials differ: input and output, side by side.",
    ),
    "fork": LazyCommand(
        "tbench.cli.fork",
        "fork",
        "Replay a trial up to a step and continue from there: each fork has a fresh container and is never scored.",
    ),
    "blame": LazyCommand(
        "tbench.cli.fork",
        "blame",
        "Find the step after which a trial was likely to fail: fork it at several steps.",
    ),
    "ps": LazyCommand(
        "tbench.cli.steering",
        "ps",
        "List the running trials: phase, step, age and the last line of each terminal.",
    ),
    "pause": LazyCommand(
        "tbench.cli.steering",
        "pause",
        "Pause a run or a trial: start no more trials, or hold one at its next model call; time limits pause, too.",
    ),
    "continue": LazyCommand("tbench.cli.steering", "continue_", "Continue a paused run or trial."),
    "stop": LazyCommand(
        "tbench.cli.steering",
        "stop",
        "Stop a run or a trial, and keep it for tbench resume.",
    ),
    "abort": LazyCommand("tbench.cli.steering", "abort", "End a trial without a verdict; the other trials continue."),
    "say": LazyCommand(
        "tbench.cli.steering",
        "say",
        "Add a message to the model's next observation; the trial is excluded from the score.",
    ),
    "attach": LazyCommand("tbench.cli.attach", "attach", "Watch a trial's terminal, or take it over; Ctrl-] leaves."),
    "approve": LazyCommand(
        "tbench.cli.steering",
        "approve",
        "Approve the reply that a trial is waiting to execute; see tbench run --approve.",
    ),
    "refuse": LazyCommand(
        "tbench.cli.steering",
        "refuse",
        "Discard the reply that a trial is waiting to execute; the trial is excluded from the score.",
    ),
    "set": LazyCommand("tbench.cli.steering", "set_", "Change the number of concurrent trials of a run."),
    "note": LazyCommand(
        "tbench.cli.note",
        "note",
        "Write a note on a trial or on a task, with tags; or list the notes of RUN, RUN/TASK or RUN/TASK/SEED.",
    ),
    "summary": LazyCommand("tbench.cli.pages", "summary", "Print the score of a run directory."),
    "compare": LazyCommand(
        "tbench.cli.comparing.compare",
        "compare",
        "Compare runs, paired by task and seed: difference, error, exact p-value, and the tasks that changed.",
    ),
    "explain": LazyCommand(
        "tbench.cli.comparing.explain",
        "explain",
        "Explain a score: where its points were lost or, with --against, why it differs from another run's.",
    ),
    "flaky": LazyCommand(
        "tbench.cli.comparing.compare",
        "flaky",
        "List the tasks solved only sometimes; runs of one configuration are pooled.",
    ),
    "power": LazyCommand(
        "tbench.cli.comparing.compare",
        "power",
        "Estimate how many seeds reveal a difference: on these tasks, and on similar ones.",
    ),
    "report": LazyCommand("tbench.cli.pages", "report", "Write a self-contained HTML report of a run; print its path."),
    "site": LazyCommand(
        "tbench.cli.pages",
        "site",
        "Write pages about all runs into one folder: open it from disk, or serve it with any web server.",
    ),
    "view": LazyCommand(
        "tbench.cli.pages",
        "view",
        "Serve pages about all runs; running ones are shown live.",
    ),
    "import": LazyCommand("tbench.cli.import_", "import_", "Import results of Harbor, JSONL or CSV as runs."),
    "export": LazyCommand("tbench.cli.export", "export", "Export runs as ATIF, SFT data, Harbor jobs or SQLite."),
    "history": LazyCommand("tbench.cli.history", "history", "List the runs of a folder, or one task's results."),
    "gate": LazyCommand(
        "tbench.cli.nightly",
        "gate",
        "Judge if the latest run is worse by more than chance; an alarm exits with 5.",
    ),
    "extract": LazyCommand(
        "tbench.cli.proxies.extract",
        "extract",
        "Ask for one reply per task and seed; count those that contain a command; nothing is executed.",
    ),
    "replay": LazyCommand(
        "tbench.cli.proxies.replay",
        "replay",
        "Score a model's next commands; none is executed.",
    ),
    "leaderboard": LazyCommand(
        "tbench.cli.proxies.replay",
        "leaderboard",
        "Rank replay results: 100 x mean F1, one row per model with its newest result.",
    ),
    "correlate": LazyCommand(
        "tbench.cli.proxies.replay",
        "correlate",
        "Correlate proxy scores with executed scores, by rank.",
    ),
    "demo": LazyCommand(
        "tbench.cli.demo",
        "demo",
        "Run bundled tasks against a scripted endpoint; score them and write the report.",
    ),
    "demo-endpoint": LazyCommand(
        "tbench.cli.demo",
        "demo_endpoint",
        "Serve the scripted demo model over HTTP: /v1/models, /v1/chat/completions and /v1/completions.",
    ),
    "cassette": LazyCommand("tbench.cli.demo", "cassette", "Record a model's replies and serve them again."),
    "setup": LazyCommand(
        "tbench.cli.machine",
        "setup",
        "Prepare the machine: install and start an engine if needed, pull base images, build the tools volume.",
    ),
    "doctor": LazyCommand(
        "tbench.cli.machine",
        "doctor",
        "Check machine, engine, network and endpoint; exit with 2 if a check fails.",
    ),
    "config": LazyCommand("tbench.cli.config", "config", "Show a run's settings, or write them to a file."),
    "task": LazyCommand("tbench.cli.task", "task", "List, check, try, create and convert tasks."),
    "dataset": LazyCommand("tbench.cli.dataset", "dataset", "List, show, fetch and verify datasets."),
    "agent": LazyCommand("tbench.cli.agents.commands", "agent", "List, pull and show packaged agents."),
    "shell": LazyCommand(
        "tbench.cli.task", "shell", "Open a shell in a task's sandbox: the verifier runs when you leave it."
    ),
    "clean": LazyCommand(
        "tbench.cli.machine",
        "clean",
        "Remove what ended runs left behind: containers, networks, unnamed images; nothing of a run in progress.",
    ),
}
_HEADINGS = {
    "Run": ("run", "resume", "merge", "regrade", "calibrate", "nightly", "gate"),
    "Read": (
        "summary",
        "explain",
        "compare",
        "flaky",
        "power",
        "history",
        "report",
        "site",
        "view",
        "import",
        "export",
    ),
    "Debug": ("why", "show", "note", "play", "diff", "debug", "fork", "blame"),
    "Steer": ("ps", "pause", "continue", "stop", "abort", "say", "attach", "approve", "refuse", "set"),
    "Proxies": ("extract", "replay", "leaderboard", "correlate"),
    "Tasks": ("task", "dataset", "agent", "shell"),
    "Demo": ("demo", "demo-endpoint", "cassette"),
    "Machine": ("setup", "doctor", "clean", "config"),
}
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


@click.group(cls=LazyGroup, table=COMMANDS, headings=_HEADINGS, context_settings=SETTINGS, epilog=_EPILOG)
@click.option(
    "--version", is_flag=True, help="Print the version.", callback=_version, is_eager=True, expose_value=False
)
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

        from tbench.errors import TbenchError
        from tbench.text import escape_invisible, one_line

        # Errors that tbench raises on purpose are not bugs and get no traceback.
        if not isinstance(error, TbenchError):
            click.echo(escape_invisible(traceback.format_exc()), err=True, nl=False)
            sys.exit(exit_codes.BUG)
        click.echo(f"tbench: {one_line(str(error), 1000)}", err=True)
        for line in getattr(error, "looked_at", ()):
            click.echo(f"  {one_line(line)}", err=True)
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

        click.echo(error_line(mistake), err=True)
        return 2
    return 0
