"""Writes a task of Terminal-Bench 1 in the current form. The directory that is read is left as it is."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tbench.errors import TaskInvalid
from tbench.tasks.dockerfile import copied_paths
from tbench.tasks.files import read_bounded
from tbench.tasks.terminal_bench_1 import DESCRIPTION
from tbench.tasks.terminal_bench_1.container import COMPOSE_NAME as COMPOSE_NAME
from tbench.tasks.terminal_bench_1.container import (
    OneContainer,
    Services,
    build_files,
    compose_text,
    limits_of,
    one_container,
    read_services,
)
from tbench.tasks.terminal_bench_1.description import TYPED_SOLUTION as TYPED_SOLUTION
from tbench.tasks.terminal_bench_1.description import Description, read_description, script_of

RULES = 1
"""Version of the rules: what was converted by others is not taken from a cache."""
_TESTS, _SOLUTION = "run-tests.sh", "solution.sh"
_NOT_IN_THE_IMAGE = {"tests", _TESTS, _SOLUTION, TYPED_SOLUTION, DESCRIPTION, COMPOSE_NAME}
"""Parts of a task that belong into no image, unless a Dockerfile takes them there by name."""
_OURS = {"test.sh": "test.sh", "verdict.sh": "verdict.sh"}


@dataclass(frozen=True)
class Conversion:
    """A task that was converted."""

    path: Path
    notes: tuple[str, ...] = ()
    """What is not as it is in Terminal-Bench 1, a line each."""


def convert(source: Path, target: Path) -> Conversion:
    """Write the task at `source` into the new directory `target`, which is there as a whole or not at all.

    Raises TaskInvalid, naming file and key, for one that cannot be converted, and for files that cannot be read or
    written.
    """
    beside = target.with_name(f".converting-{os.getpid()}-{threading.get_ident()}-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        notes = _convert(source, beside)
        beside.rename(target)
        return Conversion(target, notes)
    except OSError as error:
        raise TaskInvalid(f"{error.filename or source}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _convert(source: Path, target: Path) -> tuple[str, ...]:
    told = read_description(source / DESCRIPTION)
    found = read_services(source / COMPOSE_NAME)
    container = one_container(found) if len(found.all) == 1 else "several services"
    notes = list(_notes(told))
    target.mkdir()
    if isinstance(container, OneContainer):
        _write_environment(found, container, target / "environment")
    else:
        notes.append(f"is a task with a docker-compose.yaml, for the sake of: {container}")
        _write_services(found, target / "environment")
    _write_tests(source, told, target / "tests")
    notes += _write_solution(source, target / "solution")
    (target / "instruction.md").write_text(_ending(told.instruction), encoding="utf-8", errors="replace")
    limits = container if isinstance(container, OneContainer) else OneContainer(limits=limits_of(found))
    (target / "task.toml").write_text(_task_toml(told, limits), encoding="utf-8", errors="replace")
    return tuple(notes)


def _notes(told: Description) -> Iterator[str]:
    if told.run_tests_in_same_shell:
        yield "run_tests_in_same_shell: the tests run in a shell of their own, as the agent's user"


def _write_environment(found: Services, container: OneContainer, target: Path) -> None:
    """The build context of the only container, or nothing but its image's name."""
    built = build_files(found, found.main)
    if built is not None:
        context, dockerfile = built
        text = _text_of(dockerfile)
        _copy_context(context, target, [text, container.dockerfile(text)])
        (target / "Dockerfile").write_text(container.dockerfile(text), encoding="utf-8")
        return
    if not container.image or "$" in container.image:
        raise found.wrong("image", "is missing or made of variables, and there is no build")
    if container.lines or container.platform:
        _copy_context(found.path.parent, target, container.lines)
        (target / "Dockerfile").write_text(container.dockerfile(f"FROM {container.image}\n"), encoding="utf-8")


def _write_services(found: Services, target: Path) -> None:
    """All folders of the services, and the file that describes them."""
    built = filter(None, (build_files(found, name) for name in found.all))
    texts = [_text_of(dockerfile) for _, dockerfile in built]
    _copy_context(found.path.parent, target, texts)
    (target / COMPOSE_NAME).write_text(compose_text(found), encoding="utf-8")


def _text_of(dockerfile: Path) -> str:
    try:
        return read_bounded(dockerfile).decode("utf-8")
    except UnicodeDecodeError:
        raise TaskInvalid(f"{dockerfile}: is no text in UTF-8") from None


def _copy_context(context: Path, target: Path, dockerfiles: list[str] | tuple[str, ...]) -> None:
    """Copy a build context without the parts of a task that no Dockerfile takes out of it by name."""
    named = {path.split("/")[0] for text in dockerfiles for path in copied_paths(text)}
    left_out = _NOT_IN_THE_IMAGE - named
    root = context.resolve()

    def ignore(folder: str, names: list[str]) -> set[str]:
        return left_out & set(names) if Path(folder).resolve() == root else set()

    shutil.copytree(context, target, symlinks=True, ignore=ignore)


def _write_tests(source: Path, told: Description, target: Path) -> None:
    """tests/ with run-tests.sh beside what it was copied to, and what judges its output."""
    if (source / "tests").is_dir():
        shutil.copytree(source / "tests", target, symlinks=True)
    target.mkdir(exist_ok=True)
    for name in _OURS:
        if (target / name).exists():
            raise TaskInvalid(f"{source / 'tests' / name}: stands where the verdict's own file has to be; rename it")
    # Terminal-Bench 1 unpacks both into one directory, tests/ last.
    if not (target / _TESTS).exists():
        if not (source / _TESTS).is_file():
            raise TaskInvalid(f"{source / _TESTS}: missing; a task of Terminal-Bench 1 is judged by it")
        shutil.copy(source / _TESTS, target / _TESTS)
    for name, ours in _OURS.items():
        text = Path(__file__).with_name(ours).read_text(encoding="utf-8")
        (target / name).write_text(text.replace("@PARSER@", told.parser_name), encoding="utf-8")


def _write_solution(source: Path, target: Path) -> list[str]:
    """solution/solve.sh, or a note why there is none: whoever works on the task does without."""
    script, typed = source / _SOLUTION, source / TYPED_SOLUTION
    if script.is_file():
        target.mkdir()
        shutil.copy(script, target / "solve.sh")
        return []
    if not typed.is_file():
        return ["has no solution, so there is no oracle"]
    try:
        text = script_of(typed)
    except TaskInvalid as error:
        return [f"has no oracle: {error}"]
    target.mkdir()
    (target / "solve.sh").write_text(text, encoding="utf-8")
    return []


def _task_toml(told: Description, container: OneContainer) -> str:
    environment = {
        "docker_image": container.image,
        **container.limits,
        "workdir": container.workdir,
        "network_mode": None if container.has_network else "no-network",
    }
    tables: dict[str, Mapping[str, Any]] = {
        "metadata": told.metadata,
        "agent": {"timeout_sec": told.max_agent_timeout_sec, "user": container.user},
        # The tests have a session of root's there, unless it is the agent's own.
        "verifier": {
            "timeout_sec": told.max_test_timeout_sec,
            "user": container.user if told.run_tests_in_same_shell else "root",
        },
        "environment": environment,
        "environment.env": container.variables,
    }
    lines = ['schema_version = "1.1"', 'source = "terminal-bench-1"']
    for name, table in tables.items():
        entries = [f"{_toml_key(key)} = {_toml(value)}" for key, value in table.items() if value is not None]
        lines += ["", f"[{name}]", *entries] if entries else []
    return "\n".join([*lines, ""])


def _toml_key(key: str) -> str:
    return key if re.fullmatch(r"[\w-]+", key, re.ASCII) else _toml(key)


def _toml(value: Any) -> str:
    """A value as TOML has it; what TOML has no word for is text."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) < 1 << 63:
        return str(value)
    if isinstance(value, float):
        return f"{value:g}" if value.is_integer() else repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")


def _ending(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"
