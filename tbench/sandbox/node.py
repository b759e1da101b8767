"""A machine of several that a run has its sandboxes on: it may go away under its trials, and come back."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol, runtime_checkable

from tbench.errors import TrialError
from tbench.sandbox.backend import Backend


class Node:
    """A machine by its name, empty for an only one, and the backend that makes sandboxes on it."""

    def __init__(self, name: str, backend: Backend) -> None:
        self.name = name
        self.backend = backend
        self.why_lost: str | None = None
        """Why it makes no sandboxes; None while it does."""
        self._hosted: dict[asyncio.Task[object], str | None] = {}
        """Trials that are on it, each with the reason for which it was taken from it."""

    @property
    def is_up(self) -> bool:
        """Whether trials may be placed on it."""
        return self.why_lost is None

    @contextlib.contextmanager
    def hosting(self) -> Iterator[None]:
        """A block that ends when the machine is lost. Raises TrialError (engine_unreachable) there."""
        if self.why_lost is not None:
            raise self._error(self.why_lost)
        task = asyncio.current_task()
        assert task is not None
        self._hosted[task] = None
        try:
            yield
        except asyncio.CancelledError:
            why = self._hosted[task]
            if why is None or task.uncancel():
                raise  # the trial is ended as well
            raise self._error(why) from None
        finally:
            del self._hosted[task]

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
        self.why_lost = None


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
