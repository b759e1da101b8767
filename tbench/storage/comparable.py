"""Compares the settings of stored runs: whether their scores are comparable, and which settings differ.

Only settings whose `Option` is marked as measured count: not the time and place of a run, its numbers of tasks and
seeds, or its model's name. For imported results, only recorded settings count.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import PurePath
from typing import Any

from tbench.config.document import RunDocument, RunPlan
from tbench.config.setting import Setting, iter_settings
from tbench.config.settings import RunConfig
from tbench.results import UNKNOWN_AGENT
from tbench.storage.read_run import StoredRun
from tbench.text import counted, names_text

# Description of differences between settings

_SHOWN_CHARS = 80
_SHOWN = 12
_ABSENT = "nothing"


def differences(old: Mapping[str, Any], new: Mapping[str, Any], *, apart_from: Collection[str] = ()) -> str:
    """Describe the differing values as `key: old → new`, joined by `; `; empty if equal. Null counts as absent.

    Keys of nested objects have dots; `apart_from` names keys that may differ.
    """
    found = [words for key, words in each_difference(old, new) if key not in apart_from]
    more = [f"and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
    return "; ".join(found[:_SHOWN] + more)


def each_difference(old: Mapping[str, Any], new: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the key of each differing value and `key: old → new`, sorted by key."""
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
"""Prefix of the keys of tasks, before the name."""
_LOCKED = {
    "agent.name": "agent",
    "agent.sha256": "agent_sha256",
    "agent.prompt": "prompt_hash",
    "agent.shell_state": "shell_state",
    "agent.approve": "approval",
}
"""Field of `Locked` by key, for values that were resolved from names or paths when the run began."""
_PACKAGED = "@"
"""Character before the version in the name of a packaged agent."""
_AGENT_LOOP = {"agent.protocol", "agent.observation_bytes", "agent.neutralise_special_tokens"}
"""Settings that only affect tbench's own agent."""
_SETTINGS = [each for each in iter_settings(RunConfig) if each.is_measured and each.path not in _LOCKED]


def score_keys(run: StoredRun) -> dict[str, Any]:
    """Return everything that may affect a run's score, by key such as `agent.protocol`, or `tasks.NAME` for hashes.

    Settings without effect, such as sampling without a model, and unknown values are left out.
    """
    document = run.document
    if document is None:
        return _imported_keys(run)
    known = {"dataset": _dataset(document), "tbench": _series(document.tbench_version)}
    hashes = {f"{TASK_PREFIX}{name}": digest for name, digest in run.task_hashes.items()}
    return {key: value for key, value in known.items() if value} | measured_values(document) | hashes


def measured_values(plan: RunPlan, *, apart_from_defaults: bool = False) -> dict[str, Any]:
    """Return every setting that affects what a run measures, by key, except the model's name.

    Settings without effect, such as sampling without a model, are left out; with `apart_from_defaults`, defaults are
    left out, too.
    """
    locked = {key: value for key, name in _LOCKED.items() if (value := getattr(plan.locked, name))}
    return locked | {
        setting.path: setting.file_value_in(plan.config)
        for setting in _SETTINGS
        if _has_effect(setting, plan) and not (apart_from_defaults and setting.value_in(plan.config) == setting.default)
    }


def _imported_keys(run: StoredRun) -> dict[str, Any]:
    """Return the known settings of imported results; settings of other programs keep their names."""
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
    """Return the differences that make two runs incomparable, each as `agent.protocol: a → b`.

    With imported results, only values known for both runs are compared. Tasks of only one run do not count, nor does
    the name of the dataset if all common tasks have the same content.
    """
    old, new = first.task_hashes, second.task_hashes
    common = [name for name in old if name in new]
    changed = [name for name in common if old[name] != new[name]]
    settings = differing_settings(first, second)
    if not changed:
        return settings
    return (*settings, f"content of {len(changed)} of {counted(len(common), 'common task')}: {names_text(changed)}")


def differing_settings(first: StoredRun, second: StoredRun) -> tuple[str, ...]:
    """Return like `differing_keys`, but without the content of tasks: unchanged tasks can still be compared."""
    old, new = (_without_tasks(score_keys(run)) for run in (first, second))
    if first.document is None or second.document is None:
        old, new = ({key: keys[key] for key in old.keys() & new.keys()} for keys in (old, new))
    common = set(first.planned_tasks) & set(second.planned_tasks)
    known, others = first.task_hashes, second.task_hashes
    if common and all(name in known and known[name] == others.get(name) for name in common):
        old.pop("dataset", None)
        new.pop("dataset", None)
    return tuple(words for _, words in each_difference(old, new))


def doubtful_settings(first: StoredRun, second: StoredRun) -> tuple[str, ...]:
    """Return like `differing_settings`, but without settings of the agents if a packaged one is compared with
    another."""
    agents = {agent_of(first), agent_of(second)}
    is_about_agents = len(agents) > 1 and any(_PACKAGED in agent for agent in agents if agent is not None)
    differing = differing_settings(first, second)
    return tuple(each for each in differing if not (is_about_agents and each.startswith("agent.")))


def agent_of(run: StoredRun) -> str | None:
    """Return the agent of a run, with its version if it is a packaged one; None if it is unknown."""
    name = score_keys(run).get("agent.name")
    return None if name is None else str(name)


def fingerprint(run: StoredRun) -> str:
    """Return 16 hex digits of sha256 over `score_keys` without tasks: equal for runs of one series of nights."""
    keys = _without_tasks(score_keys(run))
    return hashlib.sha256(json.dumps(keys, sort_keys=True).encode()).hexdigest()[:16]


def _has_effect(setting: Setting, plan: RunPlan) -> bool:
    locked, is_own_loop = plan.locked, plan.locked.prompt_hash is not None
    if setting.section == "model":
        return locked.model is not None and not (setting.name == "seed_scheme" and plan.config.model.omit_seed)
    if setting.path in _AGENT_LOOP:
        return is_own_loop
    asks_by_itself = ":" in locked.agent or locked.agent_sha256 is not None
    return setting.section not in ("agent", "limits") or is_own_loop or asks_by_itself


def _dataset(document: RunDocument) -> str:
    """Return the dataset with its version or, for a directory of tasks, the folder's name."""
    if document.dataset is not None:
        return document.dataset.title
    return PurePath(document.config.tasks.source).name


def _series(version: str) -> str:
    """Return `1.2` for `1.2.3`: patches do not change what is measured."""
    return ".".join(version.split(".")[:2])


def _without_tasks(keys: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in keys.items() if not key.startswith(TASK_PREFIX)}
