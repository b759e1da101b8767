"""The configuration of a nightly benchmark: settings, their reading from one file, and the checkpoints due."""

from __future__ import annotations

import difflib
import glob
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, model_validator

from harness.trajectory import Frozen
from tbench.config.formatting import as_toml
from tbench.config.layers import Layers, Value
from tbench.config.settings import RunConfig
from tbench.errors import UsageError
from tbench.files import read_toml
from tbench.results import AGENTS_WITHOUT_MODEL
from tbench.scores.gate.nights import GateRule
from tbench.text import one_line

_RULE = GateRule()
PLACEHOLDERS = ("checkpoint", "name", "port")
"""Placeholders in `serve`: `checkpoint`, as listed or found; `name`, the last part of its path; the server's `port`."""


def _check_placeholders(text: str) -> str:
    for name in re.findall(r"\{(\w+)\}", text):
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
            raise ValueError(f"{{{name}}} is not a placeholder; use one of {known}")
    return text


def _check_variables(variables: dict[str, Any]) -> dict[str, Any]:
    for name, value in variables.items():
        if not isinstance(value, str) or "=" in name or not name:
            raise ValueError(f"{name}: must have a string as value")
    return variables


class NightlySection(Frozen):
    """The benchmark"""

    name: str = ""
    """The name of this benchmark in summaries. Without it, the name of the file."""
    directory: str = "nightly"
    """The directory of runs, nights and index. It has to persist from night to night."""
    checkpoints: tuple[str, ...] = ()
    """Names of models, paths or globs of paths. An entry without wildcards is run every night; each match of a glob is
    run once, in natural order. Each entry is a series, which the gate judges. Without entries, the model in [run.model]
    name is run."""
    repeat: bool = False
    """Run all matches of globs every night."""
    advance_seeds: bool = True
    """Give each night new seeds, which follow those of the night before. With the same seeds, a deterministic model
    would seem to have no noise."""
    keep: Annotated[int | None, Field(ge=1)] = None
    """Number of latest nights whose recordings, trajectories and server logs are kept. Without it, all are kept.
    Results are always kept."""
    baseline: str | None = None
    """A run directory with which each night is compared, in addition to the night before."""
    summary: str | None = None
    """A file that receives a copy of the last night's Markdown summary."""
    page: str | None = None
    """A file that receives a copy of the report page of the last night's last run."""
    site: str = "site"
    """The folder of the pages about all nights; a relative path is below `directory`. "" writes none."""


class ServeSection(Frozen):
    """The model server, if nightly starts it"""

    command: tuple[Annotated[str, AfterValidator(_check_placeholders)], ...] = ()
    """The server's command, word by word, with {checkpoint}, {name} and {port}. Without it, the endpoint of [run.model]
    base_url is used, and a checkpoint is the name of a model there."""
    port: int = Field(default=8000, ge=0, le=65535)
    """The server's port. 0 takes a free one."""
    health_url: Annotated[str, AfterValidator(_check_placeholders)] = "http://127.0.0.1:{port}/health"
    """A URL that returns 200 when the server is ready."""
    base_url: Annotated[str, AfterValidator(_check_placeholders)] = "http://127.0.0.1:{port}/v1"
    """The server's endpoint."""
    ready_timeout_sec: float = Field(default=1800.0, gt=0)
    """Seconds within which the server has to be ready."""
    stop_timeout_sec: float = Field(default=60.0, ge=0)
    """Seconds between SIGTERM and SIGKILL at the end."""
    env: Annotated[dict[str, Any], AfterValidator(_check_variables)] = Field(default={})
    """Environment variables of the server, in addition to those of tbench."""


class GateSection(Frozen):
    """The gate"""

    enabled: bool = True
    """Judge each series, and exit with 5 if its score has dropped by more than chance."""
    base_nights: int = Field(default=_RULE.base_nights, ge=2)
    """Number of nights in the first baseline."""
    k: float = Field(default=_RULE.k, gt=0, allow_inf_nan=False)
    """Half of the drop to be detected, in standard deviations of a night."""
    h: float = Field(default=_RULE.h, gt=0, allow_inf_nan=False)
    """Threshold of the CUSUM statistic C for an alarm."""
    min_se: float = Field(default=_RULE.min_se, ge=0, allow_inf_nan=False)
    """For an alarm, nights since the change must be this many standard errors below the baseline. 0: only C counts."""
    base_from: str | None = _RULE.base_from
    """Name or date (YYYY-MM-DD) of the first night of the baseline. Without it, the first of all."""
    min_coverage: float = Field(default=_RULE.min_coverage, gt=0, le=1)
    """Fraction of a night's trials that need a verdict for the night to count."""
    min_shared: float = Field(default=_RULE.min_shared, gt=0, le=1)
    """Fraction of tasks that a night must share with the last one to be compared with it."""

    @property
    def rule(self) -> GateRule:
        return GateRule(**self.model_dump(exclude={"enabled"}))


class NotifySection(Frozen):
    """Notification"""

    webhook_env: str | None = None
    """The environment variable with the URL of a webhook. Each night is posted to it as JSON."""
    only_news: bool = False
    """Post only nights whose exit code is not 0."""
    deadline_sec: float = Field(default=20.0, gt=0)
    """Seconds for one request to the webhook; there are at most three."""


class NightlyConfig(Frozen):
    """The configuration of a nightly benchmark."""

    nightly: NightlySection = NightlySection()
    serve: ServeSection = ServeSection()
    gate: GateSection = GateSection()
    notify: NotifySection = NotifySection()

    @model_validator(mode="after")
    def _check_port_is_used(self) -> NightlyConfig:
        serve = self.serve
        if serve.command and serve.port == 0 and not any("{port}" in word for word in serve.command):
            raise ValueError("port 0 takes a free port, so command needs a {port}")
        return self


ProxyKinds = Mapping[str, type[BaseModel]]
"""Configuration classes of the proxies by `kind`."""
_PROXY_NAME = re.compile(r"\w[\w.-]{0,39}")
_RESERVED = ("output.directory", "output.verbosity", "output.json_lines")
_PROXY_FIELDS = ("name", "kind")


@dataclass(frozen=True)
class ProxySettings:
    """One [[proxy]]: its kind, name and settings."""

    kind: str
    name: str
    values: Sequence[Value]


@dataclass(frozen=True)
class Benchmark:
    """A nightly benchmark as configured by its file."""

    file: Path
    config: NightlyConfig
    run: RunConfig
    """Configuration of a run, including the environment; a night adds endpoint, model, seeds and directory."""
    run_values: Sequence[Value]
    """Values of [run], which are passed to runs; runs read the environment themselves."""
    proxies: Sequence[ProxySettings] = field(default=())

    @property
    def name(self) -> str:
        return self.config.nightly.name or self.file.stem

    @property
    def entries(self) -> tuple[str, ...]:
        """The configured checkpoints. Raises UsageError if there is none to run."""
        if listed := self.config.nightly.checkpoints:
            return listed
        if self.run.model.name:
            return (self.run.model.name,)
        if self.run.agent.name != "model" and not self.config.serve.command:
            return (self.run.agent.name,)
        raise UsageError(
            f"{self.file}: no model to run; list nightly.checkpoints, or name the endpoint's in [run.model] name"
        )


def read_benchmark(file: Path, variables: Mapping[str, str], proxies: ProxyKinds) -> Benchmark:
    """Read and check a file. Raises UsageError: one line with the location and a suggestion."""
    document = read_toml(file)
    known = [*NightlyConfig.model_fields, "run", "proxy"]
    for section in document:
        if section not in known:
            raise UsageError(f"{file}: {section}: no such section{_nearest(section, known)}")
    own = {name: part for name, part in document.items() if name in NightlyConfig.model_fields}
    layers = Layers(NightlyConfig)
    config = layers.resolve(layers.document(own, str(file))).config
    run_layers = Layers(RunConfig, beside=proxies.values())
    run_values = run_layers.document(_section(document.get("run", {}), f"{file}: run"), f"{file}: [run]")
    from_environment = run_layers.environment(variables)
    _reject_reserved_settings(run_values, config)
    found = Benchmark(
        file=file,
        config=config,
        run=run_layers.resolve([*from_environment, *run_values]).config,
        run_values=run_values,
        proxies=_proxies(document.get("proxy", []), file, proxies),
    )
    _check(found)
    return found


def as_settings_file(values: Iterable[Value]) -> str:
    """Return the values as a TOML file for `-c`."""
    sections: dict[str, list[str]] = {}
    for each in values:
        sections.setdefault(each.setting.section, []).append(f"{each.setting.name} = {as_toml(each.value)}")
    return "".join(f"[{section}]\n" + "".join(f"{line}\n" for line in lines) for section, lines in sections.items())


def _section(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: is a section; write its settings in sections below it, such as [run.tasks]")
    return value


def _reject_reserved_settings(values: Iterable[Value], config: NightlyConfig) -> None:
    for each in values:
        path = each.setting.path
        if path in _RESERVED:
            raise UsageError(f"{each.origin}: {path}: is set by the night; leave it out")
        if path in ("model.base_url", "model.endpoints") and config.serve.command:
            raise UsageError(f"{each.origin}: {path}: [serve] starts the server; set serve.base_url instead")


def _proxies(listed: Any, file: Path, kinds: ProxyKinds) -> tuple[ProxySettings, ...]:
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        raise UsageError(f"{file}: proxy: is a list; write [[proxy]]")
    found: list[ProxySettings] = []
    for number, each in enumerate(listed, start=1):
        where = f"{file}: [[proxy]] {number}"
        kind = each.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            raise UsageError(f"{where}: kind: must be one of {', '.join(kinds)} (got {one_line(repr(kind), 60)})")
        name = each.get("name", kind)
        if not isinstance(name, str) or not _PROXY_NAME.fullmatch(name):
            raise UsageError(
                f"{where}: name: must consist of letters, digits, dots and dashes (got {one_line(repr(name), 60)})"
            )
        if name in [other.name for other in found]:
            raise UsageError(f"{where}: name: another proxy is called {name}; give each its own name")
        others: list[type[BaseModel]] = [RunConfig, *(other for other in kinds.values() if other is not kinds[kind])]
        layers = Layers(kinds[kind], beside=others)
        values = layers.document({key: part for key, part in each.items() if key not in _PROXY_FIELDS}, where)
        layers.resolve(values)
        for value in values:
            if value.setting.path in ("output.directory", "model.base_url", "model.name"):
                raise UsageError(f"{where}: {value.setting.path}: is set by the night; leave it out")
        found.append(ProxySettings(kind, name, values))
    return tuple(found)


def _check(found: Benchmark) -> None:
    """Raise UsageError for contradictory settings and if there is nothing to run."""
    entries = found.entries
    if repeated := next((each for each in entries if entries.count(each) > 1), None):
        raise UsageError(
            f"{found.file}: nightly.checkpoints: {repeated}: is listed twice; each entry is a separate series"
        )
    if found.config.nightly.checkpoints and found.run.model.name and not found.config.serve.command:
        raise UsageError(
            f"{found.file}: [run.model] name and nightly.checkpoints both name the model; leave one of them out"
        )
    needs_endpoint = found.run.agent.name not in AGENTS_WITHOUT_MODEL
    if needs_endpoint and not found.config.serve.command and not found.run.model.servers:
        raise UsageError(
            f"{found.file}: no endpoint; set [serve] command or [run.model] base_url, or the variable OPENAI_BASE_URL"
        )


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


_WILDCARDS = re.compile(r"[*?\[]")
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_MAX_SLUG_CHARS = 60


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that a night runs."""

    entry: str
    """Entry of the configuration, which is the series that the gate judges."""
    path: str
    """The entry itself, or a match of its glob."""

    @property
    def name(self) -> str:
        """Last part of the path, or the whole name if it has no slash."""
        return self.path.rstrip("/").rpartition("/")[2] or self.path


def is_glob(entry: str) -> bool:
    return _WILDCARDS.search(entry) is not None


def due_checkpoints(
    entries: Iterable[str], done: Collection[tuple[str, str]], *, repeat: bool
) -> tuple[Checkpoint, ...]:
    """Return the checkpoints to run tonight, entry by entry. `done` has the (entry, path) pairs of earlier nights.

    Raises UsageError for a glob that matches nothing.
    """
    found = []
    for entry in entries:
        if not is_glob(entry):
            found.append(Checkpoint(entry, entry))
            continue
        # Path.glob does not accept absolute patterns.
        matches = sorted(glob.glob(str(Path(entry).expanduser()), recursive=True), key=natural_key)  # noqa: PTH207
        if not matches:
            raise UsageError(f"nightly.checkpoints: {entry}: matches no path; correct the entry, or leave it out")
        found += [Checkpoint(entry, match) for match in matches if repeat or (entry, match) not in done]
    return tuple(dict.fromkeys(found))


def natural_key(text: str) -> tuple[tuple[int, int, str], ...]:
    """Return a key that sorts numbers within names by value: step-900 before step-1000."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part
    )


def unique_slugs(checkpoints: Iterable[Checkpoint]) -> list[str]:
    """Return a unique file name for each checkpoint: the last part of its path, or more if that is ambiguous."""
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
    return _NOT_IN_NAMES.sub("-", text).strip("-.")[-_MAX_SLUG_CHARS:].lstrip("-.") or "model"
