"""solution.yaml: commands that Terminal-Bench 1 types one after the other, as a script that runs them."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from tbench.errors import TaskInvalid
from tbench.tasks.format import first_problem
from tbench.tasks.terminal_bench_1.yaml_file import read_yaml

NAME = "solution.yaml"
_KEY = re.compile(
    r"(?:[CMS]-)+\S|\^\S|Enter|Escape|B?Tab|B?Space|Up|Down|Left|Right|Home|End|Page(?:Up|Down)|[NP]Page|IC|DC|F\d+"
)
"""What tmux takes for a key instead of text."""
_AT_THE_KEYBOARD = {
    *("vi", "vim", "nvim", "nano", "emacs", "less", "more", "man", "top", "htop", "tmux", "screen", "ssh", "telnet"),
    *("ftp", "sftp", "su", "passwd"),
}
_ALONE = {"python", "python3", "ipython", "node", "irb", "bash", "sh", "gdb", "psql", "mysql", "sqlite3", "bc"}
"""Programs that read the next commands themselves where they have no argument."""


class TypedCommand(BaseModel):
    """A line that is typed."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)

    command: str
    min_timeout_sec: float = Field(default=0.0, ge=0, le=3600)
    block: bool = False
    append_enter: bool = True


_COMMANDS = TypeAdapter(list[TypedCommand])


def script_of(path: Path) -> str:
    """A script with the commands of a solution.yaml. Raises OSError, and TaskInvalid where one needs the keyboard."""
    try:
        commands = _COMMANDS.validate_python(read_yaml(path))
    except ValidationError as error:
        raise TaskInvalid(f"{path}: {first_problem(error)}; it is a list of commands") from None
    lines = []
    for number, each in enumerate(commands):
        if (why := _needs_keyboard(each)) is not None:
            raise TaskInvalid(f"{path}: {number}.command: {why}, which a script cannot do; write a solution.sh")
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
    if name in _AT_THE_KEYBOARD or (name in _ALONE and len(words) == 1):
        return f"{name} is worked with at the keyboard"
    return None
