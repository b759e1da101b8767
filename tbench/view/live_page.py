"""The pages that only a server has: the live one, and what is said where there is no page."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reports.look import POLICY, Crumb, page
from tbench.view.run_state import MARKS, PHASES
from tbench.view.screen import Line

LIVE_POLICY = f"{POLICY}; connect-src 'self'"
LIVE = "live.html"
_BLANK: Mapping[str, Any] = {
    **dict.fromkeys(("name", "model", "dataset", "endpoint", "page", "path"), ""),
    **dict.fromkeys(("planned", "ended", "scored", "to_come", "unread"), 0),
    **dict.fromkeys(("score", "eta", "begun"), None),
    "state": "running",
    "away": False,
    "marks": dict.fromkeys(MARKS, 0),
    "phases": dict.fromkeys(PHASES, 0),
    "verdicts": (),
    "notes": (),
}
"""A run of which nothing is known: the script fills copies of it."""
_STATES = ("running", "ended", "killed")
"""In the order in which runs are shown."""


def live_page(posted: Mapping[str, Mapping[str, Any]], clock: float, notes: tuple[str, ...]) -> str:
    """The live page as it is now; its script goes on from there."""
    runs = [(key.partition(" ")[2], value) for key, value in posted.items() if key.startswith("run ")]
    trials = [(key.partition(" ")[2], value) for key, value in posted.items() if key.startswith("trial ")]
    return page(
        "live.html.j2",
        LIVE,
        policy=LIVE_POLICY,
        crumbs=[Crumb("live")],
        runs=sorted(runs, key=lambda each: _STATES.index(each[1]["state"])),
        trials=sorted(trials, key=lambda each: each[1]["order"]),
        notes=(*posted.get("notes", {}).get("texts", ()), *notes),
        clock=clock,
        marks=MARKS,
        phases=PHASES,
        blank=_BLANK,
        screen_text=screen_text,
    )


def screen_text(lines: list[Line]) -> str:
    """The lines of a screen as text alone."""
    return "\n".join(line if isinstance(line, str) else "".join(line[::2]) for line in lines)


def message_page(heading: str, words: str, here: str, *, again_sec: int | None = None) -> str:
    """A page that says why there is none; `again_sec` has the browser ask again."""
    depth = here.count("/")
    place = "/".join(["x"] * depth + ["message.html"])
    return page(
        "live_message.html.j2", place, crumbs=[Crumb(heading)], heading=heading, words=words, again_sec=again_sec
    )
