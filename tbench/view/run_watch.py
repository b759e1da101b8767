"""Finds and follows running runs, and publishes their state: often while a page is open, otherwise rarely."""

from __future__ import annotations

import contextlib
import hashlib
import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbench.history.directories import find_runs
from tbench.storage.read_run import RunUnreadable, StoredRun, read_plan
from tbench.storage.run_files import CONFIG_NAME, JOURNAL_NAME, RUN
from tbench.text import one_line
from tbench.view.live_state import LiveState
from tbench.view.run_state import WatchedRun
from tbench.view.trials import RunningTrial

# Finds running runs: their run.json says so, and a process holds their lock.


@dataclass(slots=True)
class OpenRuns:
    """Finds running runs at every scan, and reads only runs that changed since the previous one."""

    roots: Sequence[Path]
    stamps: dict[Path, str] = field(default_factory=dict)
    """Sizes and times of all runs' files at the last scan."""
    notes: list[str] = field(default_factory=list)
    """Files that could not be read, one sentence each."""
    _known: dict[Path, tuple[str, StoredRun | str | None]] = field(default_factory=dict)
    """By directory, the stamp of its run.json and the result: an open run, a problem, or None if not running."""

    def scan(self) -> tuple[StoredRun, ...]:
        """Return the open runs."""
        found = find_runs([root.resolve() for root in self.roots])
        self.stamps = {each.path: each.stamp for each in found.directories}
        seen = {path: self._read(path, stamp.split(" ")[0]) for path, stamp in self.stamps.items()}
        self._known = {path: self._known[path] for path in seen}
        self.notes = [f"{path}: cannot be read: {why}" for path, why in found.unread.items()]
        self.notes += [each for each in seen.values() if isinstance(each, str)]
        return tuple(each for each in seen.values() if isinstance(each, StoredRun))

    def _read(self, path: Path, stamp: str) -> StoredRun | str | None:
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            known = self._known[path] = (stamp, open_run(path))
        return known[1]


def open_run(path: Path) -> StoredRun | str | None:
    """Return the run if run.json says that it is running, a message if run.json is damaged, else None."""
    try:
        document = json.loads((path / CONFIG_NAME).read_bytes())
        if not isinstance(document, dict) or document.get("status") != "running":
            return None
        with contextlib.suppress(RunUnreadable):
            return read_plan(path)
        # A run of another version: only its plan can be shown.
        tasks, seeds = [task["name"] for task in document["tasks"]], document["seeds"]
        name = str(document.get("run") or path.name)
        return StoredRun(path=path, name=name, planned_tasks=tasks, planned_seeds=seeds, results=[])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        what = error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__} {error}"
        return f"{path / CONFIG_NAME}: cannot be read, so this run is not shown ({one_line(what, 120)})"


POLL_SEC, IDLE_SEC = 0.25, 2.0
SEARCH_SEC = 3.0
_SEARCH_SHARE = 50
"""Scanning for runs takes at most 1 / _SEARCH_SHARE of the time."""
_SWEEP_POLLS = 16
"""Number of polls within which the size of each recording is checked once, even without events of its trial."""
_MAX_DRAWN = 64
"""Maximum number of screens that one poll redraws."""
_LINGER_SEC = 8.0
"""Seconds for which a trial with a verdict stays on the page."""
_KEEP_ENDED_SEC = 600.0
_OFTEN_SEC = 10.0
_KILLED_SHOWN_SEC = 24 * 3600.0
TrialLinks = Callable[[Path, str, int, int], str | None]
"""Returns the page of an attempt, given run, task, seed and attempt number; None if it is not written yet."""


class RunWatch:
    """Follows the running runs below some folders."""

    def __init__(
        self,
        roots: Sequence[Path],
        state: LiveState,
        *,
        link_of: Callable[[Path], str | None] = lambda _: None,
        trial_link_of: TrialLinks = lambda *_: None,
        on_change: Callable[[bool], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`link_of` returns the page of a run, `trial_link_of` that of an attempt. `on_change` is called when files of
        runs have changed, and its argument says whether a run has started or ended."""
        self.state = state
        self.readers = 0
        """Number of browsers that follow the state."""
        self._found = OpenRuns(roots)
        self._link_of, self._trial_link_of = link_of, trial_link_of
        self._on_change, self._clock = on_change, clock
        self._runs: dict[str, WatchedRun] = {}
        self._killed: dict[str, int] = {}
        """Size of the journal of each run whose process is gone: if it grows, the run was resumed."""
        self._over_since: dict[str, float] = {}
        self._orders: dict[str, int] = {}
        self._begun = 0
        self._poll_number = 0
        self._next_search = 0.0
        self._often_until = 0.0

    def poll_often(self) -> None:
        """Poll often for a while, because the page was requested."""
        self._often_until = self._clock() + _OFTEN_SEC

    def run(self, stop: threading.Event) -> None:
        """Poll until `stop` is set."""
        polled_at = 0.0
        while not stop.wait(POLL_SEC):
            if self._is_watched or time.monotonic() - polled_at >= IDLE_SEC:
                polled_at = time.monotonic()
                self.poll()

    @property
    def _is_watched(self) -> bool:
        return self.readers > 0 or self._clock() < self._often_until

    def poll(self) -> None:
        """Read new events once, and publish changes."""
        now = self._clock()
        if now >= self._next_search:
            begun = time.monotonic()
            self._search(now)
            self._next_search = now + max(SEARCH_SEC, _SEARCH_SHARE * (time.monotonic() - begun))
        for key, run in list(self._runs.items()):
            self._follow(key, run, now)
        self._poll_number += 1

    def trial(self, key: str) -> RunningTrial | None:
        """Return a trial on the page, by its key."""
        run_key, _, name = key.partition("/")
        run = self._runs.get(run_key)
        return run.trials.get(name) if run is not None else None

    @property
    def running(self) -> dict[Path, WatchedRun]:
        """Running runs, by directory."""
        return {run.stored.path: run for key, run in list(self._runs.items()) if key not in self._ended_keys}

    @property
    def _ended_keys(self) -> set[str]:
        return self._killed.keys() | self._over_since.keys()

    # -- finding runs

    def _search(self, now: float) -> None:
        before = dict(self._found.stamps)
        found = {_key(each.path): each for each in self._found.scan()}
        count = len(self._runs)
        for key, each in found.items():
            if key not in self._runs and _is_recent(each.path, now):
                self._runs[key] = WatchedRun(each)
                self._begin(key, self._runs[key])
            elif key in self._runs:
                self._runs[key].stored = each
        for key in list(self._runs):
            self._check_life(key, is_open=key in found, now=now)
        if self._found.stamps != before:
            self._on_change(len(self._runs) != count)
        self.state.put("notes", {"texts": self._found.notes[:20]})

    def _begin(self, key: str, run: WatchedRun) -> None:
        """Read the journal as of now."""
        with contextlib.suppress(OSError):
            run.follow(None)
        for name, trial in run.trials.items():
            self._post_trial(key, name, trial)

    def _check_life(self, key: str, *, is_open: bool, now: float) -> None:
        run = self._runs[key]
        if not is_open and not run.is_over and key not in self._killed:
            run.is_over = True  # without an event of its end: it failed, or the directory is gone
        if run.is_over:
            self._end(key, run, now)
            if now - self._over_since[key] > _KEEP_ENDED_SEC:
                self._forget(key)
            return
        self._over_since.pop(key, None)
        size = _size(run.stored.path / JOURNAL_NAME)
        if key in self._killed and (size == self._killed[key] or not is_open):
            if not is_open:
                self._forget(key)
            return
        if _is_held(run.stored.path):
            self._killed.pop(key, None)
        else:
            self._killed[key] = size
            self._clear_wall(key, run)
        self._post_run(key, run, now)

    def _end(self, key: str, run: WatchedRun, now: float) -> None:
        if key not in self._over_since:
            self._over_since[key] = now
            self._on_change(True)
            self._post_run(key, run, now)

    def _forget(self, key: str) -> None:
        run = self._runs.pop(key)
        self._killed.pop(key, None)
        self._over_since.pop(key, None)
        self._clear_wall(key, run)
        self.state.remove(f"run {key}")

    def _clear_wall(self, key: str, run: WatchedRun) -> None:
        for name in run.trials:
            self._remove_trial(key, name)
        run.trials.clear()

    # -- following runs

    def _follow(self, key: str, run: WatchedRun, now: float) -> None:
        before = run.events
        try:
            touched = run.follow(now)
        except OSError:  # just removed: the next scan notices
            return
        with self.state.changing():
            if self._is_watched:
                touched |= self._draw(run)
            for name in touched:
                if (trial := run.trials.get(name)) is not None:
                    self._post_trial(key, name, trial)
                else:
                    self._remove_trial(key, name)
            for name in run.forget_ended(now - _LINGER_SEC):
                self._remove_trial(key, name)
            if run.events != before:
                self._post_run(key, run, now)

    def _draw(self, run: WatchedRun) -> set[str]:
        """Redraw the screens that may have changed, and return the names of the trials whose screens did.

        It checks the trials with journal events and, in turn, a share of the others.
        """
        turn, drawn = self._poll_number % _SWEEP_POLLS, set[str]()
        for at, (name, trial) in enumerate(run.trials.items()):
            if len(drawn) >= _MAX_DRAWN:
                break
            is_due = trial.is_stale or (trial.phase == "agent" and at % _SWEEP_POLLS == turn)
            if is_due and trial.is_at_work and trial.redraw():
                drawn.add(name)
        return drawn

    def _post_trial(self, key: str, name: str, trial: RunningTrial) -> None:
        if trial.phase == "queued":
            self._remove_trial(key, name)
            return
        full = f"{key}/{name}"
        if full not in self._orders:
            self._begun += 1
            self._orders[full] = self._begun
        self.state.put(f"trial {full}", {**trial.as_tile(), "order": self._orders[full]})

    def _remove_trial(self, key: str, name: str) -> None:
        self._orders.pop(f"{key}/{name}", None)
        self.state.remove(f"trial {key}/{name}")

    def _post_run(self, key: str, run: WatchedRun, now: float) -> None:
        state = "ended" if run.is_over else "killed" if key in self._killed else "running"
        posted: dict[str, Any] = {**run.as_json(now), "state": state, "page": self._link_of(run.stored.path)}
        for each in posted["verdicts"]:
            each["page"] = self._trial_link_of(run.stored.path, each["task"], each["seed"], each["attempt"])
        if state != "running":
            posted["eta"] = None
        if state == "killed":
            posted["path"] = str(run.stored.path)
        self.state.put(f"run {key}", posted)


def _key(path: Path) -> str:
    return hashlib.sha256(str(path).encode("utf-8", "replace")).hexdigest()[:10]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _is_held(path: Path) -> bool:
    """Whether a process holds the run's lock; true if this cannot be determined."""
    try:
        return RUN.is_locked(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _is_recent(path: Path, now: float) -> bool:
    """Whether a run is worth showing: not if it was killed long ago."""
    try:
        return now - (path / JOURNAL_NAME).stat().st_mtime < _KILLED_SHOWN_SEC or _is_held(path)
    except OSError:
        return False
