"""Which settings make two stored runs comparable, and how differences between settings are described.

A setting counts where its `Option` says that another value measures something else; when and where a run went, how
many tasks and seeds it took and what its model is called do not. Imported results have what they tell.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from tbench.config.document import RunDocument, RunPlan
from tbench.config.setting import Setting, settings_of
from tbench.config.settings import RunConfig
from tbench.results import UNKNOWN_AGENT
from tbench.storage.read_run import StoredRun
from tbench.text import counted, names_shown

# Describes what differs between the settings of two starts.

_SHOWN_CHARS = 80
_SHOWN = 12
_ABSENT = "nothing"


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, apart_from: Collection[str] = ()) -> str:
    """The values that differ, as `key: old → new` joined by `; `; empty where none does. Null is as good as absent.

    Keys of nested objects have dots; `apart_from` names keys that may differ.
    """
    found = [words for key, words in each_difference(old, new) if key not in apart_from]
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "; ".join(found[:_SHOWN] + more)


def each_difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """The key of each value that differs, and `key: old → new`, in the order of the keys."""
    for key in sorted(old.keys() | new.keys()):
        before, after = old.get(key), new.get(key)
        if isinstance(before, dict) and isinstance(after, dict):
            yield from each_difference(before, after, f"{prefix}{key}.")
        elif before != after:
            yield f"{prefix}{key}", f"{prefix}{key}: {_shown(old, key)} → {_shown(new, key)}"


def _shown(values: Mapping[str, Any], key: str) -> str:
    text = json.dumps(values[key], ensure_ascii=False) if key in values else _ABSENT
    return text if len(text) <= _SHOWN_CHARS else text[: _SHOWN_CHARS - 1] + "…"


TASK_PREFIX = "tasks."
"""What the keys of tasks begin with; the name follows."""
_LOCKED = {
    "agent.name": "agent",
    "agent.sha256": "agent_sha256",
    "agent.prompt": "prompt_hash",
    "agent.shell_state": "shell_state",
    "agent.approve": "approval",
}
"""Keys whose values are what a name or a path stood for when the run began."""
_OWN_LOOP = {"agent.protocol", "agent.observation_bytes", "agent.neutralise_special_tokens"}
"""Settings that only tbench's own agent has a use for."""
_SETTINGS = [each for each in settings_of(RunConfig) if each.is_measured and each.path not in _LOCKED]


def score_keys(run: StoredRun) -> dict[str, Any]:
    """Value by name of all that may move a run's score, such as `agent.protocol`, with `tasks.NAME` for task hashes.

    A setting without effect, as sampling without a model, is left out, and so is whatever is not known.
    """
    document = run.document
    if document is None:
        return _of_an_import(run)
    known = {"dataset": _dataset(document), "tbench": _series(document.tbench_version)}
    hashes = {f"{TASK_PREFIX}{name}": digest for name, digest in run.task_hashes.items()}
    return {key: value for key, value in known.items() if value} | measured_values(document) | hashes


def measured_values(plan: RunPlan, *, apart_from_defaults: bool = False) -> dict[str, Any]:
    """Value by name of every setting that decides what a run measures, apart from the model's name.

    A setting without effect, as sampling without a model, is left out; `apart_from_defaults` leaves out those at their
    defaults, too.
    """
    locked = {key: value for key, name in _LOCKED.items() if (value := getattr(plan.locked, name))}
    return locked | {
        setting.path: setting.said_in(plan.config)
        for setting in _SETTINGS
        if _has_effect(setting, plan) and not (apart_from_defaults and setting.value_in(plan.config) == setting.default)
    }


def _of_an_import(run: StoredRun) -> dict[str, Any]:
    """What imported results tell; settings of other programs have their own names."""
    agents = {result.agent for result in run.results} - {UNKNOWN_AGENT}
    known: dict[str, Any] = {"agent.name": agents.pop()} if len(agents) == 1 else {}
    if (plan := run.plan) is None:
        return known
    dataset = plan.dataset.title if plan.dataset is not None else None
    about = {"dataset": dataset, "agent.version": plan.agent_version}
    settings = {f"{plan.imported.format}.{name}": value for name, value in plan.settings.items()}
    hashes = {f"{TASK_PREFIX}{name}": digest for name, digest in run.task_hashes.items()}
    return known | {key: value for key, value in about.items() if value} | settings | hashes


def differing_keys(first: StoredRun, second: StoredRun) -> tuple[str, ...]:
    """What keeps two runs from being compared, `agent.protocol: a → b` each; empty where nothing does.

    Only what is known of both counts. Tasks that only one of them has are no difference; the name of the dataset is
    none where all common tasks have the same content.
    """
    old, new = first.task_hashes, second.task_hashes
    common = [name for name in old if name in new]
    changed = [name for name in common if old[name] != new[name]]
    settings = differing_settings(first, second)
    if not changed:
        return settings
    return (*settings, f"content of {len(changed)} of {counted(len(common), 'common task')}: {names_shown(changed)}")


def differing_settings(first: StoredRun, second: StoredRun) -> tuple[str, ...]:
    """The same without the content of tasks: a task that has changed is another task, and others can be compared."""
    old, new = (_without_tasks(score_keys(run)) for run in (first, second))
    if first.document is None or second.document is None:
        old, new = ({key: keys[key] for key in old.keys() & new.keys()} for keys in (old, new))
    if _same_tasks(first, second):
        old.pop("dataset", None)
        new.pop("dataset", None)
    return tuple(words for _, words in each_difference(old, new))


def fingerprint(run: StoredRun) -> str:
    """The first 16 digits of sha256 over `score_keys` without the tasks: equal for runs of one series of nights."""
    keys = _without_tasks(score_keys(run))
    return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:16]


def _has_effect(setting: Setting, plan: RunPlan) -> bool:
    locked, is_own_loop = plan.locked, plan.locked.prompt_hash is not None
    if setting.section == "model":
        return locked.model is not None and not (setting.name == "seed_scheme" and plan.config.model.omit_seed)
    if setting.path in _OWN_LOOP:
        return is_own_loop
    return setting.section not in ("agent", "limits") or is_own_loop or ":" in locked.agent


def _dataset(document: RunDocument) -> str:
    """The dataset with its version; of tasks from a path, the name of the folder."""
    if document.dataset is not None:
        return document.dataset.title
    return PurePath(document.config.tasks.source).name


def _series(version: str) -> str:
    """`1.2` of `1.2.3`: later patches of a release measure the same."""
    return ".".join(version.split(".")[:2])


def _same_tasks(first: StoredRun, second: StoredRun) -> bool:
    """Whether there are common tasks, and all of them are known to have the same content."""
    common = set(first.planned_tasks) & set(second.planned_tasks)
    old, new = first.task_hashes, second.task_hashes
    return bool(common) and all(name in old and old[name] == new.get(name) for name in common)


def _without_tasks(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if not key.startswith(TASK_PREFIX)}
