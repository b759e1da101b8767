"""What the page of a run says first: its score, or, while it is not over, how far it has come."""

from __future__ import annotations

from dataclasses import dataclass

from tbench.scores.summary import Summary
from tbench.storage.read_run import StoredRun
from tbench.text import counted

CUT_OFF = "cut off"
_MEANINGS = {
    "running": "It is under way.",
    CUT_OFF: "It never said that it ended, but nothing works on it any more: it was killed.",
    "interrupted": "Somebody has stopped it.",
    "stopped": "It has stopped by itself.",
    "failed": "It has failed.",
    "incomplete": "Some of the planned trials have no result.",
}


@dataclass(frozen=True, slots=True)
class RunHeadline:
    """The large figure of a run, and the lines below it."""

    state: str | None
    """What the run is in the middle of; None where it is over, and only then its score is the figure."""
    label: str
    """What stands before the figure."""
    figure: str
    spread: str
    """What stands behind it with its ±; empty where nothing does."""
    rest: str
    """What the figure is of, in the same line."""
    meaning: str
    """Why there is no plain score; empty where there is one."""
    lines: tuple[str, ...]
    """The score by all conventions, but for what the figure says."""

    @property
    def words(self) -> str:
        """The headline in one line, as the title of a window."""
        return " ".join(filter(None, [self.label, self.figure, self.spread, self.rest]))


def headline_of(run: StoredRun, summary: Summary) -> RunHeadline:
    """The headline of a run."""
    if (state := _state(run, summary)) is not None:
        figure = f"{summary.counts.scored:,} of {summary.counts.planned:,}"
        noun = counted(summary.counts.planned, "trial").partition(" ")[2]
        rest = f"{noun} {'has' if summary.counts.planned == 1 else 'have'} a verdict"
        return RunHeadline(state, f"{state}:", figure, "", rest, _meaning(run, state), summary.score_lines)
    said, opening, rest = summary.score_line.partition(" (")
    label, _, figure = said.partition(" ")
    figure, sign, spread = figure.partition(" ± ")
    spread = f"{sign.strip()} {spread}" if sign else ""
    return RunHeadline(None, label, figure, spread, f"{opening.strip()}{rest}", "", summary.score_lines[1:])


def _state(run: StoredRun, summary: Summary) -> str | None:
    status = status_of(run)
    if status == "running":
        return CUT_OFF if run.is_cut_off else status
    if not summary.counts.missing:
        return None
    return "incomplete" if status in ("finished", None) else status


def status_of(run: StoredRun) -> str | None:
    """The status in run.json; None where nothing says one."""
    about = run.document or run.plan
    return about.status if about is not None else None


def _meaning(run: StoredRun, state: str) -> str:
    if run.document is None:
        return _MEANINGS[state]
    why = f"Why: {run.document.stopped}." if run.document.stopped else ""
    return " ".join(filter(None, [_MEANINGS[state], why, "It goes on with: tbench resume."]))
