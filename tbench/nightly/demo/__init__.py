"""A demo of nightly benchmarks: nights of a scripted model, whose checkpoint gets worse in the seventh."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from string import Template

from tbench.errors import UsageError
from tbench.files import write_atomically

DEMO_NIGHTS = 10
WORSE_FROM = 7
"""Number of the first night with the worse checkpoint."""
_FILES = Path(__file__).parent
_CHECKPOINTS = ("good", "worse")


def night_names(nights: int) -> Iterator[str]:
    """Yield `night-01`, `night-02` and so on."""
    return (f"night-{number:02}" for number in range(1, nights + 1))


def prepare(directory: Path) -> Path:
    """Write the demo's files into a new or an existing demo directory; return its configuration file.

    Raises UsageError for a directory with other content or that cannot be written.
    """
    file = directory / "nightly.toml"
    try:
        if directory.exists() and any(directory.iterdir()) and not _is_demo(directory):
            raise UsageError(f"{directory}: is not empty and not a demo; give a new directory")
        for name in _CHECKPOINTS:
            write_atomically(directory / "checkpoints" / name, (_FILES / name).read_bytes())
        write_atomically(file, _configuration(directory).encode())
    except OSError as error:
        raise UsageError(f"{directory}: cannot be written: {error.strerror or error}") from None
    return file


def set_checkpoint(directory: Path, night: str) -> None:
    """Point `latest` at the checkpoint of a night, like a training that writes a new one. Raises UsageError."""
    number = int(night.removeprefix("night-"))
    latest = directory / "checkpoints" / "latest"
    replacement = latest.with_name(f".latest-{os.getpid()}")
    try:
        with contextlib.suppress(FileNotFoundError):
            replacement.unlink()
        replacement.symlink_to(_CHECKPOINTS[number >= WORSE_FROM])
        replacement.replace(latest)
    except OSError as error:
        raise UsageError(f"{latest}: cannot be written: {error.strerror or error}") from None


def _is_demo(directory: Path) -> bool:
    return (directory / "checkpoints" / _CHECKPOINTS[0]).exists()


def _configuration(directory: Path) -> str:
    template = Template((_FILES / "nightly.toml").read_text(encoding="utf-8"))
    return template.substitute(
        directory=json.dumps(str(directory / "nightly")),
        latest=json.dumps(str(directory / "checkpoints" / "latest")),
        python=json.dumps(sys.executable),
    )
