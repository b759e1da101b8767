"""Reads the one file that says all of a nightly benchmark, and checks it against the settings that exist."""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tbench.config.layers import Layers, Value
from tbench.config.settings import RunConfig
from tbench.config.text import as_toml
from tbench.errors import UsageError
from tbench.nightly.settings import NightlyConfig
from tbench.text import one_line

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
