"""Runs the verifier of stored trials once more, where their sandbox was kept or a snapshot was taken."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tbench.errors import TrialError, UsageError
from tbench.results import TrialResult
from tbench.sandbox.backend import Sandbox
from tbench.sandbox.docker.backend import EngineSandboxes
from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.image import Images
from tbench.sandbox.docker.tools import Say, ensure_tools
from tbench.storage.read_run import read_run
from tbench.storage.run_store import RunStore
from tbench.tasks.sources import read_tasks
from tbench.tasks.task import Task
from tbench.verify.policy import Verify, verify_by
from tbench.verify.verifier import VerifierFailed, with_earlier


@dataclass(frozen=True)
class Change:
    """What became of one trial; without `after` nothing did, and `why_not` says why."""

    before: TrialResult
    after: TrialResult | None = None
    why_not: str = ""


@dataclass(frozen=True)
class _Kept:
    """A trial of which something is left on the engine."""

    result: TrialResult
    directory: Path
    container: str | None
    image: str | None


async def regrade(engine: Engine, run_dir: Path, patterns: tuple[str, ...], seed: int | None, say: Say) -> list[Change]:
    """One trial after the other; each verdict is stored at once. Raises UsageError before anything is changed."""
    stored = read_run(run_dir)
    if stored.imported:
        raise UsageError(f"{run_dir}: only a run of tbench's own can be verified again")
    store = RunStore.open(run_dir)
    try:
        kept = [
            found
            for result in stored.results
            if result.final
            and (not patterns or any(fnmatchcase(result.task, pattern) for pattern in patterns))
            and seed in (None, result.seed)
            and (found := _kept(store, result)) is not None
        ]
        if not kept:
            raise UsageError(f"{run_dir}: nothing was kept of these trials; run with --keep or --snapshot")
        source = (stored.config.get("options") or stored.config)["source"]  # the options' is a whole path
        tasks = {task.name: task for task in read_tasks(source, ()).tasks}
        hashes = {task["name"]: task.get("hash") for task in stored.config["tasks"]}
        sandboxes = EngineSandboxes(
            engine,
            Images(engine),
            await ensure_tools(engine, say),
            stored.name,
            network=stored.config.get("network", "task"),
            no_new_privileges=stored.config.get("no_new_privileges", False),
            block_host=stored.config.get("block_host", False),
            base_url=stored.config.get("base_url"),
        )
        changes = []
        for each in kept:
            task = tasks.get(each.result.task)
            if task is None or task.hash != hashes.get(task.name):
                changes.append(Change(each.result, why_not="its task is gone or has changed since"))
                continue
            say(f"{task.name} seed {each.result.seed}: verifying again")
            changes.append(await _one(sandboxes, store, each, task, stored.config.get("verify") or "shared"))
        return changes
    finally:
        store.close()


def _kept(store: RunStore, result: TrialResult) -> _Kept | None:
    directory = store.trial_dir(result.task, result.seed, result.attempt)
    try:
        left = json.loads((directory / "kept.json").read_text())
    except (OSError, ValueError):
        return None
    return _Kept(result, directory, left.get("container"), left.get("image"))


async def _one(sandboxes: EngineSandboxes, store: RunStore, kept: _Kept, task: Task, verify_in: Verify) -> Change:
    result = kept.result
    try:
        sandbox, is_new = await _sandbox(sandboxes, kept, task)
    except TrialError as error:
        return Change(result, why_not=str(error))
    update: dict[str, Any]
    try:
        verdict = await verify_by(verify_in, task, sandbox, again=not is_new)
        update = {"reward": verdict.reward, "error": None}
        integrity, files = verdict.integrity, verdict.files
    except VerifierFailed as failure:
        update = {"reward": None, "error": failure.info()}
        integrity, files = failure.integrity, failure.files
    except TrialError as error:
        return Change(result, why_not=str(error))
    finally:
        if is_new:
            await asyncio.shield(sandbox.remove())
    update |= {"integrity": with_earlier(result.integrity, integrity), "finished_at": datetime.now(UTC)}
    after = result.model_copy(update=update)
    _store(store, kept.directory, after, files)
    return Change(result, after)


async def _sandbox(sandboxes: EngineSandboxes, kept: _Kept, task: Task) -> tuple[Sandbox, bool]:
    """The kept container, or a new one of the snapshot."""
    trial = kept.result.trial
    if kept.container is not None:
        try:
            return await sandboxes.adopt(task, trial, kept.container), False
        except TrialError:
            if kept.image is None:
                raise
    if kept.image is None:
        raise TrialError("sandbox_lost", "neither its container nor a snapshot was kept")
    return await sandboxes.from_snapshot(task, trial, kept.image), True


def _store(store: RunStore, directory: Path, after: TrialResult, files: Mapping[str, bytes]) -> None:
    """The old verifier's files are kept beside the new ones."""
    if (directory / "verifier").is_dir():
        number = 1
        while (directory / f"verifier-{number}").exists():
            number += 1
        (directory / "verifier").rename(directory / f"verifier-{number}")
    fresh = {name: data for name, data in files.items() if not (directory / name).exists()}
    store.write_trial(directory, after, None, fresh)
    store.supersede({after.trial})
    store.append_result(after)
