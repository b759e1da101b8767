"""A setting: one field of one part of a configuration, with its name in files, in the environment and as a flag."""

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
    """How a field appears on the command line, where that differs from `--name-of-the-field`."""

    flags: tuple[str, ...] = ()
    """Names of the option. Behind a slash stands, as click has it, the name that sets the opposite: false (`--no-…`
    without a word), or the other of two words, `--first/--second`."""
    argument: str | None = None
    """The name of a positional argument; then there is an option only where `flags` name one."""
    words: Callable[[], Iterable[str]] = tuple
    """Gives the words that a shell completes, where the type does not tell them."""
    is_path: bool = False
    """Whether a shell completes paths."""
    daily: bool = False
    """Whether `--help` shows it first."""
    bare: str | None = None
    """The value of an option that is given without one."""
    metavar: str | None = None
    instead_of: str | None = None
    """Another setting of the section, which this one replaces in the layers below it."""
    several: str | None = None
    """The setting that takes the values of an option that is given several times."""
    has_password: bool = False
    """Whether a value may have a password in it: then no message quotes one."""
    measured: bool = True
    """Whether another value measures something else; the others say where and how fast a run goes."""


@dataclass(frozen=True)
class Setting:
    """A field of a part of a configuration."""

    part: type[BaseModel]
    section: str
    name: str
    field: FieldInfo
    option: Option
    """From the field, or, as the harness knows of no options, from the part that inherits it."""
    is_measured: bool
    """Whether another value measures something else."""

    @property
    def path(self) -> str:
        """The name in files, in `-c` and in messages: section.name."""
        return f"{self.section}.{self.name}"

    @property
    def variable(self) -> str:
        """The environment variable that sets it."""
        return f"TBENCH_{self.section}_{self.name}".upper()

    @property
    def help(self) -> str:
        """The docstring under the field, on one line."""
        return " ".join(docstrings_of(self.part).get(self.name, "").split())

    @property
    def summary(self) -> str:
        """The first sentence of its help."""
        return re.split(r"(?<=\.) (?=[A-Z0-9`])", self.help, maxsplit=1)[0]

    @property
    def flags(self) -> tuple[str, ...]:
        named = tuple(flag.partition("/")[0] for flag in self.option.flags)
        return named or (f"--{self.name.removesuffix('_sec').replace('_', '-')}",)

    @property
    def off_flags(self) -> tuple[str, ...]:
        """The name of the opposite by each of the flags; empty for an option with a value."""
        named = tuple(flag.partition("/")[2] for flag in self.option.flags)
        return tuple(filter(None, named)) or ((f"--no-{self.flags[0][2:]}",) if self.kind is bool else ())

    @property
    def default(self) -> Any:
        return self.field.get_default(call_default_factory=True)

    @property
    def said_default(self) -> Any:
        """The default in the words that a file has for it."""
        return self.adapter.dump_python(self.default, mode="json")

    def value_in(self, config: BaseModel) -> Any:
        """The setting's value in a configuration."""
        return getattr(getattr(config, self.section), self.name)

    def said_in(self, config: BaseModel) -> Any:
        """The same in the words that a file has for it."""
        return self.adapter.dump_python(self.value_in(config), mode="json")

    @cached_property
    def kind(self) -> Any:
        """The type without None: a class, or the origin of a generic one (tuple, dict, Literal)."""
        return typing.get_origin(self._inner) or self._inner

    @property
    def choices(self) -> tuple[str, ...]:
        """The values of a Literal; empty for other types."""
        return typing.get_args(self._inner) if self.kind is Literal else ()

    @property
    def is_optional(self) -> bool:
        """Whether None is a value of it."""
        return self._inner is not self.field.annotation

    @cached_property
    def adapter(self) -> TypeAdapter[Any]:
        """Checks one value; what a model says about several fields together is not in it."""
        # Annotated takes what it is subscripted with as it is.
        return TypeAdapter(typing.Annotated[(self.field.annotation, *self.field.metadata, None)])  # type: ignore[arg-type]

    @property
    def _inner(self) -> Any:
        annotation = self.field.annotation
        if typing.get_origin(annotation) in (typing.Union, types.UnionType):
            (inner,) = (each for each in typing.get_args(annotation) if each is not types.NoneType)
            return inner
        return annotation


def settings_of(configuration: type[BaseModel]) -> Iterator[Setting]:
    """All settings of a configuration, part by part, in the order in which they are written down."""
    for section, part in parts_of(configuration).items():
        for name, field in part.model_fields.items():
            own = next((each for each in field.metadata if isinstance(each, Option)), None)
            option = own or getattr(part, "options", {}).get(name, Option())
            yield Setting(part, section, name, field, option, option.measured and getattr(part, "measured", True))


def schema_of(configuration: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a configuration, with the docstrings under its settings."""
    schema = configuration.model_json_schema()
    for part in parts_of(configuration).values():
        properties = schema["$defs"][part.__name__]["properties"]
        for name, words in docstrings_of(part).items():
            properties[name] = dict(sorted({**properties[name], "description": words}.items()))
    return schema


@cache
def docstrings_of(part: type[BaseModel]) -> Mapping[str, str]:
    """The docstring under each field of a part, its own or inherited.

    They are read when somebody asks. Pydantic's `use_attribute_docstrings` reads them whenever a part is imported.
    """
    found: dict[str, str] = {}
    for owner in reversed(part.__mro__):
        if issubclass(owner, BaseModel) and owner.model_fields:
            for statement, below in pairwise(_classes_of(owner.__module__)[owner.__name__].body):
                match statement, below:
                    case ast.AnnAssign(target=ast.Name(name)), ast.Expr(ast.Constant(str(words))):
                        found[name] = inspect.cleandoc(words)
    return found


@cache
def _classes_of(module: str) -> Mapping[str, ast.ClassDef]:
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    return {each.name: each for each in tree.body if isinstance(each, ast.ClassDef)}


def panels_of(configuration: type[BaseModel]) -> Iterator[tuple[str, str, list[Setting]]]:
    """For each part of a configuration: its section, its title, and its settings."""
    settings = list(settings_of(configuration))
    for section, part in parts_of(configuration).items():
        title = " ".join((part.__doc__ or section).split())
        yield section, title, [setting for setting in settings if setting.section == section]


def parts_of(configuration: type[BaseModel]) -> dict[str, type[BaseModel]]:
    """The parts of a configuration by section; each is a model, whose docstring is its title."""
    return {name: part for name, field in configuration.model_fields.items() if (part := _model(field)) is not None}


def _model(field: FieldInfo) -> type[BaseModel] | None:
    annotation = field.annotation
    return annotation if isinstance(annotation, type) and issubclass(annotation, BaseModel) else None
