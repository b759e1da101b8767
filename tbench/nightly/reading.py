"""The configuration of a nightly benchmark: its settings, read from one file and checked, and the models it names."""

from __future__ import annotations

import difflib
import glob
import re
import tomllib
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field, model_validator

from harness.trajectory import Frozen
from tbench.config.layers import Layers, Value
from tbench.config.settings import RunConfig
from tbench.config.text import as_toml
from tbench.errors import UsageError
from tbench.scores.gate.nights import GateRule
from tbench.text import one_line

# The configuration of a nightly benchmark, but for what `tbench run` and the proxies have themselves.

_RULE = GateRule()
PLACEHOLDERS = ("checkpoint", "name", "port")
"""What stands in braces in `serve`: the checkpoint as it was listed or found, its last part, the server's port."""


def _no_other_placeholder(text: str) -> str:
    for name in re.findall(r"\{(\w+)\}", text):
        if name not in PLACEHOLDERS:
            known = ", ".join(f"{{{each}}}" for each in PLACEHOLDERS)
            raise ValueError(f"{{{name}}} stands for nothing; there are {known}")
    return text


def _words_with_placeholders(words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(_no_other_placeholder(word) for word in words)


def _variables(variables: dict[str, Any]) -> dict[str, Any]:
    for name, value in variables.items():
        if not isinstance(value, str) or "=" in name or not name:
            raise ValueError(f"{name} needs a text for its value")
    return variables


class NightlySection(Frozen):
    """What a night is about"""

    name: str = ""
    """What summaries call this benchmark. Without it, the name of the file says."""
    directory: str = "nightly"
    """Everything is kept here: runs, nights, the index. It has to outlive the night."""
    checkpoints: tuple[str, ...] = ()
    """Names of models, paths or globs of paths. An entry without wildcards is run every night; of a glob, each match is
    run once, in natural order. Each entry is a lane: the series that the gate looks at. Without any, the one model of
    [run.model] name is run."""
    repeat: bool = False
    """Run all matches of globs every night."""
    advance_seeds: bool = True
    """Each night has seeds of its own, which follow those of the night before. With the same ones, a model that answers
    alike every night seems to have no noise."""
    keep: Annotated[int | None, Field(ge=1)] = None
    """Recordings, trajectories and server logs are kept of the last so many nights. Results are kept of all."""
    baseline: str | None = None
    """A run directory that each night is compared with, besides the night before."""
    summary: str | None = None
    """A file that gets the Markdown of the last night, too."""
    page: str | None = None
    """A file that gets the report page of the last night's last run, too."""
    site: str = "site"
    """The folder of the pages about all nights; a relative path is below `directory`. "" leaves them out."""


class ServeSection(Frozen):
    """The model server, where nightly starts it itself"""

    command: Annotated[tuple[str, ...], AfterValidator(_words_with_placeholders)] = ()
    """The server's command, word by word, with {checkpoint}, {name} and {port}. Without it, the endpoint of [run.model]
    base_url is asked, and a checkpoint is the name of a model there."""
    port: int = Field(default=8000, ge=0, le=65535)
    """The server's port. 0 takes a free one."""
    health_url: Annotated[str, AfterValidator(_no_other_placeholder)] = "http://127.0.0.1:{port}/health"
    """Answers with 200 when the server is ready."""
    base_url: Annotated[str, AfterValidator(_no_other_placeholder)] = "http://127.0.0.1:{port}/v1"
    """The endpoint that the server is."""
    ready_timeout_sec: float = Field(default=1800.0, gt=0)
    """Seconds from the server's start until it has to be ready."""
    stop_timeout_sec: float = Field(default=60.0, ge=0)
    """Seconds between SIGTERM and SIGKILL at the end."""
    env: Annotated[dict[str, Any], AfterValidator(_variables)] = Field(default={})
    """Variables of the server's environment, besides those of this one."""


class GateSection(Frozen):
    """The gate"""

    enabled: bool = True
    """Judge each lane, and end with 5 where its score has dropped by more than chance."""
    base_nights: int = Field(default=_RULE.base_nights, ge=2)
    """Nights that the baseline begins with."""
    k: float = Field(default=_RULE.k, gt=0, allow_inf_nan=False)
    """Half of the drop that is looked for, in standard deviations of a night."""
    h: float = Field(default=_RULE.h, gt=0, allow_inf_nan=False)
    """The alarm is where C is above it."""
    min_se: float = Field(default=_RULE.min_se, ge=0, allow_inf_nan=False)
    """Standard errors by which the nights since the change have to be below the baseline for an alarm. 0 is C alone."""
    base_from: str | None = _RULE.base_from
    """Name or date (YYYY-MM-DD) of the night at which the baseline begins. Without it, the first."""
    min_coverage: float = Field(default=_RULE.min_coverage, gt=0, le=1)
    """Share of a night's trials that need a verdict for the night to count."""
    min_shared: float = Field(default=_RULE.min_shared, gt=0, le=1)
    """Share of tasks that a night needs in common with the last one to be compared with it."""

    @property
    def rule(self) -> GateRule:
        return GateRule(**self.model_dump(exclude={"enabled"}))


class NotifySection(Frozen):
    """Who is told"""

    webhook_env: str | None = None
    """The variable of the environment that holds the URL of a webhook. A night's news is posted there as JSON."""
    only_news: bool = False
    """Post nothing of a quiet night."""
    deadline_sec: float = Field(default=20.0, gt=0)
    """Seconds for one request to the webhook, of which there are three at most."""


class NightlyConfig(Frozen):
    """The configuration of a nightly benchmark."""

    nightly: NightlySection = NightlySection()
    serve: ServeSection = ServeSection()
    gate: GateSection = GateSection()
    notify: NotifySection = NotifySection()

    @model_validator(mode="after")
    def _port_is_somewhere(self) -> NightlyConfig:
        serve = self.serve
        if serve.command and serve.port == 0 and not any("{port}" in word for word in serve.command):
            raise ValueError("port 0 is chosen at the start, so command needs a {port}")
        return self


ProxyKinds = Mapping[str, type[BaseModel]]
"""Configurations of the proxies by the word that `kind` has for them."""
_PROXY_NAME = re.compile(r"\w[\w.-]{0,39}")
_DECIDED_HERE = ("output.directory", "output.verbosity", "output.json_lines")
_OWN = ("name", "kind")


@dataclass(frozen=True)
class ProxySettings:
    """One [[proxy]]: what kind it is, what it is called, and its settings."""

    kind: str
    name: str
    values: Sequence[Value]


@dataclass(frozen=True)
class Benchmark:
    """A nightly benchmark as its file says it."""

    file: Path
    config: NightlyConfig
    run: RunConfig
    """What a run would have, the environment included; a night adds endpoint, model, seeds and directory."""
    run_values: Sequence[Value]
    """What [run] says, which is what a run is told; the environment speaks for itself."""
    proxies: Sequence[ProxySettings] = field(default=())

    @property
    def name(self) -> str:
        return self.config.nightly.name or self.file.stem

    @property
    def entries(self) -> tuple[str, ...]:
        """The checkpoints as they are written down. Raises UsageError where there is none to run."""
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
    """Read and check a file. Raises UsageError: one line with the place, and what was probably meant."""
    document = _document(file)
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
    _refuse_what_a_night_decides(run_values, config)
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
    """The values as a TOML file for `-c`."""
    sections: dict[str, list[str]] = {}
    for each in values:
        sections.setdefault(each.setting.section, []).append(f"{each.setting.name} = {as_toml(each.value)}")
    return "".join(f"[{section}]\n" + "".join(f"{line}\n" for line in lines) for section, lines in sections.items())


def _document(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise UsageError(f"{file}: is not text in UTF-8") from None
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{file}: is no TOML: {one_line(str(error))}") from None


def _section(value: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UsageError(f"{where}: is a section; write its settings in sections below it, such as [run.tasks]")
    return value


def _refuse_what_a_night_decides(values: Iterable[Value], config: NightlyConfig) -> None:
    for each in values:
        path = each.setting.path
        if path in _DECIDED_HERE:
            raise UsageError(f"{each.origin}: {path}: is the night's to decide; leave it out")
        if path in ("model.base_url", "model.endpoints") and config.serve.command:
            raise UsageError(f"{each.origin}: {path}: [serve] starts the server; its base_url says where it is")


def _proxies(listed: Any, file: Path, kinds: ProxyKinds) -> tuple[ProxySettings, ...]:
    if not isinstance(listed, list) or not all(isinstance(each, Mapping) for each in listed):
        raise UsageError(f"{file}: proxy: is a list; write [[proxy]]")
    found: list[ProxySettings] = []
    for number, each in enumerate(listed, start=1):
        where = f"{file}: [[proxy]] {number}"
        kind = each.get("kind")
        if not isinstance(kind, str) or kind not in kinds:
            raise UsageError(f"{where}: kind: is one of {', '.join(kinds)} (got {one_line(repr(kind), 60)})")
        name = each.get("name", kind)
        if not isinstance(name, str) or not _PROXY_NAME.fullmatch(name):
            raise UsageError(f"{where}: name: letters, digits, dots and dashes (got {one_line(repr(name), 60)})")
        if name in [other.name for other in found]:
            raise UsageError(f"{where}: name: another proxy is called {name}; give each a name")
        others: list[type[BaseModel]] = [RunConfig, *(other for other in kinds.values() if other is not kinds[kind])]
        layers = Layers(kinds[kind], beside=others)
        values = layers.document({key: part for key, part in each.items() if key not in _OWN}, where)
        layers.resolve(values)
        for value in values:
            if value.setting.path in ("output.directory", "model.base_url", "model.name"):
                raise UsageError(f"{where}: {value.setting.path}: is the night's to decide; leave it out")
        found.append(ProxySettings(kind, name, values))
    return tuple(found)


def _check(found: Benchmark) -> None:
    """Raise UsageError for what contradicts itself or leaves nothing to do."""
    entries = found.entries
    if repeated := next((each for each in entries if entries.count(each) > 1), None):
        raise UsageError(f"{found.file}: nightly.checkpoints: {repeated}: is listed twice; each entry is a lane")
    if found.config.nightly.checkpoints and found.run.model.name and not found.config.serve.command:
        raise UsageError(
            f"{found.file}: [run.model] name and nightly.checkpoints both say the model; leave one of them out"
        )
    needs_endpoint = found.run.agent.name not in ("oracle", "nop")
    if needs_endpoint and not found.config.serve.command and not found.run.model.servers:
        raise UsageError(
            f"{found.file}: no endpoint; give [serve] command, or [run.model] base_url, or set OPENAI_BASE_URL"
        )


def _nearest(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, n=1)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


# Which models a night runs: names and paths every night, matches of globs once.

_WILDCARDS = re.compile(r"[*?\[]")
_NOT_IN_NAMES = re.compile(r"[^\w.-]+")
_LONGEST = 60


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model that a night runs."""

    lane: str
    """The entry of the configuration that it comes from: the series that the gate looks at."""
    path: str
    """The entry itself, or the match of the glob."""

    @property
    def name(self) -> str:
        """The last part of a path; all of a name without slashes."""
        return self.path.rstrip("/").rpartition("/")[2] or self.path


def is_glob(entry: str) -> bool:
    return _WILDCARDS.search(entry) is not None


def due(entries: Iterable[str], done: Collection[tuple[str, str]], *, repeat: bool) -> tuple[Checkpoint, ...]:
    """What is to be run tonight, lane by lane. `done` has the (lane, path) pairs of earlier nights.

    Raises UsageError for a glob that matches nothing.
    """
    found = []
    for entry in entries:
        if not is_glob(entry):
            found.append(Checkpoint(entry, entry))
            continue
        # Not Path.glob, which takes no absolute pattern.
        matches = sorted(glob.glob(str(Path(entry).expanduser()), recursive=True), key=natural)  # noqa: PTH207
        if not matches:
            raise UsageError(f"nightly.checkpoints: {entry}: matches nothing; check the path, or leave the entry out")
        found += [Checkpoint(entry, match) for match in matches if repeat or (entry, match) not in done]
    return tuple(dict.fromkeys(found))


def natural(text: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts numbers within names by their value: step-900 before step-1000."""
    return tuple(
        (0, int(part), part) if part.isdecimal() else (1, 0, part) for part in re.split(r"(\d+)", text) if part
    )


def slugs(checkpoints: Iterable[Checkpoint]) -> list[str]:
    """A name for files for each checkpoint: its last part, or more of its path where two would be called alike."""
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
    return _NOT_IN_NAMES.sub("-", text).strip("-.")[-_LONGEST:].lstrip("-.") or "model"
