"""Reads stored runs as summaries, as sides of a comparison, and as nights for the gate."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from itertools import combinations
from pathlib import Path

from harness.reply_stats import ReplyStats, run_notes
from tbench.errors import UsageError
from tbench.results import UNKNOWN_TIME
from tbench.scores.comparing.compared_run import ComparedRun
from tbench.scores.gate.nights import Night, run_identity
from tbench.scores.summarise import MixedResults, sole_model_and_agent
from tbench.scores.summary import Summary
from tbench.storage.comparable import doubtful_settings, fingerprint
from tbench.storage.read_run import RunUnreadable, StoredRun, read_run
from tbench.storage.run_files import CONFIG_NAME, RESULTS_NAME
from tbench.storage.summaries import final_rewards, make_summary, read_summary
from tbench.text import counted


def summarise(run: StoredRun | Path | str) -> Summary:
    """Return the summary of a stored run, or of the run in a directory, as `tbench summary --json` prints it.

    Raises RunUnreadable, a ValueError.
    """
    return make_summary(run) if isinstance(run, StoredRun) else read_summary(Path(run))[1]


# Stored runs as sides of a comparison.

_SETTINGS_SHOWN = 8
_NOT_A_RUN = {
    "replay.json": "a replay, which `tbench leaderboard` compares with others",
    "extraction.json": "an extraction, which has no rewards to compare",
}
"""Files that mark a directory as something other than a run."""


def make_compared_run(run: StoredRun, name: str | None = None) -> ComparedRun:
    """Return a stored run as a side. Raises MixedResults for results of several models, agents or runs."""
    sole_model_and_agent(run.results)
    return ComparedRun(name or run.name, final_rewards(run), run.task_hashes)


def read_runs(paths: Sequence[Path]) -> list[StoredRun]:
    """Read the runs in directories or .jsonl files.

    Raises UsageError for a path that is not a run, a run that is given twice, and one without any verdict.
    """
    seen: dict[Path, Path] = {}
    for path in paths:
        results = path / RESULTS_NAME if path.is_dir() else path
        if (other := seen.setdefault(results.resolve(), path)) is not path:
            raise UsageError(f"{path}: the same run as {other}; give different runs")
        for file, what in _NOT_A_RUN.items():
            if (path / file).is_file():
                raise UsageError(f"{path}: {what}")
    runs = [read_run(path) for path in paths]
    for path, run in zip(paths, runs, strict=True):
        if all(result.reward is None for result in run.results):
            raise UsageError(
                f"{path}: no trial has a verdict, so there is nothing to compare; see tbench summary {path}"
            )
    return runs


def compared_runs(paths: Sequence[Path], runs: Sequence[StoredRun]) -> list[ComparedRun]:
    """Return the runs under distinct names: their own, or their paths if some names are equal."""
    names = [run.name for run in runs]
    alike = len(set(names)) < len(names)
    return [_compared_run(path, run, str(path) if alike else run.name) for path, run in zip(paths, runs, strict=True)]


def _compared_run(path: Path, run: StoredRun, name: str) -> ComparedRun:
    try:
        return make_compared_run(run, name)
    except MixedResults as error:
        raise MixedResults(f"{path}: {error}") from None


def comparison_doubts(paths: Sequence[Path], runs: Sequence[StoredRun], sides: Sequence[ComparedRun]) -> Iterator[str]:
    """Yield a line for each reason why a comparison of these runs is doubtful; the user has to confirm it."""
    for path, run, side in zip(paths, runs, sides, strict=True):
        if run.shard is not None:
            yield f"{path}: is shard {run.shard.name} of a run; combine the shards with tbench merge"
        elif message := describe_missing(run, side):
            yield f"{path}: {message}; wait for it, or finish it with: tbench resume {path}"
    reported = set()
    for (path, run, side), (other_path, other, other_side) in combinations(zip(paths, runs, sides, strict=True), 2):
        differing = doubtful_settings(run, other)
        if differing and differing not in reported:
            reported.add(differing)
            more = f"; and {len(differing) - _SETTINGS_SHOWN} more" if len(differing) > _SETTINGS_SHOWN else ""
            yield f"{path} and {other_path} have different settings: {'; '.join(differing[:_SETTINGS_SHOWN])}{more}"
        if not set(side.table.seeds) & set(other_side.table.seeds):
            yield f"{path} and {other_path} have no seed in common, so no trials are paired by seed"


def describe_missing(run: StoredRun, side: ComparedRun) -> str:
    """Return what is missing of a tbench run; empty if every trial has a result."""
    if run.document is None:
        return ""
    ended = {(result.task, result.seed) for result in run.results if result.final}
    missing = sum((task, seed) not in ended for task in side.table.tasks for seed in side.table.seeds)
    if not missing:
        return ""
    status = "still running, or killed" if run.document.status == "running" else run.document.status
    trials = len(side.table.tasks) * len(side.table.seeds)
    return f"{status}: {missing:,} of {counted(trials, 'trial')} have no result"


def remarks(paths: Sequence[Path], runs: Sequence[StoredRun]) -> Iterator[str]:
    """Yield remarks for the reader of a comparison, one line each; they do not prevent the comparison."""
    of_runs: defaultdict[str, list[str]] = defaultdict(list)
    for path, run in zip(paths, runs, strict=True):
        seen = ((result.task, result.replies) for result in run.results if result.final)
        for note in (*run.notes, *run_notes(seen, run.names_of_model, is_sampled=run.is_sampled)):
            of_runs[note].append(str(path))
    yield from (f"{', '.join(found)}: {note}" for note, found in of_runs.items())
    for path, run in zip(paths, runs, strict=True):
        if run.document is None and run.plan is None:
            missing = "" if run.imported else " of tbench's own"
            yield f"{path}: no {CONFIG_NAME}{missing}, so its settings and the content of its tasks are not compared"
        elif run.document is None:
            hashes = "" if run.task_hashes else ", and the content of its tasks is unknown"
            yield f"{path}: imported: only the settings that it reports are compared{hashes}"
    yield from _other_weights(paths, runs)
    windows = {
        str(path): served.context_tokens
        for path, run in zip(paths, runs, strict=True)
        if run.document is not None and (served := run.document.locked.served) is not None and served.context_tokens
    }
    if len(set(windows.values())) > 1:
        yield f"contexts differ: {', '.join(f'{path} {tokens:,} tokens' for path, tokens in windows.items())}"


def _other_weights(paths: Sequence[Path], runs: Sequence[StoredRun]) -> Iterator[str]:
    """Yield a line for each two runs with the same model name whose servers reported different weights."""
    known = [
        (path, run.model, weights_root(run), ReplyStats.sum(result.replies for result in run.results if result.final))
        for path, run in zip(paths, runs, strict=True)
    ]
    for (path, model, root, seen), (other, other_model, other_root, other_seen) in combinations(known, 2):
        if model is None or model != other_model:
            continue
        seen_values = [("root", {root} - {None}, {other_root} - {None})]
        seen_values += [
            (name, set(getattr(seen, name)), set(getattr(other_seen, name)))
            for name in ("models", "weights", "fingerprints")
        ]
        apart = [
            f"{name} {', '.join(sorted(map(str, one)))} and {', '.join(sorted(map(str, two)))}"
            for name, one, two in seen_values
            if one and two and not one & two
        ]
        if apart:
            where = f"{path} and {other}: not the same weights, or not served alike, under the name {model}"
            yield f"{where}: {'; '.join(apart)}"


def weights_root(run: StoredRun) -> str | None:
    """Return where the weights of a run's model came from, as its server reported."""
    served = run.document.locked.served if run.document is not None else None
    return served.root if served is not None else None


@dataclass(frozen=True, slots=True)
class Repeats:
    """Runs of one model with the same configuration, whose trials are repeats."""

    name: str
    model: str | None
    sides: tuple[ComparedRun, ...]


def repeats(runs: Sequence[StoredRun], sides: Sequence[ComparedRun]) -> tuple[Repeats, ...]:
    """Group runs of the same model and configuration; imported runs, whose configuration is not known, stay alone."""
    found: dict[tuple[str, ...], list[tuple[StoredRun, ComparedRun]]] = {}
    for run, side in zip(runs, sides, strict=True):
        is_known = run.document is not None
        key = (run.model or "", fingerprint(run)) if is_known else (str(run.path), side.name, "imported")
        found.setdefault(key, []).append((run, side))
    return tuple(
        Repeats(" + ".join(side.name for _, side in group), group[0][0].model, tuple(side for _, side in group))
        for group in found.values()
    )


class StillRunning(UsageError, ValueError):
    """A run that is still running, or was killed: it is not a night yet."""


@dataclass(frozen=True, slots=True)
class StoredNight:
    """A night, with the run that it was read from."""

    run: StoredRun
    night: Night

    def renamed(self, name: str) -> StoredNight:
        """Return the night under another name."""
        return replace(self, night=replace(self.night, name=name))


def make_night(run: StoredRun) -> Night:
    """Return a stored run as a night.

    Raises StillRunning for an unfinished run, RunUnreadable for results of several models or agents, which are not one
    run, and for a run without tasks or seeds.
    """
    where = run.path if run.path.name == run.name else f"{run.path} ({run.name})"
    if run.document is not None and run.document.status == "running":
        raise StillRunning(
            f"{where}: is still running, or was killed; wait for its end, `tbench resume` it, or leave it out"
        )
    try:
        sole_model_and_agent(run.results)
    except MixedResults as error:
        raise RunUnreadable(f"{where}: {error}") from None
    if not run.planned_tasks or not run.planned_seeds:
        raise RunUnreadable(f"{where}: has no tasks or no seeds; leave it out")
    table, began = final_rewards(run), start_time(run)
    identity = run_identity(run.name, run.model, began) if run.document is not None else ""
    return Night(run.name, began, table, run.task_hashes, fingerprint(run), identity)


def start_time(run: StoredRun) -> str:
    """Return when a run began, as ISO date and time; empty if unknown."""
    if run.document is not None and run.document.created_at:
        return run.document.created_at
    times = [result.started_at for result in run.results if result.started_at != UNKNOWN_TIME]
    return min(times).isoformat() if times else ""


def read_nights(paths: Iterable[Path]) -> tuple[list[StoredNight], list[str]]:
    """Return the runs at `paths`, oldest first, and one sentence about each run that was left out. A path is a run, or
    a directory of runs: its unfinished and unreadable runs are left out. Runs of the same name are called by their
    paths. If the start of any is unknown, all stay in the given order. Raises RunUnreadable and StillRunning for a run
    that was given directly, and UsageError for a directory without runs.
    """
    nights: list[StoredNight] = []
    left_out: list[str] = []
    for path in paths:
        if path.is_file() or _is_run(path):
            nights.append(_read(path))
            continue
        found = list(_runs_in(path))
        if not found:
            raise UsageError(f"{path}: contains no run; give run directories, or a directory of them")
        for each in found:
            try:
                nights.append(_read(each))
            except (RunUnreadable, StillRunning) as problem:
                left_out.append(f"left out: {problem}")
    names = Counter(each.night.name for each in nights)
    nights = [each if names[each.night.name] == 1 else each.renamed(str(each.run.path)) for each in nights]
    begun = [_time(each.night) for each in nights]
    known = [time for time in begun if time is not None]
    if len(known) == len(nights):
        nights = [nights[at] for at in sorted(range(len(nights)), key=known.__getitem__)]
    return nights, left_out


def _is_run(path: Path) -> bool:
    return (path / CONFIG_NAME).is_file() or (path / RESULTS_NAME).is_file()


def _runs_in(path: Path) -> Iterator[Path]:
    """Yield the runs directly in a directory, by name."""
    if not path.is_dir():
        raise RunUnreadable(f"{path}: no such run directory; check the path")
    yield from (each for each in sorted(path.iterdir()) if each.is_dir() and _is_run(each))


def _read(path: Path) -> StoredNight:
    run = read_run(path)
    return StoredNight(run, make_night(run))


def _time(night: Night) -> datetime | None:
    try:
        time = datetime.fromisoformat(night.begun)
    except ValueError:
        return None
    return time if time.tzinfo is not None else time.astimezone()
