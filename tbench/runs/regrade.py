"""Runs the verifier of stored trials once more: in a sandbox that was kept, one of a snapshot, or one of its own.

Of a task of several steps all verifiers have to have containers of their own: nothing else is left of what earlier ones
judged.
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
from tbench.datasets.reading import read_again
from tbench.errors import TrialError, UsageError
from tbench.results import ImageOrigin, Integrity, TrialResult
from tbench.runs.plan import as_configured, sandbox_settings
from tbench.runs.resume import oracle_for
from tbench.runs.task_steps import Ended, earned, fields_of, integrity_of
from tbench.sandbox.backend import Backend, MakeBackend, Reopens, Sandbox, Say, opened, use_network
from tbench.storage.read_run import read_run
from tbench.storage.run_files import step_directory, trial_directory
from tbench.storage.run_store import RunStore, write_files, write_trial
from tbench.tasks.environment import Environment, agent_environment, verifier_environment
from tbench.tasks.task import Task
from tbench.verify.calibration import Calibration, architecture_of
from tbench.verify.policy import like_oracle, verify_by
from tbench.verify.separate.collecting import COLLECTING
from tbench.verify.separate.grading import SeparateVerifier
from tbench.verify.separate.handover import is_stored, read_handover
from tbench.verify.verifier import Verdict, VerifierFailed, with_earlier


@dataclass(frozen=True)
class Change:
    """What became of one trial; without `after` it was not verified again, and `why_not` says why."""

    before: TrialResult
    after: TrialResult | None = None
    why_not: str = ""


@dataclass(frozen=True)
class Kept:
    """A trial of which something is left: on the engine, or what it handed over in its directory."""

    result: TrialResult
    directory: Path
    container: str | None = None
    image: str | None = None
    oracle: Calibration | None = None
    """What is known of its task by now."""


async def regrade(
    make_backend: MakeBackend,
    run_dir: Path,
    patterns: tuple[str, ...],
    seed: int | None,
    say: Say,
    machines: Callable[[SandboxConfig], Callable[[str], MakeBackend]] | None = None,
) -> list[Change]:
    """Verify the kept trials of a run again, one after the other; each verdict is stored at once.

    `patterns` (globs of task names) and `seed` choose among them. `machines` has the backends of a run over several
    machines, by their names. Raises UsageError before anything is changed.
    """
    stored = read_run(run_dir)
    document = stored.document
    if document is None:
        raise UsageError(f"{run_dir}: only a run of tbench's own can be verified again")
    store = RunStore.open(run_dir)
    try:
        kept = [
            found
            for result in stored.results
            if result.final
            and (not patterns or any(fnmatchcase(result.task, pattern) for pattern in patterns))
            and seed in (None, result.seed)
            and (found := kept_of(run_dir, result) or _stored_of(run_dir, result)) is not None
        ]
        if not kept:
            raise UsageError(f"{run_dir}: nothing was kept of these trials; run with --keep or --snapshot")
        settings, backends = sandbox_settings(document), dict[str, Backend]()
        on_machine = machines(document.config.sandbox) if machines is not None else None
        async with contextlib.AsyncExitStack() as stack:
            for machine in dict.fromkeys(map(_machine_of, kept)):
                made = on_machine(machine)(settings) if machine and on_machine is not None else make_backend(settings)
                backends[machine] = await stack.enter_async_context(opened(made, say))
            return [change async for change in _changes(document, store, kept, backends, say)]
    finally:
        store.close()


async def _changes(
    document: RunDocument, store: RunStore, kept: Sequence[Kept], backends: Mapping[str, Backend], say: Say
) -> AsyncIterator[Change]:
    config = document.config
    again = read_again(config.tasks.source, document.dataset, config.tasks.registry)
    tasks = {task.name: as_configured(task, config) for task in again.tasks}
    hashes = {task.name: task.hash for task in document.tasks}
    for each in kept:
        task = tasks.get(each.result.task)
        if task is None or task.hash != hashes.get(task.name):
            yield Change(each.result, why_not="its task is gone or has changed since")
            continue
        if task.steps and (name := _lost_step(each, task)):
            yield Change(each.result, why_not=f"what its step {name} was judged by is gone; run it again")
            continue
        say(f"{task.name} seed {each.result.seed}: verifying again")
        held = replace(each, oracle=oracle_for(each.result, task, architecture_of(document.engine)))
        yield await _verify_again(backends[_machine_of(each)], store, held, task, config.verify.mode)


def _machine_of(kept: Kept) -> str:
    """The machine of a run over several on which something was kept; empty where any will do."""
    return (kept.result.machine or "") if kept.container or kept.image else ""


def kept_of(run: Path, result: TrialResult) -> Kept | None:
    """What is left on the engine of a trial in the directory of a run; None where nothing is."""
    directory = trial_directory(run, result.task, result.seed, result.attempt)
    try:
        left = json.loads((directory / "kept.json").read_text())
    except (OSError, ValueError):
        return None
    return Kept(result, directory, left.get("container"), left.get("image"))


def _stored_of(run: Path, result: TrialResult) -> Kept | None:
    """A trial whose directory has what a verifier's own container needs; None where it has not."""
    directory = trial_directory(run, result.task, result.seed, result.attempt)
    steps = [step_directory(directory, step.name) for step in result.task_steps if step.begun]
    return Kept(result, directory) if any(map(is_stored, steps or [directory])) else None


def _lost_step(kept: Kept, task: Task) -> str:
    """The first step that an agent worked on of which nothing is left to judge; empty where there is none."""
    views = {view.step_name: view for view in task.steps}
    for step in kept.result.task_steps:
        is_apart = step.name in views and verifier_environment(views[step.name]) is not None
        if step.begun and not (is_apart and is_stored(step_directory(kept.directory, step.name))):
            return step.name
    return ""


async def _verify_again(backend: Backend, store: RunStore, kept: Kept, task: Task, verify_in: Verify) -> Change:
    if task.steps:
        return await _verify_steps(backend, store, kept, task)
    environment = verifier_environment(task)
    if environment is not None:
        return await _verify_apart(backend, store, kept, environment)
    result = kept.result
    if not isinstance(backend, Reopens):
        return Change(result, why_not=f"{backend.name} cannot find again what was kept")
    try:
        sandbox, is_new = await kept_sandbox(backend, kept, task)
    except TrialError as error:
        return Change(result, why_not=str(error))
    try:
        await use_network(sandbox, agent_environment(task), "verifier")
        judging = verify_by(
            verify_in, task, sandbox, again=not is_new, oracle=kept.oracle, is_oracle=result.agent == "oracle"
        )
        verdict = await _judged(judging, kept, task)
    except TrialError as error:
        return Change(result, why_not=str(error))
    finally:
        if is_new:
            await asyncio.shield(sandbox.remove())
    update = fields_of(verdict)
    if is_new and kept.image is not None:
        snapshot = ImageOrigin(how="snapshot", reference=kept.image)
        update |= {"image_id": kept.image, "image_origin": snapshot}
    return _changed(store, kept, update, verdict.integrity, verdict.files)


async def _verify_apart(backend: Backend, store: RunStore, kept: Kept, environment: Environment) -> Change:
    """Verify what the agent handed over once more, in a new container of the verifier's own."""
    result = kept.result
    try:
        verdict = await _judged_apart(backend, kept, environment, kept.directory)
    except TrialError as error:
        return Change(result, why_not=str(error))
    # What was said of collecting holds as long as that is what was collected.
    before, now = result.integrity.remarks, verdict.integrity.remarks
    earlier = tuple(remark for remark in before if remark.startswith(COLLECTING) and remark not in now)
    integrity = verdict.integrity.model_copy(update={"remarks": (*earlier, *now)})
    return _changed(store, kept, {**fields_of(verdict), **_image(backend, environment)}, integrity, verdict.files)


async def _verify_steps(backend: Backend, store: RunStore, kept: Kept, task: Task) -> Change:
    """Verify what each step handed over once more. Which steps were begun stays as it was, whatever they earn now."""
    result, judged = kept.result, dict[str, Ended]()
    environments = {view.step_name: verifier_environment(view) for view in task.steps}
    begun = {
        step.name: environment for step in result.task_steps if step.begun and (environment := environments[step.name])
    }
    try:
        for name, environment in begun.items():
            judged[name] = await _judged_apart(backend, kept, environment, step_directory(kept.directory, name))
    except TrialError as error:
        return Change(result, why_not=str(error))
    for name, verdict in judged.items():
        directory = step_directory(kept.directory, name)
        _set_verifier_aside(directory)
        write_files(directory, None, verdict.files)
    fields = {name: fields_of(verdict) for name, verdict in judged.items()}
    update = {
        **earned(task, [*judged.values()]),
        "error": next((each["error"] for each in fields.values() if each["error"]), None),
        "task_steps": tuple(step.model_copy(update=fields.get(step.name)) for step in result.task_steps),
        **_image(backend, [*begun.values()][-1]),
    }
    return _changed(store, kept, update, integrity_of(judged), {})


async def _judged_apart(backend: Backend, kept: Kept, environment: Environment, directory: Path) -> Ended:
    """How a verifier in a new container of its own ends. Raises TrialError for what kept it from running."""
    verifier = SeparateVerifier(environment, lambda: backend.sandbox(environment, kept.result.trial))
    try:
        return await _judged(verifier.verify(read_handover(directory)), kept, environment.task)
    finally:
        await verifier.remove()


def _image(backend: Backend, environment: Environment) -> dict[str, Any]:
    """The image of a verifier's own container, as fields of a result."""
    image, origin = backend.image_ids.get(environment.name), backend.image_origins.get(environment.name)
    return {"verifier_image_id": image, "verifier_image_origin": origin}


async def _judged(judging: Awaitable[Verdict], kept: Kept, task: Task) -> Ended:
    """How a verifier ends, beside what is known of its task. Raises TrialError for what kept it from running."""
    try:
        return like_oracle(await judging, kept.oracle, task)
    except VerifierFailed as failure:
        return failure


def _changed(
    store: RunStore, kept: Kept, update: Mapping[str, Any], integrity: Integrity, files: Mapping[str, bytes]
) -> Change:
    result = kept.result
    seen = with_earlier(result.integrity, integrity)
    after = result.model_copy(update={**update, "integrity": seen, "finished_at": datetime.now(UTC)})
    _store(store, kept.directory, after, files)
    return Change(result, after)


async def kept_sandbox(backend: Reopens, kept: Kept, task: Task) -> tuple[Sandbox, bool]:
    """The kept container, or a new one made from the snapshot; and whether it is new. Raises TrialError."""
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


def _store(store: RunStore, directory: Path, after: TrialResult, files: Mapping[str, bytes]) -> None:
    """Store a new verdict; the old verifier's files are kept beside the new ones."""
    _set_verifier_aside(directory)
    fresh = {name: data for name, data in files.items() if not (directory / name).exists()}
    write_trial(directory, after, None, fresh)
    store.supersede({after.trial}, [after])


def _set_verifier_aside(directory: Path) -> None:
    if not (directory / "verifier").is_dir():
        return
    number = 1
    while (directory / f"verifier-{number}").exists():
        number += 1
    (directory / "verifier").rename(directory / f"verifier-{number}")
