"""Where each page of a site lies: file names made of names that may be anything, and links from page to page."""

from __future__ import annotations

import hashlib
import posixpath
import re
from functools import lru_cache
from urllib.parse import quote

OVERVIEW = "index.html"
FEED = "feed.xml"
TASKS = "tasks/index.html"
COMPARE = "compare/index.html"
NIGHTS = "nights/index.html"
SERIES = "series/index.html"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")
_OTHER = re.compile(r"[^A-Za-z0-9_.-]+")
_KEPT = 40
"""Characters that are kept of a name that is no file name itself."""


def slug(name: str) -> str:
    """A file name for a name: the name itself where it is plain, else what can be read of it and a digest of all.

    `index` is no plain name: many folders have a page of theirs that is called so.
    """
    if _PLAIN.fullmatch(name) and not name.endswith(".") and name.lower() != "index":
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return "-".join(filter(None, (_OTHER.sub("-", name)[:_KEPT].strip("-."), digest)))


def run_page(run: str) -> str:
    """The page of a run, by the run's slug."""
    return f"runs/{run}/index.html"


def trial_page(run: str, task: str, seed: int, attempt: int = 1) -> str:
    """The page of an attempt at a trial, by the run's slug and the task's name."""
    return f"{_trial(run, task, seed, attempt)}.html"


def trial_data(run: str, task: str, seed: int, attempt: int = 1) -> str:
    """The script with the steps and the recording of an attempt at a trial."""
    return f"{_trial(run, task, seed, attempt)}.js"


def _trial(run: str, task: str, seed: int, attempt: int) -> str:
    again = f".{attempt}" if attempt > 1 else ""
    return f"runs/{run}/{slug(task)}--{seed}{again}"


def task_page(task: str) -> str:
    """The page of a task over all runs."""
    return f"tasks/{slug(task)}.html"


def task_data(task: str) -> str:
    """The script with the list of all trials of a task."""
    return f"tasks/{slug(task)}.js"


def night_page(night: str) -> str:
    """The page of a night, by its name."""
    return f"nights/{slug(night)}.html"


def series_page(series: str) -> str:
    """The page of a series, by its slug."""
    return f"series/{series}.html"


def compare_page(old: str, new: str) -> str:
    """The page that compares two runs, by their slugs."""
    return f"compare/{old}--{new}.html"


def compare_data(run: str) -> str:
    """The script with the rewards of a run, which the page of choices compares in the browser."""
    return f"compare/{run}.js"


def relative_url(here: str, target: str) -> str:
    """The link from the page at `here` to `target`, both relative to the site; a fragment stays."""
    path, mark, fragment = target.partition("#")
    folder, name = posixpath.split(path)
    return _way(posixpath.dirname(here), folder) + quote(name) + mark + quote(fragment)


@lru_cache(maxsize=4096)
def _way(here: str, folder: str) -> str:
    """The link from one folder to another, with a slash at its end; empty within a folder."""
    way = quote(posixpath.relpath(f"/{folder}", f"/{here}"))  # from the root: it need not ask where we are
    return "" if way == "." else f"{way}/"
