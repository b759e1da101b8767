"""The commands that run a stored trial again, and that ask what became of it."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tbench.config.document import RunDocument
from tbench.config.setting import settings_of
from tbench.config.settings import RunConfig
from tbench.results import TrialResult

_SETTINGS = [setting for setting in settings_of(RunConfig) if setting.is_measured]
_SAID_BY_FLAGS = {"agent.name"}
_GLOB = re.compile(r"[*?[]")


def command_of(document: RunDocument, task: str, seed: int) -> str:
    """A `tbench run` of one task and one seed with every setting that may move its score, as a shell reads it.

    The endpoint is the run's; a key is named by no command line. Paths are as they were given.
    """
    options = [" ".join(map(shlex.quote, words)) for words in _options(document, task, seed)]
    return " \\\n  ".join(("tbench run", *options))


def commands_about(run: Path, result: TrialResult) -> list[tuple[str, str]]:
    """Commands that look into a trial, as a shell reads them, each with what it does."""
    attempt = f"/attempt-{result.attempt}" if result.attempt > 1 else ""
    name = shlex.quote(f"{run}/{result.task}/{result.seed}{attempt}")
    found = [(f"tbench why {name}", "what became of it, on one screen")]
    if result.steps:
        last = result.steps
        found += [
            (f"tbench show {name} --step {last}", "a step with all of its texts, and the screen behind it"),
            (f"tbench play {name}", "its terminal, played in yours"),
            (f"tbench fork {name} --at-step {last} --k 5", "the same up to a step, and otherwise from there"),
        ]
        if result.reward is not None and not result.passed and not result.human_touched:
            found.append((f"tbench blame {name}", "the step at which it was lost"))
    return found


def _options(document: RunDocument, task: str, seed: int) -> Iterator[tuple[str, ...]]:
    config, locked = document.config, document.locked
    yield "-d", config.tasks.source
    if config.tasks.registry is not None:
        yield "--registry", config.tasks.registry
    yield "-t", _GLOB.sub(r"[\g<0>]", task)
    yield "--seeds", "1"
    yield "--first-seed", str(seed)
    if config.agent.name != "model":
        yield "-a", config.agent.name
    for url in locked.endpoints or ((locked.base_url,) if locked.base_url is not None else ()):
        yield "--base-url", url
    if locked.model is not None:
        yield "-m", locked.model
    for setting in _SETTINGS:
        if setting.value_in(config) != setting.default and setting.path not in _SAID_BY_FLAGS:
            yield "-c", f"{setting.path}={_as_text(setting.said_in(config))}"


def _as_text(value: Any) -> str:
    """A value as `-c` and the environment have it."""
    if value is None:
        return "none"
    if isinstance(value, list):
        return ",".join(map(str, value)) or "none"
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
