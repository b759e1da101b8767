"""Reads and checks a task directory (Terminal-Bench 2.x format), and provides its files as hashed. Starts nothing.

A task with several steps has a view for each step, which agent and verifier treat like any other task.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import os
import re
import tomllib
from collections.abc import Collection, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from tbench.compose.project import COMPOSE_FILE, MAIN, MAIN_IMAGE_PLACEHOLDER, MAIN_LOGS_PLACEHOLDER
from tbench.errors import TaskInvalid, TrialError
from tbench.tasks.consent import VariableRequest, missing_variables, requested_variables, resolve_env
from tbench.tasks.files import TEXT_BYTES, TaskFiles, TreeEntry, read_bounded, require_bounded
from tbench.tasks.format import (
    REWARD_RANGE,
    EnvironmentSection,
    RewardRange,
    StepSection,
    TaskFile,
    first_problem,
    missing_features,
    nearest_key,
    refused_keys,
    step_file,
    unknown_keys,
)
from tbench.tasks.terminal_bench_1 import is_of_terminal_bench_1
from tbench.text import visible_line

if TYPE_CHECKING:
    from tbench.compose.file import ComposeFile

# Compose files of a task, read with the variables that the task is allowed to use

_LOGS = {"VERIFIER_LOGS": "verifier", "AGENT_LOGS": "agent", "ARTIFACTS": "artifacts"}


def read_services(
    task: Path, folder: str, text: bytes, settings: EnvironmentSection, allowed: Collection[str]
) -> ComposeFile:
    """Parse `text`, the compose file in `folder` of the task at `task`. Raises TaskInvalid."""
    # Imported here because few tasks have a compose file and the modules load slowly.
    from tbench.compose.file import read_compose
    from tbench.compose.variables import Variables

    given = {name: os.environ[name] for name in allowed if name in os.environ}
    own = {**_known_values(settings, allowed), **_variables_of_harbor(task / folder, settings)}
    return read_compose(task / folder / COMPOSE_FILE, text, Variables(own, given), task)


def _known_values(settings: EnvironmentSection, allowed: Collection[str]) -> dict[str, str]:
    """Return the variables of [environment.env], without unresolved ones, which are reported elsewhere."""
    known: dict[str, str] = {}
    for key, value in settings.env.items():
        try:
            known |= resolve_env({key: value}, allowed)
        except TrialError:
            continue
    return known


def _variables_of_harbor(folder: Path, settings: EnvironmentSection) -> dict[str, str]:
    """Return the variables that Harbor defines for compose files; log and test folders are for older tasks."""
    found = {
        "CONTEXT_DIR": str(folder),
        "MAIN_IMAGE_NAME": MAIN_IMAGE_PLACEHOLDER,
        "CPUS": f"{settings.cpus:g}",
        "MEMORY": f"{settings.memory_mb:.0f}M",
        "TEST_DIR": "/tests",
    }
    if settings.docker_image:
        found["PREBUILT_IMAGE_NAME"] = settings.docker_image
    for name, below in _LOGS.items():
        found |= {f"HOST_{name}_PATH": f"{MAIN_LOGS_PLACEHOLDER}/{below}", f"ENV_{name}_PATH": f"/logs/{below}"}
    return found


_OF_ONE_STEP = ("instruction", "tests", "workdir", "solution", "has_oracle", "unsupported", "steps")
"""Cached properties of a task that differ for each of its steps."""
IMAGE_FILES = ("Dockerfile", COMPOSE_FILE)
"""Files that make a folder a build context."""
_INTERPRETER = re.compile(rb"(?:\xef\xbb\xbf)?#!\s*(?:\S*/env\s+(?:-\S+\s+)*)?(?:\S*/)?(\S+)")
"""First line of a script, with the name of the program that it asks for."""
_SHELL = re.compile(rb"(?:ba|da|a|k|z)?sh")
_CANARY = re.compile(r"^\s*(?:<!--.*canary.*-->|#.*canary.*)\s*$", re.IGNORECASE)


class Task:
    """A task directory. `hash` identifies its content, and only that content is provided.

    The hash is computed once, when first needed. Files that are read later are compared with it and cached: a file that
    changed in between raises TrialError(task_changed), later changes have no effect. Tasks get no variables of tbench's
    environment except those named by `with_access`.
    """

    def __init__(self, path: Path, toml: bytes, file: TaskFile, raw: Mapping[str, Any]) -> None:
        self.path = path
        self.file = file
        """Content of task.toml with the run's overrides."""
        self.written = file
        """Content of task.toml without overrides."""
        self.name = path.name
        self.step: StepSection | None = None
        """The step of which this is a view; None for a whole task."""
        self._whole: Task | None = None
        self._toml_digest = _sha256(toml)
        self._raw = raw
        self._files = TaskFiles(path)
        self._allowed_env: frozenset[str] = frozenset()
        self._ignored_keys: tuple[str, ...] = ()
        self.may_use_host = False
        """Whether its compose files may access the engine's machine."""
        self._services: dict[str, tuple[EnvironmentSection, ComposeFile | None]] = {}
        self._compose_texts: dict[str, bytes | None] = {}

    @classmethod
    def read(cls, path: Path) -> Task:
        """Read and check the task directory at `path`. Raises TaskInvalid, which names file and key."""
        path = path.resolve()
        try:
            return cls._read(path)
        except OSError as error:
            raise TaskInvalid(f"{error.filename or path}: cannot be read: {error.strerror or error}") from None

    @classmethod
    def _read(cls, path: Path) -> Task:
        if (shown := visible_line(path.name)) != path.name:
            # The name is used for directories of every run, and in printed messages.
            raise TaskInvalid(f"{shown}: task names must not contain control characters; rename the directory")
        toml = path / "task.toml"
        if is_of_terminal_bench_1(path):
            raise TaskInvalid(f"{path}: is a Terminal-Bench 1 task; convert it with: tbench task convert {path}")
        if not toml.is_file():
            raise TaskInvalid(f"{toml}: missing; a task directory needs task.toml, instruction.md, tests/test.sh")
        content = read_bounded(toml)
        try:
            raw = tomllib.loads(content.decode("utf-8-sig"))
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
            raise TaskInvalid(f"{link}: symlink leaves the task directory; copy the file into the task")
        for link in self._files.links_to_unhashed():
            raise TaskInvalid(f"{link}: symlink leads to a folder outside of the task's hash; copy the folder")
        self._check_sizes()
        # Unsupported kinds of tasks have their files elsewhere and are not malformed.
        if not self._lacking:
            self._check_parts()

    def _check_sizes(self) -> None:
        steps = [self.path / "steps" / step.name / "instruction.md" for step in self.file.steps]
        for path in (self.path / "instruction.md", self.dockerfile, *steps):
            if path.is_file():
                require_bounded(path)
        # Build contexts are never read into memory, and steps/ has no meaning without [[steps]].
        tests = () if self.brings_tests else ("tests",)
        for folder in (*tests, "solution", *(["steps"] if self.file.steps else [])):
            if excess := self._files.excess(folder):
                remedy = "put the rest into the image (environment/), or let a script create or fetch it"
                raise TaskInvalid(f"{self.path / folder}: has {excess}; {remedy}")

    def _check_parts(self) -> None:
        for step, view in zip(self.file.steps, self.steps, strict=True):
            self._check_step(self.path / "steps" / step.name, brings_tests=view.brings_tests)
        if not self.file.steps:
            self._require_file(self.path / "instruction.md")
            if not self.brings_tests:
                self._require_script(self.path / "tests" / "test.sh")
        if self.services is None and (lacking := sorted(self.file.services)):
            what = f"artifacts or [[verifier.collect]] refer to the service {lacking[0]!r}"
            raise TaskInvalid(f"{self.path / 'task.toml'}: {what}, but there is no environment/{COMPOSE_FILE}")
        self._check_test_services()
        if not self._has_image():
            raise TaskInvalid(f"{self.dockerfile}: missing, and task.toml has no environment.docker_image")
        for part in self.parts:
            part._check_verifier_image()

    def _check_test_services(self) -> None:
        """Check that the services in which tests run exist."""
        services = self.services
        if services is not None and services.project is None:
            return  # because variables are missing: then it does not run
        known = {MAIN} if services is None or services.project is None else set(services.project.services)
        for name in sorted(self.file.test_services - known):
            where = f"environment/{COMPOSE_FILE} has {', '.join(sorted(known))}"
            raise TaskInvalid(f"{self.path / 'task.toml'}: verifier.service: no service {name!r}; {where}")

    def _check_step(self, folder: Path, *, brings_tests: bool) -> None:
        if not folder.is_dir():
            raise TaskInvalid(f"{folder}: missing, although [[steps]] in task.toml refers to it")
        self._require_file(folder / "instruction.md")
        own, shared = (each / "tests" / "test.sh" for each in (folder, self.path))
        if not brings_tests:
            self._require_script(own if own.is_file() or not shared.is_file() else shared)
        if (setup := folder / "workdir" / "setup.sh").is_file():
            self._require_script(setup)

    def _require_file(self, path: Path) -> None:
        if not path.is_file():
            raise TaskInvalid(f"{path}: missing")
        if self._files.is_ignored(path):
            raise TaskInvalid(f"{path}: a .harborignore excludes it")

    def _require_script(self, path: Path) -> None:
        """Check that a script exists, and that bash, which runs it, is the shell that it is written for."""
        self._require_file(path)
        with path.open("rb") as file:
            head = file.read(TEXT_BYTES)
        if why := not_for_bash(head):
            raise TaskInvalid(f"{path}: {why}")

    def _has_image(self) -> bool:
        """Whether there is an image or a Dockerfile for the agent's container."""
        if self.dockerfile.is_file() or self.file.environment.docker_image:
            return True
        project = services.project if (services := self.services) is not None else None
        # A project that is unknown because a variable is missing cannot run, either.
        return services is not None and (project is None or bool(project.main.image or project.main.build))

    def _check_verifier_image(self) -> None:
        """Check that a compose file in the tests' folder has an image, or a Dockerfile next to it."""
        folder, settings = self.path / self.tests_folder, self.file.verifier.environment
        services = self.compose_files.get(self.tests_folder)
        if services is None or (settings and settings.docker_image) or (folder / "Dockerfile").is_file():
            return
        if services.project is not None and not (services.project.main.image or services.project.main.build):
            raise TaskInvalid(
                f"{folder / COMPOSE_FILE}: services.main has no image and no build, and there is no Dockerfile"
            )

    @property
    def services(self) -> ComposeFile | None:
        """Content of environment/docker-compose.yaml; None for a task with one container. Raises TaskInvalid."""
        return self.services_of("environment", self.file.environment)

    @property
    def compose_files(self) -> Mapping[str, ComposeFile]:
        """Compose files of the agent's and the separate verifiers' containers, by folder.

        Raises TaskInvalid.
        """
        found = {"environment": self.services}
        for part in self.parts:
            settings = part.file.verifier.environment or part.file.environment
            if part.brings_tests and part.tests_folder not in found:
                found[part.tests_folder] = self.services_of(part.tests_folder, settings)
        return {folder: services for folder, services in found.items() if services is not None}

    def services_of(self, folder: str, settings: EnvironmentSection) -> ComposeFile | None:
        """Read the compose file in a folder of the task, with the variables that the task is allowed to use.

        It is read only once, so later changes have no effect. Raises TaskInvalid, and TrialError(task_changed).
        """
        known = self._services.get(folder)
        if known is None or known[0] != settings:
            text = self._compose_text(folder)
            services = None if text is None else read_services(self.path, folder, text, settings, self._allowed_env)
            self._services[folder] = known = settings, services
        return known[1]

    def _compose_text(self, folder: str) -> bytes | None:
        if folder not in self._compose_texts:
            name = f"{folder}/{COMPOSE_FILE}"
            text = read_bounded(self.path / name) if (self.path / name).is_file() else None
            if text is not None and "_digests" in self.__dict__ and self._files.is_hashed(name):
                self._require_same(name, {name: _sha256(text)})
            self._compose_texts[folder] = text
        return self._compose_texts[folder]

    @property
    def brings_tests(self) -> bool:
        """Whether there is a separate verifier whose image contains the tests at /tests."""
        verifier = self.file.verifier
        return verifier.is_separate and (bool(verifier.image) or self._builds_an_image(self.tests_folder))

    @property
    def dockerfile(self) -> Path:
        """Path of environment/Dockerfile, which need not exist if task.toml names an image."""
        return self.path / "environment" / "Dockerfile"

    @cached_property
    def hash(self) -> str:
        """sha256 over `rel NUL sha256(file) LF` of the files that define the task, like the official digests."""
        lines = (f"{name}\0{digest}\n" for name, digest in self._digests.items())
        return hashlib.sha256("".join(lines).encode("utf-8", "surrogateescape")).hexdigest()

    @cached_property
    def _digests(self) -> Mapping[str, str]:
        """sha256 of the files that define the task, by sorted relative path."""
        digests = self._files.digests()
        if "task.toml" in digests:
            digests["task.toml"] = self._toml_digest  # of the content that was read, even if the file has changed
        for folder, text in self._compose_texts.items():
            if (name := f"{folder}/{COMPOSE_FILE}") in digests and text is not None:
                digests[name] = _sha256(text)
        return digests

    def with_access(self, names: Collection[str], *, host: bool = False, ignored_keys: Collection[str] = ()) -> Task:
        """Return this task with access to exactly the variables `names` of tbench's environment.

        With `host`, its compose files may access the engine's machine. Unknown keys of task.toml that match the globs
        `ignored_keys` have no effect.
        """
        if (self._allowed_env, self.may_use_host, self._ignored_keys) == (frozenset(names), host, tuple(ignored_keys)):
            return self
        other = self._copy("steps", "unsupported")
        other._allowed_env, other.may_use_host, other._services = frozenset(names), host, {}
        other._ignored_keys = tuple(ignored_keys)
        return other

    def with_file(self, file: TaskFile) -> Task:
        """Return this task with overridden settings; its hash does not change."""
        if file == self.file:
            return self
        other = self._copy("steps")
        other.file, other._services = file, {}
        return other

    def _copy(self, *without: str) -> Task:
        """Return a copy without these cached properties."""
        _ = self.hash  # computed now, so that both tasks have the same content
        other = copy.copy(self)
        for name in without:
            other.__dict__.pop(name, None)
        return other

    @cached_property
    def steps(self) -> tuple[Task, ...]:
        """Views of this task for each of its steps, in order; empty for a task without steps.

        A view has the step's instruction, tests, solution and limits, and the hash of the whole task.
        """
        return tuple(map(self._view, self.file.steps))

    @property
    def own_reward_range(self) -> RewardRange | None:
        """Lowest and highest reward of the task or its steps; None for 0 and 1."""
        ranges = [part.file.verifier.reward_range for part in self.parts]
        widest = (min(low for low, _ in ranges), max(high for _, high in ranges))
        return None if widest == REWARD_RANGE else widest

    @property
    def whole(self) -> Task:
        """The whole task of a step's view, or this task itself."""
        return self._whole or self

    @property
    def parts(self) -> tuple[Task, ...]:
        """The units of work of agent and verifier, in order: the task's steps, or the task itself."""
        return self.steps or (self,)

    @property
    def step_name(self) -> str:
        """Name of the step of which this is a view; empty for a whole task."""
        return "" if self.step is None else self.step.name

    def _view(self, step: StepSection) -> Task:
        view = self._copy(*_OF_ONE_STEP)
        view.step, view._whole = step, self
        view.file = step_file(self.file, step, has_image=view.tests_folder != "tests")
        return view

    @property
    def _folder(self) -> str:
        """Prefix of the paths of a step's own files; empty for a whole task."""
        return "" if self.step is None else f"steps/{self.step.name}/"

    @property
    def tests_folder(self) -> str:
        """Build context of a verifier's image: tests/, or the step's own tests/ if it has a build context."""
        own = f"{self._folder}tests"
        return own if self._builds_an_image(own) else "tests"

    def _builds_an_image(self, folder: str) -> bool:
        return any((self.path / folder / name).is_file() for name in IMAGE_FILES)

    def missing_variables(self, tables: Collection[str]) -> list[str]:
        """Describe the variables that these `env` tables request and that are missing, one line each.

        The table `environment` includes the variables that compose files request.
        """
        requested = [request for request in requested_variables(self.file) if request.key.partition(".")[0] in tables]
        if "environment" in tables:
            requested += self._requests_of_services()
        return missing_variables(requested, self._allowed_env)

    @property
    def requested_variables(self) -> tuple[VariableRequest, ...]:
        """All variables of tbench's environment that task.toml and compose files request."""
        return (*requested_variables(self.file), *self._requests_of_services())

    def _requests_of_services(self) -> Iterator[VariableRequest]:
        for folder, services in self.compose_files.items():
            for asked in services.asked:
                yield VariableRequest(asked.key, asked.name, asked.has_default, f"{folder}/{COMPOSE_FILE}")

    @property
    def host_access(self) -> Mapping[Path, tuple[str, ...]]:
        """Access to the engine's machine that compose files request and that is not allowed: key and value by file."""
        if self.may_use_host:
            return {}
        files = {self.path / folder / COMPOSE_FILE: each.host_access for folder, each in self.compose_files.items()}
        return {file: asked for file, asked in files.items() if asked}

    def resolve_env(self, env: Mapping[str, str]) -> dict[str, str]:
        """Resolve an `env` table with the allowed variables of tbench's environment. Raises TrialError(env_missing)."""
        return resolve_env(env, self._allowed_env)

    @cached_property
    def instruction(self) -> str:
        """Text of instruction.md without leading canary lines and blank lines.

        Raises TrialError(task_changed), and TaskInvalid if an unsupported task has no instruction.
        """
        name = f"{self._folder}instruction.md"
        try:
            content = read_bounded(self.path / name)
        except TaskInvalid as error:
            raise self._changed_error(name, "grew") from error
        except OSError as error:
            if name not in self._digests:
                raise TaskInvalid(f"{self.path / name}: missing") from None
            raise self._changed_error(name, f"became unreadable ({error.strerror})") from error
        self._require_same(name, {name: _sha256(content)} if self._files.is_hashed(name) else {})
        text = content.decode("utf-8-sig", errors="replace")
        return _without_canary(text.replace("\r\n", "\n").replace("\r", "\n"))

    @cached_property
    def tests(self) -> Mapping[str, TreeEntry]:
        """Entries for /tests by path below tests/; a step's take precedence. Raises TrialError(task_changed)."""
        if self._whole is None:
            return self._tree("tests")
        return {**self._whole.tests, **self._tree(f"{self._folder}tests")}

    def with_tests(self, tests: Mapping[str, TreeEntry]) -> Task:
        """Return this task with other entries for /tests; its hash stays."""
        changed = copy.copy(self)
        changed.__dict__["tests"] = tests
        return changed

    @cached_property
    def workdir(self) -> Mapping[str, TreeEntry]:
        """Entries to add to the working directory before a step begins. Raises TrialError(task_changed)."""
        return {} if self.step is None else self._tree(f"{self._folder}workdir")

    @property
    def test_script(self) -> bytes:
        """Content of tests/test.sh. Raises TrialError(task_changed)."""
        entry = self.tests.get("test.sh")
        if entry is None or entry.data is None:
            raise self._changed_error(f"{self._folder}tests/test.sh", "was removed")
        return entry.data

    @cached_property
    def solution(self) -> Mapping[str, TreeEntry]:
        """Entries for /solution by path below solution/; empty without a solution. Raises TrialError(task_changed)."""
        return self._tree(self._solution)

    @property
    def _solution(self) -> str:
        """Folder of the solution; a step without its own has the task's."""
        own = f"{self._folder}solution"
        return own if (self.path / own).is_dir() else "solution"

    @property
    def solve_script(self) -> Path:
        """Path of the oracle's script, which need not exist."""
        return self.path / self._solution / "solve.sh"

    @cached_property
    def has_oracle(self) -> bool:
        """Whether there is a solve.sh for the oracle, in each step."""
        if self.steps:
            return all(step.has_oracle for step in self.steps)
        script = self.solve_script
        return self._files.counts(script.relative_to(self.path).as_posix()) and not self._files.is_ignored(script)

    @property
    def solve_problem(self) -> str:
        """Why bash cannot run the oracle's script, and what to do; empty if it can."""
        with contextlib.suppress(OSError), self.solve_script.open("rb") as file:
            return not_for_bash(file.read(TEXT_BYTES))
        return ""

    def require_unchanged(self, folder: str | None) -> None:
        """Compare the files in a folder that is used directly, or all files, with the hash.

        Raises TrialError(task_changed).
        """
        try:
            now = self._files.digests(folder)
        except OSError as error:
            raise self._unreadable(error, folder or "") from error
        self._require_same(folder, now)

    def _tree(self, folder: str) -> Mapping[str, TreeEntry]:
        try:
            if excess := self._files.excess(folder):
                raise self._changed_error(folder, f"grew to {excess}")
            tree = self._files.tree(folder)
        except OSError as error:
            raise self._unreadable(error, folder) from error
        contents = {f"{folder}/{name}": entry.data for name, entry in tree.items() if entry.data is not None}
        self._require_same(folder, {self._files.real_name(name): _sha256(data) for name, data in contents.items()})
        return tree

    def _require_same(self, part: str | None, now: Mapping[str, str]) -> None:
        """Compare the digests of a file or folder with those in the hash. Raises TrialError(task_changed)."""
        prefixes = ("",) if part is None else (f"{part}/",)
        then = {name: each for name, each in self._digests.items() if name == part or name.startswith(prefixes)}
        for name in sorted(then.keys() | now.keys()):
            if name not in now:
                raise self._changed_error(name, "was removed")
            if (known := self._digests.get(name)) != now[name]:
                raise self._changed_error(name, "changed" if known else "was added")

    @cached_property
    def left_out(self) -> list[str]:
        """Sorted relative paths of files that its .gitignore excludes from the hash, and therefore from containers."""
        return sorted(self._files.left_out())

    def context(self, folder: str) -> list[Path]:
        """Return the paths of a build context: files in the hash, folders, and unresolved links."""
        return self._files.context(folder)

    def _unreadable(self, error: OSError, folder: str) -> TrialError:
        name = Path(error.filename).relative_to(self.path).as_posix() if error.filename else folder
        return self._changed_error(name, f"became unreadable ({error.strerror})")

    def _changed_error(self, name: str, what: str) -> TrialError:
        message = f"{self.path / name} {what} after the task's hash was computed; restore it, or start a new run"
        return TrialError("task_changed", message)

    @cached_property
    def unsupported(self) -> list[str]:
        """Features that the task needs and tbench lacks; empty for a task that can run."""
        return [*self._lacking, *map(_unknown_key, self.refused_keys)]

    @property
    def _lacking(self) -> list[str]:
        """Features that the task needs and tbench lacks, apart from unknown keys."""
        files = self.compose_files.items()
        lacking = [f"{key} in {folder}/{COMPOSE_FILE}" for folder, each in files for key in each.unsupported]
        return [*missing_features(self.file, self.path), *lacking, *self._unhashed()]

    def _unhashed(self) -> Iterator[str]:
        """Yield required files that its .gitignore excludes from the hash, and therefore from containers."""
        names = [f"{part._folder}{name}" for part in self.parts for name in ("instruction.md", "tests/test.sh")]
        for name in dict.fromkeys((f"environment/{COMPOSE_FILE}", "tests/test.sh", *names)):
            if (self.path / name).is_file() and not self._files.counts(name):
                yield f"{name} excluded from its hash (.gitignore)"

    @cached_property
    def unknown_keys(self) -> list[str]:
        """Dotted keys of task.toml that tbench does not know; [metadata] may contain anything."""
        return sorted(unknown_keys(self._raw))

    @property
    def refused_keys(self) -> list[str]:
        """Unknown keys that may change what the task measures, so that it is not run."""
        return refused_keys(self.unknown_keys, self._ignored_keys)


def _unknown_key(key: str) -> str:
    near = nearest_key(key)
    meant = f"did you mean {near}?" if near else f"--ignore-keys {key} leaves it out"
    return f"{key} in task.toml ({meant})"


def not_for_bash(script: bytes) -> str:
    """Return why bash cannot run a script, and what to do; empty if it can."""
    lines = script.splitlines(keepends=True)
    if lines and all(line.endswith(b"\r\n") for line in lines if line.endswith(b"\n")) and b"\r\n" in lines[0]:
        return "has Windows line ends (CR LF), which bash takes for part of each command; convert it with dos2unix"
    if (found := _INTERPRETER.match(script)) and not _SHELL.fullmatch(found[1]):
        name = found[1].decode("utf-8", "replace")
        return f"is written for {name}, but is run by bash; call {name} from a shell script"
    return ""


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _without_canary(text: str) -> str:
    lines = text.splitlines(True)
    start = 0
    while start < len(lines) and (_CANARY.match(lines[start]) or not lines[start].strip()):
        start += 1
    return "".join(lines[start:])
