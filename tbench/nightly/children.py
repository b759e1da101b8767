"""The runs and proxies of a night: `tbench` commands as processes of their own, which go on where they were cut."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from tbench.files import write_atomically
from tbench.nightly.journal import CheckpointRecord
from tbench.nightly.process import KeptProcess
from tbench.nightly.reading import Benchmark, ProxySettings, as_settings_file
from tbench.nightly.server import ModelServer

STOP_SEC = 90.0
"""Seconds that an interrupted run has to remove its containers."""
_PROXY_COMMANDS = {"replay": ("replay", "run"), "extract": ("extract",)}
_CONTAINER_PROXY = "sandbox.container_proxy"
_ENDPOINT = ("model.base_url", "model.name")
_EVERY_SEC = 30.0
_PROGRESS = re.compile(r"\[(\d+/\d+)\]\s*$|(\d+/\d+) asked", re.MULTILINE)


@dataclass(frozen=True)
class Ended:
    """How a child process ended."""

    code: int
    words: str
    """Its last words; where the server was what ended, that."""
    lost_server: bool = False


def run_command(
    benchmark: Benchmark,
    settings: Path,
    record: CheckpointRecord,
    directory: Path,
    first_seed: int,
    base_url: str | None,
) -> list[str]:
    """The arguments of `tbench` for a checkpoint's run: they begin it, and go on with it the next time."""
    words = ["run", "-c", str(settings), "--output", str(directory), "--resume", "--first-seed", str(first_seed)]
    return [*words, *_model_words(benchmark, record, base_url)]


def proxy_command(
    benchmark: Benchmark,
    proxy: ProxySettings,
    settings: Path,
    record: CheckpointRecord,
    directory: Path,
    base_url: str | None,
) -> list[str]:
    """The arguments of `tbench` for one proxy of a checkpoint."""
    words = [*_PROXY_COMMANDS[proxy.kind], "-c", str(settings), "--output", str(directory), "--resume"]
    return [*words, *_model_words(benchmark, record, base_url)]


def _model_words(benchmark: Benchmark, record: CheckpointRecord, base_url: str | None) -> list[str]:
    """Options that say where the model is and what it is called there; a server of our own lists one model."""
    words = ["--base-url", base_url] if base_url else []
    if benchmark.config.nightly.checkpoints and not benchmark.config.serve.command:
        words += ["--model", record.checkpoint]
    return words


def write_settings(folder: Path, benchmark: Benchmark) -> dict[str, Path]:
    """Write the settings of run and proxies as files for `-c`, and return them by name. Raises OSError.

    What [run.model] says of the endpoint is in all of them: a URL may have a password, which no command line should.
    """
    endpoint = [each for each in benchmark.run_values if each.setting.path in _ENDPOINT]
    texts = {"run": as_settings_file(each for each in benchmark.run_values if each.setting.path != _CONTAINER_PROXY)}
    texts |= {f"proxy-{each.name}": as_settings_file([*endpoint, *each.values]) for each in benchmark.proxies}
    files = {name: folder / f"{name}.toml" for name in texts}
    for name, text in texts.items():
        write_atomically(files[name], text.encode())
    return files


def run_variables(benchmark: Benchmark) -> dict[str, str]:
    """Variables with settings of the run that no file is to hold."""
    return {each.setting.variable: each.value for each in benchmark.run_values if each.setting.path == _CONTAINER_PROXY}


async def run_child(
    command: Sequence[str],
    log: Path,
    lock: int,
    server: ModelServer | None,
    say: Callable[[str], None],
    env: Mapping[str, str] = MappingProxyType({}),
) -> Ended:
    """Run a command to its end, or until the server ends under it. Raises OSError where the log cannot be written."""
    async with await KeptProcess.start(command, log, stop_sec=STOP_SEC, lock=lock, env=env) as process:
        end = asyncio.create_task(process.wait())
        lost = asyncio.create_task(_lost(server))
        try:
            shown = ""
            while not (await asyncio.wait({end, lost}, timeout=_EVERY_SEC, return_when="FIRST_COMPLETED"))[0]:
                if (progress := _progress(process)) and progress != shown:
                    shown = progress
                    say(f"  {shown}")
        finally:
            end.cancel()
            lost.cancel()
        if process.code is None:
            return Ended(4, lost.result(), lost_server=True)
    assert process.code is not None
    return Ended(process.code, process.last_words(1))


async def _lost(server: ModelServer | None) -> str:
    """Wait for the server's end; without one, for ever."""
    return await (server.ended() if server is not None else asyncio.get_running_loop().create_future())


def _progress(process: KeptProcess) -> str:
    """How many trials are done, as the command's own lines say it; empty where they do not."""
    found = _PROGRESS.findall(process.output())
    return next((each for each in found[-1] if each), "") if found else ""
