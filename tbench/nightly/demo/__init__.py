"""A demo of nightly benchmarks: nights of a scripted model, with a change in the seventh night."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Template

from tbench.errors import UsageError
from tbench.files import writable, write_atomically

DEMO_NIGHTS = 10
CHANGED_FROM = 7
"""Number of the first night with the change."""


@dataclass(frozen=True)
class Scenario:
    """A change between two nights of the demo."""

    words: str
    is_worse: bool = False
    """Whether the checkpoint solves three tasks less often."""
    options: tuple[tuple[str, ...], tuple[str, ...]] = ((), ())
    """Options of the model server before and after."""
    settings: tuple[str, str] = ("", "")
    """Lines of the configuration before and after."""
    at_change: str = ""
    """Settings of the sandbox that only the configuration of the first changed night has."""


_SHORT_TIME = "[run.overrides]\nagent_timeout_multiplier = 0.05\n\n"
SCENARIOS = {
    "model": Scenario("the model gets worse at three tasks", is_worse=True),
    "context": Scenario(
        "the model is served with half the context",
        options=(("--context-tokens", "2560"), ("--context-tokens", "1280")),
    ),
    "request-timeout": Scenario(
        "the request timeout becomes too short for long replies",
        options=(("--tokens-per-sec", "200"), ("--tokens-per-sec", "200")),
        settings=("", "[run.model]\nrequest_timeout_sec = 1\n\n"),
    ),
    "thinking": Scenario(
        "the server's template drops earlier thinking, and the model solves three tasks less often",
        is_worse=True,
        options=(("--thinking", "kept"), ("--thinking", "dropped")),
    ),
    "load": Scenario(
        "other processes keep the machine busy, and replies come so slowly that agents run out of time",
        options=((), ("--busy", "12", "--tokens-per-sec", "6")),
        settings=(_SHORT_TIME, _SHORT_TIME),
    ),
    "image": Scenario(
        "the images are built again, with the packages of that day, and three tasks are solved less often",
        is_worse=True,
        at_change="build = true\nno_build_cache = true\n",
    ),
    "nothing": Scenario("nothing happens"),
}
"""Changes by name."""
_FILES = Path(__file__).parent
_CHECKPOINTS = ("good", "worse")


def night_names(nights: int) -> Iterator[str]:
    """Yield `night-01`, `night-02` and so on."""
    return (f"night-{number:02}" for number in range(1, nights + 1))


def prepare(
    directory: Path,
    scenario: Scenario = SCENARIOS["model"],
    night: str = "night-01",
    engines: Sequence[str] = (),
) -> Path:
    """Write the files for a night into a new or an existing demo directory; return its configuration file.

    `engines` are addresses as for `tbench run --engine`.

    Raises UsageError for a directory with other content or that cannot be written.
    """
    file = directory / "nightly.toml"
    with writable(directory):
        is_demo = (directory / "checkpoints" / _CHECKPOINTS[0]).exists()
        if directory.exists() and any(directory.iterdir()) and not is_demo:
            raise UsageError(f"{directory}: is not empty and not a demo; give a new directory")
        for name in _CHECKPOINTS:
            write_atomically(directory / "checkpoints" / name, (_FILES / name).read_bytes())
        write_atomically(file, _configuration(directory, scenario, night, engines).encode())
    return file


def set_checkpoint(directory: Path, night: str, scenario: Scenario = SCENARIOS["model"]) -> None:
    """Point `latest` at the checkpoint of a night, like a training that writes a new one. Raises UsageError."""
    latest = directory / "checkpoints" / "latest"
    replacement = latest.with_name(f".latest-{os.getpid()}")
    with writable(latest):
        replacement.unlink(missing_ok=True)
        replacement.symlink_to(_CHECKPOINTS[scenario.is_worse and _is_after(night)])
        replacement.replace(latest)


def _is_after(night: str) -> bool:
    return _number(night) >= CHANGED_FROM


def _number(night: str) -> int:
    return int(night.removeprefix("night-"))


def _configuration(directory: Path, scenario: Scenario, night: str, engines: Sequence[str]) -> str:
    is_after = _is_after(night)
    sandbox = f"engines = {json.dumps(list(engines))}\n" if engines else ""
    sandbox += scenario.at_change if _number(night) == CHANGED_FROM else ""
    template = Template((_FILES / "nightly.toml").read_text(encoding="utf-8"))
    return template.substitute(
        directory=json.dumps(str(directory / "nightly")),
        latest=json.dumps(str(directory / "checkpoints" / "latest")),
        python=json.dumps(sys.executable),
        options="".join(f", {json.dumps(option)}" for option in scenario.options[is_after]),
        settings=scenario.settings[is_after] + (f"[run.sandbox]\n{sandbox}\n" if sandbox else ""),
    )
