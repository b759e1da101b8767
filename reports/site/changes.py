"""Differences between two runs of a series: score, tasks, versions, settings, endpoint, images."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from reports.site.content import Site, SiteRun
from tbench.history.directories import stamp
from tbench.history.rows import task_changes
from tbench.reward import exact_mean, exact_sum, is_solved, mean
from tbench.scores.comparing.compared_run import NothingInCommon, Pairing, pair
from tbench.scores.statistics import Row, mean_std
from tbench.storage.comparable import TASK_PREFIX, each_difference, score_keys
from tbench.storage.read_run import RunUnreadable, read_run_document
from tbench.storage.run_files import CONFIG_NAME
from tbench.text import counted, names_text

_NORMAL_975 = 1.96


@dataclass(frozen=True, slots=True)
class ScoreChange:
    """Difference of two scores over the tasks and seeds that both runs planned; trials without a verdict count as 0."""

    points: float
    """Later score minus earlier score, as a fraction."""
    se: float | None
    """Standard error, paired by task; None for a single task."""
    tasks: int

    @property
    def direction(self) -> str:
        """`up` or `down` if the difference is significant at 95 %, else empty."""
        if self.se is None or abs(self.points) <= _NORMAL_975 * self.se:
            return ""
        return "up" if self.points > 0 else "down"


@dataclass(frozen=True, slots=True)
class RewardChange:
    """Task whose mean reward changed, over the trials that have a verdict in both runs."""

    task: str
    before: float
    now: float
    is_new: bool
    """Whether the run with the higher reward solved the task at some seed, and the other run at none."""

    @property
    def difference(self) -> float:
        return self.now - self.before


@dataclass(frozen=True, slots=True)
class RunChange:
    """Differences between a run and an earlier one of its series."""

    score: ScoreChange
    lower: tuple[RewardChange, ...]
    """Tasks with lower rewards: largest drop first, and among equal drops those no longer solved at all."""
    higher: tuple[RewardChange, ...]
    lost_verdicts: tuple[str, ...]
    """Tasks that had a verdict before and have none now."""


def score_change(site: Site, old: SiteRun, new: SiteRun) -> ScoreChange | None:
    """Return the change of the score; None if the runs have no task in common."""
    pairing = _pairing(site, old, new)
    return None if pairing is None else _score_change(pairing)


def run_change(site: Site, old: SiteRun, new: SiteRun) -> RunChange | None:
    """Return how a run differs from an earlier one; None if they have no task in common."""
    pairing = _pairing(site, old, new)
    if pairing is None:
        return None
    rows = list(zip(pairing.tasks, pairing.first, pairing.second, strict=True))
    moved = [found for task, before, now in rows if (found := _reward_change(task, before, now)) is not None]
    return RunChange(
        score=_score_change(pairing),
        lower=_worst_first(each for each in moved if each.difference < 0),
        higher=_worst_first(each for each in moved if each.difference > 0),
        lost_verdicts=tuple(task for task, before, now in rows if _has_verdict(before) and not _has_verdict(now)),
    )


def _pairing(site: Site, old: SiteRun, new: SiteRun) -> Pairing | None:
    try:
        return pair(site.compared_run(old), site.compared_run(new))
    except NothingInCommon:
        return None


def _score_change(pairing: Pairing) -> ScoreChange:
    rows = zip(pairing.first, pairing.second, strict=True)
    changes = [exact_mean(_with_zeros(now)) - exact_mean(_with_zeros(before)) for before, now in rows]
    se = mean_std([float(change) for change in changes]).sem
    return ScoreChange(float(exact_sum(changes) / len(changes)), se, len(changes))


def _with_zeros(row: Row) -> list[float]:
    return [0.0 if reward is None else reward for reward in row]


def _reward_change(task: str, before: Row, now: Row) -> RewardChange | None:
    """Return the change of a task; None if there is none, or no pair of trials with verdicts."""
    pairs = [(a, b) for a, b in zip(before, now, strict=True) if a is not None and b is not None]
    if not pairs:
        return None
    old, new = mean([a for a, _ in pairs]), mean([b for _, b in pairs])
    if old == new:
        return None
    some, none = (before, now) if new < old else (now, before)
    return RewardChange(task, old, new, _is_solved(some) and not _is_solved(none))


def _is_solved(row: Row) -> bool:
    return any(reward is not None and is_solved(reward) for reward in row)


def _has_verdict(row: Row) -> bool:
    return any(reward is not None for reward in row)


def _worst_first(moved: Iterable[RewardChange]) -> tuple[RewardChange, ...]:
    return tuple(sorted(moved, key=lambda each: (-round(abs(each.difference), 6), not each.is_new, each.task)))


# Differences between two runs other than chance: versions, settings, the endpoint, images, tasks.

_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")
_NOT_ABOUT_TRIALS = frozenset(("tasks", "output"))
"""Sections that only choose the trials, such as a night's seeds, and the output directory."""


@dataclass(frozen=True, slots=True)
class _KnownSettings:
    values: Mapping[str, Any]
    images: Mapping[str, str]
    """Image id by task."""


def known_differences(site: Site, old: SiteRun, new: SiteRun) -> list[tuple[str, str]]:
    """Return everything known to differ between two runs: name, and `before → now`.

    For tasks and images, the text lists the tasks concerned instead. Empty if the settings of a run cannot be read.
    """
    before, now = _settings_of(site, old), _settings_of(site, new)
    if before is None or now is None:
        return []
    differing = each_difference(before.values, now.values)
    found = [(key, words.removeprefix(f"{key}: ")) for key, words in differing]
    found += [("tasks", words) for words in task_changes(*(site.history.tasks(run.row.path) for run in (old, new)))]
    if others := [task for task, image in now.images.items() if before.images.get(task, image) != image]:
        found.append(("images", f"{counted(len(others), 'task')} ran on another image: {names_text(others)}"))
    return found


def _settings_of(site: Site, run: SiteRun) -> _KnownSettings | None:
    """Return the settings of a run; None if they cannot be read. Results are only read for imported runs."""
    try:
        if run.row.imported:
            return _imported_settings(site, run)
        return _own_settings(run.row.path / CONFIG_NAME, stamp(run.row.path, (CONFIG_NAME,)))
    except RunUnreadable:
        return None


@lru_cache(maxsize=4)  # a run is often read again, as the good run that the next one is compared with
def _own_settings(file: Path, _known: str) -> _KnownSettings:
    document = read_run_document(file)
    locked, config = document.locked, document.config.model_dump(mode="json")
    settings = {section: values for section, values in config.items() if section not in _NOT_ABOUT_TRIALS}
    settings["model"] = {key: value for key, value in settings["model"].items() if key not in ("base_url", "name")}
    values = {
        "tbench": document.tbench_version,
        "python": document.python_version,
        "engine": document.engine,
        "model": {"id": locked.model, **settings.pop("model")},
        "endpoint": _endpoint(locked.base_url),
        "served": locked.served and locked.served.model_dump(mode="json"),
        "agent": {
            **settings.pop("agent"),
            "name": locked.agent,
            "sha256": locked.agent_sha256,
            "prompt": locked.prompt_hash,
            "shell_state": locked.shell_state,
        },
        "dataset": document.dataset and {"name": document.dataset.title, "digest": document.dataset.digest},
        **settings,
    }
    return _KnownSettings(values, {task.name: task.image_id for task in document.tasks if task.image_id})


def _imported_settings(site: Site, run: SiteRun) -> _KnownSettings:
    known = score_keys(site.read_run(run))
    return _KnownSettings({key: value for key, value in known.items() if not key.startswith(TASK_PREFIX)}, {})


def _endpoint(url: str | None) -> str | None:
    """Return an endpoint, without the port if it is local: a server started for a night takes any free port."""
    try:
        parts = urlsplit(url or "")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return url
    shown = host if port is None or _LOOPBACK.fullmatch(host) else f"{host}:{port}"
    return f"{parts.scheme}://{shown}{parts.path}" if host else url
