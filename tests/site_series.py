"""Series of runs for tests of pages: write them reward by reward, gather them as a site, read pages back."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from run_trees import FIRST_NIGHT, a_result, write_run

from reports.site.content import NightlySeries, Site, gather
from tbench.history.index import RunHistory
from tbench.results import Blame, ErrorInfo, Stage, TrialResult

TASKS = tuple(f"task-{number:02}" for number in range(12))
HASHES = {task: f"hash-of-{task}" for task in TASKS}
HOSTILE = "</title><script>alert('x')</script>\u202e&\"'/../\x1b[31m"
LOST = ErrorInfo(stage=Stage.IMAGE, type="ImagePullFailed", blame=Blame.INFRA, retryable=True, message="rate <limit>")
_APART = {"td", "th", "tr", "li", "p", "h1", "h2", "h3", "br", "summary", "dt", "dd", "span", "a", "title", "text"}
"""Elements that are displayed separately from the text before them."""
Rewards = Mapping[str, Sequence[float | None]]
"""Reward by task, seed by seed; None for an error."""


def usual(number: int) -> dict[str, tuple[float]]:
    """Return the rewards of a usual night: nine or ten of twelve tasks are solved, not always the same."""
    return {task: (float(at < 9 or (at == 9 + number % 3)),) for at, task in enumerate(TASKS)}


def dropped(number: int) -> dict[str, tuple[float]]:
    """Return the rewards of a night on which five more tasks fail."""
    return {task: (0.0,) if at in (1, 2, 3, 4, 5) else row for at, (task, row) in enumerate(usual(number).items())}


def write_night(folder: Path, number: int, rewards: Rewards, **known: Any) -> Path:
    """Write the run of a night, by default named `night-NN`; `known` as for `write_run`."""
    begun = FIRST_NIGHT + timedelta(days=number)
    seeds = range(max(map(len, rewards.values())))
    hashes = known.pop("hashes", {task: HASHES.get(task, "h") for task in rewards})
    results = [_result(task, seed, r, begun) for task, row in rewards.items() for seed, r in enumerate(row)]
    return write_run(folder / known.pop("name", f"night-{number:02}"), results, hashes, seeds, begun=begun, **known)


def _result(task: str, seed: int, reward: float | None, begun: Any) -> TrialResult:
    return a_result(task, seed, reward, begun, error=LOST if reward is None else None)


def write_drop(folder: Path, usual_nights: int = 12, dropped_nights: int = 5, back: int = 0, **known: Any) -> Path:
    """Write usual nights, nights of a drop, and usual nights again."""
    kinds = [usual] * usual_nights + [dropped] * dropped_nights + [usual] * back
    for number, kind in enumerate(kinds):
        write_night(folder, number, kind(number), **known)
    return folder


@contextlib.contextmanager
def a_site(folder: Path, lanes: Sequence[NightlySeries] = ()) -> Iterator[Site]:
    """Gather the site of the runs in a folder."""
    with RunHistory.open(folder / "index.sqlite") as history:
        changes = history.update(folder)
        yield gather(history, [folder], lanes, changes.notes)


class ReadPage(HTMLParser):
    """Parsed page: its text, the targets of its links, and its classes."""

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.links: list[str] = []
        self.classes: list[str] = []
        self.tags: list[str] = []
        self._text: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        self.tags.append(tag)
        if tag in _APART:
            self._text.append(" ")
        self.classes += (known.get("class") or "").split()
        self.links += [value for name in ("href", "src") if (value := known.get(name))]

    def handle_data(self, data: str) -> None:
        self._text.append(data)

    @property
    def words(self) -> str:
        """Text of the page with single spaces."""
        return " ".join("".join(self._text).replace("\N{NO-BREAK SPACE}", " ").split())
