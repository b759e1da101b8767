"""Search over all trials: the page, and the texts of a trial that it searches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from reports.page_frame import Crumb, data_script, page
from reports.page_paths import SEARCH
from reports.site.content import Site
from reports.trial.section import TrialSection

_TRIAL_CHARS, _TEXT_CHARS = 20_000, 2_000
"""Maximum number of characters of a trial, and of one text, that are searched."""


def render(site: Site) -> str:
    """Render the page on which trials are searched."""
    crumbs = [Crumb("search")]
    limits = (_TEXT_CHARS, _TRIAL_CHARS)
    return page("search.html.j2", SEARCH, crumbs=crumbs, runs=len(site.runs), limits=limits)


def runs_data(site: Site) -> str:
    """Return the script that lists the runs to search, newest first: slug, name, model, day."""
    return data_script("runs", [[run.slug, run.row.name, run.row.model or "", run.row.day or ""] for run in site.runs])


def searched_texts(parts: Sequence[TrialSection]) -> Iterator[tuple[str, str, str]]:
    """Yield the texts of a trial that are searched, within the limits: kind, anchor in its page, text."""
    left = _TRIAL_CHARS
    for kind, anchor, text in _texts(parts):
        if cut := text.strip()[: min(left, _TEXT_CHARS)]:
            yield kind, anchor, cut
            left -= len(cut)


def _texts(parts: Sequence[TrialSection]) -> Iterator[tuple[str, str, str]]:
    for part in parts:
        for test in part.verifier.tests if part.verifier is not None else ():
            if test.state in ("fail", "error"):
                yield "failed test", "", f"{test.name} {test.message}"
    for part in parts:
        section = "" if part.number is None else f"{part.number}."
        for step, reply in zip(part.steps, part.replies, strict=True):
            anchor = f"step-{section}{step.index}"
            yield "typed", anchor, "".join(step.actions)
            yield "said", anchor, "\n".join([reply.reasoning, *(each.text for each in reply.parts)])
