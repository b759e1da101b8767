"""Remedies of causes: in words, and as commands."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

from tbench.config.setting import iter_settings
from tbench.config.settings import RunConfig
from tbench.explaining.sameness import IMAGE, TEMPLATE, THINKING, Moved
from tbench.explaining.trials import Side, Trial
from tbench.storage.stored_trial import rerun_options

_MAX_TASKS = 12
"""Maximum number of tasks that a command names; for more tasks, it repeats the whole run."""
_SLOW_REQUEST_SEC = 1800.0
_SETTINGS = {setting.path: setting for setting in iter_settings(RunConfig)}


class Remedy(NamedTuple):
    """A remedy of a cause."""

    words: str
    command: str
    changes: Mapping[str, Any] = MappingProxyType({})
    """New values of settings in the command, by key."""


class _Change(NamedTuple):
    """A remedy that changes a setting."""

    words: str
    key: str
    value: Callable[[Any], Any]
    """Returns the new value for the present one."""


_CHANGES = {
    "machine": _Change(
        "see what else keeps this machine busy, or run fewer trials at once",
        "schedule.concurrency",
        lambda number: max(1, number // 2),
    ),
    "request_timeout": _Change(
        "give requests more time", "model.request_timeout_sec", lambda sec: max(2 * sec, _SLOW_REQUEST_SEC)
    ),
    "context_full": _Change(
        "serve a longer context, or shorten the history when it is full",
        "limits.on_overflow",
        lambda how: "drop-oldest-outputs" if how == "stop" else "summarize",
    ),
    "reply_cut": _Change("allow longer replies", "model.max_tokens", lambda tokens: 2 * tokens),
    "token_limit": _Change(
        "allow more tokens", "limits.completion_tokens", lambda tokens: 2 * tokens if tokens else None
    ),
    "step_limit": _Change("allow more steps", "limits.steps", lambda steps: 2 * steps if steps else None),
    "agent_timeout": _Change(
        "give the agent more time", "overrides.agent_timeout_multiplier", lambda factor: 2 * (factor or 1.0)
    ),
    "command_limit": _Change("give commands more time", "limits.command_sec", lambda sec: 2 * sec),
    "out_of_memory": _Change("give trials more memory", "overrides.memory_mb", lambda mb: 2 * (mb or 2048)),
}
_SERVED = {
    THINKING: "serve the earlier template, or send thinking back",
    TEMPLATE: "serve the earlier chat template (vLLM: --chat-template)",
    "server.fingerprint": "serve the model with the earlier release and options",
    "server.pace": "look at the load of the server",
}
"""Remedies of changes at the server."""
_RESUMED = {
    "no_result": "finish the run",
    "endpoint": "look at the endpoint, and run these trials again",
    "infrastructure": "look at the machine, and run these trials again",
}
_READ = {
    "tampering": "look at what the agent did to the verdict",
    "setup": "fix what the error names",
    "task": "fix the task, or leave it out",
    "parser": "start the server with the parsers of this model (--tool-call-parser, --reasoning-parser)",
    "format_errors": "look at an unusable reply",
    IMAGE: "build or pull the earlier image",
    THINKING: "send earlier thinking again, or serve the earlier template",
}


def remedy(key: str, side: Side, trials: Sequence[Trial]) -> Remedy:
    """Return the remedy of a cause in a single run, with a command that repeats the affected trials if that may
    help."""
    document = side.last.document
    if key in _CHANGES and document is not None:
        change = _CHANGES[key]
        present = _SETTINGS[change.key].value_in(document.config)
        changes = {change.key: change.value(present)}
        return Remedy(change.words, rerun(side, trials, changes), changes)
    if key in _RESUMED and document is not None:
        return Remedy(_RESUMED[key], f"tbench resume {shlex.quote(str(side.last.argument))}")
    kept = (each for each in trials if side.has_files(each) and side.directory_of(each).is_dir())
    shown = next(kept, None) if document is not None else None
    if shown is None:
        return Remedy(
            _READ.get(key, "see how its trials ended"), f"tbench summary {shlex.quote(str(side.last.argument))}"
        )
    return Remedy(_READ.get(key, "look at a failed trial"), f"tbench why {shlex.quote(side.path_of(shown))}")


def remedy_of_moved(
    key: str, levers: Sequence[Moved], first: Side, second: Side, trials: Sequence[Trial], before: Trial | None
) -> Remedy:
    """Return the remedy of a part of a difference: undo the change, or else the remedy of the cause.

    `trials` lost the points. `before` is a trial of the first side, whose steps one of them can be compared with.
    """
    document = first.last.document
    for lever in levers:
        if lever.key in _SETTINGS and document is not None:
            changes = {lever.key: _SETTINGS[lever.key].file_value_in(document.config)}
            return Remedy(f"set {lever.key} back", rerun(second, trials, changes), changes)
    served = next((each for each in levers if each.key.startswith("server.")), None)
    if served is not None and served.key == "server.max_model_len":
        window = served.words.partition(" →")[0]
        return Remedy(
            f"serve {window} tokens again (vLLM: --max-model-len), and repeat these", rerun(second, trials, {})
        )
    if served is not None:
        return Remedy(f"{_SERVED[served.key]}, and repeat these", rerun(second, trials, {}))
    task = None if before is None else before.task
    failed = next((each for each in trials if each.task == task and second.has_steps(each)), None)
    if key in (IMAGE, "model", "unclear") and before is not None and failed is not None:
        names = shlex.quote(first.path_of(before)), shlex.quote(second.path_of(failed))
        words = "build or pull the earlier image; first see where the trials differ" if key == IMAGE else ""
        return Remedy(words or "see where the trials differ", f"tbench diff {names[0]} {names[1]}")
    return remedy(key, second, trials)


def rerun(side: Side, trials: Sequence[Trial], changed: Mapping[str, Any]) -> str:
    """Return the command that repeats the trials' tasks with the newest run's seeds; `summary` for an imported run."""
    run = side.last
    if run.document is None:
        return f"tbench summary {shlex.quote(str(run.argument))}"
    tasks = list(dict.fromkeys(each.task for each in trials))
    selected = tasks if len(tasks) <= _MAX_TASKS else run.document.config.tasks.include
    named = [word for glob in selected for word in ("-t", shlex.quote(glob))]
    seeds = run.planned_seeds
    count = ["-k", str(len(seeds)), "--first-seed", str(min(seeds))] if seeds else []
    return " ".join(["tbench run", *named, *count, *rerun_options(run.document, changed)])
