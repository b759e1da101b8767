"""Verifies stored trials again: in a kept container, in one from a snapshot, or in a separate container.

A task with several steps needs separate containers for all verifiers: the containers that the earlier verifiers judged
no longer exist.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tbench.config.document import RunDocument
from tbench.config.settings import SandboxConfig, Verify
from tbench.datasets.read_tasks import read_again
from tbench.errors import TrialError, UsageError
from tbench.results import ImageOrigin, Integrity, TrialResult
from tbench.runs.plan import as_configured, sandbox_settings
from tbench.runs.resume import calibration_for
from tbench.runs.task_steps import VerifierOutcome, merge_integrity, reward_fields, verdict_fields
from tbench.sandbox.backend import Backend, MakeBackend, Reopens, Sandbox, Say, open_backend, use_network
from tbench.storage.read_run import read_run
from tbench.storage.run_files import step_directory, trial_directory
from tbench.storage.run_store import RunStore, write_files, write_trial
from tbench.tasks.environment import Environment, agent_environment, verifier_environment
from tbench.tasks.task import Task
from tbench.verify.calibration import Calibration, architecture_of
from tbench.verify.policy import compare_pass, oracle_system, verify_by
from tbench.verify.separate.collecting import COLLECTING
from tbench.verify.separate.grading import SeparateVerifier
from tbench.verify.separate.handover import is_stored, read_handover
from tbench.verify.verifier import Verdict, VerifierFailed, with_earlier


@dataclass(frozen=True)
class Regraded:
    """Outcome of regrading one trial; without `after` it was not verified again, for the reason in `why_not`."""

    before: TrialResult
    after: TrialResult | None = None
    why_not: str = ""


@dataclass(frozen=True)
class Kept:
    """A trial that can be verified again: kept on the engine, or with its handover in its directory."""

    result: TrialResult
    directory: Path
    container: str | None = None
    image: str | None = None
    oracle: Calibration | None = None
    """Calibration of its task, if there is one by now."""

    @property
    def is_oracle(self) -> bool:
        return self.result.agent == "oracle"


async def regrade(
    machines: Callable[[SandboxConfig], Callable[[str], MakeBackend]],
    run_dir: Path,
    patterns: tuple[str, ...],
    seed: int | None,
    say: Say,
) -> list[Regraded]:
    """Verify the kept trials of a run again, one after the other; each verdict is stored at once.

    `patterns` (globs of task names) and `seed` select trials. `machines` gives the backend of a machine by its name,
    which is empty if any machine of the run will do. Raises UsageError before anything is changed.
    """
    stored = read_run(run_dir)
    document = stored.document
    if document is None:
        raise UsageError(f"{run_dir}: only tbench's own runs can be verified again")
    with contextlib.closing(RunStore.open(run_dir)) as store:
        kept = [
            found
            for result in stored.results
            if result.final
            and (not patterns or any(fnmatchcase(result.task, pattern) for pattern in patterns))
            and seed in (None, result.seed)
            and (found := find_kept(run_dir, result) or _find_handover(run_dir, result)) is not None
        ]
        if not kept:
            raise UsageError(f"{run_dir}: none of these trials were kept; run with --keep or --snapshot")
        settings, backends = sandbox_settings(document), dict[str, Backend]()
        on_machine = machines(document.config.sandbox)
        async with contextlib.AsyncExitStack() as stack:
            for machine in dict.fromkeys(map(_kept_machine, kept)):
                backends[machine] = await stack.enter_async_context(open_backend(on_machine(machine)(settings), say))
            return [change async for change in _regrade_all(document, store, kept, backends, say)]


async def _regrade_all(
    document: RunDocument, store: RunStore, kept: Sequence[Kept], backends: Mapping[str, Backend], say: Say
) -> AsyncIterator[Regraded]:
    config = document.config
    again = read_again(config.tasks.source, document.dataset, config.tasks.registry)
    tasks = {task.name: as_configured(task, config) for task in again.tasks}
    hashes = {task.name: task.hash for task in document.tasks}
    for each in kept:
        task = tasks.get(each.result.task)
        if task is None or task.hash != hashes.get(task.name):
            yield Regraded(each.result, why_not="its task is missing or has changed since")
            continue
        if task.steps and (name := _step_without_handover(each, task)):
            yield Regraded(each.result, why_not=f"the handover of its step {name} is missing; run the trial again")
            continue
        say(f"{task.name} seed {each.result.seed}: verifying again")
        calibrated = replace(each, oracle=calibration_for(each.result, task, architecture_of(document.engine)))
        yield await _verify_again(backends[_kept_machine(each)], store, calibrated, task, config.verify.mode)


def _kept_machine(kept: Kept) -> str:
    """Return the machine of a kept trial; empty if any machine will do."""
    return (kept.result.machine or "") if kept.container or kept.image else ""


def find_kept(run: Path, result: TrialResult) -> Kept | None:
    """Find the container or snapshot of a trial that was kept on the engine; None if there is none."""
    directory = trial_directory(run, result.task, result.seed, result.attempt)
    try:
        left = json.loads((directory / "kept.json").read_text())
    except (OSError, ValueError):
        return None
    return Kept(result, directory, left.get("container"), left.get("image"))


def _find_handover(run: Path, result: TrialResult) -> Kept | None:
    """Find a handover in the trial's directory; None if there is none."""
    directory = trial_directory(run, result.task, result.seed, result.attempt)
    steps = [step_directory(directory, step.name) for step in result.task_steps if step.begun]
    return Kept(result, directory) if any(map(is_stored, steps or [directory])) else None


def _step_without_handover(kept: Kept, task: Task) -> str:
    """Return the first begun step without a handover to verify; empty if there is none."""
    views = {view.step_name: view for view in task.steps}
    for step in kept.result.task_steps:
        is_apart = step.name in views and verifier_environment(views[step.name]) is not None
        if step.begun and not (is_apart and is_stored(step_directory(kept.directory, step.name))):
            return step.name
    return ""


async def _verify_again(backend: Backend, store: RunStore, kept: Kept, task: Task, verify_in: Verify) -> Regraded:
    if task.steps:
        return await _verify_steps(backend, store, kept, task)
    environment = verifier_environment(task)
    if environment is not None:
        return await _verify_separately(backend, store, kept, environment)
    result = kept.result
    if not isinstance(backend, Reopens):
        return Regraded(result, why_not=f"{backend.name} cannot reopen kept containers")
    try:
        sandbox, is_new = await kept_sandbox(backend, kept, task)
    except TrialError as error:
        return Regraded(result, why_not=str(error))
    try:
        await use_network(sandbox, agent_environment(task), "verifier")
        judging = verify_by(verify_in, task, sandbox, again=not is_new, oracle=kept.oracle, is_oracle=kept.is_oracle)
        verdict = await _await_verdict(judging, kept, task)
    except TrialError as error:
        return Regraded(result, why_not=str(error))
    finally:
        if is_new:
            await asyncio.shield(sandbox.remove())
    update = verdict_fields(verdict)
    if is_new and kept.image is not None:
        snapshot = ImageOrigin(how="snapshot", reference=kept.image)
        update |= {"image_id": kept.image, "image_origin": snapshot}
    return _store_regrade(store, kept, update, verdict.integrity, verdict.files)


async def _verify_separately(backend: Backend, store: RunStore, kept: Kept, environment: Environment) -> Regraded:
    """Verify the agent's handover again, in a new separate container."""
    result = kept.result
    try:
        verdict = await _verify_handover(backend, kept, environment, kept.directory)
    except TrialError as error:
        return Regraded(result, why_not=str(error))
    # Remarks about collecting still hold: the handover is the same.
    before, now = result.integrity.remarks, verdict.integrity.remarks
    earlier = tuple(remark for remark in before if remark.startswith(COLLECTING) and remark not in now)
    integrity = verdict.integrity.model_copy(update={"remarks": (*earlier, *now)})
    return _store_regrade(
        store, kept, {**verdict_fields(verdict), **_image(backend, environment)}, integrity, verdict.files
    )


async def _verify_steps(backend: Backend, store: RunStore, kept: Kept, task: Task) -> Regraded:
    """Verify the handover of each step again. New rewards do not change which steps count as begun."""
    result, judged = kept.result, dict[str, VerifierOutcome]()
    environments = {view.step_name: verifier_environment(view) for view in task.steps}
    begun = {
        step.name: environment for step in result.task_steps if step.begun and (environment := environments[step.name])
    }
    try:
        for name, environment in begun.items():
            judged[name] = await _verify_handover(backend, kept, environment, step_directory(kept.directory, name))
    except TrialError as error:
        return Regraded(result, why_not=str(error))
    for name, verdict in judged.items():
        directory = step_directory(kept.directory, name)
        _set_verifier_aside(directory)
        write_files(directory, None, verdict.files)
    fields = {name: verdict_fields(verdict) for name, verdict in judged.items()}
    update = {
        **reward_fields(task, [*judged.values()]),
        "error": next((each["error"] for each in fields.values() if each["error"]), None),
        "task_steps": tuple(step.model_copy(update=fields.get(step.name)) for step in result.task_steps),
        **_image(backend, [*begun.values()][-1]),
    }
    return _store_regrade(store, kept, update, merge_integrity(judged), {})


async def _verify_handover(backend: Backend, kept: Kept, environment: Environment, directory: Path) -> VerifierOutcome:
    """Return the outcome of a verifier in a new separate container. Raises TrialError if it could not run."""
    verifier = SeparateVerifier(environment, lambda: backend.sandbox(environment, kept.result.trial))
    oracle = oracle_system(kept.oracle, environment.task, is_oracle=kept.is_oracle)
    try:
        return await _await_verdict(verifier.verify(read_handover(directory), oracle), kept, environment.task)
    finally:
        await verifier.remove()


def _image(backend: Backend, environment: Environment) -> dict[str, Any]:
    """Return the image of a verifier's container as result fields."""
    image, origin = backend.image_ids.get(environment.name), backend.image_origins.get(environment.name)
    return {"verifier_image_id": image, "verifier_image_origin": origin}


async def _await_verdict(judging: Awaitable[Verdict], kept: Kept, task: Task) -> VerifierOutcome:
    """Return a verifier's outcome, checked against the calibration. Raises TrialError if it could not run."""
    try:
        return compare_pass(await judging, kept.oracle, task)
    except VerifierFailed as failure:
        return failure


def _store_regrade(
    store: RunStore, kept: Kept, update: Mapping[str, Any], integrity: Integrity, files: Mapping[str, bytes]
) -> Regraded:
    result = kept.result
    merged = with_earlier(result.integrity, integrity)
    after = result.model_copy(update={**update, "integrity": merged, "finished_at": datetime.now(UTC)})
    # The old verifier's files are kept beside the new ones.
    _set_verifier_aside(kept.directory)
    fresh = {name: data for name, data in files.items() if not (kept.directory / name).exists()}
    write_trial(kept.directory, after, None, fresh)
    store.supersede({after.trial}, [after])
    return Regraded(result, after)


async def kept_sandbox(backend: Reopens, kept: Kept, task: Task) -> tuple[Sandbox, bool]:
    """Return the kept container, or a new one made from the snapshot, and whether it is new. Raises TrialError."""
    environment, trial = agent_environment(task), kept.result.trial
    if kept.container is not None:
        try:
            return await backend.reopen(environment, trial, kept.container), False
        except TrialError:
            if kept.image is None:
                raise
    if kept.image is None:
        raise TrialError("sandbox_lost", "neither its container nor a snapshot was kept")
    return await backend.from_snapshot(environment, trial, kept.image), True


def _set_verifier_aside(directory: Path) -> None:
    if not (directory / "verifier").is_dir():
        return
    number = 1
    while (directory / f"verifier-{number}").exists():
        number += 1
    (directory / "verifier").rename(directory / f"verifier-{number}")
