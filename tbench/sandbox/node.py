"""A machine of several that a run has its sandboxes on: it may go away under its trials, and come back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from tbench.errors import TbenchError, TrialError
from tbench.results import Blame, ErrorInfo, Stage
from tbench.sandbox.backend import Backend, Doubts

_ITS_OWN = (Stage.IMAGE, Stage.SANDBOX)
"""Stages whose errors of the infrastructure are a machine's: nothing has begun to work in a sandbox of it."""


def is_of_machine(error: ErrorInfo) -> bool:
    """Whether an attempt has failed by its machine, so that another one might do better."""
    return error.blame is Blame.INFRA and error.stage in _ITS_OWN


class Node:
    """A machine by its name, empty for an only one, and the backend that makes sandboxes on it."""

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self.backend = backend
        self.why_lost: str | None = None
        """Why it makes no sandboxes; None while it does."""
        self.why_aside: str | None = None
        """Why nothing is placed on it, while what is there goes on; None while trials are."""
        self.is_gone = False
        """Whether nobody waits for it any more while it is lost."""
        self.failures = 0
        """How many attempts have failed on it since one had a sandbox."""
        self.on_failure: Callable[[str], None] = lambda _: None
        """Called with the newest error after each of them."""
        self._hosted: dict[asyncio.Task[object], str | None] = {}
        """Trials that are on it, each with the reason for which it was taken from it."""

    @property
    def is_up(self) -> bool:
        """Whether it makes sandboxes."""
        return self.why_lost is None

    @property
    def takes_trials(self) -> bool:
        """Whether trials may be placed on it."""
        return self.why_lost is None and self.why_aside is None

    @contextlib.contextmanager
    def hosting(self) -> Iterator[None]:
        """A block that ends when the machine is lost. Raises TrialError (engine_unreachable) there.

        So it does where what was asked of the lost machine ends in another way, which says nothing about the trial.
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
        """Have it that the machine is gone, and end the trials on it; how many those were."""
        self.why_lost = why
        ended = [task for task, before in self._hosted.items() if before is None]
        for task in ended:
            self._hosted[task] = why
            task.cancel()
        return len(ended)

    def come_back(self) -> None:
        """Have it that the machine makes sandboxes again."""
        self.why_lost = self.why_aside = None
        self.is_gone, self.failures = False, 0

    def attempted(self, error: ErrorInfo | None) -> None:
        """Notice how an attempt on it has ended."""
        is_in_sandbox = error is not None and error.blame is Blame.INFRA and error.stage is not Stage.IMAGE
        if is_in_sandbox and isinstance(self.backend, Doubts):
            self.backend.doubt()
        if error is None or error.stage not in (Stage.PLAN, *_ITS_OWN):
            self.failures = 0
        elif is_of_machine(error) and self.is_up:
            self.failures += 1
            self.on_failure(f"{error.type}: {error.message}")


@runtime_checkable
class HasNodes(Protocol):
    """A backend whose sandboxes are on several machines."""

    @property
    def nodes(self) -> Sequence[Node]:
        """All machines that there have been, whether they are up or not; others may come."""

    @property
    def gave_up(self) -> str | None:
        """Why no machine will be up any more; None while one is, or may come."""

    def on_change(self, tell: Callable[[], None]) -> None:
        """Have `tell` called whenever a machine comes, goes, or is back."""


def nodes_of(backend: Backend) -> Sequence[Node]:
    """The machines of a backend; one that says nothing of them is a machine itself."""
    return backend.nodes if isinstance(backend, HasNodes) else (Node("", backend),)
