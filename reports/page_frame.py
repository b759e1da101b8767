"""Parts shared by all pages: the frame, template filters, data scripts, symbols of trials.

Any text in a page may come from a model, a task or an endpoint. So the templates escape everything, and no page may
load anything from elsewhere or run a script that is not a file of the site.
"""

from __future__ import annotations

import base64
import gzip
import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from jinja2.runtime import Context
from markupsafe import Markup, escape

from reports.page_paths import compare_page, night_page, relative_url, run_page, task_page, trial_page
from tbench.history.rows import TrialRow
from tbench.results import UNKNOWN_TIME
from tbench.reward import canonical, mean_text, reward_text
from tbench.scores.summary import Cell, Status, percent, range_text
from tbench.text import counted, size_text

HERE = Path(__file__).parent
POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; style-src 'self'; img-src 'self' data:; "
    "font-src 'self' data:; base-uri 'none'; form-action 'none'"
)
"""Content security policy of a site's pages: scripts and styles of the site itself, and nothing else."""
_UNSEEN = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff\ufffe\uffff]"
)
_NEEDS_ESCAPES = re.compile("[&<>\"']").search
_PARTS = re.compile(r"[^-_/.:@]*[-_/.:@]+|[^-_/.:@]+")


@dataclass(frozen=True, slots=True)
class Crumb:
    """Part of a page's breadcrumb trail; `target` is a page of the site, None for the page itself."""

    label: str
    target: str | None = None


def page(template: str, here: str, *, crumbs: Sequence[Crumb] = (), policy: str = POLICY, **content: Any) -> str:
    """Render a page of the site as HTML. `here` is its path in the site, from which its links start."""
    found = _environment().get_template(template)
    return visible_text(
        found.render(link=lambda target: relative_url(here, target), crumbs=crumbs, policy=policy, **content)
    )


@cache
def macros(template: str) -> Any:
    """Return the macros of a template as attributes; an import in a template would look them up again for each page."""
    return _environment().get_template(template).module


def seconds(sec: float) -> str:
    """Return a duration for readers: `0.4 s`, `12.3 s`, `4 min 10 s`, `3 h 20 min`."""
    if sec < 120:
        return f"{sec:,.1f}\N{NO-BREAK SPACE}s" if sec < 99.95 else f"{sec:,.0f}\N{NO-BREAK SPACE}s"
    minutes, rest = divmod(round(sec), 60)
    if minutes < 120:
        return f"{minutes} min {rest} s".replace(" ", "\N{NO-BREAK SPACE}")
    return f"{minutes // 60} h {minutes % 60} min".replace(" ", "\N{NO-BREAK SPACE}")


def points(fraction: float) -> str:
    """Return a difference of two scores in percentage points, with + or −."""
    return f"{100 * fraction:+.1f}".replace("-", "\N{MINUS SIGN}")


def time_text(time: datetime | str | None) -> str:
    """Return a time as date, hour and minute in UTC; a dash if it is unknown."""
    if isinstance(time, datetime):
        time = "" if time == UNKNOWN_TIME else time.astimezone(UTC).isoformat()
    return time[:16].replace("T", " ") if time else "–"


@lru_cache(maxsize=4096)
def breakable(name: str) -> Markup:
    """Return a name with line breaks allowed between its parts; `(no name)` for a blank one, since a link needs
    text."""
    return Markup("<wbr>").join(_PARTS.findall(name if name.strip() else "(no name)"))


def html_text(value: object) -> str:
    """Return a value as HTML, like `markupsafe.escape` but four times as fast in the most frequent cases.

    The result may be a `str` instead of `Markup`, so it must not be escaped again.
    """
    if type(value) is str:
        return value if _NEEDS_ESCAPES(value) is None else escape(value)
    return value if type(value) is Markup else str(value) if type(value) is int else escape(value)


class _PageTemplates(FileSystemLoader):
    """Loads templates whose expressions are escaped by `html_text`."""

    def load(self, *args: Any, **kwargs: Any) -> Template:
        template = super().load(*args, **kwargs)
        template.root_render_func.__globals__["escape"] = html_text
        return template


class _DirectCalls(Context):
    """Calls functions directly: Jinja would check at each call whether a function wants the context, and none does."""

    def call(self, /, *args: Any, _loop_vars: object = None, _block_vars: object = None, **kwargs: Any) -> Any:
        function, *others = args
        return function(*others, **kwargs)


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=_PageTemplates(HERE / "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    environment.context_class = _DirectCalls
    environment.filters |= {
        "pct": lambda fraction: f"{percent(fraction)}\N{NO-BREAK SPACE}%",
        "mean": mean_text,
        "canonical": canonical,
        "range": lambda ends: range_text(*ends),
        "thousands": lambda number: f"{number:,}",
        "seconds": seconds,
        "points": points,
        "when": time_text,
        "breakable": breakable,
        "counted": counted,
        "size": size_text,
        "facts": lambda trial: ", ".join(trial_facts(trial)),
        "ending": lambda trial: " · ".join(trial_ending(trial)),
        "plain_text": lambda text: Markup(escape(text).replace("&#34;", '"')),  # safe outside of attributes
    }
    page_paths = (run_page, trial_page, task_page, night_page, compare_page)
    environment.globals |= {path.__name__: path for path in page_paths} | {
        "symbols": STATUS_SYMBOLS,
        "symbol_of": symbol_of,
        "written_at": lambda: datetime.now(UTC).strftime("%Y-%m-%d %H:%M UTC"),
    }
    return environment


def visible_text(text: str) -> str:
    """Replace characters that HTML forbids (control characters, surrogates) or that change the reading direction."""
    return _UNSEEN.sub("\N{REPLACEMENT CHARACTER}", text)


# Data as scripts: a script can be loaded from a file as well as from a server, which `fetch` cannot.

_ENDS_SCRIPTS = re.compile("[<>&\u2028\u2029]")
_COMPACT = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))


def data_script(name: str, value: Any) -> str:
    """Return a script that stores a value in `window.TB` under a name."""
    return f"window.TB = window.TB || {{}}; TB[{_json(name)}] = {_json(value)};\n"


def packed_script(name: str, lines: Iterable[str]) -> str:
    """Return a script that stores lines under a name: gzip in base64, for a browser to unpack."""
    packed = gzip.compress("\n".join(lines).encode("utf-8", "replace"), 6, mtime=0)
    return data_script(name, base64.b64encode(packed).decode("ascii"))


def plain_json(value: Any) -> str:
    """Return compact JSON on one line."""
    return _COMPACT.encode(value)


def _json(value: Any) -> str:
    """Return JSON without characters that could end a script element or a line of a script."""
    return _ENDS_SCRIPTS.sub(lambda found: f"\\u{ord(found[0]):04x}", plain_json(value))


# Trials as small cells side by side: a symbol for the status of each, and a link to its page.

STATUS_SYMBOLS: Mapping[str, str] = {"pass": "✓", "partial": "◐", "fail": "✗", "error": "!", "missing": "·"}
"""Symbol by status."""
MAX_CELLS = 24
"""Number of trials of one task in one run that are shown one by one; the page of the run has all of them."""


def symbol_of(status: str, reward: float | None) -> str:
    """Return the symbol of a trial: its reward if that is neither 0 nor 1, so that it is not rounded."""
    if reward is None or reward in (0.0, 1.0):
        return STATUS_SYMBOLS[status]
    text = reward_text(reward)
    return text.removeprefix("0") if text.startswith("0.") else text


def trial_facts(trial: TrialRow | Cell) -> Iterator[str]:
    """Yield short facts about the result of a trial."""
    if trial.status == Status.MISSING:
        yield "no result"
        return
    yield from trial_ending(trial)
    yield counted(trial.steps, "step")
    if trial.wall_sec is not None:
        yield seconds(trial.wall_sec)
    if trial.attempt > 1:
        yield f"attempt {trial.attempt}"


def trial_ending(trial: TrialRow | Cell) -> Iterator[str]:
    """Yield short facts about the verdict of a trial that has ended."""
    yield f"error, no verdict: {trial.error}" if trial.status == Status.ERROR else str(trial.status)
    if trial.reward not in (None, 1.0):
        yield f"reward {trial.reward:g}"
    if isinstance(trial, Cell) and trial.reward_all_steps not in (None, trial.reward):
        yield f"{trial.reward_all_steps:g} counting 0 for task steps that never started"
    if trial.outcome is not None:
        yield trial.outcome
    if isinstance(trial, Cell) and trial.human_touched:
        yield "a human typed in this trial"
