"""Writes a site: a folder that works from files and from any web server. Rewrites only pages that changed."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from reports import comparison, search, task
from reports.page_frame import HERE
from reports.page_paths import (
    COMPARE,
    FEED,
    NIGHTS,
    OVERVIEW,
    SEARCH,
    SEARCHED_RUNS,
    SERIES,
    TASKS,
    compare_data,
    compare_page,
    night_page,
    run_page,
    task_data,
    task_page,
)
from reports.run import page as run
from reports.site import night, overview, series
from reports.site.content import KeptRuns, NightlySeries, Site, SiteRun, gather
from reports.trial.page import trial_files
from tbench.errors import UsageError
from tbench.files import is_unused, write_atomically
from tbench.history.database import default_index
from tbench.history.directories import stamp
from tbench.history.index import RunHistory
from tbench.storage.read_run import RunUnreadable, StoredRun
from tbench.storage.run_files import CONFIG_NAME, CONFIRMED_NAME, NOTES_NAME, RESULTS_NAME, TRIALS_NAME

_CHUNK = re.compile(r"trials-\d+\.js")
"""Name of a file with trials."""
_STAMP_NAME, _COMPARED_NAME = ".written", ".compared"
MARKER_NAME = ".tbench-site"
"""First file of every site. A folder that is not empty is only written to if it contains this file."""
_MARKER = b"tbench writes pages into this folder. It writes into no other folder that is not empty.\n"
_MADE_OF = (CONFIG_NAME, RESULTS_NAME, NOTES_NAME, CONFIRMED_NAME, TRIALS_NAME)
"""Files of a run that change when its trials do; the time of the trials' folder changes if recordings are removed."""
_ASSETS = "assets"
_SHARE = 30
"""Smallest number of runs for which a further process is worth its start."""
_MAX_PROCESSES = 8
_HELP = "from reports.site.writer import help_writing; help_writing()"
_HELP_SEC = 1800.0
_FOLDERS = (_ASSETS, *(str(Path(page).parent) for page in (NIGHTS, SERIES, TASKS, COMPARE, SEARCH)), "runs")


@dataclass(frozen=True, slots=True)
class WrittenSite:
    """Result of writing a site."""

    overview: Path
    """Start page."""
    site: Site
    unchanged: int
    """Number of runs whose trials did not have to be written again."""
    notes: tuple[str, ...]
    """Runs that could not be shown, one sentence each."""


def write_site(
    roots: Sequence[Path],
    out: Path,
    *,
    index: Path | None = None,
    lanes: Iterable[NightlySeries] = (),
) -> WrittenSite:
    """Write the pages about all runs at or below `roots` into `out`, which may already contain some.

    `index` is the history's file, by default in the first root. A run that cannot be read has no pages and is named in
    the notes. Raises UsageError if a root is not a directory, or `out` cannot be written, contains other files or
    overlaps with the runs, and whatever RunHistory raises.
    """
    for root in roots:
        if not root.is_dir():
            raise UsageError(f"{root}: no such directory; give directories of runs")
    index = index or default_index(roots)
    with RunHistory.open(index) as history:
        kept = KeptRuns(run.page_summary)
        changes = history.update(*roots, reader=kept)
        site = gather(history, roots, lanes, (*history.notes, *changes.notes), kept)
        _check_out(out, roots, [each.row.path for each in site.runs])
        try:
            if not (out / MARKER_NAME).is_file():
                write_atomically(out / MARKER_NAME, _MARKER)
            return _Writing(site, out, (roots, index, tuple(lanes))).write()
        except OSError as error:
            raise UsageError(f"{error.filename or out}: cannot be written: {error.strerror or error}") from None


def _check_out(out: Path, roots: Iterable[Path], runs: Iterable[Path]) -> None:
    """Check that pages overwrite nothing but pages. Raises UsageError."""
    folder = out.resolve()
    above = next((each for each in (*roots, *runs) if each.resolve().is_relative_to(folder)), None)
    within = next((each for each in runs if folder.is_relative_to(each.resolve())), None)
    if (run := above or within) is not None:
        raise UsageError(f"{out}: overlaps with the runs that the pages show ({run}); name a separate folder")
    if not is_unused(out) and not (out / MARKER_NAME).is_file():
        raise UsageError(f"{out}: is not empty and not a site of tbench; name a new folder (nothing is overwritten)")
    if (link := next((out / name for name in _FOLDERS if (out / name).is_symlink()), None)) is not None:
        raise UsageError(f"{link}: is a link, so pages would be written elsewhere; remove it or name another folder")


_Sources = tuple[Sequence[Path], Path, Sequence[NightlySeries]]
"""Roots, index and series from which a process gathers the site."""


def help_writing() -> None:
    """Write the pages of single runs, as another process has asked for on the standard input."""
    sources, out, paths = pickle.load(sys.stdin.buffer)
    roots, index, lanes = sources
    with RunHistory.open(index) as history:
        site = gather(history, roots, lanes, kept=KeptRuns(run.page_summary))
        _Writing(site, out, sources).write_runs([each for each in site.runs if each.row.path in paths])


@contextlib.contextmanager
def _helped(sources: _Sources, out: Path, runs: Sequence[SiteRun]) -> Iterator[Sequence[SiteRun]]:
    """Let further processes write the pages of most of many runs during the block, and yield the runs that are left.

    What a process fails to write, its caller has to write afterwards.
    """
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    count = max(1, min(cpus, _MAX_PROCESSES, len(runs) // _SHARE))
    size = -(-len(runs) // count) or 1
    started: list[subprocess.Popen[bytes]] = []
    with contextlib.ExitStack() as helpers:
        for start in range(size, len(runs), size):
            asked = pickle.dumps((sources, out, {each.row.path for each in runs[start : start + size]}))
            helper = subprocess.Popen(
                [sys.executable, "-P", "-c", _HELP],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            )  # fmt: skip
            started.append(helpers.enter_context(helper))
            helpers.callback(helper.kill)
            assert helper.stdin is not None
            with contextlib.suppress(OSError), helper.stdin:
                helper.stdin.write(asked)
        yield runs[:size]
        with contextlib.suppress(subprocess.TimeoutExpired):
            for helper in started:
                helper.wait(_HELP_SEC)


class _Writing:
    def __init__(self, site: Site, out: Path, sources: _Sources) -> None:
        self._site, self._out, self._sources = site, out, sources
        self._stamps = {
            each.slug: f"{_look_digest()} {stamp(each.row.path, _MADE_OF)} {each.row.path}" for each in site.runs
        }
        """Stamps of the runs' files, and of the code that makes pages of them, by slug."""

    def write(self) -> WrittenSite:
        write_assets(self._out)
        runs = self._site.runs
        stale = [each for each in runs if not self._has_trials(each)]
        with _helped(self._sources, self._out, stale) as own_share:
            self.write_runs(own_share)
            self._write_pages_of_all()
        notes = (*self._site.notes, *self.write_runs(runs))
        return WrittenSite(self._out / OVERVIEW, self._site, len(runs) - len(stale), notes)

    def write_runs(self, runs: Sequence[SiteRun]) -> list[str]:
        """Write the pages of single runs that are missing or out of date; return why some could not be read."""
        problems = []
        for each in runs:
            try:
                self._write_run(each)
            except RunUnreadable as problem:
                problems.append(str(problem))
        return problems

    def _has_trials(self, each: SiteRun) -> bool:
        """Whether the trials of a run were written from its files as they are."""
        return (_content(self._folder(each) / _STAMP_NAME) or "").startswith(f"{self._stamps[each.slug]}\n")

    def _folder(self, each: SiteRun) -> Path:
        return self._out / Path(run_page(each.slug)).parent

    def _write_pages_of_all(self) -> None:
        """Write the pages that are about more than one run, unless nothing that they show has changed."""
        site, file = self._site, self._out / _STAMP_NAME
        series = [(each.key, each.name, each.rule, each.is_nightly, each.names, each.explained) for each in site.series]
        known = repr(([*self._stamps.values()], site.runs, series, site.notes)).encode("utf-8", "replace")
        fresh = hashlib.sha256(known).hexdigest()
        if _content(file) == fresh and (self._out / OVERVIEW).exists():
            return
        for name, text in _pages_of_all(site):
            self._put(name, text)
        self._write_nights()
        write_atomically(file, fresh.encode())

    def _write_nights(self) -> None:
        """Write the pages of nights that show something new."""
        site, file = self._site, self._out / Path(NIGHTS).parent / _STAMP_NAME
        known = set((_content(file) or "").split("\n"))
        fresh = []
        for name, runs in site.nights.items():
            files = [self._stamps[run.slug] for run in (*runs, *night.good_runs(site, runs))]
            shown = repr((files, night.shown_data(site, name, runs))).encode("utf-8", "replace")
            fresh.append(f"{hashlib.sha256(shown).hexdigest()} {night_page(name)}")
            if fresh[-1] not in known or not (self._out / night_page(name)).exists():
                self._put(night_page(name), night.render(site, name, runs))
        write_atomically(file, "\n".join(fresh).encode())

    def _write_run(self, each: SiteRun) -> None:
        """Write the pages of a run that show something that changed."""
        folder = self._folder(each)
        before = self._site.last_good_before(each)
        if before is not None:
            self._write_comparison(before, each, folder / _COMPARED_NAME)
        fresh = f"{self._stamps[each.slug]}\n{run.data_from_other_runs(self._site, each)}"
        if _content(folder / _STAMP_NAME) == fresh:
            return
        stored = self._site.read_run(each)
        summary = self._site.kept.summary(stored)
        self._put(run_page(each.slug), run.render(self._site, each, stored, summary))
        if not self._has_trials(each):
            self._put(compare_data(each.slug), comparison.data(self._site, each))
            self._write_trials(each, stored)
        if each.row.status != "running":
            write_atomically(folder / _STAMP_NAME, fresh.encode("utf-8", "replace"))

    def _write_trials(self, each: SiteRun, stored: StoredRun) -> None:
        """Write the trials of a run, and remove chunks that it no longer has."""
        written = set()
        for name, text in trial_files(each, stored):
            self._put(name, text)
            written.add(self._out / name)
        for file in self._folder(each).glob("*"):
            if file not in written and _CHUNK.fullmatch(file.name):
                file.unlink()

    def _write_comparison(self, old: SiteRun, new: SiteRun, stamped: Path) -> None:
        """Write the page that compares two runs, unless it exists and neither run changed."""
        stamps = (f"{stamp(run.row.path, (CONFIG_NAME, RESULTS_NAME))} {run.row.path}" for run in (old, new))
        fresh = "\n".join((_look_digest(), *stamps))
        page = compare_page(old.slug, new.slug)
        if _content(stamped) == fresh and (self._out / page).exists():
            return
        self._put(page, comparison.render(self._site, old, new))
        write_atomically(stamped, fresh.encode())

    def _put(self, name: str, text: str) -> None:
        _write_changed(self._out / name, text.encode("utf-8", "replace"))


def _pages_of_all(site: Site) -> Iterator[tuple[str, str]]:
    """Yield path and text of the pages that are about more than one run, except those of single nights."""
    yield OVERVIEW, overview.render(site)
    yield FEED, series.render_feed(site)
    yield SERIES, overview.render_series(site)
    for each in site.series:
        yield each.page, series.render(site, each)
    yield NIGHTS, night.render_nights(site)
    records = task.task_records(site)
    yield TASKS, task.render_list(records)
    for record in records:
        trials = site.history.trials_by_run(record.task)
        yield task_page(record.task), task.render(record, trials)
        yield task_data(record.task), task.data(record, trials)
    yield COMPARE, comparison.render_choice(site)
    yield SEARCH, search.render(site)
    yield SEARCHED_RUNS, search.runs_data(site)


def write_assets(out: Path) -> None:
    """Write the files that all pages share: styles, scripts, the player and its licence. Raises OSError."""
    for file in sorted((HERE / _ASSETS).rglob("*")):
        if file.is_file():
            _write_changed(out / file.relative_to(HERE), file.read_bytes())


def _write_changed(file: Path, data: bytes) -> None:
    """Write a file unless it already has this content."""
    with contextlib.suppress(OSError):
        if file.stat().st_size == len(data) and file.read_bytes() == data:
            return
    write_atomically(file, data)


@cache
def _look_digest() -> str:
    """Return a digest of the code, templates and assets that make pages: if it changes, all pages are written again."""
    digest = hashlib.sha256()
    for file in sorted(HERE.rglob("*")):
        if file.is_file() and file.suffix in (".py", ".j2", ".css", ".js"):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def _content(file: Path) -> str | None:
    try:
        return file.read_bytes().decode("utf-8", "replace")
    except OSError:
        return None
