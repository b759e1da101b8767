"""Running runs for tests of the viewer, written with a real run's classes but without running anything."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from run_plans import A_MODEL, a_document, a_plan
from run_trees import a_result

from harness.terminal.tap import Recording
from harness.trajectory import Reply, Step
from tbench.config.document import PlannedTask
from tbench.events import (
    Event,
    Note,
    Phase,
    RunEnded,
    RunStarted,
    TrialFinished,
    TrialPhase,
    TrialStep,
    TrialVerdict,
)
from tbench.results import ErrorInfo, TrialResult
from tbench.storage.run_store import RunStore, StepLog

A_BUG = ErrorInfo.model_validate(
    {"stage": "agent", "type": "endpoint_refused", "blame": "endpoint", "retryable": True, "message": "HTTP 400"}
)


class RunBeingWritten:
    """A run directory that its process still holds. A context manager, whose end lets go of it and says no end."""

    def __init__(self, directory: Path, tasks: tuple[str, ...] = ("a",), seeds: int = 2, concurrency: int = 4) -> None:
        settings = {**A_MODEL, "agent": "tests", "concurrency": concurrency}
        plan = a_plan(directory.name, seeds=tuple(range(seeds)), **settings)
        document = a_document(plan).model_copy(
            update={
                "tasks": tuple(PlannedTask(name=name) for name in tasks),
                "created_at": "2026-01-01T22:00:00+00:00",
            }
        )
        self.path = directory
        self._document = document
        self._store = RunStore.create(directory, document)
        self._casts: dict[tuple[str, int], Recording] = {}
        self._logs: dict[tuple[str, int], StepLog] = {}
        self._attempts: dict[tuple[str, int], int] = {}
        self._to_tear_down: dict[tuple[str, int], TrialResult] = {}
        """Attempts that another follows, which begins before they are gone."""
        self.tell(RunStarted(run=directory.name, trials=len(tasks) * seeds))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for written in (*self._casts.values(), *self._logs.values()):
            written.close()
        self._store.close()

    def tell(self, event: Event) -> None:
        self._store.on_event(event)

    def note(self, text: str) -> None:
        self.tell(Note(text=text))

    def enter(self, task: str, seed: int, *phases: Phase, attempt: int = 1) -> None:
        for phase in phases:
            self.tell(TrialPhase(trial=f"{task}.s{seed}.x", attempt=attempt, task=task, seed=seed, phase=phase))

    def begin(self, task: str, seed: int, attempt: int = 1) -> None:
        """Bring an attempt to its agent, with a terminal; meanwhile the one before it is torn down."""
        self._attempts[task, seed] = attempt
        self.enter(task, seed, "queued", "sandbox", "agent", attempt=attempt)
        if (before := self._to_tear_down.pop((task, seed), None)) is not None:
            self._tear_down(before)
        directory = self._store.trial_dir(task, seed, attempt)
        self._casts[task, seed] = Recording(directory / "session.cast", columns=80, rows=24)
        self._logs[task, seed] = StepLog(directory)
        self._casts[task, seed].flush()

    def step(self, task: str, seed: int, index: int, printed: str, typed: str = "ls\n") -> None:
        """A step of a trial: what it typed, and what its terminal printed."""
        cast = self._casts[task, seed]
        cast.input(typed)
        cast.output(printed.encode())
        cast.flush()
        self._logs[task, seed].append(Step(index=index, reply=Reply(content=""), actions=(typed,), exit_code=0))
        attempt, line = self._attempts[task, seed], printed.splitlines()[-1][:80]
        self.tell(TrialStep(trial=f"{task}.s{seed}.x", attempt=attempt, step=index + 1, line=line))

    def judge(self, task: str, seed: int, reward: float | None, *, final: bool = True) -> TrialResult:
        attempt = self._attempts[task, seed]
        result = a_result(task, seed, reward, final=final, attempt=attempt, error=None if reward is not None else A_BUG)
        if reward is not None:
            self.enter(task, seed, "verifier", attempt=attempt)
        self.tell(TrialVerdict(result=result))
        if final:
            self._tear_down(result)
        else:
            self._to_tear_down[task, seed] = result
        for files in (self._casts, self._logs):
            if (written := files.pop((task, seed), None)) is not None:
                written.close()
        return result

    def _tear_down(self, result: TrialResult) -> None:
        self.enter(result.task, result.seed, "teardown", attempt=result.attempt)
        self.tell(TrialFinished(result=result))
        self.enter(result.task, result.seed, "done", attempt=result.attempt)

    def end(self) -> None:
        """Say that the run has ended, in the journal and in run.json."""
        self.tell(RunEnded(interrupted=False))
        ended = {"status": "finished", "ended_at": "2026-01-01T23:00:00+00:00"}
        self._store.write_document(self._document.model_copy(update=ended))
