"""Runs one night; if it was interrupted, another start continues it."""

from __future__ import annotations

import asyncio
import contextlib
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tbench import exit_codes
from tbench.files import writable, write_atomically
from tbench.nightly.configuration import (
    Benchmark,
    Checkpoint,
    as_settings_file,
    due_checkpoints,
    is_glob,
    unique_slugs,
)
from tbench.nightly.journal import (
    NIGHT_STAGES,
    CheckpointRecord,
    NightRecord,
    Nights,
    Status,
    now,
    wait_for_earlier_processes,
)
from tbench.nightly.running_night import RunningNight, StageEnd, exit_code
from tbench.nightly.server import PYTHON, ModelServer, SupervisedProcess, serving
from tbench.nightly.stages import run_final_stages
from tbench.storage.summaries import read_summary

STOP_SEC = 90.0
"""Seconds within which an interrupted run must remove its containers."""
_PROXY_COMMANDS = {"replay": ("replay", "run"), "extract": ("extract",)}
_CONTAINER_PROXY = "sandbox.container_proxy"
_ENDPOINT = ("model.base_url", "model.name")
_PROGRESS_SEC = 30.0
_PROGRESS = re.compile(r"\[(\d+/\d+)\]\s*$|(\d+/\d+) asked", re.MULTILINE)


@dataclass(frozen=True)
class ChildResult:
    """How a child process ended."""

    code: int
    message: str
    """Last line of its output, or that the server ended."""
    lost_server: bool = False


def _model_options(benchmark: Benchmark, record: CheckpointRecord, base_url: str | None) -> list[str]:
    """Return the options for endpoint and model; a server started by the night lists one model, which needs no name."""
    options = ["--base-url", base_url] if base_url else []
    if benchmark.config.nightly.checkpoints and not benchmark.config.serve.command:
        options += ["--model", record.checkpoint]
    return options


def write_settings(folder: Path, benchmark: Benchmark) -> dict[str, Path]:
    """Write the settings of run and proxies as files for `-c`, and return them by name. Raises OSError.

    All of them contain the endpoint of [run.model]: its URL may have a password, which must not be on a command line.
    """
    endpoint = [each for each in benchmark.run_values if each.setting.path in _ENDPOINT]
    texts = {"run": as_settings_file(each for each in benchmark.run_values if each.setting.path != _CONTAINER_PROXY)}
    texts |= {f"proxy-{each.name}": as_settings_file([*endpoint, *each.values]) for each in benchmark.proxies}
    files = {name: folder / f"{name}.toml" for name in texts}
    for name, text in texts.items():
        write_atomically(files[name], text.encode())
    return files


def run_variables(benchmark: Benchmark) -> dict[str, str]:
    """Return the variables for settings of the run that must not be in a file."""
    return {each.setting.variable: each.value for each in benchmark.run_values if each.setting.path == _CONTAINER_PROXY}


async def run_child(
    command: Sequence[str],
    log: Path,
    lock: int,
    server: ModelServer | None,
    say: Callable[[str], None],
    env: Mapping[str, str] = MappingProxyType({}),
) -> ChildResult:
    """Run a command until it or the server ends. Raises OSError if the log cannot be written."""
    async with await SupervisedProcess.start(command, log, stop_sec=STOP_SEC, lock=lock, env=env) as process:
        end = asyncio.create_task(process.wait())
        lost = asyncio.create_task(_server_end(server))
        try:
            shown = ""
            while not (await asyncio.wait({end, lost}, timeout=_PROGRESS_SEC, return_when="FIRST_COMPLETED"))[0]:
                if (progress := _progress(process)) and progress != shown:
                    shown = progress
                    say(f"  {shown}")
        finally:
            end.cancel()
            lost.cancel()
        if process.code is None:
            return ChildResult(4, lost.result(), lost_server=True)
    assert process.code is not None
    return ChildResult(process.code, process.last_lines(1))


async def _server_end(server: ModelServer | None) -> str:
    """Wait for the server's end; for ever if there is no server."""
    return await (server.wait_for_end() if server is not None else asyncio.get_running_loop().create_future())


def _progress(process: SupervisedProcess) -> str:
    """Return the progress in the command's output, such as `3/8`; empty if there is none."""
    found = _PROGRESS.findall(process.output())
    return next((each for each in found[-1] if each), "") if found else ""


TBENCH = (*PYTHON, "tbench")
"""Command with which runs and proxies are started."""
_CODES = (
    0,
    exit_codes.BUG,
    exit_codes.USAGE,
    exit_codes.TOO_FEW_VERDICTS,
    exit_codes.ENDPOINT_DOWN,
    exit_codes.STOPPED,
    exit_codes.INTERRUPTED,
)
"""Exit codes of `tbench run`; with any other code, the process was killed."""


async def run_night(
    benchmark: Benchmark, name: str, say: Callable[[str], None], tbench: Sequence[str] = TBENCH
) -> NightRecord:
    """Run a night, or the rest of it; return its record, which has the exit code.

    Raises UsageError if the night cannot begin.
    """
    nights = Nights(Path(benchmark.config.nightly.directory))
    nights.night_directory(name)  # rejects an invalid name before anything is created
    with nights.lock() as lock:
        deadline_sec = STOP_SEC + benchmark.config.serve.stop_timeout_sec + 30.0
        await wait_for_earlier_processes(lock, deadline_sec, say)
        record, earlier = plan_night(benchmark, nights, name)
        for each in earlier:
            if each.status == "running":
                say(f"night {each.name} was interrupted and is now abandoned; finish it with --night {each.name}")
                nights.write(each.model_copy(update={"status": "abandoned"}))
        if _is_over(record, benchmark):
            say(f"night {name} is over (ended at {record.ended_at})")
            return record
        night = RunningNight(nights, record, lock, say)
        night.change()
        night.note(f"--- {now()} {benchmark.name}, night {name}")
        say(f"night {name} of {benchmark.name}: {_plan_text(record)}")
        await _Runs(night, benchmark, tbench).all()
        await run_final_stages(night, benchmark, earlier)
        night.change(status="done", ended_at=now(), exit_code=exit_code(night.record))
        return night.record


def plan_night(benchmark: Benchmark, nights: Nights, name: str) -> tuple[NightRecord, list[NightRecord]]:
    """Return the record of a night to begin or continue, and the records of earlier nights. Raises UsageError."""
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
    return _with_due_checkpoints(record, others, benchmark), earlier


def _with_due_checkpoints(record: NightRecord, others: Sequence[NightRecord], benchmark: Benchmark) -> NightRecord:
    """Return the record with the checkpoints due tonight, and without stages that have to run again."""
    known = [Checkpoint(each.lane, each.checkpoint) for each in record.checkpoints]
    done = {(each.lane, each.checkpoint) for night in others for each in night.checkpoints if each.has_run}
    listed = due_checkpoints(benchmark.entries, done, repeat=benchmark.config.nightly.repeat)
    everything = [*known, *(each for each in listed if each not in known and (not known or is_glob(each.entry)))]
    added = tuple(
        CheckpointRecord(lane=each.entry, checkpoint=each.path, slug=slug, run=f"{record.name}_{slug}")
        for each, slug in list(zip(everything, unique_slugs(everything), strict=True))[len(known) :]
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
    """Return the first seed of a new night: after those of all others, unless all nights have the same."""
    first = benchmark.run.tasks.first_seed
    if not benchmark.config.nightly.advance_seeds:
        return first
    return max((each.first_seed + each.seeds for each in others), default=first)


def _has_ended(record: CheckpointRecord, benchmark: Benchmark) -> bool:
    return record.is_done("run") and (not benchmark.proxies or record.is_done("proxies"))


def _is_over(record: NightRecord, benchmark: Benchmark) -> bool:
    runs_are_over = all(_has_ended(each, benchmark) for each in record.checkpoints)
    return record.status == "done" and runs_are_over and all(record.is_done(stage) for stage in NIGHT_STAGES)


def _plan_text(record: NightRecord) -> str:
    if not record.checkpoints:
        return "no new checkpoint"
    last = record.first_seed + record.seeds - 1
    seeds = f"seed {last}" if record.seeds == 1 else f"seeds {record.first_seed} to {last}"
    return f"{', '.join(each.slug for each in record.checkpoints)}; {seeds}"


class _Runs:
    """Runs the stages of each checkpoint: model server, run, proxies."""

    def __init__(self, night: RunningNight, benchmark: Benchmark, tbench: Sequence[str]) -> None:
        self._night = night
        self._benchmark = benchmark
        self._tbench = tbench
        self._settings: dict[str, Path] = {}

    async def all(self) -> None:
        unfinished = [each for each in self._night.record.checkpoints if not _has_ended(each, self._benchmark)]
        if unfinished:
            with writable(self._night.folder):
                self._settings = write_settings(self._night.folder, self._benchmark)
        for each in unfinished:
            await self._checkpoint(each)

    async def _checkpoint(self, record: CheckpointRecord) -> None:
        serve = self._benchmark.config.serve
        if not serve.command:
            await self._run_and_proxies(record, None)
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
                await self._run_and_proxies(record, started[0])

    async def _run_and_proxies(self, record: CheckpointRecord, server: ModelServer | None) -> None:
        if not record.is_done("run"):
            stage = await self._night.stage("run", lambda: self._run(record, server), record)
            if stage.code == exit_codes.ENDPOINT_DOWN:
                return
        if self._benchmark.proxies:
            await self._night.stage("proxies", lambda: self._proxies(record, server), record)

    async def _run(self, record: CheckpointRecord, server: ModelServer | None) -> StageEnd:
        directory = self._night.nights.runs / record.run
        command, env = ("run", "--first-seed", str(self._night.record.first_seed)), run_variables(self._benchmark)
        ended, code = await self._child(command, "run", directory, record, server, env)
        if ended.code not in (0, exit_codes.TOO_FEW_VERDICTS):
            return StageEnd(f"{ended.message} (exit code {ended.code}; log: {self._night.log})", code, "failed")
        _, summary = read_summary(directory, intervals=False)
        words = "; ".join((summary.score_line, *summary.cost_lines))
        return StageEnd(words, ended.code, "failed" if ended.code else "done")

    async def _proxies(self, record: CheckpointRecord, server: ModelServer | None) -> StageEnd:
        ends = list[StageEnd]()
        for proxy in self._benchmark.proxies:
            directory = self._night.nights.proxies / f"{record.run}_{proxy.name}"
            command, settings = _PROXY_COMMANDS[proxy.kind], f"proxy-{proxy.name}"
            ended, code = await self._child(command, settings, directory, record, server)
            outcome = f"exit code {ended.code}: {ended.message}" if code else str(directory)
            ends.append(StageEnd(f"{proxy.name}: {outcome}", code, "failed" if code else "done"))
            if ended.lost_server:
                break
        failed = [end for end in ends if end.code]
        code = max((end.code for end in failed), default=0)
        return StageEnd("; ".join(end.message for end in ends), code, "failed" if failed else "done")

    async def _child(
        self,
        command: Sequence[str],
        settings: str,
        directory: Path,
        record: CheckpointRecord,
        server: ModelServer | None,
        env: Mapping[str, str] = MappingProxyType({}),
    ) -> tuple[ChildResult, int]:
        """Start or continue a command for a checkpoint; return how it ended, and the night's exit code for it."""
        night, base_url = self._night, server.base_url if server else None
        command = [*command, "-c", str(self._settings[settings]), "--output", str(directory), "--resume"]
        command += _model_options(self._benchmark, record, base_url)
        night.note(f"$ tbench {' '.join(command)}")
        ended = await run_child([*self._tbench, *command], night.log, night.lock, server, night.say, env)
        return ended, ended.code if ended.code in _CODES else exit_codes.USAGE
