"""A setting: one field in one section of a configuration, with its names in files, in the environment and as a flag."""

from __future__ import annotations

import ast
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Literal

from pydantic import BaseModel, TypeAdapter
from pydantic.fields import FieldInfo


@dataclass(frozen=True)
class Option:
    """Command-line option of a field, if it differs from `--name-of-the-field`."""

    flags: tuple[str, ...] = ()
    """Names of the option. As in click, the name after a slash sets false (default `--no-…`), or the second of two
    choices, `--first/--second`."""
    argument: str | None = None
    """Name of a positional argument; then there is an option only if `flags` name one."""
    words: Callable[[], Iterable[str]] = tuple
    """Returns words for shell completion, where other values are possible."""
    choices: Callable[[], Iterable[str]] = tuple
    """Returns all values, if the type does not list them."""
    is_path: bool = False
    """Whether shells complete paths."""
    daily: bool = False
    """Whether the option is among the first in `--help`; others may be only in `--help-all`."""
    bare: str | None = None
    """Value of the option when it is given without one."""
    metavar: str | None = None
    without_model: tuple[str, str] | None = None
    """Metavar and help for commands that ask no model, if they differ there."""
    instead_of: str | None = None
    """Another setting of the section: if this one is set, the other's value from lower layers is dropped."""
    several: str | None = None
    """The setting that takes the values if the option is repeated."""
    per_model: bool = False
    """Whether each repetition of the option is another model, with a run of its own."""
    per_agent: bool = False
    """Whether each repetition of the option is another agent, with a run of its own for each model."""
    has_password: bool = False
    """Whether values may contain a password, so that messages do not quote them."""
    measured: bool = True
    """Whether the value affects what is measured, not only where and how fast the run goes."""


@dataclass(frozen=True)
class Setting:
    """A field in a section of a configuration."""

    part: type[BaseModel]
    section: str
    name: str
    field: FieldInfo
    option: Option
    """Option of the field. The harness knows no options: for its fields, they are in the section's `options`."""
    is_measured: bool
    """Whether the value affects what is measured."""

    @property
    def path(self) -> str:
        """Name in files, in `-c` and in messages: section.name."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """Environment variable that sets it."""
        return f"TBENCH_{self.section}_{self.name}".upper()

    @property
    def help(self) -> str:
        """Docstring under the field, on one line."""
        return " ".join(field_docstrings(self.part).get(self.name, "").split())

    @property
    def summary(self) -> str:
        """First sentence of the help."""
        return re.split(r"(?<=\.) (?=[A-Z0-9`])", self.help, maxsplit=1)[0]

    @property
    def flags(self) -> tuple[str, ...]:
        """Names of the option; empty for a section that is only for files, `-c` and the environment."""
        if not getattr(self.part, "has_flags", True):
            return ()
        named = tuple(flag.partition("/")[0] for flag in self.option.flags)
        return named or (f"--{self.name.removesuffix('_sec').replace('_', '-')}",)

    @property
    def off_flags(self) -> tuple[str, ...]:
        """Flags that set the opposite; empty for an option with a value."""
        named = tuple(flag.partition("/")[2] for flag in self.option.flags)
        return tuple(filter(None, named)) or ((f"--no-{self.flags[0][2:]}",) if self.kind is bool else ())

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)

    @property
    def file_default(self) -> Any:
        """Default value, as written in a file."""
        return self.adapter.dump_python(self.default, mode="json")

    def value_in(self, config: BaseModel) -> Any:
        """Return the setting's value in a configuration."""
        return getattr(getattr(config, self.section), self.name)

    def file_value_in(self, config: BaseModel) -> Any:
        """Return the setting's value in a configuration, as written in a file."""
        return self.adapter.dump_python(self.value_in(config), mode="json")

    @cached_property
    def kind(self) -> Any:
        """Type without None: a class, or the origin of a generic type (tuple, dict, Literal)."""
        return typing.get_origin(self._inner) or self._inner

    @property
    def choices(self) -> tuple[str, ...]:
        """All values of a Literal or of an option with choices; empty for other types."""
        return typing.get_args(self._inner) if self.kind is Literal else tuple(self.option.choices())

    @property
    def is_optional(self) -> bool:
        """Whether the value may be None."""
        return self._inner is not self.field.annotation

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Validator of a single value, without the validators of the whole section."""
        # Annotated accepts its subscript unchanged.
        return TypeAdapter(typing.Annotated[(self.field.annotation, *self.field.metadata, None)])  # type: ignore[arg-type]

    @property
    def _inner(self) -> Any:
        annotation = self.field.annotation
        if typing.get_origin(annotation) in (typing.Union, types.UnionType):
            (inner,) = (each for each in typing.get_args(annotation) if each is not types.NoneType)
            return inner
        return annotation


def iter_settings(configuration: type[BaseModel]) -> Iterator[Setting]:
    """Iterate over all settings of a configuration, in the order of their definition."""
    for section, part in section_models(configuration).items():
        for name, field in part.model_fields.items():
            own = next((each for each in field.metadata if isinstance(each, Option)), None)
            option = own or getattr(part, "options", {}).get(name, Option())
            yield Setting(part, section, name, field, option, option.measured and getattr(part, "measured", True))


def json_schema(configuration: type[BaseModel]) -> dict[str, Any]:
    """Return the JSON schema of a configuration's file, with docstrings as descriptions."""
    schema = configuration.model_json_schema()
    for setting in iter_settings(configuration):
        properties = schema["$defs"][setting.part.__name__]["properties"]
        found = {**properties[setting.name], "description": field_docstrings(setting.part).get(setting.name, "")}
        if setting.is_optional:
            found["anyOf"] = [*found["anyOf"], {"const": "none"}]  # TOML has no null
        if choices := tuple(setting.option.choices()):
            found["enum"] = [*choices, *([None, "none"] if setting.is_optional else [])]
        properties[setting.name] = dict(sorted(found.items()))
        if setting.option.per_model:
            one = schema["properties"][setting.section]
            schema["properties"][setting.section] = {"anyOf": [one, {"type": "array", "items": one, "minItems": 1}]}
    return schema


@cache
def field_docstrings(part: type[BaseModel]) -> Mapping[str, str]:
    """Return the docstring of each field of a section, including inherited fields.

    They are parsed on demand: Pydantic's `use_attribute_docstrings` would parse them at every import.
    """
    found: dict[str, str] = {}
    for owner in reversed(part.__mro__):
        if issubclass(owner, BaseModel) and owner.model_fields:
            for statement, below in pairwise(_classes_of(owner.__module__)[owner.__name__].body):
                match statement, below:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(docstring))):
                        found[name] = inspect.cleandoc(docstring)
    return found


@cache
def _classes_of(module: str) -> Mapping[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}


def section_panels(configuration: type[BaseModel]) -> Iterator[tuple[str, str, list[Setting]]]:
    """Iterate over the sections of a configuration: name, title and settings."""
    settings = list(iter_settings(configuration))
    for section, part in section_models(configuration).items():
        title = " ".join((part.__doc__ or section).split())
        yield section, title, [setting for setting in settings if setting.section == section]


def section_models(configuration: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """Return the models of a configuration's sections by name; the docstring of each is its title."""
    return {name: part for name, field in configuration.model_fields.items() if (part := _model(field)) is not None}


def _model(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
