"""Explains the last run of a series for a night's message: one sentence, and the parts that it is about."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tbench.errors import TbenchError
from tbench.explaining.explain import explain
from tbench.explaining.explanation import Explanation
from tbench.explaining.good_runs import good_runs
from tbench.scores.gate.verdict import GateVerdict
from tbench.text import one_line

_MAX_BEFORE = 10
"""Good nights with which a night is compared."""


def explained_night(runs: Sequence[Path], names: Sequence[str], verdict: GateVerdict) -> dict[str, Any]:
    """Explain the last of a series' runs, oldest first, against the good ones before it; empty for the first night.

    `names` are the runs' names in the verdict. In an alarm, all nights since the drop count together. The result has
    the `sentence` with its `command`, and the `parts`. If a run cannot be explained, the sentence says so.
    """
    if len(runs) < 2:
        return {}
    first = list(names).index(verdict.since.name) if verdict.since is not None else len(runs) - 1
    start = max(0, first - _MAX_BEFORE)
    try:
        found = explain(*good_runs(runs[start:], first - start), listed=0)
    except TbenchError as error:
        return {"sentence": f"not explained: {one_line(str(error), 300)}", "command": "", "named": False, "parts": []}
    return {
        "sentence": found.sentence,
        "command": found.command,
        "named": bool(found.named),
        "parts": _parts(found),
    }


def with_server(found: dict[str, Any], command: str, base_url: str) -> dict[str, Any]:
    """Point an explanation's command at `base_url`, where `command` starts the night's server again after its end."""
    asks = re.search(r"--base-url \S+", found.get("command", ""))
    if asks is None:
        return found
    moved = {key: found[key].replace(asks[0], f"--base-url {base_url}") for key in ("sentence", "command")}
    again = "to start it again for this command (a change of the server goes here)"
    return {**found, **moved, "server": f"the night's server has ended; {again}: {command}"}


def _parts(found: Explanation) -> list[dict[str, Any]]:
    """Return the parts without tasks and commands."""
    wanted = {"cause", "title", "party", "difference", "low", "high", "p", "named", "because", "together_with"}
    parts = found.difference.parts if found.difference is not None else ()
    return [part.model_dump(mode="json", include=wanted) for part in parts]


def news_lines(gate: dict[str, Any]) -> list[str]:
    """Return the lines of a gate's record for people: in an alarm, or if a cause is named, with the explanation.

    The first line says what happened, the second why, and which command to use next. Records of earlier nights have no
    explanation.
    """
    explained = gate.get("explained") or {}
    is_news = gate.get("state") == "alarm" or explained.get("named")
    said = [explained[key] for key in ("sentence", "server") if explained.get(key)] if is_news else []
    return [*gate["lines"][:1], *said, *gate["lines"][1:]]
