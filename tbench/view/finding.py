"""Which runs are under way below some folders: their run.json says so, and a process holds them."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tbench.history.directories import find_runs
from tbench.storage.run_files import CONFIG_NAME
from tbench.text import one_line
from tbench.view.run_state import RunFacts


@dataclass(frozen=True, slots=True)
class OpenRun:
    """A run whose run.json says that it goes on."""

    path: Path
    facts: RunFacts


@dataclass(slots=True)
class OpenRuns:
    """Looks for runs again and again, and reads only what has changed."""

    roots: Sequence[Path]
    stamps: dict[Path, str] = field(default_factory=dict)
    """Sizes and times of all runs' files, as they were found last."""
    notes: list[str] = field(default_factory=list)
    """What could not be read, one sentence each."""
    _known: dict[Path, tuple[str, OpenRun | str | None]] = field(default_factory=dict)
    """By directory the stamp of its run.json, and what that says: an open run, a problem, or nothing to watch."""

    def look(self) -> tuple[OpenRun, ...]:
        """The open runs, as they are now."""
        found = find_runs([root.resolve() for root in self.roots])
        self.stamps = {each.path: each.stamp for each in found.directories}
        seen = {path: self._read(path, stamp.split(" ")[0]) for path, stamp in self.stamps.items()}
        self._known = {path: self._known[path] for path in seen}
        self.notes = [f"{path}: cannot be looked into: {why}" for path, why in found.unread.items()]
        self.notes += [each for each in seen.values() if isinstance(each, str)]
        return tuple(each for each in seen.values() if isinstance(each, OpenRun))

    def _read(self, path: Path, stamp: str) -> OpenRun | str | None:
        known = self._known.get(path)
        if known is None or known[0] != stamp:
            known = self._known[path] = (stamp, open_run(path))
        return known[1]


def open_run(path: Path) -> OpenRun | str | None:
    """The run in a directory if it says that it goes on; what is wrong with its run.json; None for all others."""
    try:
        said = json.loads((path / CONFIG_NAME).read_bytes())
        if not isinstance(said, dict) or said.get("status") != "running":
            return None
        return OpenRun(path, _facts(path, said))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        what = error.strerror or str(error) if isinstance(error, OSError) else f"{type(error).__name__} {error}"
        return f"{path / CONFIG_NAME}: cannot be understood, so this run is not followed ({one_line(what, 120)})"


def _facts(path: Path, said: Mapping[str, Any]) -> RunFacts:
    """What is shown of a run.json, which may be of another version."""
    locked, config = said.get("locked") or {}, said.get("config") or {}
    times = [said.get("created_at"), *(said.get("resumed_at") or ())]
    origin, shard = said.get("dataset"), said.get("shard")
    at_once = (config.get("schedule") or {}).get("concurrency") or 1
    return RunFacts(
        name=str(said.get("run") or path.name),
        planned=len(shard["trials"]) if shard is not None else len(said["tasks"]) * len(said["seeds"]),
        concurrency=max(1, sys.maxsize if at_once == "auto" else int(at_once)),
        model=locked.get("model"),
        agent=str(locked.get("agent") or ""),
        dataset=str(origin.get("name")) if isinstance(origin, dict) and origin.get("name") else None,
        begun_at=times[-1] or None,
    )
