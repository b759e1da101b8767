"""What a run prints where nobody watches a live view: a line for each trial, each step too, or JSON for machines."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from datetime import datetime

from tbench.cli.printing import print_line, print_text
from tbench.events import Event, Note, RunStarted, TrialPhase, TrialStep, TrialTaskStep, TrialVerdict
from tbench.results import TrialResult


def verdict_words(result: TrialResult) -> str:
    """A result in a few words."""
    if result.error is not None:
        again = "" if result.final else f" (attempt {result.attempt}; trying again)"
        return f"error {result.error.type}: {result.error.message}{again}"
    reward = "none" if result.reward is None else f"{result.reward:g}"
    return f"reward {reward} ({result.outcome}, {result.steps} steps)"


def attempt_words(attempt: int) -> str:
    """What stands behind the name of a trial whose first attempt this is not."""
    return "" if attempt == 1 else f", attempt {attempt}"


def task_step_words(event: TrialTaskStep) -> str:
    """Which step of its task a trial begins."""
    return f"task step {event.number} of {event.count}: {event.name}"


class PlainLines:
    """Prints a line per trial and note, with the time: for logs and pipes. `verbose` has phases and steps, too."""

    def __init__(self, *, verbose: bool = False) -> None:
        self._verbose = verbose
        self._planned = 0
        self._done = 0
        self._names: dict[str, str] = {}

    def __call__(self, event: Event) -> None:
        match event:
            case RunStarted():
                self._planned = event.trials
            case TrialPhase(phase="agent" | "verifier") if self._verbose:
                self._names[event.trial] = f"{event.task} seed {event.seed}"
                self._say(f"{event.task} seed {event.seed}{attempt_words(event.attempt)}: {event.phase}")
            case TrialTaskStep() if self._verbose:
                words = task_step_words(event)
                self._say(f"{event.task} seed {event.seed}{attempt_words(event.attempt)}: {words}")
            case TrialStep() if self._verbose:
                name = f"{self._names.get(event.trial, event.trial)}{attempt_words(event.attempt)}"
                self._say(f"{name}: step {event.step}  {event.line[:80]}")
            case TrialVerdict():
                result = event.result
                self._done += result.final
                self._say(
                    f"{result.task} seed {result.seed}: {verdict_words(result)}, "
                    f"{result.timings.wall_sec:.1f} s  [{self._done}/{self._planned}]"
                )
            case Note():
                self._say(event.text)
            case _:
                pass

    def _say(self, text: str) -> None:
        # A reader that went away (`2>&1 | head`) must not cost a trial.
        with contextlib.suppress(OSError):
            print_line(f"{datetime.now():%H:%M:%S} {text}", err=True)


class JsonLines:
    """Prints every event as a line of JSON on stdout, as journal.jsonl has them."""

    def __init__(self, hide: Callable[[str], str]) -> None:
        """`hide` takes secrets out of a line."""
        self._hide = hide

    def __call__(self, event: Event) -> None:
        with contextlib.suppress(OSError):
            print_text(self._hide(event.model_dump_json()))
