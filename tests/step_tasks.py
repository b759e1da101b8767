"""Tasks of several steps for tests, written on the spot."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from conftest import MakeTask

WHOLE = "[environment]\nmemory_mb = 256\nallow_internet = false\n"
THERE = "if [ -e /app/{0} ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n"


def steps_toml(*names: str, **of_step: str) -> str:
    """The tables of these steps, each with the lines that are given for its name."""
    return "".join(f'[[steps]]\nname = "{name}"\n{of_step.get(name, "")}\n' for name in names)


def step_task(
    make_task: MakeTask,
    *names: str,
    name: str = "small-task",
    top: str = "",
    files: Mapping[str, str | None] | None = None,
    dockerfile: str | None = "FROM debian:bookworm-slim\nWORKDIR /app\n",
    **of_step: str,
) -> Path:
    """A task whose steps each want a file of the step's name; `files` come on top, and None takes one away."""
    toml = f"{top}\n{WHOLE}{steps_toml(*names, **of_step)}"
    path: Path = make_task(name, toml=toml, instruction=None, solve=None, test=None, dockerfile=dockerfile)
    parts: dict[str, str | None] = {}
    for each in names:
        parts[f"steps/{each}/instruction.md"] = f"Make /app/{each}.\n"
        parts[f"steps/{each}/tests/test.sh"] = THERE.format(each)
        parts[f"steps/{each}/solution/solve.sh"] = f"touch /app/{each}\n"
    for part, text in (parts | dict(files or {})).items():
        if text is not None:
            (path / part).parent.mkdir(parents=True, exist_ok=True)
            (path / part).write_text(text)
    return path
