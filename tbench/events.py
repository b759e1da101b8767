"""Typed events of a run. The progress display, live view and journal subscribe to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from harness.trajectory import Frozen
from tbench.results import TrialResult

Presence = Literal["away", "back", "given_up"]
Phase = Literal["queued", "image", "sandbox", "agent", "verifier", "teardown", "done"]


class RunStarted(Frozen):
    """The plan is fixed and the run directory exists."""

    kind: Literal["run_started"] = "run_started"
    run: str
    trials: int


class TrialPhase(Frozen):
    """An attempt entered a phase. Its last phases may be reported after the next attempt has begun."""

    kind: Literal["trial_phase"] = "trial_phase"
    trial: str
    attempt: int
    task: str
    seed: int
    phase: Phase


class TrialTaskStep(Frozen):
    """A trial begins a task step: number `number`, from 1, of `count`."""

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
    """An attempt of a trial has a reward or an error; its teardown still follows."""

    kind: Literal["trial_verdict"] = "trial_verdict"
    result: TrialResult


class TrialFinished(Frozen):
    """An attempt of a trial is over, with its teardown; the run stores the result as a line of results.jsonl."""

    kind: Literal["trial_finished"] = "trial_finished"
    result: TrialResult


class TrialSettled(Frozen):
    """The result of a finished trial changed because of later findings about its task."""

    kind: Literal["trial_settled"] = "trial_settled"
    result: TrialResult


class Note(Frozen):
    """A line of text for the user: a build, a pull, a wait for the endpoint."""

    kind: Literal["note"] = "note"
    text: str


class EndpointPresence(Frozen):
    """The endpoint went down, came back, or was given up. A Note describes it to the user."""

    kind: Literal["endpoint_presence"] = "endpoint_presence"
    presence: Presence


class RunEnded(Frozen):
    """No trial is left; `interrupted` if not all of them were run."""

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
    """Passes every event to every subscriber, in order, in the event loop's thread."""

    def __init__(self, *subscribers: Subscriber) -> None:
        self._subscribers = list(subscribers)

    def subscribe(self, subscriber: Subscriber) -> None:
        """Pass events to `subscriber` from now on; subscribing twice has no effect."""
        if subscriber not in self._subscribers:
            self._subscribers.append(subscriber)

    def replace(self, subscriber: Subscriber) -> None:
        """Pass events only to `subscriber` from now on."""
        self._subscribers = [subscriber]

    def emit(self, event: Event) -> None:
        for subscriber in self._subscribers:
            subscriber(event)

    def say(self, text: str) -> None:
        """Emit a note."""
        self.emit(Note(text=text))
