"""Scripts of `scripted-demo`: finds the script of a conversation, and its next step.

A script is a file `scripts/<task>.toml` with a pass rate, the steps of a pass and the steps of a failure.
"""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType

from pydantic import Field

from harness.model import hashed_seed
from harness.trajectory import Frozen

SCRIPTS = Path(__file__).with_name("scripts")
ChatTurns = Sequence[tuple[str, str]]
"""(role, text) pairs of a conversation."""
_KNOWN_SEEDS = 1000
"""Bound of the trial seeds that are recognised from their requests' hashed seeds."""


class ScriptedKeystrokes(Frozen):
    """Keystrokes in tmux's notation, and the wait after them."""

    keystrokes: str
    duration: float = 1.0
    """Seconds."""


class ScriptStep(Frozen):
    """Text and commands of one reply."""

    analysis: str
    plan: str
    commands: tuple[ScriptedKeystrokes, ...] = ()


class Script(Frozen):
    """The script of one task."""

    pass_rate: float = Field(ge=0, le=1)
    passing: tuple[ScriptStep, ...] = Field(default=(), alias="pass")
    failing: tuple[ScriptStep, ...] = Field(default=(), alias="fail")

    def steps(self, task: str, seed: int) -> tuple[ScriptStep, ...]:
        """Return the steps for this seed, which are always the same."""
        return self.passing if _draw(task, seed) < self.pass_rate else self.failing


FALLBACK_SCRIPT = Script.model_validate(
    {
        "pass_rate": 0,
        "fail": [
            {
                "analysis": "I am a script without a model, and this task is not one that I know.",
                "plan": "I look around once and then give up.",
                "commands": [{"keystrokes": "ls -la\n", "duration": 0.5}],
            }
        ],
    }
)
"""Script for all other tasks."""


class Scripts:
    """The scripts of tasks with known instructions.

    `instructions` maps a task's name to its instruction, `pass_rates` some names to rates that override their scripts'.
    Raises ValueError for an invalid script file.
    """

    def __init__(
        self,
        instructions: Mapping[str, str],
        folder: Path = SCRIPTS,
        pass_rates: Mapping[str, float] = MappingProxyType({}),
    ) -> None:
        # Longest first: one instruction may contain another.
        by_length = sorted(instructions.items(), key=lambda item: -len(item[1]))
        self._instructions = [(name, text.strip()) for name, text in by_length if text.strip()]
        scripts = {name: _load(folder / f"{name}.toml") for name, _ in self._instructions}
        self._scripts = {
            name: script.model_copy(update={"pass_rate": pass_rates.get(name, script.pass_rate)})
            for name, script in scripts.items()
        }

    def step(self, messages: ChatTurns, seed: int) -> ScriptStep | None:
        """Return the next step of this conversation; None at the script's end."""
        opening = next((text for role, text in messages if role == "user"), "")
        task = next((name for name, text in self._instructions if text in opening), "")
        done = sum(role == "assistant" for role, _ in messages)
        steps = self._scripts.get(task, FALLBACK_SCRIPT).steps(task, _trial_seeds(task, done + 1).get(seed, seed))
        return steps[done] if done < len(steps) else None


def _load(path: Path) -> Script:
    if not path.is_file():
        return FALLBACK_SCRIPT
    try:
        return Script.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@cache
def _trial_seeds(task: str, step: int) -> Mapping[int, int]:
    """Map the request seeds of a step to the trials' seeds, so that all steps of a trial follow one script."""
    return {hashed_seed(seed, task, step): seed for seed in range(_KNOWN_SEEDS)}


def _draw(task: str, seed: int) -> float:
    """Return a number in [0, 1) that depends only on the task and the seed."""
    return int.from_bytes(hashlib.sha256(f"{task}:{seed}".encode()).digest()[:6], "big") / 2**48
