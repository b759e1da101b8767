"""Typed events of a run. Progress, live view and journal are subscribers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from harness.trajectory import Frozen
from tbench.results import TrialResult

Presence = Literal["away", "back", "given_up"]
Phase = Literal["queued", "image", "sandbox", "agent", "verifier", "teardown", "done"]


class RunStarted(Frozen):
    """The plan is fixed and the directory exists."""

    kind: Literal["run_started"] = "run_started"
    run: str
    trials: int


class TrialPhase(Frozen):
    """An attempt at a trial entered a part of its life; the last ones may come when the next attempt has begun."""

    kind: Literal["trial_phase"] = "trial_phase"
    trial: str
    attempt: int
    task: str
    seed: int
    phase: Phase


class TrialTaskStep(Frozen):
    """A trial begins a step of its task, the one with this number, from 1, of so many."""

    kind: Literal["trial_task_step"] = "trial_task_step"
    trial: str
    attempt: int
    task: str
    seed: int
    name: str
    number: int
    count: int


class TrialStep(Frozen):
    """The agent of a trial begins a step; `line` is the last line of its terminal."""

    kind: Literal["trial_step"] = "trial_step"
    trial: str
    attempt: int
    step: int
    line: str


class TrialVerdict(Frozen):
    """A trial has its reward or its error; teardown still follows."""

    kind: Literal["trial_verdict"] = "trial_verdict"
    result: TrialResult


class TrialFinished(Frozen):
    """A trial is over, its container removed, its line in results.jsonl written."""

    kind: Literal["trial_finished"] = "trial_finished"
    result: TrialResult


class TrialSettled(Frozen):
    """The result of a trial that is over came out otherwise beside what was found out of its task."""

    kind: Literal["trial_settled"] = "trial_settled"
    result: TrialResult


class Note(Frozen):
    """A line of text for the user: a build, a pull, a wait for the endpoint."""

    kind: Literal["note"] = "note"
    text: str


class EndpointPresence(Frozen):
    """The endpoint went away, came back, or was given up; a note has said so in words."""

    kind: Literal["endpoint_presence"] = "endpoint_presence"
    presence: Presence


class RunEnded(Frozen):
    """No trial is left; `interrupted` when not all of them were run."""

    kind: Literal["run_ended"] = "run_ended"
    interrupted: bool


Event = (
    RunStarted
    | TrialPhase
    | TrialTaskStep
    | TrialStep
    | TrialVerdict
    | TrialFinished
    | TrialSettled
    | Note
    | EndpointPresence
    | RunEnded
)
Subscriber = Callable[[Event], None]


class Events:
    """Hands every event to every subscriber, in order, in the event loop's thread."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Hand events to `subscriber` from now on; one that is subscribed already hears nothing twice."""
        if subscriber not in self._subscribers:
            self._subscribers.append(subscriber)

    def replace(self, subscriber: Subscriber) -> None:
        """Hand events to `subscriber` alone from now on."""
        self._subscribers = [subscriber]

    def emit(self, event: Event) -> None:
        for subscriber in self._subscribers:
            subscriber(event)
