"""Paths of the pages of a site, made safe for any run or task name, and links between pages."""

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
"""Number of characters kept of a name that cannot be a file name itself."""


def slug(name: str) -> str:
    """Return a file name for any name: the name itself if it is plain, else its readable part and a digest.

    `index` does not count as plain, because many folders have a page of that name.
    """
    if _PLAIN.fullmatch(name) and not name.endswith(".") and name.lower() != "index":
        return name
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()[:10]
    return "-".join(filter(None, (_OTHER.sub("-", name)[:_KEPT].strip("-."), digest)))


def run_page(run: str) -> str:
    """Return the path of a run's page, given the run's slug."""
    return f"runs/{run}/index.html"


def trial_page(run: str, task: str, seed: int, attempt: int = 1) -> str:
    """Return the path of the page of one attempt at a trial, given the run's slug and the task's name."""
    return f"{_trial(run, task, seed, attempt)}.html"


def trial_data(run: str, task: str, seed: int, attempt: int = 1) -> str:
    """Return the path of the script with the steps and the recording of one attempt at a trial."""
    return f"{_trial(run, task, seed, attempt)}.js"


def _trial(run: str, task: str, seed: int, attempt: int) -> str:
    again = f".{attempt}" if attempt > 1 else ""
    return f"runs/{run}/{slug(task)}--{seed}{again}"


def task_page(task: str) -> str:
    """Return the path of a task's page, which covers all runs."""
    return f"tasks/{slug(task)}.html"


def task_data(task: str) -> str:
    """Return the path of the script that lists all trials of a task."""
    return f"tasks/{slug(task)}.js"


def night_page(night: str) -> str:
    """Return the path of a night's page, given its name."""
    return f"nights/{slug(night)}.html"


def series_page(series: str) -> str:
    """Return the path of a series' page, given its slug."""
    return f"series/{series}.html"


def compare_page(old: str, new: str) -> str:
    """Return the path of the page that compares two runs, given their slugs."""
    return f"compare/{old}--{new}.html"


def compare_data(run: str) -> str:
    """Return the path of the script with a run's rewards, from which the browser compares any two runs."""
    return f"compare/{run}.js"


def relative_url(here: str, target: str) -> str:
    """Return the link from the page at `here` to `target`, both relative to the site; a fragment is kept."""
    path, mark, fragment = target.partition("#")
    folder, name = posixpath.split(path)
    return _relative_folder(posixpath.dirname(here), folder) + quote(name) + mark + quote(fragment)


@lru_cache(maxsize=4096)
def _relative_folder(here: str, folder: str) -> str:
    """Return the link from one folder to another, ending in a slash; empty within a folder."""
    path = quote(posixpath.relpath(f"/{folder}", f"/{here}"))  # absolute: relpath then needs no working directory
    return "" if path == "." else f"{path}/"
