"""Reads task.yaml and solution.yaml of Terminal-Bench 1 tasks: untrusted YAML, with limits and errors by line."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tbench.errors import TaskInvalid
from tbench.tasks.files import read_bounded
from tbench.tasks.format import first_problem

# Untrusted YAML: plain data only, with limits, and errors that name file and line

MAX_VALUES = 20_000
"""Maximum number of values in a file, with aliases expanded: ten lines of aliases can mean billions of values."""
_BAD_VALUES = (ValueError, TypeError, AttributeError, KeyError, OverflowError)
"""Errors that PyYAML raises for a value that does not have the type of its tag."""


def read_yaml(path: Path) -> Any:
    """Read a YAML file. Raises OSError, and TaskInvalid with the line of the error or for too many values."""
    try:
        # Not the C loader, which recurses without limit, so that a row of brackets crashes the process.
        loader = yaml.SafeLoader(read_bounded(path).decode("utf-8"))
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _require_few(node, path)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}: " if mark else ""
        raise TaskInvalid(f"{path}: {where}is not valid YAML: {error.problem or error.context}") from None
    except yaml.YAMLError as error:  # characters that YAML does not allow
        raise TaskInvalid(f"{path}: is not valid YAML: {error}") from None
    except UnicodeDecodeError:
        raise TaskInvalid(f"{path}: is not valid YAML: not UTF-8 text") from None
    except RecursionError:
        raise TaskInvalid(f"{path}: is nested too deeply") from None
    except _BAD_VALUES as error:
        raise TaskInvalid(f"{path}: has an invalid value: {error}") from None


def _require_few(root: yaml.Node, path: Path) -> None:
    """Raise TaskInvalid if there are too many values, or if a value contains itself."""
    sizes: dict[int, int] = {}

    def size(node: yaml.Node, above: frozenset[int]) -> int:
        if id(node) in above:
            raise TaskInvalid(f"{path}: line {node.start_mark.line + 1}: an alias refers to a value that contains it")
        if id(node) not in sizes:
            within = above | {id(node)} if isinstance(node, yaml.CollectionNode) else above
            sizes[id(node)] = 1 + sum(size(each, within) for each in _children(node))
        return sizes[id(node)]

    if (found := size(root, frozenset())) > MAX_VALUES:
        raise TaskInvalid(f"{path}: has {found:,} values, but at most {MAX_VALUES:,} are allowed")


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [each for pair in node.value for each in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


Parser = Literal["pytest", "swebench", "sweperf", "mlebench"]
"""Parser of the output of run-tests.sh; verdict.sh implements it."""
_METADATA = (
    *("author_name", "author_email", "difficulty", "category", "tags"),
    *("estimated_duration_sec", "expert_time_estimate_min", "junior_time_estimate_min"),
)


class Description(BaseModel):
    """The content of task.yaml, with Terminal-Bench 1's defaults. Terminal-Bench 1 ignores other keys, too."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    instruction: str = Field(min_length=1)
    parser_name: Parser = "pytest"
    max_agent_timeout_sec: float = Field(default=360.0, gt=0)
    max_test_timeout_sec: float = Field(default=60.0, gt=0)
    run_tests_in_same_shell: bool = False
    metadata: dict[str, Any] = {}
    """Information without effect."""


def read_description(path: Path) -> Description:
    """Read the task.yaml at `path`. Raises OSError, and TaskInvalid, which names file and line or key."""
    raw = read_yaml(path)
    if not isinstance(raw, dict):
        raise TaskInvalid(f"{path}: must be a table of keys and values, such as `instruction: ...`")
    metadata = {key: raw[key] for key in _METADATA if raw.get(key) is not None}
    try:
        return Description.model_validate({**{str(key): value for key, value in raw.items()}, "metadata": metadata})
    except ValidationError as error:
        raise TaskInvalid(f"{path}: {first_problem(error)}") from None


# solution.yaml: commands that Terminal-Bench 1 types one after the other, converted to a script

TYPED_SOLUTION = "solution.yaml"
_KEY = re.compile(
    r"(?:[CMS]-)+\S|\^\S|Enter|Escape|B?Tab|B?Space|Up|Down|Left|Right|Home|End|Page(?:Up|Down)|[NP]Page|IC|DC|F\d+"
)
"""Names that tmux interprets as keys instead of text."""
_INTERACTIVE_PROGRAMS = {
    *("vi", "vim", "nvim", "nano", "emacs", "less", "more", "man", "top", "htop", "tmux", "screen", "ssh", "telnet"),
    *("ftp", "sftp", "su", "passwd"),
}
_SHELLS = {
    "python",
    "python3",
    "ipython",
    "node",
    "irb",
    "bash",
    "sh",
    "gdb",
    "psql",
    "mysql",
    "sqlite3",
    "bc",
}
"""Programs that read further commands from the terminal if they have no argument."""


class TypedCommand(BaseModel):
    """A typed line."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    command: str
    min_timeout_sec: float = Field(default=0.0, ge=0, le=3600)
    block: bool = False
    append_enter: bool = True


_COMMANDS = TypeAdapter(list[TypedCommand])


def solution_script(path: Path) -> str:
    """Convert a solution.yaml to a script. Raises OSError, and TaskInvalid if a command needs a keyboard."""
    try:
        commands = _COMMANDS.validate_python(read_yaml(path))
    except ValidationError as error:
        raise TaskInvalid(f"{path}: {first_problem(error)}; must be a list of commands") from None
    lines = []
    for number, each in enumerate(commands):
        if (why := _needs_keyboard(each)) is not None:
            raise TaskInvalid(f"{path}: {number}.command: {why}, so there can be no script; write a solution.sh")
        lines.append(each.command)
        if each.command.rstrip().endswith("&") and each.min_timeout_sec:
            lines.append(f"sleep {each.min_timeout_sec:g}")
    return "\n".join(["#!/bin/bash", *lines, ""])


def _needs_keyboard(typed: TypedCommand) -> str | None:
    command = typed.command.strip()
    if not typed.append_enter:
        return f"{command[:60]!r} is typed without Enter"
    if _KEY.fullmatch(command):
        return f"{command} is a key"
    try:
        words = shlex.split(command, comments=True)
    except ValueError:
        return None  # a command of several lines
    name = words[0].rpartition("/")[2] if words else ""
    if name in _INTERACTIVE_PROGRAMS or (name in _SHELLS and len(words) == 1):
        return f"{name} is an interactive program"
    return None
