"""Which models a night runs: names and paths every night, matches of globs once."""

from __future__ import annotations

import glob
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path

from tbench.errors import UsageError

_WILDCARDS = re.compile(r"[*?\[]")
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that a night runs."""

    lane: str
    """The entry of the configuration that it comes from: the series that the gate looks at."""
    path: str
    """The entry itself, or the match of the glob."""

    @property
    def name(self) -> str:
        """The last part of a path; all of a name without slashes."""
        return self.path.rstrip("/").rpartition("/")[2] or self.path


def is_glob(entry: str) -> bool:
    return _WILDCARDS.search(entry) is not None


def due(entries: Iterable[str], done: Collection[tuple[str, str]], *, repeat: bool) -> tuple[Checkpoint, ...]:
    """What is to be run tonight, lane by lane. `done` has the (lane, path) pairs of earlier nights.

    Raises UsageError for a glob that matches nothing.
    """
    found = []
    for entry in entries:
        if not is_glob(entry):
            found.append(Checkpoint(entry, entry))
            continue
        # Not Path.glob, which takes no absolute pattern.
        matches = sorted(glob.glob(str(Path(entry).expanduser()), recursive=True), key=natural)  # noqa: PTH207
        if not matches:
            raise UsageError(f"nightly.checkpoints: {entry}: matches nothing; check the path, or leave the entry out")
        found += [Checkpoint(entry, match) for match in matches if repeat or (entry, match) not in done]
    return tuple(dict.fromkeys(found))


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts numbers within names by their value: step-900 before step-1000."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part
    )


def slugs(checkpoints: Iterable[Checkpoint]) -> list[str]:
    """A name for files for each checkpoint: its last part, or more of its path where two would be called alike."""
    listed = list(checkpoints)
    short = [_slug(each.name) for each in listed]
    chosen: list[str] = []
    for each, name in zip(listed, short, strict=True):
        candidate = name if short.count(name) == 1 else _slug(each.path)
        number = 2
        while candidate in chosen:
            candidate, number = f"{_slug(each.path)}-{number}", number + 1
        chosen.append(candidate)
    return chosen


def _slug(text: str) -> str:
    return _NOT_IN_NAMES.sub("-", text).strip("-.")[-_LONGEST:].lstrip("-.") or "model"
