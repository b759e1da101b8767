"""Finds one trial on disk by what a user calls it."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import ValidationError

from harness.trajectory import Step, Trajectory
from tbench.config.document import RunDocument
from tbench.results import TrialResult
from tbench.storage.lines import first_problem
from tbench.storage.read_run import RunUnreadable, read_run_document, read_steps, read_trajectory
from tbench.storage.run_files import CONFIG_NAME, TRIAL_RESULT_NAME, attempts, is_run
from tbench.text import plain

_NAMED = re.compile(r"(?P<run>.+?)/(?:trials/)?(?P<task>[^/]+)/(?:seed-)?(?P<seed>\d+)(?:/attempt-(?P<attempt>\d+))?/?")


@dataclass(frozen=True)
class StoredTrial:
    """One attempt at a trial, as it lies in its run directory."""

    run: Path
    task: str
    seed: int
    attempt: int
    directory: Path

    @property
    def name(self) -> str:
        """What a user calls it: RUN/TASK/SEED, with the attempt where it is not the first."""
        more = f"/attempt-{self.attempt}" if self.attempt > 1 else ""
        return f"{self.run}/{self.task}/{self.seed}{more}"

    @cached_property
    def result(self) -> TrialResult | None:
        """Its result; None where it was cut short. Raises RunUnreadable."""
        file = self.directory / TRIAL_RESULT_NAME
        try:
            return TrialResult.model_validate_json(file.read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise RunUnreadable(f"{file}: {first_problem(error, 'file')}; restore it or delete it") from None
        except OSError as error:
            raise RunUnreadable(f"{file}: cannot be read: {error.strerror or error}") from None

    @cached_property
    def trajectory(self) -> Trajectory | None:
        """Its trajectory; None where it was cut short, or its agent has none. Raises RunUnreadable."""
        return read_trajectory(self.directory)

    @cached_property
    def steps(self) -> list[Step]:
        """Its steps, also where it was cut short. Raises RunUnreadable."""
        return read_steps(self.directory)

    @cached_property
    def document(self) -> RunDocument:
        """The configuration of its run. Raises RunUnreadable."""
        return read_run_document(self.run / CONFIG_NAME)


def find_trial(name: str) -> StoredTrial:
    """The trial that is called RUN/TASK/SEED, or by its directory; of its attempts the last, where none is named.

    Raises RunUnreadable where there is none, with those whose names are like it.
    """
    found = _NAMED.fullmatch(name)
    if found is None:
        raise RunUnreadable(f"{plain(name)}: no trial is called so; name one as RUN/TASK/SEED")
    run, task, seed = Path(found["run"]), found["task"], int(found["seed"])
    if not is_run(run):
        raise RunUnreadable(f"{run}: no run directory{_like(str(run), _runs_beside(run))}")
    there = attempts(run, task, seed)
    if not there:
        known = [f"{run}/{place.parent.name}/{place.name[5:]}" for place in run.glob("trials/*/seed-*")]
        raise RunUnreadable(f"{run}: has no trial {task}/{seed}{_like(f'{run}/{task}/{seed}', known)}")
    attempt = int(found["attempt"]) if found["attempt"] else max(there)
    if attempt not in there:
        raise RunUnreadable(f"{run}/{task}/{seed}: has {len(there)} attempts, and no attempt {attempt}")
    return StoredTrial(run, task, seed, attempt, there[attempt])


def _runs_beside(run: Path) -> list[str]:
    try:
        return [str(place.parent) for place in run.parent.glob(f"*/{CONFIG_NAME}")]
    except OSError:
        return []


def _like(name: str, known: list[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"; did you mean {', '.join(near)}?" if near else "; check the name"
