"""One of the machines of a run: it may be lost while trials run on it, and come back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from tbench.errors import TbenchError, TrialError
from tbench.results import Blame, ErrorInfo, Stage
from tbench.sandbox.backend import Backend, RechecksTools

_MACHINE_STAGES = (Stage.IMAGE, Stage.SANDBOX)
"""Stages before the agent starts, whose infrastructure errors are the machine's fault."""


def is_machine_fault(error: ErrorInfo) -> bool:
    """Whether an attempt failed because of its machine, so that another machine may succeed."""
    return error.blame is Blame.INFRA and error.stage in _MACHINE_STAGES


class RunMachine:
    """A machine and its backend. The name of a run's only machine is empty."""

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self.backend = backend
        self.why_lost: str | None = None
        """Reason why the machine is lost; None while it is up."""
        self.why_aside: str | None = None
        """Reason why it gets no new trials, while running ones continue; None if it gets them."""
        self.is_gone = False
        """Whether the lost machine is not expected back."""
        self.failures = 0
        """Number of attempts that failed because of it since the last one that got a sandbox."""
        self.on_failure: Callable[[str], None] = lambda _: None
        """Called with the error after each such failure."""
        self._hosted: dict[asyncio.Task[object], str | None] = {}
        """The asyncio tasks that run trials on it, each with the reason why it was cancelled, if it was."""

    @property
    def is_up(self) -> bool:
        """Whether it can make sandboxes."""
        return self.why_lost is None

    @property
    def takes_trials(self) -> bool:
        """Whether trials may be placed on it."""
        return self.why_lost is None and self.why_aside is None

    @contextlib.contextmanager
    def hosting(self) -> Iterator[None]:
        """Cancel the block when the machine is lost, and raise TrialError(engine_unreachable) then.

        Any other outcome of the block on a lost machine says nothing about the trial, and is replaced by this error.
        """
        if self.why_lost is not None:
            raise self._error(self.why_lost)
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._hosted[task] = None
        try:
            yield
        except (TbenchError, asyncio.CancelledError) as error:
            is_ended_as_well = task.cancelling() > before + 1 and isinstance(error, asyncio.CancelledError)
            if (why := self._hosted[task]) is None or is_ended_as_well:
                raise
            raise self._error(why) from None
        else:
            if (why := self._hosted[task]) is not None:
                raise self._error(why)
        finally:
            if self._hosted.pop(task) is not None:
                task.uncancel()

    def _error(self, why: str) -> TrialError:
        return TrialError("engine_unreachable", f"{self.name}: {why}")

    def lose(self, why: str) -> int:
        """Mark the machine as lost and cancel the trials on it; returns their number."""
        self.why_lost = why
        ended = [task for task, before in self._hosted.items() if before is None]
        for task in ended:
            self._hosted[task] = why
            task.cancel()
        return len(ended)

    def come_back(self) -> None:
        """Mark the machine as up again."""
        self.why_lost = self.why_aside = None
        self.is_gone, self.failures = False, 0

    def record_attempt(self, error: ErrorInfo | None) -> None:
        """Count the outcome of an attempt on this machine."""
        is_in_sandbox = error is not None and error.blame is Blame.INFRA and error.stage is not Stage.IMAGE
        if is_in_sandbox and isinstance(self.backend, RechecksTools):
            self.backend.request_recheck()
        if error is None or error.stage not in (Stage.PLAN, *_MACHINE_STAGES):
            self.failures = 0
        elif is_machine_fault(error) and self.is_up:
            self.failures += 1
            self.on_failure(f"{error.type}: {error.message}")


@runtime_checkable
class HasMachines(Protocol):
    """A backend whose sandboxes are on several machines."""

    @property
    def run_machines(self) -> Sequence[RunMachine]:
        """All machines so far, up or lost; more may join."""

    @property
    def gave_up(self) -> str | None:
        """Reason why no machine is expected to be up again; None while one is up or may come."""

    def on_change(self, listener: Callable[[], None]) -> None:
        """Call `listener` whenever a machine joins, is lost, or comes back."""


def run_machines_of(backend: Backend) -> Sequence[RunMachine]:
    """Return the machines of a backend; a backend without `run_machines` counts as one machine."""
    return backend.run_machines if isinstance(backend, HasMachines) else (RunMachine("", backend),)
