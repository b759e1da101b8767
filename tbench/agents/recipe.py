"""Recipes of packaged agents: the source of the package, the command, and the API that the agent speaks."""

from __future__ import annotations

import hashlib
import json
import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from string import Formatter
from typing import Literal

from pydantic import Field, ValidationError, field_validator, model_validator

from harness.trajectory import Frozen
from tbench.errors import UsageError

_DIRECTORY = Path(__file__).with_name("recipes")
DialectName = Literal["chat", "responses", "messages"]
PLACES = ("instruction", "url", "key", "model", "context_tokens", "max_tokens", "package", "logs")
"""Names in braces that a command and its environment may contain."""
NO_SESSION = "a step continues the conversation of the previous step; {agent} cannot, because its process has ended"
"""Error for a task that packaged agents do not support."""
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,60}")
_VERSION = re.compile(r"[A-Za-z0-9][A-Za-z0-9.+_-]{0,60}")


class PackageSource(Frozen):
    """The source of an agent's package: PyPI or npm."""

    pypi: str | None = None
    """Name on PyPI. The package gets its own Python."""
    npm: str | None = None
    """Name on npm, of a native program or a program for Node.js."""
    node: str | None = None
    """Version of Node.js, which is fetched from npm, too."""
    leave_out: tuple[str, ...] = ()
    """Patterns of paths, below the folder of packages, that the agent does not need."""

    @model_validator(mode="after")
    def _check_source(self) -> PackageSource:
        if (self.pypi is None) == (self.npm is None):
            raise ValueError("name either pypi or npm")
        if self.node is not None and self.npm is None:
            raise ValueError("node: only for an agent from npm")
        return self

    @property
    def registry(self) -> Literal["pypi", "npm"]:
        return "pypi" if self.pypi is not None else "npm"

    def requirement(self, version: str) -> str:
        """Return the requirement for the registry's client."""
        return f"{self.pypi}=={version}" if self.pypi is not None else f"{self.npm}@{version}"


class Recipe(Frozen):
    """A packaged agent, which works inside the sandbox and sends requests to tbench's gateway."""

    name: str
    about: str = ""
    """One line for lists."""
    dialect: DialectName
    """The API that the agent speaks."""
    calls_tools: bool = True
    """Whether it needs tool calls, which the model's server has to support."""
    needs: tuple[str, ...] = ()
    """Programs that the task's image must have."""
    version: str
    """The version that is used without `--agent-version`."""
    package: PackageSource
    command: str
    """Shell command that works on the task until it is done; it runs in the task's directory, with empty input."""
    environment: dict[str, str] = Field(default={})
    """Variables of the command."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not _NAME.fullmatch(name) or name in ("model", "oracle", "nop"):
            raise ValueError(f"{name!r}: use lower-case letters, digits, dots and dashes, not model, oracle or nop")
        return name

    @field_validator("version")
    @classmethod
    def _check_version(cls, version: str) -> str:
        if not _VERSION.fullmatch(version):
            raise ValueError(f"{version!r}: is not a version")
        return version

    @model_validator(mode="after")
    def _check_places(self) -> Recipe:
        for where, text in (("command", self.command), *self.environment.items()):
            try:
                named = {name for _, name, _, _ in Formatter().parse(text) if name is not None}
            except ValueError as error:
                raise ValueError(f"{where}: {error}; write {{{{ and }}}} for braces") from None
            if unknown := sorted(named - set(PLACES)):
                raise ValueError(f"{where}: {{{unknown[0]}}} is unknown; known: {', '.join(PLACES)}")
        if "{instruction}" not in self.command:
            raise ValueError("command: has no {instruction}")
        return self

    def at(self, version: str | None) -> Recipe:
        """Return the recipe for another version. Raises UsageError."""
        if version is None or version == self.version:
            return self
        if not _VERSION.fullmatch(version):
            raise UsageError(f"--agent-version {version}: is not a version; give one such as {self.version}")
        return self.model_copy(update={"version": version})

    @property
    def title(self) -> str:
        """Name and version, as in results."""
        return f"{self.name}@{self.version}"

    @property
    def digest(self) -> str:
        """sha256 of the recipe, without descriptions."""
        said = self.model_dump(mode="json", exclude={"about"})
        return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()

    def fill(self, values: Mapping[str, str]) -> tuple[str, dict[str, str]]:
        """Return the command and its environment with all names in braces replaced."""
        return self.command.format_map(values), {
            name: text.format_map(values) for name, text in self.environment.items()
        }


def known_recipes() -> tuple[str, ...]:
    """Return the names of tbench's own recipes."""
    return tuple(sorted(path.stem for path in _DIRECTORY.glob("*.toml")))


def is_recipe(agent: str) -> bool:
    """Whether an agent's name stands for a recipe or a file with one."""
    return agent.endswith(".toml") or agent in known_recipes()


def load_recipe(agent: str, version: str | None = None) -> Recipe:
    """Read a recipe by its name or from a file. Raises UsageError."""
    path = Path(agent) if agent.endswith(".toml") else _DIRECTORY / f"{agent}.toml"
    return _read(path, agent).at(version)


@cache
def _read(path: Path, agent: str) -> Recipe:
    try:
        return Recipe.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        known = ", ".join(known_recipes())
        raise UsageError(f"--agent {agent}: there is no such recipe; known: {known}, or a file of your own") from None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"--agent {agent}: cannot be read: {error}") from None
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        words = first["msg"].removeprefix("Value error, ")
        raise UsageError(f"--agent {agent}: {where + ': ' if where else ''}{words}; see docs/agents.md") from None
