"""A trial under way, as the wall shows it: a tile with the last lines of its recorded terminal."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tbench.results import TrialResult
from tbench.reward import canonical
from tbench.storage.run_files import step_directory, trial_directory
from tbench.view.screen import Line, TileScreen

# What is new in the recording of a terminal: read from where the last look ended, never more than a bounded piece.

PIECE_BYTES = 1 << 17
"""Most that one look reads; of a recording that has grown by more, the middle is left out."""
_FIRST_BYTES = 1 << 12
_COLUMNS, _ROWS = 160, 40


@dataclass(frozen=True, slots=True)
class CastHead:
    """What the first line of a recording says."""

    columns: int = _COLUMNS
    rows: int = _ROWS
    begun_at: float | None = None
    """Unix time of its begin."""


@dataclass(frozen=True, slots=True)
class CastPiece:
    """What was printed between two places of a recording."""

    text: str
    end: int
    """Where the next look begins, in bytes."""
    skipped: bool = False
    """Whether something before it was left out, so that the screen is not known from it alone."""


def cast_head(file: Path) -> CastHead | None:
    """The head of a recording; None where there is none yet. Raises OSError."""
    with file.open("rb") as opened:
        first, end, _ = opened.read(_FIRST_BYTES).partition(b"\n")
    if not end:
        return None
    try:
        head = json.loads(first)
    except ValueError:
        return CastHead()
    if not isinstance(head, dict):
        return CastHead()
    begun = head.get("timestamp")
    return CastHead(
        _number(head.get("width"), _COLUMNS),
        _number(head.get("height"), _ROWS),
        float(begun) if isinstance(begun, int | float) and 0 <= begun < 1e11 else None,
    )


def _number(value: object, usual: int) -> int:
    return value if isinstance(value, int) and 0 < value <= 1000 else usual


def cast_piece(file: Path, begin: int, size: int, most: int = PIECE_BYTES) -> CastPiece:
    """What was printed in a recording of `size` bytes since the place `begin`, of which `most` bytes are read.

    A line that is still being written is left to the next look. Raises OSError.
    """
    at = max(begin, size - most)
    with file.open("rb") as opened:
        opened.seek(at)
        data = opened.read(size - at)
    whole = data[: data.rfind(b"\n") + 1]
    end = at + len(whole)
    lines = whole.split(b"\n")
    if at != begin or at == 0:  # begun in the middle of a line, or with the head
        lines = lines[1:]
    return CastPiece(_output(lines), end, at != begin)


def _output(lines: Sequence[bytes]) -> str:
    """The text of the events that are output; a line that is none is left out."""
    found = []
    for line in lines:
        if b'"o"' not in line[:40]:
            continue
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, list) and len(event) == 3 and event[1] == "o" and isinstance(event[2], str):
            found.append(event[2])
    return "".join(found)


TILE_ROWS, TILE_COLUMNS = 16, 100
_TILE_BYTES = 1 << 15
CAST_NAME = "session.cast"
Mark = Literal["pass", "partial", "fail", "error"]
"""How a trial ended, as the classes of the style sheet have it."""


def mark_of(result: TrialResult) -> Mark:
    """How a trial ended."""
    if result.reward is None:
        return "error"
    if result.passed:
        return "pass"
    return "partial" if canonical(result.reward) > 0 else "fail"


@dataclass(frozen=True, slots=True)
class EndedTrial:
    """A trial with its verdict."""

    task: str
    seed: int
    attempt: int
    mark: Mark
    words: str
    wall_sec: float
    reward: float | None

    @classmethod
    def of(cls, result: TrialResult) -> EndedTrial:
        error, reward = result.error, None if result.reward is None else canonical(result.reward)
        words = error.type if error is not None else f"reward {reward:g}" if reward is not None else "no verdict"
        wall_sec = result.timings.wall_sec
        return cls(result.task, result.seed, result.attempt, mark_of(result), words, wall_sec, reward)


@dataclass(slots=True)
class RunningTrial:
    """A trial that has begun and has no verdict yet, or has just got it."""

    run: Path
    trial: str
    task: str
    seed: int
    attempt: int
    phase: str = "queued"
    part: str = ""
    """The step of its task that is under way, of how many, where there are several."""
    step: int = 0
    line: str = ""
    since: float | None = None
    """Unix time of its begin; None where it began before anybody watched, and nothing tells."""
    ended: EndedTrial | None = None
    ended_at: float = 0.0
    part_name: str | None = None
    is_stale: bool = True
    """Whether its recording may have grown since it was looked at."""
    screen: TileScreen | None = None
    _end: int = 0
    _size: int = -1
    _lines: list[Line] = field(default_factory=list)
    _directory: Path | None = None

    def begin_part(self, name: str, number: int, count: int) -> None:
        """Follow a step of the task, which has a terminal of its own."""
        self.part, self.part_name, self.step = f"{number}/{count} {name}", name, 0
        self._forget_screen()

    def _forget_screen(self) -> None:
        self.screen, self._end, self._size, self._lines, self.is_stale = None, 0, -1, [], True
        self._directory = None

    @property
    def is_at_work(self) -> bool:
        """Whether it has left the queue and has no verdict."""
        return self.phase != "queued" and self.ended is None

    @property
    def directory(self) -> Path | None:
        """Where its terminal is recorded; None before there is anything. Raises OSError."""
        if self._directory is None:
            self._directory = self._found_directory()
        return self._directory

    def _found_directory(self) -> Path | None:
        directory = trial_directory(self.run, self.task, self.seed, self.attempt)
        if not directory.resolve().is_relative_to((self.run / "trials").resolve()):
            return None  # a journal that names a task as no task is called
        if not directory.is_dir():
            return None
        return directory if self.part_name is None else step_directory(directory, self.part_name)

    @property
    def cast(self) -> Path | None:
        """The recording of its terminal, which may not be there yet. Raises OSError."""
        return None if self.directory is None else self.directory / CAST_NAME

    def look(self) -> bool:
        """Draw what the terminal has printed since the last look; says whether there was anything."""
        self.is_stale = False
        with contextlib.suppress(
            OSError, ValueError
        ):  # no recording yet, or one that cannot be read: an empty tile says so
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
        """Its tile, as the page's script takes it."""
        tile: dict[str, Any] = {"task": self.task, "seed": self.seed, "phase": self.phase, "rows": self._lines}
        optional = {"part": self.part, "step": self.step, "since": self.since}
        tile |= {name: value for name, value in optional.items() if value}
        if self.ended is not None:
            tile["mark"], tile["words"] = self.ended.mark, self.ended.words
        return tile
