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
SEARCH, SEARCHED_RUNS = "search/index.html", "search/runs.js"
NIGHTS = "nights/index.html"
SERIES = "series/index.html"
_PLAIN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,59}")
_OTHER = re.compile(r"[^A-Za-z0-9_.-]+")
_KEPT = 40
"""Number of characters kept of a name that cannot be a file name itself."""


@lru_cache(maxsize=4096)
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
    """Return the address of one attempt at a trial: the page that shows the trials of a run, and the trial's name."""
    return f"{trial_viewer(run)}?{trial_name(task, seed, attempt)}"


def trial_name(task: str, seed: int, attempt: int = 1) -> str:
    """Return the name of one attempt at a trial, unique within its run and safe in any address."""
    return f"{slug(task)}--{seed}" + (f".{attempt}" if attempt > 1 else "")


def trial_viewer(run: str) -> str:
    """Return the path of the page that shows any trial of a run, given the run's slug."""
    return f"runs/{run}/trial.html"


def trial_data(run: str, chunk: int | None = None) -> str:
    """Return the path of the script that lists a run's trials by chunk, or of the script with one chunk of trials."""
    return f"runs/{run}/trials.js" if chunk is None else f"runs/{run}/trials-{chunk}.js"


def search_data(run: str) -> str:
    """Return the path of the script with the texts of a run's trials that can be searched."""
    return f"runs/{run}/search.js"


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
    """Return the link from the page at `here` to `target`, both relative to the site; query and fragment are kept."""
    path, mark, fragment = target.partition("#")
    path, asks, query = path.partition("?")
    folder, _, name = path.rpartition("/")
    way = _relative_folder(here.rpartition("/")[0], folder)
    return f"{way}{_quoted(name)}{asks}{query}{mark}{_quoted(fragment)}"


_quoted = lru_cache(maxsize=4096)(quote)


@lru_cache(maxsize=4096)
def _relative_folder(here: str, folder: str) -> str:
    """Return the link from one folder to another, ending in a slash; empty within a folder."""
    path = quote(posixpath.relpath(f"/{folder}", f"/{here}"))  # absolute: relpath then needs no working directory
    return "" if path == "." else f"{path}/"
