"""The known facts about a run, and its configuration as text."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from reports.look import when
from reports.run.headline import status_of
from tbench.storage.read_run import StoredRun
from tbench.text import names_shown

_SAMPLING = {"temperature", "top_p", "max_tokens", "extra_body"}
_TASKS_SHOWN = 200
"""Planned tasks above which the configuration is shown without them."""
_SEEDS_SHOWN = 12


def facts_of(run: StoredRun, model: object) -> dict[str, str]:
    """The known facts about the run, by the label that a reader sees."""
    facts = {
        "Model": model,
        **_settings(run),
        "Dataset": run.dataset.said if run.dataset is not None else None,
        "Tasks": len(run.planned_tasks),
        "Seeds": _seeds(run.planned_seeds),
        "Status": status_of(run),
        **_times(run),
    }
    return {label: _words(value) for label, value in facts.items() if value not in (None, "", {})}


def config_text(run: StoredRun) -> str:
    """The content of run.json; of imported results, the plan that they make."""
    if (about := run.document or run.plan) is not None:
        content = about.model_dump(mode="json")
    else:
        content = {"run": run.name, "tasks": list(run.planned_tasks), "seeds": run.planned_seeds}
    if len(run.planned_tasks) > _TASKS_SHOWN:
        content["tasks"] = f"{len(run.planned_tasks):,} tasks, left out here"
    return json.dumps(content, indent=2, ensure_ascii=False)


def _seeds(seeds: Sequence[int]) -> str:
    if len(seeds) > _SEEDS_SHOWN and list(seeds) == list(range(seeds[0], seeds[0] + len(seeds))):
        return f"{seeds[0]} to {seeds[-1]}, {len(seeds):,} of them"
    shown = ", ".join(map(str, seeds[:_SEEDS_SHOWN]))
    return shown if len(seeds) <= _SEEDS_SHOWN else f"{shown} …, {len(seeds):,} of them"


def _settings(run: StoredRun) -> dict[str, Any]:
    if run.plan is not None:
        origin = run.plan.imported
        return {
            "Agent": " ".join(filter(None, [run.plan.agent, run.plan.agent_version])),
            "Imported from": " ".join(filter(None, [origin.format, origin.version, origin.source])),
            "Settings": run.plan.settings,
        }
    if run.document is None:
        return {}
    config, locked = run.document.config, run.document.locked
    samples = locked.model is not None
    return {
        "Endpoint": locked.base_url,
        "Machines": names_shown(_machines(run.document.engine)),
        "Agent": locked.agent,
        "Protocol": config.agent.protocol if locked.prompt_hash else None,
        "Sampling": config.model.model_dump(mode="json", include=_SAMPLING) if samples else None,
        "Limits": config.limits.model_dump(mode="json") if samples else None,
    }


def _machines(engine: Mapping[str, Any] | None) -> list[str]:
    """The machines of a run over several."""
    return [machine["name"] for machine in (engine or {}).get("machines", ())]


def _times(run: StoredRun) -> dict[str, Any]:
    about = run.document or run.plan
    if about is None:
        return {}
    return {
        "Created": when(about.created_at) if about.created_at else None,
        "Ended": when(about.ended_at) if about.ended_at else None,
        "tbench": run.document.tbench_version if run.document is not None else None,
    }


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_words(part)}" for key, part in value.items() if part not in (None, {}))
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
