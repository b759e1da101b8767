"""`tbench explain`: print where a run lost its points, or why its score differs from another run's."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tbench.cli.common import json_option
from tbench.cli.parsing.commands import TbenchCommand, argument, flag, option
from tbench.cli.parsing.values import PATH_TYPE, Integer
from tbench.cli.printing import print_coloured, print_progress, print_text, table_lines
from tbench.errors import UsageError

if TYPE_CHECKING:
    from tbench.explaining.explanation import DifferencePart, Explanation, LostPoints

_TRIALS_SHOWN, _TASKS_SHOWN, _NOTES_SHOWN = 12, 3, 8
_WORDS_SHOWN = 100


@click.command(cls=TbenchCommand)
@argument("run", "RUN", "A run directory, or a .jsonl file of results.")
@option(
    "--against RUN|last-good",
    "The run to compare with; repeatable: all count together. `last-good`: the earlier good runs in RUN's folder.",
    PATH_TYPE,
    multiple=True,
)
@flag("--all-trials", "Show every failed trial with its cause.")
@option(
    "--confirm N",
    "Test the causes: remove each one, and repeat failed trials from the step where it struck, in at most N "
    "containers. The cost is printed first.",
    Integer(min=1),
    name="forks",
)
@option("--base-url URL", "With --confirm, the endpoint to ask.  [default: the runs' own]")
@json_option
def explain(
    run: Path, against: tuple[Path, ...], all_trials: bool, forks: int | None, base_url: str | None, as_json: bool
) -> None:
    """Explain a score: where its points were lost or, with --against, why it differs from another run's."""
    from tbench.explaining.explain import explain as explain_runs
    from tbench.explaining.good_runs import LAST_GOOD

    names = [str(path) for path in against]
    if LAST_GOOD in names and len(names) > 1:
        raise UsageError(f"--against {LAST_GOOD}: cannot be combined with runs; leave one of them out")
    if any(path.resolve() == run.resolve() for path in against):
        raise UsageError(f"--against {run}: the same run; give another one")
    if base_url is not None and forks is None:
        raise UsageError("--base-url: only works with --confirm")
    found = explain_runs(run, LAST_GOOD if LAST_GOOD in names else list(against) or None)
    if forks is not None:
        found = _confirmed(found, forks, base_url)
    if as_json:
        print_text(found.model_dump_json(indent=2))
        return
    print_coloured(explanation_lines(found, all_trials=all_trials))


def _confirmed(found: Explanation, forks: int, base_url: str | None) -> Explanation:
    """Confirm causes by forks; if none can be confirmed, say why and return the explanation as it was."""
    from tbench.api.confirming import confirm
    from tbench.cli.interruption import run_interruptibly

    try:
        return run_interruptibly(
            confirm(found, forks, base_url=base_url, say=print_progress),
            stopping="stopping: containers are being removed",
        )
    except UsageError as error:
        print_progress(f"--confirm: {error}")
        return found


def explanation_lines(found: Explanation, *, all_trials: bool = False) -> Iterator[str]:
    """Yield the lines of an explanation, the sentence first."""
    yield click.style(found.sentence, bold=True)
    if found.against is not None:
        yield from _sameness(found)
        yield from ("", *_parts(found))
    else:
        yield from ("", *_lost(found))
    yield from _trials(found, all_trials=all_trials)
    for line in (*found.left_out, *found.notes[:_NOTES_SHOWN]):
        yield f"note: {line}"
    if len(found.notes) > _NOTES_SHOWN:
        yield f"note: {len(found.notes) - _NOTES_SHOWN} more with --json"


def _sameness(found: Explanation) -> Iterator[str]:
    yield ""
    yield click.style("Was it the same experiment?", bold=True)
    for each in found.moved:
        yield f"  {'moved' if each.explains else 'also'}: {each.key}: {each.words} ({each.party})"
    if not any(each.explains for each in found.moved):
        yield "  no recorded difference can change a score"
    yield ""
    yield click.style("Was it the same model?", bold=True)
    if found.equal_first_replies is not None:
        equal, pairs = found.equal_first_replies
        yield f"  {equal} of {pairs} trials with equal task and seed begin with the same reply"
    heads = ("  measure", ">before", ">after", ">p", ">p (Holm)", ">usual ±", "")
    rows = [
        (
            f"  {each.measure}",
            f"{each.before:.3g}",
            f"{each.after:.3g}",
            f"{each.p:.2g}",
            f"{each.p_holm:.2g}",
            "-" if each.usual is None else f"{each.usual:.2g}",
            "differs" if each.differs else "",
        )
        for each in found.model_tests
    ]
    yield from table_lines(heads, rows) if rows else ("  no measure varies, or too few trials have one",)


def _parts(found: Explanation) -> Iterator[str]:
    from tbench.explaining.sentence import interval_text, party_text, points

    difference = found.difference
    assert difference is not None and found.against is not None
    whole = f"{points(difference.difference, signed=True)} points ({interval_text(difference)})"
    pairs = "paired by task and seed" if difference.paired else "all trials of a task compared with each other"
    yield click.style(f"Points: {whole} since {found.against.name}", bold=True)
    yield f"  {difference.tasks} tasks, {pairs}; intervals are for these tasks, over other trials"
    heads = ("  cause", ">points", ">95 % interval", ">p (adjusted)", "whose", "tasks")
    rows = [
        (
            f"{'*' if part.named else ' '} {part.title}",
            points(part.difference, signed=True),
            interval_text(part),
            f"{part.p:.2g}",
            party_text(part.party),
            _tasks(part),
        )
        for part in difference.parts
    ]
    yield from table_lines(heads, rows)
    yield "  * beyond chance"
    for part in difference.parts:
        if part.named:
            yield from (f"  {part.title}: because {words}" for words in part.because)
            yield from (f"  {part.title}: cannot be told from {words}" for words in part.together_with)
            yield f"  {part.title}: {part.remedy}: {part.command}"
        if part.confirmed is not None:
            yield f"  {part.title}: {part.confirmed.words}"


def _tasks(part: DifferencePart | LostPoints) -> str:
    from tbench.explaining.sentence import points

    shown = [f"{each.task} {points(each.difference, signed=True)}" for each in part.tasks[:_TASKS_SHOWN]]
    more = len(part.tasks) > _TASKS_SHOWN
    return ", ".join(shown) + (", …" if more else "")


def _lost(found: Explanation) -> Iterator[str]:
    from tbench.explaining.sentence import party_text, points

    total = sum(each.lost for each in found.lost)
    head = f"Lost points of {found.run.name}: {points(total)}"
    yield click.style(head, bold=True)
    heads = ("  cause", ">at most", ">trials", "whose", "tasks")
    rows = [
        (f"  {each.title}", points(each.lost), str(each.trials), party_text(each.party), _tasks(each))
        for each in found.lost
    ]
    yield from table_lines(heads, rows)
    for each in found.lost:
        yield f"  {each.title}: {each.remedy}: {each.command}"
        if each.confirmed is not None:
            yield f"  {each.title}: {each.confirmed.words}"


def _trials(found: Explanation, *, all_trials: bool) -> Iterator[str]:
    from tbench.text import one_line

    shown = found.trials if all_trials else found.trials[:_TRIALS_SHOWN]
    if not shown:
        return
    yield ""
    what = "Newly failing trials" if shown[0].change == "newly failing" else "Failed trials"
    yield click.style(f"{what}: {len(found.trials)}", bold=True)
    for each in shown:
        step = f" step {each.step}" if each.step is not None else ""
        yield f"  {each.trial}{step}: {each.cause}: {one_line(each.words, _WORDS_SHOWN)}"
    if len(found.trials) > len(shown):
        yield f"  … and {len(found.trials) - len(shown)} more; --all-trials shows them"
