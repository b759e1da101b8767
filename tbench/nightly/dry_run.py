"""Dry run of a nightly benchmark, and a template of its configuration."""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Iterator
from pathlib import Path

from harness.endpoint.address import without_password
from tbench.config.formatting import as_toml, commented_file
from tbench.nightly.configuration import Benchmark, Checkpoint, NightlyConfig, is_glob
from tbench.nightly.journal import NightRecord, Nights
from tbench.nightly.night import plan_night
from tbench.nightly.server import server_command
from tbench.text import counted, names_text

_HEADING = "A nightly benchmark; `tbench nightly FILE` runs it."
_ENDPOINT = """\
# [run.model]
# base_url = "http://HOST:8000/v1"
"""
_RUN_AND_PROXIES = f"""
# The run: all sections of `tbench config init` with their settings, each below `run`.
# [run.tasks]
# source = "terminal-bench@2.1"
# seeds = 1
{_ENDPOINT}# [run.agent]
# preset = "terminus-2"
# [run.output]
# min_coverage = 0.95

# Scores of the same checkpoints for which nothing is executed: kind is replay or extract, with the sections of
# `tbench replay run` or `tbench extract`. There may be several, each with its own name.
# [[proxy]]
# kind = "replay"
# name = "replay"
# [proxy.dataset]
# path = "records.jsonl"
"""


def config_template(base_url: str | None = None, model: str | None = None) -> str:
    """Return a TOML file with all settings of a nightly benchmark, with help and default.

    Only the given endpoint and model are set; all others are commented out.
    """
    known = {name: value for name, value in (("base_url", base_url), ("name", model)) if value is not None}
    lines = [f"{name} = {as_toml(without_password(value))}" for name, value in known.items()]
    rest = _RUN_AND_PROXIES.replace(_ENDPOINT, "\n".join(["[run.model]", *lines, ""])) if known else _RUN_AND_PROXIES
    return commented_file(NightlyConfig, _HEADING) + rest


def dry_run_lines(benchmark: Benchmark, name: str) -> Iterator[str]:
    """Yield lines that describe the night that would be started or continued now. Raises UsageError."""
    nights = Nights(Path(benchmark.config.nightly.directory))
    exists = nights.read(name) is not None
    record, earlier = plan_night(benchmark, nights, name)
    yield f"night     {name}, {'to be continued' if exists else 'new'}; {counted(len(earlier), 'earlier night')}"
    if cut := [each.name for each in earlier if each.status == "running"]:
        yield f"cut short {names_text(cut)}: not continued; finish one with --night NAME"
    for entry in benchmark.entries:
        yield f"series    {entry}: {_checkpoints(record, entry)}"
    tasks = benchmark.run.tasks
    yield f"tasks     {tasks.source}{f', only {names_text(tasks.include)}' if tasks.include else ''}"
    yield f"seeds     {record.first_seed} to {record.first_seed + record.seeds - 1}"
    yield from _server(benchmark, record)
    for each in benchmark.proxies:
        yield f"proxy     {each.name} ({each.kind})"
    yield from _later_stages(benchmark.config)
    yield f"directory {nights.path}{_write_problem(nights.path)}"


def _checkpoints(record: NightRecord, entry: str) -> str:
    names = [each.checkpoint for each in record.checkpoints if each.lane == entry]
    if not is_glob(entry):
        return "every night"
    return f"{names_text(names)}, each once" if names else "nothing new"


def _server(benchmark: Benchmark, record: NightRecord) -> Iterator[str]:
    serve = benchmark.config.serve
    if not serve.command:
        urls = ", ".join(without_password(each.base_url) for each in benchmark.run.model.servers)
        yield f"endpoint  {urls or f'none: {benchmark.run.agent.name} needs no model'}"
        return
    first = record.checkpoints[0] if record.checkpoints else None
    if first is not None:
        command = server_command(serve, Checkpoint(first.lane, first.checkpoint), serve.port)
        yield f"server    {shlex.join(command)}"
        if shutil.which(command[0]) is None:
            yield f"note      {command[0]}: command not found; serve.command would fail"
    yield f"ready     within {serve.ready_timeout_sec:g} s at {serve.health_url}"


def _later_stages(config: NightlyConfig) -> Iterator[str]:
    gate, notify, keep, site = config.gate, config.notify, config.nightly.keep, config.nightly.site
    rule = f"{gate.base_nights} nights of baseline, k {gate.k:g}, h {gate.h:g}"
    yield f"gate      {rule if gate.enabled else 'off'}"
    yield f"keep      {'everything' if keep is None else 'recordings and trajectories of ' + counted(keep, 'night')}"
    yield f"site      {Path(config.nightly.directory, site) if site else 'none'}"
    if (variable := notify.webhook_env) is not None:
        yield f"webhook   from {variable}{'' if os.environ.get(variable) else ', which is not set'}"


def _write_problem(path: Path) -> str:
    """Return a remark if a directory, or the one in which it would be created, is not writable."""
    existing = next(each for each in (path.absolute(), *path.absolute().parents) if each.exists())
    return "" if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK) else ", which is not writable"
