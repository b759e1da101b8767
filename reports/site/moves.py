"""What moved between two runs besides the model's luck: versions, settings, the endpoint, images, tasks."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from reports.site.content import Site, SiteRun
from tbench.history.remarks import task_changes
from tbench.storage.comparable import TASK_PREFIX, score_keys
from tbench.storage.differences import each_difference
from tbench.storage.read_run import RunUnreadable, read_run_document
from tbench.storage.run_files import CONFIG_NAME
from tbench.text import counted, names_shown

_LOOPBACK = re.compile(r"localhost|127(\.\d+){3}|::1")
_NOT_ABOUT_TRIALS = frozenset(("tasks", "output"))
"""Sections that say which trials there are and where they go; nights differ in their seeds."""


@dataclass(frozen=True, slots=True)
class MovedSetting:
    """A value that is another one than it was."""

    name: str
    words: str
    """What it was and what it is, with an arrow between them; of tasks and images, which."""


@dataclass(frozen=True, slots=True)
class _KnownSettings:
    values: Mapping[str, Any]
    images: Mapping[str, str]
    """Id of the image by task."""


def moves(site: Site, old: SiteRun, new: SiteRun) -> tuple[MovedSetting, ...]:
    """Everything known to differ from one run to a later one; none where a run does not say."""
    before, now = _settings_of(site, old), _settings_of(site, new)
    if before is None or now is None:
        return ()
    differing = each_difference(before.values, now.values)
    found = [MovedSetting(key, words.removeprefix(f"{key}: ")) for key, words in differing]
    tasks = task_changes(site.history.tasks(old.row.path), site.history.tasks(new.row.path))
    found += [MovedSetting("tasks", words) for words in tasks]
    if others := [task for task, image in now.images.items() if before.images.get(task, image) != image]:
        words = f"{counted(len(others), 'task')} ran on another image: {names_shown(others)}"
        found.append(MovedSetting("images", words))
    return tuple(found)


def _settings_of(site: Site, run: SiteRun) -> _KnownSettings | None:
    """What a run was done with; None where that cannot be read. Only run.json is, but for results of others."""
    try:
        return _of_import(site, run) if run.row.imported else _of_own(run)
    except RunUnreadable:
        return None


def _of_own(run: SiteRun) -> _KnownSettings:
    document = read_run_document(run.row.path / CONFIG_NAME)
    locked, config = document.locked, document.config.model_dump(mode="json")
    settings = {section: values for section, values in config.items() if section not in _NOT_ABOUT_TRIALS}
    settings["model"] = {key: value for key, value in settings["model"].items() if key not in ("base_url", "name")}
    values = {
        "tbench": document.tbench_version,
        "python": document.python_version,
        "engine": document.engine,
        "model": {"id": locked.model, **settings.pop("model")},
        "endpoint": _endpoint(locked.base_url),
        "served": locked.served and locked.served.model_dump(mode="json"),
        "agent": {
            **settings.pop("agent"),
            "name": locked.agent,
            "sha256": locked.agent_sha256,
            "prompt": locked.prompt_hash,
            "shell_state": locked.shell_state,
        },
        "dataset": document.dataset and {"name": document.dataset.title, "digest": document.dataset.digest},
        **settings,
    }
    return _KnownSettings(values, {task.name: task.image_id for task in document.tasks if task.image_id})


def _of_import(site: Site, run: SiteRun) -> _KnownSettings:
    known = score_keys(site.stored(run))
    return _KnownSettings({key: value for key, value in known.items() if not key.startswith(TASK_PREFIX)}, {})


def _endpoint(url: str | None) -> str | None:
    """An endpoint without its port where it is on this machine: a server of each night's own takes any that is free."""
    try:
        parts = urlsplit(url or "")
        host, port = parts.hostname or "", parts.port
    except ValueError:
        return url
    shown = host if port is None or _LOOPBACK.fullmatch(host) else f"{host}:{port}"
    return f"{parts.scheme}://{shown}{parts.path}" if host else url
