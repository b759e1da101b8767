"""State of a running run, read from its journal: counts, score, estimated end, trials."""

from __future__ import annotations

import json
import math
from collections import Counter, deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, get_args

from pydantic import ValidationError

from reports.site.states import with_spread
from tbench.events import (
    EndpointPresence,
    Event,
    Note,
    RunEnded,
    RunStarted,
    TrialFinished,
    TrialPhase,
    TrialSettled,
    TrialStep,
    TrialTaskStep,
    TrialVerdict,
)
from tbench.scores.summary import Status
from tbench.storage.read_run import StoredRun
from tbench.storage.run_files import JOURNAL_NAME
from tbench.view.trials import EndedTrial, RunningTrial

# Reads new events from the end of a journal.

_PIECE_BYTES = 1 << 20
_LONGEST_LINE = 1 << 22
_KINDS: Mapping[str, type[Event]] = MappingProxyType(
    {kind.model_fields["kind"].default: kind for kind in get_args(Event) if kind is not TrialFinished}
)
_UNUSED = b'{"kind":"trial_finished"'
"""Beginning of lines that are skipped unparsed: they are the longest, and repeat the trial's verdict."""


class JournalTail:
    """Reads a journal to which a run appends."""

    def __init__(self, file: Path) -> None:
        self.unread = 0
        """Number of lines that are not events of this version."""
        self._file = file
        self._end = 0
        self._size = 0

    def new_events(self) -> Iterator[Event]:
        """Yield the events since the last call; an incomplete line is left for the next. Raises OSError."""
        size = self._file.stat().st_size
        if size == self._size:
            return
        if size < self._end:
            self._end = 0
        self._size = size
        with self._file.open("rb") as opened:
            opened.seek(self._end)
            torn = b""
            while piece := opened.read(_PIECE_BYTES):
                *lines, torn = (torn + piece).split(b"\n")
                for line in lines:
                    self._end += len(line) + 1
                    if (event := self._event(line)) is not None:
                        yield event
                if len(torn) > _LONGEST_LINE:  # not written by tbench
                    self._end += len(torn)
                    torn = b""

    def _event(self, line: bytes) -> Event | None:
        if not line.strip() or line.startswith(_UNUSED):
            return None
        try:
            content = json.loads(line)
            if content["kind"] == "trial_finished":
                return None
            return _KINDS[content["kind"]].model_validate(content)
        except (ValueError, TypeError, KeyError, RecursionError, ValidationError):
            self.unread += 1
            return None


NOTES_KEPT, VERDICTS_KEPT = 12, 6
_ENOUGH_TO_GUESS = 3
"""Number of ended trials that are needed to estimate the remaining time."""
PHASES = ("queued", "image", "sandbox", "agent", "verifier", "teardown")
MARKS = tuple(status for status in Status if status is not Status.MISSING)
"""Statuses of ended trials."""


class WatchedRun:
    """Run whose progress is read from its journal."""

    def __init__(self, stored: StoredRun) -> None:
        self.stored = stored
        self.trials: dict[str, RunningTrial] = {}
        """Running trials, in the order in which they started."""
        self.is_over = False
        self.events = 0
        """Number of events read."""
        self.endpoint = ""
        """Last message about an outage of the endpoint or its end; empty if there was no outage."""
        self.is_away = False
        self._journal = JournalTail(stored.path / JOURNAL_NAME)
        self._ended: dict[str, EndedTrial] = {}
        self._notes: deque[str] = deque(maxlen=NOTES_KEPT)
        self._verdicts: deque[EndedTrial] = deque(maxlen=VERDICTS_KEPT)
        self._wall_sec, self._walls = 0.0, 0
        self._peak = 1

    def follow(self, now: float | None) -> set[str]:
        """Read new events and return the names of the trials concerned. Raises OSError.

        `now` is the current time, None for events from before the run was watched.
        """
        touched = set[str]()
        for event in self._journal.new_events():
            self.events += 1
            touched |= set(self._take(event, now))
        return touched

    def _take(self, event: Event, now: float | None) -> Iterator[str]:
        match event:
            case RunStarted():
                self._start(event.trials)
            case TrialPhase() | TrialTaskStep() | TrialStep() if self._is_past(event.trial, event.attempt):
                pass
            case TrialPhase():
                self._enter(event, now)
                yield event.trial
            case TrialTaskStep() if event.trial in self.trials:
                self.trials[event.trial].begin_part(event.name, event.number, event.count)
                yield event.trial
            case TrialStep() if event.trial in self.trials:
                trial = self.trials[event.trial]
                trial.step, trial.line, trial.is_stale = event.step, event.line, True
                yield event.trial
            case TrialVerdict():
                self._judge(event, now)
                yield event.result.trial
            case TrialSettled():
                self._settle(event.result.trial, EndedTrial.from_result(event.result))
                yield event.result.trial
            case Note():
                self._notes.append(event.text)
            case EndpointPresence():
                self.is_away = event.presence == "away"
                self.endpoint = self._notes[-1] if self._notes else event.presence
            case RunEnded():
                self.is_over = True
            case _:
                pass

    def _is_past(self, name: str, attempt: int) -> bool:
        """Whether a later attempt at the trial has started: an earlier one may still be in teardown."""
        return (trial := self.trials.get(name)) is not None and attempt < trial.attempt

    def _start(self, left: int) -> None:
        """Take the start of the run, or of a resumed run, which drops the errors that it is going to try again."""
        self.is_over, self.is_away = False, False
        self.trials.clear()
        for trial in [each for each, ended in self._ended.items() if ended.mark == "error"]:
            if len(self._ended) > self.stored.planned - left:
                del self._ended[trial]

    def _enter(self, event: TrialPhase, now: float | None) -> None:
        if event.phase == "done":
            if (known := self.trials.get(event.trial)) is not None and known.ended is None:
                del self.trials[event.trial]
            return
        if event.phase == "queued":
            self._ended.pop(event.trial, None)
            self.trials.pop(event.trial, None)
            self.trials[event.trial] = RunningTrial(
                self.stored.path, event.trial, event.task, event.seed, event.attempt
            )
        trial = self.trials.get(event.trial)
        if trial is None or trial.ended is not None:
            return
        if trial.phase == "queued" and event.phase != "queued":
            trial.since = now
            self._peak = max(self._peak, 1 + sum(each.is_at_work for each in self.trials.values()))
        trial.phase, trial.is_stale = event.phase, True

    def _judge(self, event: TrialVerdict, now: float | None) -> None:
        result, ended = event.result, EndedTrial.from_result(event.result)
        self._verdicts.append(ended)
        self._wall_sec += max(0.0, result.timings.wall_sec - result.timings.queue_sec)
        self._walls += 1
        if result.final:
            self._ended[result.trial] = ended
        if now is None:
            self.trials.pop(result.trial, None)
        elif (trial := self.trials.get(result.trial)) is not None:
            trial.ended, trial.ended_at = ended, now
            trial.is_stale = True

    def _settle(self, name: str, ended: EndedTrial) -> None:
        before = self._ended.get(name)
        self._ended[name] = ended
        self._verdicts = deque((ended if each == before else each for each in self._verdicts), VERDICTS_KEPT)
        if (trial := self.trials.get(name)) is not None and trial.ended is not None:
            trial.ended, trial.is_stale = ended, True

    def forget_ended(self, before: float) -> list[str]:
        """Remove trials whose verdict came before this time, and return their names."""
        gone = [name for name, trial in self.trials.items() if trial.ended is not None and trial.ended_at < before]
        for name in gone:
            del self.trials[name]
        return gone

    @property
    def ended(self) -> int:
        return len(self._ended)

    @property
    def _concurrency(self) -> float:
        """Number of trials that may run at once."""
        document = self.stored.document
        return 1 if document is None else document.config.schedule.concurrency or math.inf

    def eta_sec(self, now: float) -> float | None:
        """Estimate the remaining seconds; None while too few trials have ended."""
        if self._walls < _ENOUGH_TO_GUESS:
            return None
        each_sec = self._wall_sec / self._walls
        at_work = [trial for trial in self.trials.values() if trial.is_at_work]
        done_sec = [min(each_sec, max(0.0, now - trial.since)) if trial.since else 0.0 for trial in at_work]
        left_sec = (self.stored.planned - self.ended) * each_sec - sum(done_sec)
        longest_sec = max((each_sec - sec for sec in done_sec), default=0.0)
        return max(left_sec / min(self._peak, self._concurrency), longest_sec, 0.0)

    def as_json(self, now: float) -> dict[str, Any]:
        """Return the state in the format of the page's script."""
        marks = Counter(trial.mark for trial in self._ended.values())
        phases = Counter(trial.phase for trial in self.trials.values() if trial.ended is None)
        at_work = sum(phases.values())
        rewards = [trial.reward for trial in self._ended.values() if trial.reward is not None]
        score = sum(rewards) / len(rewards) if rewards else None
        run, document, eta_sec = self.stored, self.stored.document, self.eta_sec(now)
        return {
            "name": run.name,
            "model": run.model or (document.locked.agent if document is not None else ""),
            "dataset": run.dataset.name if run.dataset is not None else None,
            "begun": [document.created_at, *document.resumed_at][-1] or None if document is not None else None,
            "planned": run.planned,
            "ended": self.ended,
            "scored": len(rewards),
            "score": score,
            "score_text": "" if score is None else with_spread(score, None),
            "marks": {mark: marks[mark] for mark in MARKS},
            "phases": {phase: phases[phase] for phase in PHASES},
            "to_come": max(0, run.planned - self.ended - at_work),
            "eta": None if eta_sec is None else round(now + eta_sec),
            "away": self.is_away,
            "endpoint": self.endpoint,
            "notes": list(self._notes),
            "verdicts": [
                {"task": each.task, "seed": each.seed, "attempt": each.attempt, "mark": each.mark, "words": each.words}
                for each in reversed(self._verdicts)
            ],
            "unread": self._journal.unread,
            "over": self.is_over,
        }
