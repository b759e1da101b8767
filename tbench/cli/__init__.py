"""The command line: the only place that prints or exits.

A command's module is imported when the command runs, and commands import what they need when they run, so that
`tbench --help` stays fast.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys

import click

from tbench import exit_codes, hidden_package
from tbench.cli.parsing.commands import SETTINGS, Lazy, LazyGroup

_COMPLETE = "_TBENCH_COMPLETE"
_NEW_OBJECTS = 50_000
"""New objects before Python looks for garbage among them: a command that loads makes many, and hardly any garbage."""

COMMANDS = {
    "run": Lazy("tbench.cli.run", "run", "Run tasks against a model and print the score."),
    "resume": Lazy(
        "tbench.cli.run",
        "resume",
        "Finish the trials of a run that have no verdict: cut short, never begun, or with an error worth a retry.",
    ),
    "merge": Lazy("tbench.cli.run", "merge", "Put the shards of a run together, and print its score."),
    "regrade": Lazy(
        "tbench.cli.run",
        "regrade",
        "Verify trials again: run with --keep or --snapshot, or with verifiers of their own.",
    ),
    "calibrate": Lazy(
        "tbench.cli.task_check",
        "calibrate",
        "Measure what oracle and nop score in tasks, how often, and how near to the limits; exit 2 for unhealthy ones.",
    ),
    "nightly": Lazy(
        "tbench.cli.nightly",
        "nightly",
        "Run a benchmark every night: serve, run, index, compare, judge, notify; goes on where it was cut.",
    ),
    "debug": Lazy(
        "tbench.cli.fork",
        "debug",
        "Run one trial step by step on one screen: look, decide about each reply, type, verify, go back.",
    ),
    "why": Lazy(
        "tbench.cli.show",
        "why",
        "Say on one screen what became of a trial: failed tests, limits, errors of form, signs, the last steps.",
    ),
    "show": Lazy("tbench.cli.show", "show", "Show the steps of a trial: what its model thought, typed and saw."),
    "play": Lazy("tbench.cli.play", "play", "Play the recording of a trial's terminal in yours; Ctrl-C leaves."),
    "diff": Lazy(
        "tbench.cli.show",
        "diff",
        "Show the first step at which two trials part, side by side: what was typed, and what was seen.",
    ),
    "fork": Lazy(
        "tbench.cli.fork",
        "fork",
        "Do a trial again up to a step in fresh containers, and let a model go on from there; none of it counts.",
    ),
    "blame": Lazy(
        "tbench.cli.fork",
        "blame",
        "Name the step after which a failed trial could hardly succeed any more, by forks at several steps.",
    ),
    "ps": Lazy(
        "tbench.cli.steering",
        "ps",
        "List the trials that are under way: phase, step, age, the last line of each terminal.",
    ),
    "pause": Lazy(
        "tbench.cli.steering",
        "pause",
        "Start no other trial, or hold a trial at its next model call; nobody is charged for the time.",
    ),
    "continue": Lazy("tbench.cli.steering", "continue_", "Let a paused run, or a paused trial, go on."),
    "abort": Lazy("tbench.cli.steering", "abort", "End a trial without a verdict; the others go on."),
    "say": Lazy(
        "tbench.cli.steering",
        "say",
        "Tell a trial's model something with the next message that it gets; the trial no longer counts.",
    ),
    "attach": Lazy("tbench.cli.attach", "attach", "Look on at a trial's terminal, or take it over; Ctrl-] leaves."),
    "approve": Lazy(
        "tbench.cli.steering",
        "approve",
        "Have the reply that waits for a yes be followed; a run with --approve ask asks about each.",
    ),
    "refuse": Lazy(
        "tbench.cli.steering",
        "refuse",
        "Have nothing be done of the reply that waits; the trial no longer counts.",
    ),
    "set": Lazy("tbench.cli.steering", "set_", "Change how many trials of a run are under way at once."),
    "summary": Lazy("tbench.cli.pages", "summary", "Print the score of a run from its directory."),
    "compare": Lazy(
        "tbench.cli.compare",
        "compare",
        "Compare runs, paired by task and seed: the difference, its error, an exact p, and which tasks changed.",
    ),
    "flaky": Lazy(
        "tbench.cli.compare",
        "flaky",
        "List the tasks that are solved sometimes, with Wilson intervals; runs of one model and configuration as one.",
    ),
    "power": Lazy(
        "tbench.cli.compare",
        "power",
        "Say how many seeds see a difference, on these very tasks and on others of their kind, and when none can.",
    ),
    "report": Lazy("tbench.cli.pages", "report", "Write one self-contained HTML page and print its path."),
    "site": Lazy(
        "tbench.cli.pages",
        "site",
        "Write pages about all runs into one folder that opens from a file and from any server.",
    ),
    "view": Lazy(
        "tbench.cli.pages",
        "view",
        "Serve the pages about all runs, and those under way live: phases, counts, terminals.",
    ),
    "import": Lazy("tbench.cli.import_", "import_", "Write results of others (Harbor, bare lines) as run directories."),
    "export": Lazy("tbench.cli.export", "export", "Write stored runs in formats of others."),
    "history": Lazy(
        "tbench.cli.history", "history", "List the runs of a folder, newest first, or follow one task over them."
    ),
    "gate": Lazy(
        "tbench.cli.nightly",
        "gate",
        "Judge whether the last of many runs lies below those before it, by more than chance; exit with 5 if it does.",
    ),
    "extract": Lazy(
        "tbench.cli.proxies.extract",
        "extract",
        "Ask for one reply per task and seed, and print how many hold a command; nothing is executed.",
    ),
    "replay": Lazy(
        "tbench.cli.proxies.replay",
        "replay",
        "Let a model continue recorded conversations, and score its next commands; nothing is executed.",
    ),
    "leaderboard": Lazy(
        "tbench.cli.proxies.replay",
        "leaderboard",
        "Rank results of replay: 100 x mean F1, one row per model, the newest result of each.",
    ),
    "correlate": Lazy(
        "tbench.cli.proxies.replay",
        "correlate",
        "Rank correlation of proxy scores with executed scores of the same models.",
    ),
    "demo": Lazy(
        "tbench.cli.demo",
        "demo",
        "Run bundled tasks against the scripted demo endpoint, score them, write the report.",
    ),
    "demo-endpoint": Lazy(
        "tbench.cli.demo",
        "demo_endpoint",
        "Serve scripted-demo over real HTTP: /v1/models, /v1/chat/completions, /v1/completions; replies from a script.",
    ),
    "cassette": Lazy("tbench.cli.demo", "cassette", "Record what a model answers, and serve it again."),
    "setup": Lazy(
        "tbench.cli.machine",
        "setup",
        "Make sure that an engine answers, base images are there and the tools volume is built.",
    ),
    "doctor": Lazy(
        "tbench.cli.machine",
        "doctor",
        "Check engine, limits, network, disk, certificates, clock and endpoint; exit with 2 if something fails.",
    ),
    "config": Lazy("tbench.cli.config", "config", "Show, describe and begin configurations of runs."),
    "task": Lazy("tbench.cli.task", "task", "List, check, try, begin and convert task directories."),
    "dataset": Lazy("tbench.cli.dataset", "dataset", "List, show, fetch and verify datasets."),
    "shell": Lazy(
        "tbench.cli.task", "shell", "Open a shell in a task's sandbox; leave it to see what the verifier says."
    ),
    "clean": Lazy(
        "tbench.cli.machine",
        "clean",
        "Remove what runs left whose process is gone, and nameless images; never anything of a run under way.",
    ),
}
_EXIT_CODES = """\b
Exit codes:
  0    finished
  1    a bug
  2    something that the user or the machine has to change
  3    coverage below --min-coverage, or no verdict
  4    stopped because the endpoint is away
  5    the nightly gate's alarm
  130  interrupted
"""


def _version(context: click.Context, _: click.Parameter, value: bool) -> None:
    if value:
        from tbench import __version__

        click.echo(f"tbench {__version__}")
        context.exit()


@click.group(cls=LazyGroup, table=COMMANDS, context_settings=SETTINGS, epilog=_EXIT_CODES)
@click.option(
    "--version", is_flag=True, help="Print the version.", callback=_version, is_eager=True, expose_value=False
)
def app() -> None:
    """A live, sandboxed benchmark runner for terminal agents behind any OpenAI-compatible endpoint."""


def main() -> None:
    """Run the command line, and exit with one of the codes that its help lists."""
    gc.set_threshold(_NEW_OBJECTS, *gc.get_threshold()[1:])
    atexit.register(gc.freeze)  # nothing is looked through again that goes with the process
    if problem := hidden_package():
        click.echo(problem, err=True)
        sys.exit(exit_codes.USAGE)
    try:
        sys.exit(_code())
    except (KeyboardInterrupt, click.Abort):
        click.echo("tbench: interrupted", err=True)
        sys.exit(exit_codes.INTERRUPTED)
    except BrokenPipeError:
        # `tbench … | head`: the reader has enough. What is still to be flushed goes nowhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except Exception as error:  # noqa: BLE001 - a bug is shown as Python shows it
        # Imported only now: it takes longer than all of --help.
        import traceback

        from tbench.errors import TbenchError
        from tbench.text import one_line, visible

        # Whatever tbench raises on purpose is no bug, however deep it came from: no traceback.
        if not isinstance(error, TbenchError):
            click.echo(visible(traceback.format_exc()), err=True, nl=False)
            sys.exit(exit_codes.BUG)
        click.echo(f"tbench: {one_line(str(error), 1000)}", err=True)
        sys.exit(exit_codes.USAGE)


def _code() -> int:
    """Run the command, or complete it for a shell, and return the exit code.

    Not by click's own main(), which ends a broken pipe with 1 and takes any EOFError for a Ctrl-C.
    """
    try:
        if instruction := os.environ.get(_COMPLETE):
            from click.shell_completion import shell_complete

            return shell_complete(app, {}, "tbench", _COMPLETE, instruction)
        with app.make_context("tbench", sys.argv[1:]) as context:
            app.invoke(context)
        sys.stdout.flush()
    except click.exceptions.Exit as end:
        return end.exit_code
    except click.exceptions.NoArgsIsHelpError as mistake:
        mistake.show()
        return 2
    except click.ClickException as mistake:
        from tbench.cli.parsing.mistakes import line_of

        click.echo(line_of(mistake), err=True)
        return 2
    return 0
