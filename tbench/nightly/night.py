"""One night from begin to end: what it runs, and its stages in order. Another start goes on where this one was cut."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from pathlib import Path

from tbench import exit_codes
from tbench.errors import UsageError
from tbench.nightly.checkpoints import Checkpoint, due, is_glob, slugs
from tbench.nightly.children import STOP_SEC, proxy_command, run_child, run_command, run_variables, write_settings
from tbench.nightly.journal import (
    NIGHT_STAGES,
    CheckpointRecord,
    NightRecord,
    Nights,
    Status,
    now,
    wait_for_earlier_processes,
)
from tbench.nightly.open_night import OpenNight, StageEnd, exit_code
from tbench.nightly.process import PYTHON
from tbench.nightly.reading import Benchmark
from tbench.nightly.server import ModelServer, serving
from tbench.nightly.stages import after_the_runs
from tbench.storage.summaries import read_summary

TBENCH = (*PYTHON, "tbench")
"""The command that runs and proxies are started with."""
_CODES = (
    0,
    exit_codes.BUG,
    exit_codes.USAGE,
    exit_codes.UNCOVERED,
    exit_codes.AWAY,
    exit_codes.INTERRUPTED,
)
"""Exit codes of `tbench run`; a process that ends with another was ended from outside."""


async def run_night(
    benchmark: Benchmark, name: str, say: Callable[[str], None], tbench: Sequence[str] = TBENCH
) -> NightRecord:
    """Do a night, or what is left of it; gives its record, which tells the exit code.

    Raises UsageError for what keeps the night from beginning.
    """
    nights = Nights(Path(benchmark.config.nightly.directory))
    nights.of(name)
    with nights.locked() as lock:
        deadline_sec = STOP_SEC + benchmark.config.serve.stop_timeout_sec + 30.0
        await wait_for_earlier_processes(lock, deadline_sec, say)
        record, earlier = planned(benchmark, nights, name)
        for each in earlier:
            if each.status == "running":
                say(f"night {each.name} was cut short and is left as it is; finish it with --night {each.name}")
                nights.write(each.model_copy(update={"status": "abandoned"}))
        if _is_over(record, benchmark):
            say(f"night {name} is over since {record.ended_at}")
            return record
        night = OpenNight(nights, record, lock, say)
        night.change()
        night.note(f"--- {now()} {benchmark.name}, night {name}")
        say(f"night {name} of {benchmark.name}: {_words_of(record)}")
        await _Runs(night, benchmark, tbench).all()
        await after_the_runs(night, benchmark, earlier)
        night.change(status="done", ended_at=now(), exit_code=exit_code(night.record))
        return night.record


def planned(benchmark: Benchmark, nights: Nights, name: str) -> tuple[NightRecord, list[NightRecord]]:
    """The record of a night that begins or goes on, and those of the nights before it. Raises UsageError."""
    others = [each for each in nights.all() if each.name != name]
    record = nights.read(name)
    if record is None:
        record = NightRecord(
            name=name,
            number=max((each.number + 1 for each in others), default=0),
            begun_at=now(),
            first_seed=_first_seed(benchmark, others),
            seeds=benchmark.run.tasks.seeds,
        )
    earlier = [each for each in others if each.number < record.number]
    return _with_what_is_due(record, others, benchmark), earlier


def _with_what_is_due(record: NightRecord, others: Sequence[NightRecord], benchmark: Benchmark) -> NightRecord:
    """The record with what is to be run tonight and is not in it yet; ready to go on where something is left to do."""
    there = [Checkpoint(each.lane, each.checkpoint) for each in record.checkpoints]
    done = {(each.lane, each.checkpoint) for night in others for each in night.checkpoints if each.has_run}
    listed = due(benchmark.entries, done, repeat=benchmark.config.nightly.repeat)
    everything = [*there, *(each for each in listed if each not in there and (not there or is_glob(each.lane)))]
    added = tuple(
        CheckpointRecord(lane=each.lane, checkpoint=each.path, slug=slug, run=f"{record.name}_{slug}")
        for each, slug in list(zip(everything, slugs(everything), strict=True))[len(there) :]
    )
    checkpoints = (*record.checkpoints, *added)
    runs_are_over = all(_has_ended(each, benchmark) for each in checkpoints)
    stages = {name: stage for name, stage in record.stages.items() if runs_are_over and stage.state != "failed"}
    if "gate" not in stages:
        stages.pop("notify", None)
    return record.model_copy(update={"checkpoints": checkpoints, "stages": stages, "status": _status(record, stages)})


def _status(record: NightRecord, stages: object) -> Status:
    return "done" if record.status == "done" and stages == record.stages else "running"


def _first_seed(benchmark: Benchmark, others: Sequence[NightRecord]) -> int:
    """The first seed of a new night: behind those of all others, unless all nights have the same."""
    first = benchmark.run.tasks.first_seed
    if not benchmark.config.nightly.advance_seeds:
        return first
    return max((each.first_seed + each.seeds for each in others), default=first)


def _has_ended(record: CheckpointRecord, benchmark: Benchmark) -> bool:
    return record.is_done("run") and (not benchmark.proxies or record.is_done("proxies"))


def _is_over(record: NightRecord, benchmark: Benchmark) -> bool:
    runs_are_over = all(_has_ended(each, benchmark) for each in record.checkpoints)
    return record.status == "done" and runs_are_over and all(record.is_done(stage) for stage in NIGHT_STAGES)


def _words_of(record: NightRecord) -> str:
    if not record.checkpoints:
        return "no new checkpoint"
    last = record.first_seed + record.seeds - 1
    seeds = f"seed {last}" if record.seeds == 1 else f"seeds {record.first_seed} to {last}"
    return f"{', '.join(each.slug for each in record.checkpoints)}; {seeds}"


class _Runs:
    """The stages of each checkpoint: the model server, the run, the proxies."""

    def __init__(self, night: OpenNight, benchmark: Benchmark, tbench: Sequence[str]) -> None:
        self._night = night
        self._benchmark = benchmark
        self._tbench = tbench
        self._settings: dict[str, Path] = {}

    async def all(self) -> None:
        left = [each for each in self._night.record.checkpoints if not _has_ended(each, self._benchmark)]
        if left:
            try:
                self._settings = write_settings(self._night.folder, self._benchmark)
            except OSError as error:
                raise UsageError(f"{self._night.folder}: cannot be written: {error.strerror or error}") from None
        for each in left:
            await self._checkpoint(each)

    async def _checkpoint(self, record: CheckpointRecord) -> None:
        serve = self._benchmark.config.serve
        if not serve.command:
            await self._ask(record, None)
            return
        started: list[ModelServer] = []
        log = self._night.folder / f"serve-{record.slug}.log"
        async with contextlib.AsyncExitStack() as stack:

            async def start() -> StageEnd:
                checkpoint = Checkpoint(record.lane, record.checkpoint)
                started.append(await stack.enter_async_context(serving(serve, checkpoint, log, self._night.lock)))
                return StageEnd(f"ready at {started[0].base_url}")

            await self._night.stage("serve", start, record)
            if started:
                await self._ask(record, started[0])

    async def _ask(self, record: CheckpointRecord, server: ModelServer | None) -> None:
        if not record.is_done("run"):
            stage = await self._night.stage("run", lambda: self._run(record, server), record)
            if stage.code == exit_codes.AWAY:
                return
        if self._benchmark.proxies:
            await self._night.stage("proxies", lambda: self._proxies(record, server), record)

    async def _run(self, record: CheckpointRecord, server: ModelServer | None) -> StageEnd:
        night, directory = self._night, self._night.nights.runs / record.run
        command = run_command(
            self._benchmark,
            self._settings["run"],
            record,
            directory,
            night.record.first_seed,
            server.base_url if server else None,
        )
        night.note(f"$ tbench {' '.join(command)}")
        env = run_variables(self._benchmark)
        ended = await run_child([*self._tbench, *command], night.log, night.lock, server, night.say, env)
        if ended.code not in (0, exit_codes.UNCOVERED):
            code = ended.code if ended.code in _CODES else exit_codes.USAGE
            return StageEnd(f"{ended.words} (exit code {ended.code}; log: {night.log})", code, "failed")
        _, summary = read_summary(directory, intervals=False)
        return StageEnd(summary.score_line, ended.code, "failed" if ended.code else "done")

    async def _proxies(self, record: CheckpointRecord, server: ModelServer | None) -> StageEnd:
        night, ends = self._night, list[StageEnd]()
        for proxy in self._benchmark.proxies:
            directory = night.nights.proxies / f"{record.run}_{proxy.name}"
            settings, base_url = self._settings[f"proxy-{proxy.name}"], server.base_url if server else None
            command = proxy_command(self._benchmark, proxy, settings, record, directory, base_url)
            night.note(f"$ tbench {' '.join(command)}")
            ended = await run_child([*self._tbench, *command], night.log, night.lock, server, night.say)
            code = ended.code if ended.code in _CODES else exit_codes.USAGE
            words = (
                f"{proxy.name}: {directory}" if code == 0 else f"{proxy.name}: exit code {ended.code}: {ended.words}"
            )
            ends.append(StageEnd(words, code, "failed" if code else "done"))
            if ended.lost_server:
                break
        failed = [end for end in ends if end.code]
        code = max((end.code for end in failed), default=0)
        return StageEnd("; ".join(end.words for end in ends), code, "failed" if failed else "done")
