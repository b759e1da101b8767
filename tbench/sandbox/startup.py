"""What an image starts with its container, by its configuration: an entry point, and a check that it works."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from tbench.tasks.format import Healthcheck

STAYS = ("sh", "-c", "sleep infinity")
"""The arguments of every entry point, in place of the image's own CMD; as Harbor's."""
_INITS = {"tini", "dumb-init", "catatonit"}
_NANO = 1e9
_CHECK_EVERY_SEC = 1.0
"""Time between checks before an engine would make its first one."""


@dataclass(frozen=True)
class Startup:
    """What runs in a container of an image without being asked for."""

    entrypoint: tuple[str, ...] = ()
    """The image's ENTRYPOINT with the arguments that it gets; empty where there is nothing to start."""
    healthcheck: Healthcheck | None = None
    """The image's HEALTHCHECK."""
    own_entrypoint: tuple[str, ...] = ()
    """The ENTRYPOINT alone, also where it starts nothing."""

    @classmethod
    def of(cls, config: Mapping[str, Any]) -> Startup:
        """Read the configuration of an image, as engines tell it."""
        entrypoint = tuple(config.get("Entrypoint") or ())
        if is_only_init(entrypoint):
            return cls((), _healthcheck(config), entrypoint)
        return cls((*entrypoint, *STAYS), _healthcheck(config), entrypoint)


NOTHING = Startup()


def is_only_init(entrypoint: tuple[str, ...]) -> bool:
    """Whether an entry point starts nothing but an init for orphans, which every container has here anyhow."""
    if not entrypoint:
        return True
    return PurePosixPath(entrypoint[0]).name in _INITS and all(re.match("-", word) for word in entrypoint[1:])


def _healthcheck(config: Mapping[str, Any]) -> Healthcheck | None:
    """The image's HEALTHCHECK, asked sooner than an engine would: its first check comes after a whole interval."""
    told = config.get("Healthcheck") or {}
    kind, *words = told.get("Test") or ["NONE"]
    if kind not in ("CMD", "CMD-SHELL") or not words:
        return None
    interval_sec = _seconds(told, "Interval", 30.0)
    return Healthcheck(
        command=shlex.join(words) if kind == "CMD" else words[0],
        interval_sec=interval_sec,
        timeout_sec=_seconds(told, "Timeout", 30.0),
        start_period_sec=max(_seconds(told, "StartPeriod", 0.0), interval_sec),
        start_interval_sec=_CHECK_EVERY_SEC,
        retries=told.get("Retries") or 3,
    )


def _seconds(told: Mapping[str, Any], name: str, default: float) -> float:
    return told[name] / _NANO if told.get(name) else default
