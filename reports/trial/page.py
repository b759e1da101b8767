"""The files of a trial in a site: its page, and the script with its steps and its recording."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from reports.look import Crumb, page
from reports.names import run_page, task_data, task_page, trial_data, trial_page
from reports.site.content import Site, SiteRun
from reports.trial.data import script, section_data
from reports.trial.head import TrialHead, TrialLink, head_of
from reports.trial.section import TrialSection, sections_of
from reports.trial.steps import StepCard, cards_of, left_out_of
from reports.trial.text import ShownText, shown
from reports.trial.timeline import timeline
from tbench.results import TrialResult
from tbench.scores.summarise import status_of
from tbench.scores.summary import Summary
from tbench.storage.read_run import StoredRun
from tbench.storage.repeating import command_of, commands_about
from tbench.text import counted

Key = tuple[str, int, int]
"""A task, a seed and an attempt."""
_TOLD_CHARS = 1200
_SEEDS_SHOWN = 11
"""Other seeds that a page links to: the nearest."""


@dataclass(frozen=True, slots=True)
class ToldMessage:
    """A message that the model was given before its first reply."""

    role: str
    text: ShownText


@dataclass(frozen=True, slots=True)
class SectionView:
    """The work on a task, or on one of its steps, as the page shows it."""

    stored: TrialSection
    prefix: str
    """What ids of this section begin with."""
    cards: tuple[StepCard, ...]
    left_out: str
    """Which steps have no card, in words."""
    left_out_after: int
    """The number of cards that come before those."""
    strip: Markup
    told: tuple[ToldMessage, ...]

    @property
    def has_recording(self) -> bool:
        return bool(self.stored.cast.text)


def trial_files(site: Site, run: SiteRun, stored: StoredRun, summary: Summary) -> Iterator[tuple[str, str]]:
    """Each file of all trials of a run that have ended, with its place in the site."""
    ended: dict[Key, TrialResult] = {(each.task, each.seed, each.attempt): each for each in stored.results}
    of_task: dict[str, list[TrialResult]] = {}
    for result in sorted(ended.values(), key=lambda each: (each.seed, each.attempt)):
        of_task.setdefault(result.task, []).append(result)
    for result in ended.values():
        yield from _files(run, stored, result, of_task[result.task])


def _files(
    run: SiteRun, stored: StoredRun, result: TrialResult, of_task: Sequence[TrialResult]
) -> Iterator[tuple[str, str]]:
    place = (run.slug, result.task, result.seed, result.attempt)
    html, data = trial_page(*place), trial_data(*place)
    parts = sections_of(stored.path, result)
    yield data, script(data, [section_data(part) for part in parts])
    views = [_section_view(part) for part in parts]
    yield (
        html,
        page(
            "trial.html.j2",
            html,
            crumbs=[
                Crumb(run.row.name, run_page(run.slug)),
                Crumb(result.task, task_page(result.task)),
                Crumb(_which(result)),
            ],
            head=_head(run, result, of_task),
            sections=views,
            recorded=any(view.has_recording for view in views),
            data=data,
            task_data=task_data(result.task),
            task_page=task_page(result.task),
            run_page=run_page(run.slug),
            command=command_of(stored.document, result.task, result.seed) if stored.document is not None else "",
            asking=commands_about(stored.path, result) if stored.document is not None else (),
            imported=stored.imported,
        ),
    )


def _which(result: TrialResult) -> str:
    again = f", attempt {result.attempt}" if result.attempt > 1 else ""
    return f"seed {result.seed}{again}"


def _head(run: SiteRun, result: TrialResult, of_task: Sequence[TrialResult]) -> TrialHead:
    """The head, with links to the last attempts at the nearest seeds and to all attempts at this one."""
    last = {each.seed: each for each in of_task}
    own = [each for each in of_task if each.seed == result.seed]
    tries = [_link(run, each, f"attempt {each.attempt}", each is result) for each in own] if len(own) > 1 else []
    at = list(last).index(result.seed)
    others = list(last.values())
    near = others[max(0, min(at - _SEEDS_SHOWN // 2, len(others) - _SEEDS_SHOWN)) :][:_SEEDS_SHOWN]
    seeds = [_link(run, each, f"seed {each.seed}", each.seed == result.seed) for each in near]
    return head_of(
        result,
        _which(result),
        seeds=seeds,
        attempts=tries,
        before=_place(run, others[at - 1]) if at > 0 else None,
        after=_place(run, others[at + 1]) if at + 1 < len(others) else None,
    )


def _place(run: SiteRun, result: TrialResult) -> str:
    return trial_page(run.slug, result.task, result.seed, result.attempt)


def _link(run: SiteRun, result: TrialResult, label: str, is_here: bool) -> TrialLink:
    return TrialLink(label, _place(run, result), status_of(result), is_here)


def _section_view(part: TrialSection) -> SectionView:
    cards = tuple(cards_of(part.steps, part.words, part.number, types_keys=part.protocol.startswith("keystrokes")))
    missing = left_out_of(part.steps)
    return SectionView(
        stored=part,
        prefix=f"step-{part.number}." if part.number is not None else "step-",
        cards=cards,
        left_out=f"Steps {missing[0]} to {missing[-1]}, {counted(len(missing), 'step')}" if missing else "",
        left_out_after=missing[0] - 1 if missing else 0,
        strip=timeline(cards, f"the {counted(len(cards), 'step')} by their time"),
        told=tuple(ToldMessage(message.role, shown(message.content, _TOLD_CHARS)) for message in part.told),
    )
