"""Conditions that stop a debugged trial: a text on its screen, a changed path, a test, an exit code."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field

from harness.trajectory import Step
from tbench.errors import TrialError, UsageError
from tbench.runs.live.changed_files import ChangedFiles, Changes
from tbench.text import names_text, plain

REWARD = "the reward"
"""Name of the reward among the tests."""


@dataclass
class OnScreen:
    """Stops when a text is on the screen."""

    text: str
    screen: Callable[[], Awaitable[str]]

    async def begin(self) -> None:
        return

    async def reached(self) -> str:
        return f"the screen shows {plain(self.text)}" if self.text in await self.screen() else ""


@dataclass
class OnExit:
    """Stops when a command's exit code is not 0."""

    done: Callable[[], Sequence[Step]]
    """Returns the finished steps."""

    async def begin(self) -> None:
        return

    async def reached(self) -> str:
        last = next(iter(self.done()[-1:]), None)
        return f"exit code {last.exit_code} at step {last.index}" if last is not None and last.exit_code else ""


@dataclass
class OnChange:
    """Stops when a path, or something below it, has changed."""

    path: str
    files: ChangedFiles
    changes: Callable[[], Changes]
    """Returns the changes during the last step."""
    places: set[str] = field(default_factory=set, init=False)
    """The path, and where its links lead or led."""

    async def begin(self) -> None:
        self.files.watch(self.path)
        await self.files.look()
        await self._resolve()
        if self.files.problem:
            raise UsageError(f"{plain(self.path)}: cannot be watched: {self.files.problem}")

    async def _resolve(self) -> None:
        try:
            self.places |= {self.path, await self.files.resolve(self.path)}
        except TrialError as error:
            self.files.problem = str(error)

    async def reached(self) -> str:
        await self._resolve()
        places, found = tuple(f"{place.rstrip('/')}/" for place in self.places), []
        for path, kind in self.changes().items():
            changed = f"{path.rstrip('/')}/"
            # Of the directories above the path, only additions and removals matter.
            is_above = kind != "changed" and any(place.startswith(changed) for place in places)
            if is_above or changed.startswith(places):
                found.append(f"{plain(path)} {kind}")
        return f"changed: {names_text(found, 3)}" if found else self.files.problem


@dataclass
class OnTest:
    """Stops when the state of a test (passed, failed, or not run) differs from its state at the beginning."""

    name: str
    """The test's name or a part of it; empty for any test or the reward."""
    judge: Callable[[], Awaitable[Mapping[str, str]]]
    """Runs the verifier in a copy, and returns the state of each test."""
    before: Mapping[str, str] = field(default_factory=dict, init=False)

    async def begin(self) -> None:
        shown = await self.judge()
        self.before = self._chosen(shown)
        if self.name and not self.before:
            names = [name.rpartition("::")[2] for name in shown if name != REWARD]
            known = names_text(map(plain, names)) or "none"
            raise UsageError(f"{plain(self.name)}: no test has this in its name; tests that ran now: {known}")

    def _chosen(self, shown: Mapping[str, str]) -> dict[str, str]:
        if not self.name:
            return dict(shown)
        return {name: state for name, state in shown.items() if self.name in name and name != REWARD}

    async def reached(self) -> str:
        now = self._chosen(await self.judge())
        names = [name for name in {**self.before, **now} if self.before.get(name) != now.get(name)]
        flips = (f"{plain(name)}: {self.before.get(name, 'not run')}, now {now.get(name, 'not run')}" for name in names)
        return names_text(flips, 3)
