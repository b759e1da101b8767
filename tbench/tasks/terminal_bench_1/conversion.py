"""Writes a copy of a Terminal-Bench 1 task in the current format. The original directory stays unchanged."""

from __future__ import annotations

import json
import os
import re
import shutil
import threading
from collections.abc import Mapping
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
from tbench.tasks.terminal_bench_1.description import Description, read_description, solution_script

RULES = 1
"""Version of the conversion rules. Cached tasks of another version are converted again."""
_TESTS, _SOLUTION = "run-tests.sh", "solution.sh"
_NOT_IN_THE_IMAGE = {"tests", _TESTS, _SOLUTION, TYPED_SOLUTION, DESCRIPTION, COMPOSE_NAME}
"""Parts of a task that are not copied into images, unless a Dockerfile copies them by name."""
_VERDICT_SCRIPTS = ("test.sh", "verdict.sh")


@dataclass(frozen=True)
class Conversion:
    """A converted task."""

    path: Path
    notes: tuple[str, ...] = ()
    """Differences from Terminal-Bench 1, one line each."""


def convert(source: Path, target: Path) -> Conversion:
    """Convert the task at `source` into the new directory `target`, atomically.

    Raises TaskInvalid, which names file and key, if the task cannot be converted or files cannot be read or written.
    """
    temporary = target.with_name(f".converting-{os.getpid()}-{threading.get_ident()}-{target.name}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        notes = _convert(source, temporary)
        temporary.rename(target)
        return Conversion(target, notes)
    except OSError as error:
        raise TaskInvalid(f"{error.filename or source}: {error.strerror or error}") from None
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _convert(source: Path, target: Path) -> tuple[str, ...]:
    description = read_description(source / DESCRIPTION)
    services = read_services(source / COMPOSE_NAME)
    container = one_container(services) if len(services.all) == 1 else "several services"
    notes = list[str]()
    if description.run_tests_in_same_shell:
        notes.append("run_tests_in_same_shell: the tests run in a separate shell as the agent's user")
    target.mkdir()
    if isinstance(container, OneContainer):
        _write_environment(services, container, target / "environment")
    else:
        notes.append(f"keeps its docker-compose.yaml because of: {container}")
        _write_services(services, target / "environment")
    _write_tests(source, description, target / "tests")
    notes += _write_solution(source, target / "solution")
    instruction = description.instruction.removesuffix("\n") + "\n"
    (target / "instruction.md").write_text(instruction, encoding="utf-8", errors="replace")
    limits = container if isinstance(container, OneContainer) else OneContainer(limits=limits_of(services))
    (target / "task.toml").write_text(_task_toml(description, limits), encoding="utf-8", errors="replace")
    return tuple(notes)


def _write_environment(services: Services, container: OneContainer, target: Path) -> None:
    """Write the build context of a single container; nothing if the container uses an image unchanged."""
    built = build_files(services, services.main)
    if built is not None:
        context, dockerfile = built
        text = _text_of(dockerfile)
        _copy_context(context, target, [text, container.dockerfile(text)])
        (target / "Dockerfile").write_text(container.dockerfile(text), encoding="utf-8")
        return
    if not container.image or "$" in container.image:
        raise services.invalid("image", "is missing or contains variables, and there is no build")
    if container.lines or container.platform:
        _copy_context(services.path.parent, target, container.lines)
        (target / "Dockerfile").write_text(container.dockerfile(f"FROM {container.image}\n"), encoding="utf-8")


def _write_services(services: Services, target: Path) -> None:
    """Write the build contexts of all services and their compose file."""
    built = filter(None, (build_files(services, name) for name in services.all))
    texts = [_text_of(dockerfile) for _, dockerfile in built]
    _copy_context(services.path.parent, target, texts)
    (target / COMPOSE_NAME).write_text(compose_text(services), encoding="utf-8")


def _text_of(dockerfile: Path) -> str:
    try:
        return read_bounded(dockerfile).decode("utf-8")
    except UnicodeDecodeError:
        raise TaskInvalid(f"{dockerfile}: is not UTF-8 text") from None


def _copy_context(context: Path, target: Path, dockerfiles: list[str] | tuple[str, ...]) -> None:
    """Copy a build context, without parts of the task that no Dockerfile copies by name."""
    named = {path.split("/")[0] for text in dockerfiles for path in copied_paths(text)}
    left_out = _NOT_IN_THE_IMAGE - named
    root = context.resolve()

    def ignore(folder: str, names: list[str]) -> set[str]:
        return left_out & set(names) if Path(folder).resolve() == root else set()

    shutil.copytree(context, target, symlinks=True, ignore=ignore)


def _write_tests(source: Path, description: Description, target: Path) -> None:
    """Write tests/ with run-tests.sh and the scripts that derive a verdict from its output."""
    if (source / "tests").is_dir():
        shutil.copytree(source / "tests", target, symlinks=True)
    target.mkdir(exist_ok=True)
    for name in _VERDICT_SCRIPTS:
        if (target / name).exists():
            raise TaskInvalid(f"{source / 'tests' / name}: this name is needed for the verdict; rename the file")
    # Terminal-Bench 1 unpacks both into one directory, tests/ last.
    if not (target / _TESTS).exists():
        if not (source / _TESTS).is_file():
            raise TaskInvalid(f"{source / _TESTS}: missing; a Terminal-Bench 1 task needs it for its verdict")
        shutil.copy(source / _TESTS, target / _TESTS)
    for name in _VERDICT_SCRIPTS:
        text = Path(__file__).with_name(name).read_text(encoding="utf-8")
        (target / name).write_text(text.replace("@PARSER@", description.parser_name), encoding="utf-8")


def _write_solution(source: Path, target: Path) -> list[str]:
    """Write solution/solve.sh; return a note if the task has no solution that can be converted."""
    script, typed = source / _SOLUTION, source / TYPED_SOLUTION
    if script.is_file():
        target.mkdir()
        shutil.copy(script, target / "solve.sh")
        return []
    if not typed.is_file():
        return ["has no solution, so there is no oracle"]
    try:
        text = solution_script(typed)
    except TaskInvalid as error:
        return [f"has no oracle: {error}"]
    target.mkdir()
    (target / "solve.sh").write_text(text, encoding="utf-8")
    return []


def _task_toml(description: Description, container: OneContainer) -> str:
    environment = {
        "docker_image": container.image,
        **container.limits,
        "workdir": container.workdir,
        "network_mode": None if container.has_network else "no-network",
    }
    tables: dict[str, Mapping[str, Any]] = {
        "metadata": description.metadata,
        "agent": {"timeout_sec": description.max_agent_timeout_sec, "user": container.user},
        # Terminal-Bench 1 runs the tests as root, unless they share the agent's session.
        "verifier": {
            "timeout_sec": description.max_test_timeout_sec,
            "user": container.user if description.run_tests_in_same_shell else "root",
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
    """Format a value as TOML; types without a TOML equivalent become strings."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and abs(value) < 1 << 63:
        return str(value)
    if isinstance(value, float):
        return f"{value:g}" if value.is_integer() else repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(str(value), ensure_ascii=False).replace("\x7f", "\\u007f")
