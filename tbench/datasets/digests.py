"""Published digests of tasks (dataset.toml), and how the tasks of a directory compare with them."""

from __future__ import annotations

import hashlib
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tbench.errors import UsageError
from tbench.tasks.bounds import read_bounded
from tbench.text import one_line

MANIFEST = "dataset.toml"
_DIGEST = r"^(sha256:)?[0-9a-f]{64}$"


class _Part(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    digest: Annotated[str, Field(pattern=_DIGEST)] | None = None

    @property
    def hex(self) -> str:
        return (self.digest or "").removeprefix("sha256:")


class _ManifestTask(_Part):
    name: Annotated[str, Field(min_length=1)]


class _ManifestFile(_Part):
    path: str


class _Head(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    name: str
    version: str | None = None


class Publication(BaseModel):
    """The content of a dataset.toml, as Harbor's packages have it."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    dataset: _Head
    tasks: tuple[_ManifestTask, ...] = ()
    files: tuple[_ManifestFile, ...] = ()

    @property
    def digests(self) -> dict[str, str]:
        """sha256 in hex by name of the task, without its organisation."""
        return {task.name.rpartition("/")[2]: task.hex for task in self.tasks if task.digest}

    @property
    def digest(self) -> str | None:
        """sha256 in hex of the whole dataset; None where a task has none. harbor/models/dataset/manifest.py has it."""
        tasks, files = [task.hex for task in self.tasks], [file for file in self.files if file.digest]
        if not all(tasks):
            return None
        text = ",".join(sorted(tasks))
        if files:
            text += ";" + ",".join(sorted(f"{file.path}:{file.hex}" for file in files))
        return hashlib.sha256(text.encode()).hexdigest()


@dataclass(frozen=True)
class DigestComparison:
    """Tasks by name, beside their published digests."""

    same: tuple[str, ...]
    differing: tuple[str, ...]
    unpublished: tuple[str, ...]
    """Tasks that are here, and of which no digest is published."""
    missing: tuple[str, ...]
    """Tasks whose digest is published, and which are not here."""

    @property
    def compared(self) -> int:
        return len(self.same) + len(self.differing)


def read_publication(path: Path) -> Publication:
    """The published digests in a dataset.toml. Raises UsageError."""
    try:
        return Publication.model_validate(tomllib.loads(read_bounded(path).decode("utf-8")))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror or error}; give a {MANIFEST}") from None
    except ValidationError as error:
        problem = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, problem["loc"]))
        raise UsageError(f"{path}: {where}: {problem['msg']}; it is no {MANIFEST} of Harbor's") from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path}: is no TOML: {one_line(str(error), 200)}") from None


def publication_beside(directory: Path) -> Publication | None:
    """The published digests that lie in a directory of tasks; None where none do. Raises UsageError."""
    path = directory / MANIFEST
    return read_publication(path) if path.is_file() and not path.is_symlink() else None


def compare(hashes: Mapping[str, str], published: Mapping[str, str], *, whole: bool = False) -> DigestComparison:
    """Compare hashes of tasks with digests, both by name; with `whole` they are of all tasks of the dataset."""
    known = [name for name in sorted(hashes) if name in published]
    return DigestComparison(
        same=tuple(name for name in known if hashes[name] == published[name]),
        differing=tuple(name for name in known if hashes[name] != published[name]),
        unpublished=tuple(sorted(hashes.keys() - published.keys())),
        missing=tuple(sorted(published.keys() - hashes.keys())) if whole else (),
    )


def is_digest(text: str) -> bool:
    """Whether `text` is a digest as references have it: `sha256:` and 64 hexadecimal digits."""
    return re.fullmatch(r"sha256:[0-9a-f]{64}", text) is not None
