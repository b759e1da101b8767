"""What `scripted-demo` does in a task: which script a conversation follows, and at which step it is.

A script is a file `scripts/<task>.toml`: a pass rate, the steps of a pass and the steps of a failure.
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
"""The (role, text) pairs of a conversation."""
_KNOWN_SEEDS = 1000
"""Trials with lower seeds are known by the hashes that they send."""


class ScriptedKeystrokes(Frozen):
    """Keystrokes as tmux takes them, and how long to wait after them."""

    keystrokes: str
    duration: float = 1.0
    """Seconds."""


class ScriptStep(Frozen):
    """What one reply says and does."""

    analysis: str
    plan: str
    commands: tuple[ScriptedKeystrokes, ...] = ()


class Script(Frozen):
    """What is done in one task."""

    pass_rate: float = Field(ge=0, le=1)
    passing: tuple[ScriptStep, ...] = Field(default=(), alias="pass")
    failing: tuple[ScriptStep, ...] = Field(default=(), alias="fail")

    def steps(self, task: str, seed: int) -> tuple[ScriptStep, ...]:
        """The steps for this seed, always the same ones."""
        return self.passing if _draw(task, seed) < self.pass_rate else self.failing


LOOK_AROUND = Script.model_validate(
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
"""The script of a task that has none."""


class Scripts:
    """The scripts of the tasks whose instruction is known.

    `instructions` maps a task's name to its instruction, `pass_rates` some names to other rates than their scripts'.
    Raises ValueError for a broken script file.
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
        """The step that comes next in this conversation; None at the script's end."""
        opening = next((text for role, text in messages if role == "user"), "")
        task = next((name for name, text in self._instructions if text in opening), "")
        done = sum(role == "assistant" for role, _ in messages)
        steps = self._scripts.get(task, LOOK_AROUND).steps(task, _trial_seeds(task, done + 1).get(seed, seed))
        return steps[done] if done < len(steps) else None


def _load(path: Path) -> Script:
    if not path.is_file():
        return LOOK_AROUND
    try:
        return Script.model_validate(tomllib.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


@cache
def _trial_seeds(task: str, step: int) -> Mapping[int, int]:
    """The trial's seed by the one that its request has at a step: all steps of a trial follow one script."""
    return {hashed_seed(seed, task, step): seed for seed in range(_KNOWN_SEEDS)}


def _draw(task: str, seed: int) -> float:
    """A number in [0, 1) that depends on nothing but the task and the seed."""
    return int.from_bytes(hashlib.sha256(f"{task}:{seed}".encode()).digest()[:6], "big") / 2**48
