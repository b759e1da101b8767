"""A running trial as the live page shows it: a tile with the last lines of its terminal's recording."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbench.results import TrialResult
from tbench.reward import canonical
from tbench.scores.summarise import trial_status
from tbench.scores.summary import Status
from tbench.storage.recording import cast_head, cast_piece
from tbench.storage.run_files import RECORDING_NAME, inside_trials, step_directory, trial_directory
from tbench.view.screen import Line, TileScreen

TILE_ROWS, TILE_COLUMNS = 16, 100
_TILE_BYTES = 1 << 15


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """Trial with its verdict."""

    task: str
    seed: int
    attempt: int
    mark: Status
    words: str
    wall_sec: float
    reward: float | None

    @classmethod
    def from_result(cls, result: TrialResult) -> EndedTrial:
        error, reward = result.error, None if result.reward is None else canonical(result.reward)
        words = error.type if error is not None else f"reward {reward:g}" if reward is not None else "no verdict"
        wall_sec = result.timings.wall_sec
        return cls(result.task, result.seed, result.attempt, trial_status(result), words, wall_sec, reward)


@dataclass(slots=True)
class RunningTrial:
    """Trial that is queued or running, or has just got its verdict."""

    run: Path
    trial: str
    task: str
    seed: int
    attempt: int
    phase: str = "queued"
    part: str = ""
    """Current task step as `NUMBER/COUNT NAME`; empty for a task without steps."""
    step: int = 0
    line: str = ""
    since: float | None = None
    """Unix time of its start; None in the queue, or if neither this process nor the recording knows it."""
    ended: EndedTrial | None = None
    ended_at: float = 0.0
    part_name: str | None = None
    is_stale: bool = True
    """Whether its recording may have grown since it was last read."""
    screen: TileScreen | None = None
    _end: int = 0
    _size: int = -1
    _lines: list[Line] = field(default_factory=list)
    _directory: Path | None = None

    def begin_part(self, name: str, number: int, count: int) -> None:
        """Follow another task step, which has its own terminal."""
        self.part, self.part_name, self.step = f"{number}/{count} {name}", name, 0
        self._forget_screen()

    def _forget_screen(self) -> None:
        self.screen, self._end, self._size, self._lines, self.is_stale = None, 0, -1, [], True
        self._directory = None

    @property
    def is_at_work(self) -> bool:
        """Whether the trial has left the queue and has no verdict."""
        return self.phase != "queued" and self.ended is None

    @property
    def directory(self) -> Path | None:
        """Directory of its recording; None before it exists. Raises OSError."""
        if self._directory is None:
            self._directory = self._found_directory()
        return self._directory

    def _found_directory(self) -> Path | None:
        directory = inside_trials(self.run, trial_directory(self.run, self.task, self.seed, self.attempt))
        if directory is None:  # it does not exist yet, or the journal has an invalid task name
            return None
        return directory if self.part_name is None else step_directory(directory, self.part_name)

    @property
    def cast(self) -> Path | None:
        """Recording of its terminal, which may not exist yet. Raises OSError."""
        return None if self.directory is None else self.directory / RECORDING_NAME

    def redraw(self) -> bool:
        """Draw new output of the terminal, and return whether there was any."""
        self.is_stale = False
        with contextlib.suppress(OSError, ValueError):  # without a readable recording the tile stays empty
            file = self.cast
            if file is None:
                return False
            size = file.stat().st_size
            if size == self._size:
                return False
            self._draw(file, size)
            return True
        self._directory = None
        return False

    def _draw(self, file: Path, size: int) -> None:
        if size < self._end or self.screen is None:
            if (head := cast_head(file)) is None:
                return
            self.screen, self._end = TileScreen(head.columns, head.rows), 0
            self.since = self.since or head.begun_at
        piece = cast_piece(file, self._end, size, _TILE_BYTES)
        if piece.skipped:
            self.screen = TileScreen(self.screen.columns, self.screen.rows)
        self.screen.feed(piece.text)
        self._end, self._size = piece.end, size
        self._lines = self.screen.last_lines(TILE_ROWS, TILE_COLUMNS)

    def as_tile(self) -> dict[str, Any]:
        """Return the tile in the format of the page's script."""
        tile: dict[str, Any] = {"task": self.task, "seed": self.seed, "phase": self.phase, "rows": self._lines}
        optional = {"part": self.part, "step": self.step, "since": self.since}
        tile |= {name: value for name, value in optional.items() if value}
        if self.ended is not None:
            tile["mark"], tile["words"] = self.ended.mark, self.ended.words
        return tile
