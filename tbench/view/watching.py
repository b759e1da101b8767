"""Finds and watches the runs under way, and posts how they stand: often while somebody looks, else rarely."""

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
from tbench.view.board import NewsBoard
from tbench.view.run_state import WatchedRun
from tbench.view.trials import RunningTrial

# Which runs are under way below some folders: their run.json says so, and a process holds them.


@dataclass(slots=True)
class OpenRuns:
    """Looks for runs again and again, and reads only what has changed."""

    roots: Sequence[Path]
    stamps: dict[Path, str] = field(default_factory=dict)
    """Sizes and times of all runs' files, as they were found last."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, one sentence each."""
    _known: dict[Path, tuple[str, StoredRun | str | None]] = field(default_factory=dict)
    """By directory the stamp of its run.json, and what that says: an open run, a problem, or nothing to watch."""

    def look(self) -> tuple[StoredRun, ...]:
        """The open runs, as they are now."""
        found = find_runs([root.resolve() for root in self.roots])
        self.stamps = {each.path: each.stamp for each in found.directories}
        seen = {path: self._read(path, stamp.split(" ")[0]) for path, stamp in self.stamps.items()}
        self._known = {path: self._known[path] for path in seen}
        self.notes = [f"{path}: cannot be looked into: {why}" for path, why in found.unread.items()]
        self.notes += [each for each in seen.values() if isinstance(each, str)]
        return tuple(each for each in seen.values() if isinstance(each, StoredRun))

    def _read(self, path: Path, stamp: str) -> StoredRun | str | None:
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            known = self._known[path] = (stamp, open_run(path))
        return known[1]


def open_run(path: Path) -> StoredRun | str | None:
    """The run in a directory if it says that it goes on; what is wrong with its run.json; None for all others."""
    try:
        said = json.loads((path / CONFIG_NAME).read_bytes())
        if not isinstance(said, dict) or said.get("status") != "running":
            return None
        with contextlib.suppress(RunUnreadable):
            return read_plan(path)
        # Of another version: its plan is what can be shown of it.
        tasks, seeds = [task["name"] for task in said["tasks"]], said["seeds"]
        name = str(said.get("run") or path.name)
        return StoredRun(path=path, name=name, planned_tasks=tasks, planned_seeds=seeds, results=[])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
        what = error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__} {error}"
        return f"{path / CONFIG_NAME}: cannot be understood, so this run is not followed ({one_line(what, 120)})"


LOOK_SEC, IDLE_SEC = 0.25, 2.0
SEARCH_SEC = 3.0
_SEARCH_SHARE = 50
"""Looking for runs takes at most one part in so many of the time."""
_SWEEP_LOOKS = 16
"""Looks in which each recording is asked for its size once, also where the journal says nothing of its trial."""
_MOST_DRAWN = 64
"""Screens that one look draws anew."""
_LINGER_SEC = 8.0
"""Seconds for which a verdict stays on the wall."""
_KEEP_ENDED_SEC = 600.0
_INTEREST_SEC = 10.0
_KILLED_SHOWN_SEC = 24 * 3600.0
TrialLinks = Callable[[Path, str, int, int], str | None]
"""The page of an attempt at a trial, by its run, task, seed and number; None where there is none yet."""


class RunWatch:
    """Everything that is known of the runs under way below some folders."""

    def __init__(
        self,
        roots: Sequence[Path],
        board: NewsBoard,
        *,
        link_of: Callable[[Path], str | None] = lambda _: None,
        trial_link_of: TrialLinks = lambda *_: None,
        on_change: Callable[[bool], None] = lambda _: None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`link_of` knows the page of a run, `trial_link_of` that of a trial's attempt. `on_change` hears that files of
        runs have changed, and whether a run has begun or ended."""
        self.board = board
        self.readers = 0
        """Browsers that follow the board."""
        self._found = OpenRuns(roots)
        self._link_of, self._trial_link_of = link_of, trial_link_of
        self._on_change, self._clock = on_change, clock
        self._runs: dict[str, WatchedRun] = {}
        self._killed: dict[str, int] = {}
        """By run whose process is gone, the size of its journal then: if that grows, somebody goes on with it."""
        self._over_since: dict[str, float] = {}
        self._orders: dict[str, int] = {}
        self._begun = 0
        self._look_number = 0
        self._next_search = 0.0
        self._interest_until = 0.0

    def interest(self) -> None:
        """Look often for a while: somebody has asked for the page."""
        self._interest_until = self._clock() + _INTEREST_SEC

    def run(self, stop: threading.Event) -> None:
        """Look again and again until told to stop."""
        looked_at = 0.0
        while not stop.wait(LOOK_SEC):
            if self._is_watched or time.monotonic() - looked_at >= IDLE_SEC:
                looked_at = time.monotonic()
                self.look()

    @property
    def _is_watched(self) -> bool:
        return self.readers > 0 or self._clock() < self._interest_until

    def look(self) -> None:
        """Look once, and post what has changed."""
        now = self._clock()
        if now >= self._next_search:
            begun = time.monotonic()
            self._search(now)
            self._next_search = now + max(SEARCH_SEC, _SEARCH_SHARE * (time.monotonic() - begun))
        for key, run in list(self._runs.items()):
            self._follow(key, run, now)
        self._look_number += 1

    def trial(self, key: str) -> RunningTrial | None:
        """A trial on the wall by its key."""
        run_key, _, name = key.partition("/")
        run = self._runs.get(run_key)
        return run.trials.get(name) if run is not None else None

    @property
    def running(self) -> dict[Path, WatchedRun]:
        """The runs that go on, by directory."""
        return {run.stored.path: run for key, run in list(self._runs.items()) if key not in self._ended_keys}

    @property
    def _ended_keys(self) -> set[str]:
        return self._killed.keys() | self._over_since.keys()

    # -- which runs there are

    def _search(self, now: float) -> None:
        before = dict(self._found.stamps)
        found = {_key(each.path): each for each in self._found.look()}
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
        self.board.put("notes", {"texts": self._found.notes[:20]})

    def _begin(self, key: str, run: WatchedRun) -> None:
        """Take in what the journal has told before anybody watched."""
        with contextlib.suppress(OSError):
            run.follow(None)
        for name, trial in run.trials.items():
            self._post_trial(key, name, trial)

    def _check_life(self, key: str, *, is_open: bool, now: float) -> None:
        run = self._runs[key]
        if not is_open and not run.is_over and key not in self._killed:
            run.is_over = True  # its end was not told: it failed, or the directory is gone
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
        self.board.remove(f"run {key}")

    def _clear_wall(self, key: str, run: WatchedRun) -> None:
        for name in run.trials:
            self._remove_trial(key, name)
        run.trials.clear()

    # -- what happens in them

    def _follow(self, key: str, run: WatchedRun, now: float) -> None:
        before = run.events
        try:
            touched = run.follow(now)
        except OSError:  # removed just now: the next search notices
            return
        with self.board.changing():
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
        """Draw the screens that may have changed, and name those that have.

        They are those that the journal has something about, and of the others one in some.
        """
        turn, drawn = self._look_number % _SWEEP_LOOKS, set[str]()
        for at, (name, trial) in enumerate(run.trials.items()):
            if len(drawn) >= _MOST_DRAWN:
                break
            is_due = trial.is_stale or (trial.phase == "agent" and at % _SWEEP_LOOKS == turn)
            if is_due and trial.is_at_work and trial.look():
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
        self.board.put(f"trial {full}", {**trial.as_tile(), "order": self._orders[full]})

    def _remove_trial(self, key: str, name: str) -> None:
        self._orders.pop(f"{key}/{name}", None)
        self.board.remove(f"trial {key}/{name}")

    def _post_run(self, key: str, run: WatchedRun, now: float) -> None:
        state = "ended" if run.is_over else "killed" if key in self._killed else "running"
        posted: dict[str, Any] = {**run.as_board(now), "state": state, "page": self._link_of(run.stored.path)}
        for each in posted["verdicts"]:
            each["page"] = self._trial_link_of(run.stored.path, each["task"], each["seed"], each["attempt"])
        if state != "running":
            posted["eta"] = None
        if state == "killed":
            posted["path"] = str(run.stored.path)
        self.board.put(f"run {key}", posted)


def _key(path: Path) -> str:
    return hashlib.sha256(str(path).encode("utf-8", "replace")).hexdigest()[:10]


def _size(file: Path) -> int:
    try:
        return file.stat().st_size
    except OSError:
        return -1


def _is_held(path: Path) -> bool:
    """Whether a process adds to the run; one of which that cannot be seen is taken for one that goes on."""
    try:
        return RUN.is_locked(path)
    except FileNotFoundError:
        return False
    except OSError:
        return True


def _is_recent(path: Path, now: float) -> bool:
    """Whether a run is worth a place: one that was killed long ago is not."""
    try:
        return now - (path / JOURNAL_NAME).stat().st_mtime < _KILLED_SHOWN_SEC or _is_held(path)
    except OSError:
        return False
