"""Layers of settings: each source sets some values, later layers win, and every value records its origin.

From lowest to highest: defaults, the preset, environment variables, `-c` in the order given, flags.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Generic, TypeVar

from pydantic import BaseModel, ValidationError

from tbench.config.setting import Setting, iter_settings, section_models
from tbench.errors import UsageError
from tbench.files import read_toml
from tbench.text import one_line

Config = TypeVar("Config", bound=BaseModel)
_PREFIX = "TBENCH_"
_SHARED_VARIABLES = {"OPENAI_BASE_URL": "model.base_url"}
"""Setting by environment variable, for variables that other tools read, too; tbench's own names win."""


@dataclass(frozen=True)
class Value:
    """A checked value of one setting."""

    setting: Setting
    value: Any
    origin: str
    """Source of the value, as shown in messages and by `tbench config show`."""
    model: int | None = None
    """Number of the model that has this value, counted from 0; None if all have it."""
    agent: int | None = None
    """Number of the agent that has this value, counted from 0; None if all have it."""

    @property
    def is_flag(self) -> bool:
        return self.origin.startswith("--")


@dataclass(frozen=True)
class Resolved(Generic[Config]):
    """A configuration and the origin of its values."""

    config: Config
    origins: Mapping[str, str] = field(default_factory=dict)
    """Origin by path of the setting; a setting that is missing here has its default."""


class Layers(Generic[Config]):
    """Reads and merges the layers of one kind of configuration."""

    def __init__(self, configuration: type[Config], beside: Iterable[type[BaseModel]] = ()) -> None:
        """Settings that only configurations in `beside` have are ignored: all commands share files and variables.

        `beside` is iterated only for a name that `configuration` lacks, so it may import the classes that it yields.
        """
        self._configuration = configuration
        self._beside = beside
        self._settings = {setting.path: setting for setting in iter_settings(configuration)}
        self._sections = section_models(configuration)

    @cached_property
    def _others(self) -> tuple[Setting, ...]:
        return tuple(setting for other in self._beside for setting in iter_settings(other))

    @cached_property
    def _ignored_paths(self) -> set[str]:
        return {setting.path for setting in self._others}

    @cached_property
    def _ignored_variables(self) -> set[str]:
        return {setting.variable for setting in self._others}

    def environment(self, variables: Mapping[str, str], only: Collection[str] | None = None) -> list[Value]:
        """Read settings from environment variables; `only` restricts them to these paths.

        Raises UsageError for an empty variable, and for a misspelled name of a setting.
        """
        named = {setting.variable: setting for setting in self._settings.values()}
        found = [
            self._from_text(self._settings[path], variables[name], name)
            for name, path in _SHARED_VARIABLES.items()
            if path in (self._settings if only is None else only) and variables.get(name, "").strip()
        ]
        for name in sorted(variables):
            if name in named:
                if only is not None and named[name].path not in only:
                    continue
                if not variables[name].strip():
                    raise UsageError(f"{name}: is empty; give it a value, or unset it")
                found.append(self._from_text(named[name], variables[name], name))
            elif name.startswith(_PREFIX) and name not in self._ignored_variables:
                known = sorted(named.keys() | self._ignored_variables)
                if _is_like_one_of(name, known):
                    raise UsageError(f"{name}: no setting has this name{_suggestion(name, known)} Correct or unset it")
        return found

    def file(self, path: Path) -> list[Value]:
        """Read settings from a TOML file. Raises UsageError."""
        return self.document(read_toml(path, f"-c {path}"), str(path))

    def document(self, document: Mapping[str, Any], origin: str) -> list[Value]:
        """Read settings from parsed TOML, a table by section. Raises UsageError."""
        found = []
        sections = self._sections_of_all()
        for section, values in document.items():
            if section not in sections:
                raise UsageError(f"{origin}: {section}: no such section{self._section_suggestion(section)}")
            if section == "model" and isinstance(values, list):
                for number, table in enumerate(values):
                    if len(values) > 1 and isinstance(table, Mapping) and "name" not in table:
                        raise UsageError(f"{origin}: [[model]] {number + 1}: has no name; name each of several models")
                    found += [replace(each, model=number) for each in self._section(section, table, origin)]
            else:
                found += self._section(section, values, origin)
        return found

    def _section(self, section: str, values: Any, origin: str) -> Iterator[Value]:
        if not isinstance(values, Mapping):
            raise UsageError(f"{origin}: {section}: is a section; write [{section}] and its settings below it")
        for name, value in values.items():
            path = f"{section}.{name}"
            if path not in self._settings and path in self._ignored_paths:
                continue
            setting = self._setting(path, origin)
            yield _convert(setting, _parse_none(setting, value), origin, strict=True)

    def assignment(self, text: str) -> list[Value]:
        """Parse `section.name=value`, or `section.name.key=value` for a setting that is an object.

        Raises UsageError.
        """
        origin = f"-c {text}"
        path, equals, value = text.partition("=")
        path = path.strip()
        if not equals or not path:
            raise UsageError(f"-c {text}: is neither an existing file nor section.name=value")
        if path in self._sections_of_all():
            raise UsageError(f"{origin}: {path}: is a section; write {path}.name=value")
        keys = path.split(".")
        if len(keys) > 2 and (outer := self._settings.get(".".join(keys[:2]))) is not None:
            if outer.kind is not dict:
                raise UsageError(f"{origin}: {outer.path}: is a single value without a key {'.'.join(keys[2:])}")
            return [Value(outer, _NestedValue(tuple(keys[2:]), _json_or_text(value)), f"-c {path}")]
        setting = self._setting(path, origin)
        # Leave out the value, which may contain a password.
        shown = f"-c {path}" if setting.option.has_password else origin
        return [replace(self._from_text(setting, value, shown), origin=f"-c {path}")]

    def option(self, path: str, given: str | bool | Sequence[str], flag: str) -> Value:
        """Check the value of a flag as click passes it. Raises UsageError."""
        setting = self._settings[path]
        option = setting.option
        if (option.several or option.per_model or option.per_agent) and not isinstance(given, str | bool):
            if len(given) > 1 and option.several:
                setting = self._settings[f"{setting.section}.{option.several}"]
            else:
                given = given[0]
        if isinstance(given, str):
            return self._from_text(setting, given, flag)
        return _convert(setting, given, flag, strict=False)

    def resolve(self, values: Iterable[Value], base: Config | None = None) -> Resolved[Config]:
        """Merge the values of all layers, lowest first, into `base`.

        Raises UsageError for values that contradict each other, and for several models or agents.
        """
        values = list(values)
        found = self.resolve_each(values, base)
        for path, what, several in (
            ("model.name", "models", any(each.model for each in values)),
            ("agent.name", "agents", any(each.agent for each in values)),
        ):
            if several:
                raise UsageError(f"{found[-1].origins[path]}: several {what}; only tbench run takes more than one")
        return found[0]

    def resolve_each(self, values: Iterable[Value], base: Config | None = None) -> list[Resolved[Config]]:
        """Resolve the values for each agent with each model, or once if they list none. Raises UsageError."""
        values = list(values)
        _require_one_list_of_models(values)
        models = sorted({each.model or 0 for each in values}) or [0]
        agents = sorted({each.agent or 0 for each in values}) or [0]
        return [
            self._resolve(
                [each for each in values if each.model in (None, model) and each.agent in (None, agent)], base
            )
            for agent in agents
            for model in models
        ]

    def _resolve(self, values: Iterable[Value], base: Config | None) -> Resolved[Config]:
        merged: dict[str, dict[str, Any]] = base.model_dump() if base else {section: {} for section in self._sections}
        origins: dict[str, str] = {}
        for each in values:
            section, name, value = each.setting.section, each.setting.name, each.value
            if isinstance(value, _NestedValue):
                value = value.merged_into(merged[section].get(name, each.setting.default))
            merged[section][name] = value
            origins[each.setting.path] = each.origin
            if (replaced := each.setting.option.instead_of) is not None and value:
                merged[section].pop(replaced, None)
                origins.pop(f"{section}.{replaced}", None)
        try:
            config = self._configuration.model_validate(merged)
        except ValidationError as error:
            raise UsageError(_conflict_message(error, origins)) from None
        return Resolved(config, {**self._preset_origins(config, merged), **origins})

    def _preset_origins(self, config: Config, merged: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
        """Return the origins of values that the configuration has filled in itself, which come from a preset."""
        preset = merged.get("agent", {}).get("preset")
        return {
            f"{section}.{name}": f"preset {preset}"
            for section, values in merged.items()
            for name in getattr(config, section).model_fields_set - values.keys()
        }

    def _sections_of_all(self) -> list[str]:
        """Return the sections of this configuration, followed by those that only others have."""
        return list(dict.fromkeys([*self._sections, *(path.partition(".")[0] for path in sorted(self._ignored_paths))]))

    def _setting(self, path: str, origin: str) -> Setting:
        if path in self._settings:
            return self._settings[path]
        if path in self._ignored_paths:
            raise UsageError(f"{origin}: {path}: this command does not have this setting, only others do; leave it out")
        section, _, name = path.partition(".")
        if section not in self._sections_of_all():
            raise UsageError(f"{origin}: {section}: no such section{self._section_suggestion(section)}")
        own, others = (_names_within(section, paths) for paths in (self._settings, sorted(self._ignored_paths)))
        raise UsageError(f"{origin}: {path}: no such setting{_suggestion(name, own, others, f'{section}.')}")

    def _section_suggestion(self, section: str) -> str:
        return _suggestion(section, self._sections, self._sections_of_all())

    def _from_text(self, setting: Setting, text: str, origin: str) -> Value:
        value: Any = text if setting.kind is str and not setting.is_optional else text.strip()
        if setting.kind is dict:
            value = _object(text, setting, origin)
        elif setting.kind is tuple:
            value = [word.strip() for word in text.split(",") if word.strip()]
        return _convert(setting, _parse_none(setting, value), origin, strict=False)


def _require_one_list_of_models(values: Sequence[Value]) -> None:
    """Check that only one source lists models, and that no higher layer names another model. Raises UsageError."""
    listed = [each for each in values if each.model is not None]
    count = len({each.model for each in listed})
    if count < 2:
        return
    for each in listed[1:]:
        if each.origin != listed[0].origin and not (each.is_flag and listed[0].is_flag):
            raise UsageError(f"{listed[0].origin} and {each.origin}: both list models; leave one of them out")
    last = [each for each in values if each.setting.path == "model.name"][-1]
    if last.model is None:
        raise UsageError(f"{last.origin}: {listed[0].origin} lists {count} models; leave one of them out")


@dataclass(frozen=True)
class _NestedValue:
    """A value for one key of an object that lower layers may set."""

    keys: tuple[str, ...]
    value: Any

    def merged_into(self, outer: Any) -> dict[str, Any]:
        whole = dict(outer) if isinstance(outer, Mapping) else {}
        first, *rest = self.keys
        whole[first] = _NestedValue(tuple(rest), self.value).merged_into(whole.get(first)) if rest else self.value
        return whole


def _convert(setting: Setting, value: Any, origin: str, *, strict: bool) -> Value:
    """Convert a value to the field's type; `strict` if the source is typed, as TOML is. Raises UsageError."""
    try:
        if strict:  # by way of JSON, whose lists may become tuples
            checked = setting.adapter.validate_json(json.dumps(value, default=str), strict=True)
        else:
            checked = setting.adapter.validate_python(value)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        message = problem["msg"].removeprefix("Value error, ").partition(", unable to parse")[0]
        if not setting.option.has_password:
            message = f"{message} (got {one_line(repr(problem['input']), 100)})"
        raise UsageError(_with_location(origin, setting.path, message)) from None
    return Value(setting, checked, origin)


def _with_location(origin: str, path: str, message: str) -> str:
    """Prefix a message with origin and setting; a flag names its setting already."""
    is_flag = origin.startswith("--")
    return f"{origin}: {message}" if is_flag else f"{origin}: {path}: {message}"


def _conflict_message(error: ValidationError, origins: Mapping[str, str]) -> str:
    """Return a message about values that exclude each other, with the origin of each that it names."""
    problem = error.errors(include_url=False)[0]
    message = problem["msg"].removeprefix("Value error, ")
    path = ".".join(map(str, problem["loc"][:2]))
    if path in origins:
        return _with_location(origins[path], path, message)
    named = [f"{key} from {origin}" for key, origin in origins.items() if key.rpartition(".")[2] in message]
    where = f" ({', '.join(named)})" if named else ""
    return f"{path}: {message}{where}"


def _is_like_one_of(name: str, known: Sequence[str]) -> bool:
    """Whether an unknown variable is probably a misspelt setting."""
    return bool(difflib.get_close_matches(name, known, n=1, cutoff=0.75))


def _names_within(section: str, paths: Iterable[str]) -> list[str]:
    return [path.removeprefix(f"{section}.") for path in paths if path.startswith(f"{section}.")]


def _suggestion(name: str, own: Iterable[str], others: Iterable[str] = (), before: str = "") -> str:
    """Suggest a similar name, preferably of this command, else of other commands; without one, list the names."""
    choices = list(own), list(others)
    found = [near for names in choices for near in difflib.get_close_matches(name, names, n=1)]
    return f"; did you mean {before}{found[0]}?" if found else f"; there are {', '.join(choices[0] or choices[1])}"


def _parse_none(setting: Setting, value: Any) -> Any:
    """Replace `none` by None for optional settings: TOML and environment variables have no null.

    For a list it means an empty list, because a variable cannot be empty.
    """
    if setting.is_optional and value == "none":
        return None
    return [] if setting.kind is tuple and value in ("none", ["none"]) else value


def _object(text: str, setting: Setting, origin: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(_with_location(origin, setting.path, f"not valid JSON: {error}")) from None
    if not isinstance(value, dict):
        raise UsageError(_with_location(origin, setting.path, 'must be a JSON object such as {"top_k": 20}'))
    return value


def _json_or_text(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.strip()


# Presets: the settings of other harnesses, in the format of a user's own file, with the values that they document.
#
# Every parameter is sent, so a value that a harness leaves to the server is here the default of the chat API.

_DIRECTORY = Path(__file__).parent / "presets"
PRESETS = ("terminus-2", "tmax", "mini-swe-agent", "thinking-bash")
AGENT_LOOP_SETTINGS = (
    *("agent.protocol", "agent.prompt", "agent.observation_bytes", "agent.neutralise_special_tokens"),
    *("agent.approve", "limits.on_overflow"),
)
"""Settings of tbench's own agent loop, which have no effect on a custom agent."""


@cache
def preset(name: str) -> dict[str, dict[str, Any]]:
    """Load the values of a preset, by section. Raises ValueError for an unknown name."""
    if name not in PRESETS:
        raise ValueError(f"{name}: unknown; known: {', '.join(PRESETS)}")
    return tomllib.loads((_DIRECTORY / f"{name}.toml").read_text(encoding="utf-8"))


def from_preset(given: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the preset's values for settings that are missing in `given`, a run's configuration by section.

    Raises ValueError for a preset that does not exist.
    """
    agent = given_values(given.get("agent"))
    name = agent.get("preset")
    if name is None:
        return {}
    values = preset(str(name))
    found = {
        section: {
            key: value
            for key, value in part.items()
            if key not in given_values(given.get(section)) and _applies(f"{section}.{key}", agent, values["agent"])
        }
        for section, part in values.items()
    }
    return {section: part for section, part in found.items() if part}


def _applies(path: str, agent: Mapping[str, Any], values: Mapping[str, Any]) -> bool:
    if ":" in str(agent.get("name")):
        return path not in AGENT_LOOP_SETTINGS
    if path == "agent.shell_state":
        from harness.protocols import PROTOCOLS, load_protocol  # slow: loads all prompts

        protocol = agent.get("protocol", values["protocol"])
        return protocol not in PROTOCOLS or load_protocol(protocol).types_commands
    return True


def given_values(section: Any) -> Mapping[str, Any]:
    """Return the values that were set explicitly in a section, a mapping or a model."""
    if isinstance(section, BaseModel):
        return {name: getattr(section, name) for name in section.model_fields_set}
    return section if isinstance(section, Mapping) else {}
