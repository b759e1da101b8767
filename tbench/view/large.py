"""One trial in large: what its terminal has printed since some place, and its last steps."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from harness.trajectory import Step
from tbench.storage.run_files import STEPS_NAME
from tbench.view.casts import cast_head, cast_piece
from tbench.view.trials import RunningTrial

STEPS_SHOWN = 4
_FIRST_BYTES = 1 << 19
"""Most of a recording that is sent at once: what a terminal showed before that is left out."""
_STEPS_BYTES = 1 << 16
_MOST_TEXT = 400


def large_view(trial: RunningTrial, recording: str, begin: int) -> dict[str, Any]:
    """What is new of a trial after the byte `begin` of the recording of this name.

    Another recording, as that of the next step of a task, begins anew: `anew` says that the screen is empty before it.
    """
    told: dict[str, Any] = {"text": "", "end": 0, "recording": "", "anew": True, "steps": []}
    with contextlib.suppress(OSError, ValueError):  # ValueError: a name that no file can have
        cast = trial.cast
        if cast is None or (head := cast_head(cast)) is None:
            return told
        status = cast.stat()
        name = f"{trial.part_name or ''}.{status.st_ino}"
        begin = begin if name == recording and begin <= status.st_size else 0
        piece = cast_piece(cast, begin, status.st_size, _FIRST_BYTES)
        told |= {"columns": head.columns, "rows": head.rows, "text": piece.text, "end": piece.end, "recording": name}
        told["anew"] = begin == 0 or piece.skipped
        told["steps"] = _last_steps(cast.with_name(STEPS_NAME))
    return told


def _last_steps(file: Path) -> list[Mapping[str, Any]]:
    """The last steps that are written, the newest first."""
    with contextlib.suppress(OSError), file.open("rb") as opened:
        size = opened.seek(0, 2)
        opened.seek(max(0, size - _STEPS_BYTES))
        whole = opened.read(_STEPS_BYTES).rpartition(b"\n")[0]
        lines = whole.split(b"\n")[1 if size > _STEPS_BYTES else 0 :]
        return [step for line in reversed(lines[-STEPS_SHOWN:]) if (step := _step(line)) is not None]
    return []


def _step(line: bytes) -> Mapping[str, Any] | None:
    try:
        step = Step.model_validate(json.loads(line))
    except (ValueError, RecursionError, ValidationError):
        return None
    return {
        "index": step.index,
        "typed": _cut(" ⏎ ".join(part for action in step.actions for part in action.splitlines())),
        "problem": step.format_error or "",
        "warnings": len(step.warnings),
        "model": round(step.model_sec, 1),
        "command": round(step.command_sec, 1),
        "code": step.exit_code,
    }


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}…"
