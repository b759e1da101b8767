"""One task directory (Terminal-Bench 2.x form): read, checked, and handed out as its hash says. Starts nothing."""

from __future__ import annotations

import copy
import hashlib
import re
import tomllib
from collections.abc import Collection, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from tbench.errors import TaskInvalid, TrialError
from tbench.tasks.bounds import read_bounded, require_bounded
from tbench.tasks.consent import missing_variables, resolve_env
from tbench.tasks.features import missing_features
from tbench.tasks.files import TaskFiles, TreeEntry
from tbench.tasks.format import TaskFile, first_problem, unknown_keys
from tbench.text import visible_line

_CANARY = re.compile(r"^\s*(?:<!--.*canary.*-->|#.*canary.*)\s*$", re.IGNORECASE)


class Task:
    """One task directory. `hash` names its content, and only that content is handed out.

    The hash is taken once, when it is first needed. Files that are read later are compared with it and kept: one that
    has changed since then raises TrialError(task_changed), and one that changes afterwards has no effect. Of tbench's
    environment a task gets nothing before `allowing` names it.
    """

    def __init__(self, path: Path, toml: bytes, file: TaskFile, raw: Mapping[str, Any]) -> None:
        self.path = path
        self.file = file
        """The content of task.toml, with what a run overrides."""
        self.written = file
        """The content of task.toml as it is."""
        self.name = path.name
        self._toml_digest = _sha256(toml)
        self._raw = raw
        self._files = TaskFiles(path)
        self._allowed_env: frozenset[str] = frozenset()

    @classmethod
    def read(cls, path: Path) -> Task:
        """Read and check the task directory at `path`. Raises TaskInvalid, naming file and key."""
        path = path.resolve()
        try:
            return cls._read(path)
        except OSError as error:
            raise TaskInvalid(f"{error.filename or path}: cannot be read: {error.strerror or error}") from None

    @classmethod
    def _read(cls, path: Path) -> Task:
        if (shown := visible_line(path.name)) != path.name:
            # The name becomes that of directories in every run, and a part of what is printed.
            raise TaskInvalid(f"{shown}: a task's name has no control characters; rename the directory")
        toml = path / "task.toml"
        if not toml.is_file():
            raise TaskInvalid(f"{toml}: missing; a task directory needs task.toml, instruction.md, tests/test.sh")
        content = read_bounded(toml)
        try:
            raw = tomllib.loads(content.decode("utf-8"))
        except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
            raise TaskInvalid(f"{toml}: not valid TOML: {error}") from None
        try:
            file = TaskFile.model_validate(raw)
        except ValidationError as error:
            raise TaskInvalid(f"{toml}: {first_problem(error)}") from None
        task = cls(path, content, file, raw)
        task._check_files()
        return task

    def _check_files(self) -> None:
        for link in self._files.links_outside():
            raise TaskInvalid(f"{link}: symlink leaves the task directory; copy the file in")
        self._check_sizes()
        # Multi-step and compose tasks have their files elsewhere: they are named as unsupported, not as malformed.
        if not self.unsupported:
            self._check_parts()

    def _check_sizes(self) -> None:
        for path in (self.path / "instruction.md", self.dockerfile):
            if path.is_file():
                require_bounded(path)
        for folder in ("tests", "solution"):
            if excess := self._files.excess(folder):
                advice = "put the rest into the image (environment/), or let a script make or fetch it"
                raise TaskInvalid(f"{self.path / folder}: holds {excess}; {advice}")

    def _check_parts(self) -> None:
        for required in ("instruction.md", "tests/test.sh"):
            if not (self.path / required).is_file():
                raise TaskInvalid(f"{self.path / required}: missing")
        if self._files.is_ignored(self.path / "tests" / "test.sh"):
            raise TaskInvalid(f"{self.path / 'tests/test.sh'}: a .harborignore excludes it")
        if not self.dockerfile.is_file() and not self.file.environment.docker_image:
            raise TaskInvalid(f"{self.dockerfile}: missing, and task.toml names no environment.docker_image")

    @property
    def dockerfile(self) -> Path:
        """Path of environment/Dockerfile, which need not exist where task.toml names an image."""
        return self.path / "environment" / "Dockerfile"

    @cached_property
    def hash(self) -> str:
        """sha256 over `rel NUL sha256(file) LF` of the files that define the task, as the official digests have it."""
        lines = (f"{name}\0{digest}\n" for name, digest in self._digests.items())
        return hashlib.sha256("".join(lines).encode()).hexdigest()

    @cached_property
    def _digests(self) -> Mapping[str, str]:
        """sha256 of the files that define the task, by relative path in order."""
        digests = self._files.digests()
        if "task.toml" in digests:
            digests["task.toml"] = self._toml_digest  # of what was read, whatever lies there by now
        return digests

    def allowing(self, names: Collection[str]) -> Task:
        """This task with consent to take the variables `names`, and no others, from tbench's environment."""
        if self._allowed_env == frozenset(names):
            return self
        _ = self.hash  # taken now, so that both name one content
        other = copy.copy(self)
        other._allowed_env = frozenset(names)
        return other

    def with_file(self, file: TaskFile) -> Task:
        """This task with other limits than its task.toml says; its hash is that of what is written there."""
        if file == self.file:
            return self
        _ = self.hash
        other = copy.copy(self)
        other.file = file
        return other

    def missing_variables(self, tables: Collection[str]) -> list[str]:
        """What it asks for in these of its `env` tables and does not get, one line each."""
        return missing_variables(self.file, tables, self._allowed_env)

    def resolve_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """A table of its environment with what it may take from tbench's own. Raises TrialError(env_missing)."""
        return resolve_env(env, self._allowed_env)

    @cached_property
    def instruction(self) -> str:
        """Text of instruction.md without leading canary lines and the blanks after them.

        Raises TrialError(task_changed), and TaskInvalid where a task of an unsupported form has none.
        """
        name = "instruction.md"
        try:
            content = read_bounded(self.path / name)
        except TaskInvalid as error:
            raise self._changed(name, "has grown") from error
        except OSError as error:
            if name not in self._digests:
                raise TaskInvalid(f"{self.path / name}: missing") from None
            raise self._changed(name, f"cannot be read any more ({error.strerror})") from error
        self._require_same(name, {name: _sha256(content)} if self._files.is_hashed(name) else {})
        return _without_canary(_text(content))

    @cached_property
    def tests(self) -> Mapping[str, TreeEntry]:
        """Entries for /tests, by path below tests/. Raises TrialError(task_changed)."""
        return self._tree("tests")

    @property
    def test_script(self) -> bytes:
        """Content of tests/test.sh. Raises TrialError(task_changed)."""
        entry = self.tests.get("test.sh")
        if entry is None or entry.data is None:
            raise self._changed("tests/test.sh", "is gone")
        return entry.data

    @cached_property
    def solution(self) -> Mapping[str, TreeEntry]:
        """Entries for /solution, by path below solution/; empty without one. Raises TrialError(task_changed)."""
        return self._tree("solution")

    @cached_property
    def has_oracle(self) -> bool:
        """Whether there is a solution/solve.sh for the oracle; one that goes away afterwards has changed."""
        path = self.path / "solution" / "solve.sh"
        return path.is_file() and not self._files.is_ignored(path)

    def require_unchanged(self, folder: str) -> None:
        """Compare the files of a folder that is used in place with the hash. Raises TrialError(task_changed)."""
        try:
            now = self._files.digests(folder)
        except OSError as error:
            raise self._unreadable(error, folder) from error
        self._require_same(folder, now)

    def _tree(self, folder: str) -> Mapping[str, TreeEntry]:
        try:
            if excess := self._files.excess(folder):
                raise self._changed(folder, f"holds {excess}: it has grown")
            tree = self._files.tree(folder)
        except OSError as error:
            raise self._unreadable(error, folder) from error
        contents = {f"{folder}/{name}": entry.data for name, entry in tree.items() if entry.data is not None}
        hashed = {name: _sha256(data) for name, data in contents.items() if self._files.is_hashed(name)}
        self._require_same(folder, hashed)
        return tree

    def _require_same(self, part: str, now: Mapping[str, str]) -> None:
        """Compare the digests of a file or folder with those of the hash. Raises TrialError(task_changed)."""
        then = {name: digest for name, digest in self._digests.items() if name == part or name.startswith(f"{part}/")}
        for name in sorted(then.keys() | now.keys()):
            if name not in now:
                raise self._changed(name, "is gone")
            if then.get(name) != now[name]:
                raise self._changed(name, "has changed" if name in then else "is new")

    def _unreadable(self, error: OSError, folder: str) -> TrialError:
        name = Path(error.filename).relative_to(self.path).as_posix() if error.filename else folder
        return self._changed(name, f"cannot be read any more ({error.strerror})")

    def _changed(self, name: str, what: str) -> TrialError:
        message = f"{self.path / name} {what} since the task's hash was taken; put it back, or start a new run"
        return TrialError("task_changed", message)

    @cached_property
    def unsupported(self) -> list[str]:
        """Features that this task needs and tbench does not have; empty for a task that can run."""
        return missing_features(self.file, self.path)

    @cached_property
    def unknown_keys(self) -> list[str]:
        """Dotted keys of task.toml that tbench does not know ([metadata] is free)."""
        return sorted(unknown_keys(self._raw))


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace").replace("\r\n", "\n").replace("\r", "\n")


def _without_canary(text: str) -> str:
    lines = text.splitlines(True)
    start = 0
    while start < len(lines) and (_CANARY.match(lines[start]) or not lines[start].strip()):
        start += 1
    return "".join(lines[start:])
