"""The stages after the runs of a night: index, pages, comparison, gate, pruning, notification."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tenacity import AsyncRetrying, retry_if_exception_type, stop_after_attempt, wait_exponential

from reports.report import write_report
from tbench import exit_codes
from tbench.errors import UsageError
from tbench.files import read_object_or_none, write_atomically
from tbench.history.index import RunHistory
from tbench.history.rows import ProxyRow
from tbench.locks import FileLock
from tbench.nightly.configuration import Benchmark, Checkpoint
from tbench.nightly.explained import explained_night, with_server
from tbench.nightly.journal import SUMMARY_NAME, NightRecord, Nights, StageName
from tbench.nightly.pages import SeriesRun, gate_nights, series_runs, write_pages
from tbench.nightly.running_night import RunningNight, StageEnd, exit_code
from tbench.nightly.server import server_by_hand
from tbench.nightly.summary import as_markdown, notification
from tbench.scores.comparing.compare import Comparison, TaskChange, compare
from tbench.scores.comparing.compared_run import ComparedRun
from tbench.scores.gate.judge import judge
from tbench.scores.summary import percent
from tbench.storage.comparable import differing_keys
from tbench.storage.read_run import StoredRun, read_run
from tbench.storage.run_files import CONFIG_NAME, JOURNAL_NAME, RECORDING_NAME, STEPS_NAME, TRAJECTORY_NAME, TRIALS_NAME
from tbench.storage.summaries import final_rewards
from tbench.text import counted, names_text, one_line, size_text
from tbench.threads import in_thread
from tbench.web import Unanswered, WebRequest


def comparison_lines(other_name: str, other: Path, name: str, run: Path) -> list[str]:
    """Return lines on the change since the other run, or on why they cannot be compared. Raises RunUnreadable."""
    before, after = read_run(other), read_run(run)
    if keys := differing_keys(before, after):
        return [f"not compared with {other_name}, whose configuration differs: {names_text(keys, 3)}"]
    try:
        found = compare(_side(before, other_name), _side(after, name))
    except UsageError as error:
        return [f"not compared with {other_name}: {error}"]
    lines = [f"{_points(found.difference)} points since {other_name}{_interval(found)}; p {found.p:.2g}"]
    lines += _tasks("newly solved", found.newly_solved) + _tasks("newly failed", found.newly_failed)
    if found.only_second_unscored:
        lines.append(f"no longer with a verdict: {names_text(found.only_second_unscored)}")
    return lines


def _side(run: StoredRun, name: str) -> ComparedRun:
    return ComparedRun(name, final_rewards(run), run.task_hashes)


def _points(fraction: float) -> str:
    return f"{100 * fraction:+.1f}"


def _interval(found: Comparison) -> str:
    if found.interval_95 is None:
        return ""
    low, high = map(_points, found.interval_95)
    return f" (95 % interval {low} to {high})"


def _tasks(what: str, changes: Sequence[TaskChange]) -> list[str]:
    named = [f"{each.task} ({percent(each.first_rate)} → {percent(each.second_rate)} %)" for each in changes]
    return [f"{what}: {names_text(named)}"] if named else []


ATTEMPTS = 3


class _Rejected(Exception):
    """The webhook answered with a status that another attempt will not change."""


async def post(
    url: str, variable: str, payload: Mapping[str, Any], deadline_sec: float, *, first_wait_sec: float = 1.0
) -> str:
    """Post a payload as JSON; return the problem, or an empty text. Never raises.

    The URL is a secret: the message names only its variable and host.
    """
    if not url.strip():
        return f"{variable} is not set, so nothing is posted"
    host = urlsplit(url).hostname or "its URL"
    attempts = AsyncRetrying(
        stop=stop_after_attempt(ATTEMPTS),
        wait=wait_exponential(multiplier=first_wait_sec, max=10),
        retry=retry_if_exception_type(Unanswered),
        reraise=True,
    )
    try:
        async for attempt in attempts:
            with attempt:
                await _post_once(url, payload, deadline_sec)
    except (Unanswered, _Rejected) as why:
        return f"webhook of {variable} at {host}: {one_line(str(why), 200)}"
    return ""


async def _post_once(url: str, payload: Mapping[str, Any], deadline_sec: float) -> None:
    body, headers = json.dumps(payload).encode(), {"Content-Type": "application/json"}
    request = WebRequest(url, deadline_sec, method="POST", headers=headers, body=body, most_bytes=0)
    status = (await in_thread(request.answer)).status
    if status >= 500 or status == 429:
        raise Unanswered(f"HTTP {status}, {ATTEMPTS} times")
    if not 200 <= status < 300:
        raise _Rejected(f"HTTP {status}")


# Pruning removes only files with names that tbench gives them, in run directories named by a night's record. Links are
# not followed, and runs that are being written are left alone.

_LARGE = frozenset({RECORDING_NAME, STEPS_NAME, TRAJECTORY_NAME})


def prune_night(nights: Nights, night: NightRecord) -> tuple[int, list[str]]:
    """Remove the large files of a night; return their bytes, and a line for each run that was not pruned."""
    freed, problems = 0, list[str]()
    for each in night.checkpoints:
        run = nights.runs / each.run
        if not run.exists():
            continue
        with _lock_run(run, each.run) as problem:
            if problem:
                problems.append(f"{run}: not pruned: {problem}")
                continue
            removed = sum(map(_remove, _large_files(run / TRIALS_NAME)))
            if removed:
                _touch(run / TRIALS_NAME)
            freed += removed
    for log in sorted(nights.night_directory(night.name).glob("serve-*.log")):
        freed += _remove(log)
    return freed, problems


@contextlib.contextmanager
def _lock_run(run: Path, name: str) -> Iterator[str]:
    """Lock a run directory, so that no process writes to it; yield why it cannot be pruned, or an empty text."""
    if run.is_symlink() or (read_object_or_none(run / CONFIG_NAME) or {}).get("run") != name:
        yield "it is not the run of this night"
        return
    try:
        journal = (run / JOURNAL_NAME).open("r+b")
    except OSError as error:
        yield f"{JOURNAL_NAME}: {error.strerror or error}"
        return
    with journal:
        try:
            lock = FileLock(run / JOURNAL_NAME, journal.fileno())
        except OSError as error:
            yield f"it is being written{f' ({error})' if error.args else ''}"
            return
        try:
            yield ""
        finally:
            lock.release()


def _large_files(trials: Path) -> Iterator[Path]:
    for folder, _, names in os.walk(trials):  # does not follow links to folders
        yield from (Path(folder, name) for name in names if name in _LARGE)


def _touch(folder: Path) -> None:
    """Update a folder's time, so that pages made from its content are written again."""
    with contextlib.suppress(OSError):
        os.utime(folder)


def _remove(file: Path) -> int:
    """Remove a regular file; return its bytes."""
    with contextlib.suppress(OSError):
        if not file.is_symlink() and file.is_file():
            size = file.stat().st_size
            file.unlink()
            return size
    return 0


async def run_final_stages(night: RunningNight, benchmark: Benchmark, earlier: Sequence[NightRecord]) -> None:
    """Run the remaining stages of the night. Raises UsageError if their ends cannot be recorded."""
    work = _Stages(night, benchmark, earlier)
    stages: dict[StageName, Callable[[], Awaitable[StageEnd]]] = {
        "index": lambda: asyncio.to_thread(work.index),
        "render": lambda: asyncio.to_thread(work.render),
        "compare": lambda: asyncio.to_thread(work.compare),
        "gate": lambda: asyncio.to_thread(work.gate),
        "prune": lambda: asyncio.to_thread(work.prune),
        "site": lambda: asyncio.to_thread(work.site),
        "notify": work.notify,
    }
    for name, do in stages.items():
        if not night.record.is_done(name):
            await night.stage(name, do)


class _Stages:
    def __init__(self, night: RunningNight, benchmark: Benchmark, earlier: Sequence[NightRecord]) -> None:
        self._night = night
        self._nights = night.nights
        self._config = benchmark.config
        self._benchmark = benchmark
        self._earlier = earlier

    def index(self) -> StageEnd:
        for folder in (self._nights.runs, self._nights.proxies):
            folder.mkdir(parents=True, exist_ok=True)
        with RunHistory.open(self._nights.index) as history:
            changes = history.update(self._nights.runs, self._nights.proxies)
            self._night.change(proxies=self._proxy_scores(history))
            for note in (*history.notes, *changes.notes):
                self._night.say(f"note: {note}")
        return StageEnd(changes.words)

    def _proxy_scores(self, history: RunHistory) -> dict[str, str]:
        own = {
            f"{each.run}_{proxy.name}" for each in self._night.record.checkpoints for proxy in self._benchmark.proxies
        }
        rows = history.proxies(under=[self._nights.proxies]) if own else ()
        return {row.path.name: _proxy_text(row) for row in reversed(rows) if row.path.name in own}

    def render(self) -> StageEnd:
        pages = [write_report(self._nights.runs / each.run) for each in self._night.record.checkpoints if each.has_run]
        if pages and self._config.nightly.page is not None:
            copy = Path(self._config.nightly.page)
            write_report(pages[-1].parent, copy)
        return StageEnd(", ".join(map(str, pages))) if pages else _NOTHING_RUN

    def compare(self) -> StageEnd:
        """Compare each run of the night with the previous one of its series, and with the baseline."""
        tonight, baseline = list(self._runs_of_this_night()), self._config.nightly.baseline
        if not tonight:
            return _NOTHING_RUN
        lines: dict[str, list[str]] = {}
        for run, before in tonight:
            path = self._nights.runs / run.checkpoint.run
            others = [(before.name, self._nights.runs / before.checkpoint.run)] if before is not None else []
            others += [("the baseline", Path(baseline))] if baseline is not None else []
            lines[run.checkpoint.run] = [
                line for name, other in others for line in comparison_lines(name, other, run.name, path)
            ]
        self._night.change(comparisons=lines)
        first = [own[0] for own in lines.values() if own]
        if not first:
            return StageEnd("first night: nothing to compare with", state="skipped")
        return StageEnd("; ".join(first))

    def gate(self) -> StageEnd:
        """Judge each series that has a run tonight."""
        if not self._config.gate.enabled:
            return StageEnd("gate.enabled is false", state="skipped")
        lanes = list(dict.fromkeys(run.checkpoint.lane for run, _ in self._runs_of_this_night()))
        if not lanes:
            return _NOTHING_RUN
        gates, messages, code = {}, [], 0
        with RunHistory.open(self._nights.index) as history:
            for lane in lanes:
                runs = series_runs(self._all(), lane)
                series = gate_nights(runs, self._nights.runs, history)
                verdict = judge(series, self._config.gate.rule)
                paths = [self._nights.runs / each.checkpoint.run for each in runs]
                explained = explained_night(paths, [night.name for night in series], verdict)
                serve, last = self._config.serve, runs[-1].checkpoint
                if serve.command:
                    by_hand = server_by_hand(serve, Checkpoint(last.lane, last.checkpoint))
                    explained = with_server(explained, *by_hand)
                gates[lane] = {**verdict.as_json(), "lines": list(verdict.lines()), "explained": explained}
                messages.append(f"{lane}: {verdict.lines()[0].removeprefix('gate: ')}")
                if verdict.alarm:
                    code = exit_codes.ALARM
                elif verdict.state == "uncovered":
                    code = code or exit_codes.TOO_FEW_VERDICTS
        self._night.change(gates=gates)
        return StageEnd("; ".join(messages), code)

    def prune(self) -> StageEnd:
        """Remove large files of all nights except the last ones."""
        keep = self._config.nightly.keep
        if keep is None:
            return StageEnd("nightly.keep is not set", state="skipped")
        old = [each for each in self._all()[:-keep] if not each.pruned and each.name != self._night.record.name]
        freed, notes = 0, list[str]()
        for each in old:
            size, problems = prune_night(self._nights, each)
            freed += size
            notes += problems
            if not problems:
                self._nights.write(each.model_copy(update={"pruned": True}))
        for note in notes:
            self._night.say(f"note: {note}")
        return StageEnd(f"{counted(len(old), 'night')}, {size_text(freed)} freed" if old else "nothing to prune")

    def site(self) -> StageEnd:
        """Update the pages about all nights; after gate and pruning, because the pages show both."""
        folder = self._config.nightly.site
        if not folder:
            return StageEnd("nightly.site is empty", state="skipped")
        written = write_pages([self._nights.path], self._nights.path / folder)
        for note in written.notes:
            self._night.say(f"note: {note}")
        return StageEnd(str(written.overview))

    async def notify(self) -> StageEnd:
        """Write the summary and post to the webhook; problems are reported, but do not change the exit code."""
        record = self._night.record
        text = await asyncio.to_thread(as_markdown, self._benchmark.name, self._nights, record)
        problems = [
            *_problems(_write, self._night.folder / SUMMARY_NAME, text),
            *(_problems(_write, Path(file), text) if (file := self._config.nightly.summary) else ()),
            *(_problems(_append, Path(file), text) if (file := os.environ.get("GITHUB_STEP_SUMMARY")) else ()),
        ]
        done = [str(self._night.folder / SUMMARY_NAME)]
        notify = self._config.notify
        if notify.webhook_env is not None and (exit_code(record) or not notify.only_news):
            url = os.environ.get(notify.webhook_env, "")
            payload = notification(self._benchmark.name, record)
            problem = await post(url, notify.webhook_env, payload, notify.deadline_sec)
            problems += [problem] if problem else []
            done += [] if problem else ["posted"]
        if problems:
            return StageEnd("; ".join(problems), state="failed")
        return StageEnd(", ".join(done))

    def _all(self) -> list[NightRecord]:
        """Return the nights up to this one, oldest first."""
        return [*self._earlier, self._night.record]

    def _runs_of_this_night(self) -> Iterator[tuple[SeriesRun, SeriesRun | None]]:
        """Yield the finished runs of this night, each with the previous one of its series."""
        for lane in dict.fromkeys(each.lane for each in self._night.record.checkpoints):
            runs = series_runs(self._all(), lane)
            for at, run in enumerate(runs):
                if run.night.name == self._night.record.name:
                    yield run, runs[at - 1] if at else None


def _proxy_text(row: ProxyRow) -> str:
    score = "not scored" if row.score is None else f"{row.measure} {percent(row.score)} %"
    return f"{score} ({row.answered or 0} of {row.planned or 0} answered)"


def _problems(write: Callable[[Path, str], None], file: Path, text: str) -> list[str]:
    """Write a file; return any problem."""
    try:
        write(file, text)
    except OSError as error:
        return [f"{file}: cannot be written: {error.strerror or error}"]
    return []


def _write(file: Path, text: str) -> None:
    write_atomically(file, text.encode())


def _append(file: Path, text: str) -> None:
    with file.open("a", encoding="utf-8") as summary:  # other programs write this file, too
        summary.write(f"{text}\n")


_NOTHING_RUN = StageEnd("no run finished", state="skipped")
