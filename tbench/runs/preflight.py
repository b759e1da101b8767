"""Checks tasks before a run starts, and manages the images that it needs."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterable, Sequence

from tbench.agents.recipe import NO_SESSION, is_recipe
from tbench.agents.trial_agent import OracleAgent
from tbench.errors import TrialError, UsageError
from tbench.runs.admission import Demand
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.backend import Backend, Capacity, HoldsImages, RefusesTasks, Say
from tbench.tasks.environment import Environment, agent_environment, verifier_environment
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task
from tbench.text import counted, names_text, one_line, size_text


def why_not_runnable(task: Task | None, invalid: str, agent: str, gpus: int | None = None) -> TrialError | None:
    """Return why no trial of a task can get a verdict with this agent; None if no reason is known.

    `invalid` says why `task` is None. `gpus` is the machine's number of GPUs, None if unknown.
    """
    if task is None:
        return TrialError("task_invalid", invalid)
    if task.unsupported:
        return TrialError("task_unsupported", f"needs {', '.join(task.unsupported)}, which tbench does not have")
    if task.host_access:
        wanted = "; ".join(f"{path}: {'; '.join(keys)}" for path, keys in task.host_access.items())
        return TrialError("trust_missing", f"{wanted}; --trust allows it")
    if is_recipe(agent) and any(step.inherit_prior_session for step in task.file.steps[1:]):
        return TrialError("task_unsupported", NO_SESSION.format(agent=agent))
    if gpus is not None and (why := _too_many_gpus(task, gpus)):
        return TrialError("task_unsupported", why)
    tables = ("environment", "solution", "verifier") if agent == OracleAgent.name else ("environment", "verifier")
    if missing := task.missing_variables(tables):
        return TrialError("env_missing", "; ".join(missing))
    if agent == OracleAgent.name and not task.has_oracle:
        script = next(part.solve_script for part in task.parts if not part.has_oracle)
        return TrialError("oracle_missing", f"{script}: missing, so there is no oracle")
    if agent == OracleAgent.name and (unfit := next((part for part in task.parts if part.solve_problem), None)):
        return TrialError("task_invalid", f"{unfit.solve_script}: {unfit.solve_problem}")
    return None


def _too_many_gpus(task: Task, gpus: int) -> str:
    """Return why a machine with this number of GPUs is not enough for agent and verifiers; empty if it is."""
    asked = {"environment.gpus": task.file.environment.gpus}
    for part in task.parts:
        of_step = "" if part.step is None else f" (step {part.step.name})"
        if part.file.verifier.is_separate and (own := part.file.verifier.environment) is not None:
            asked[f"verifier.environment.gpus{of_step}"] = own.gpus
    has = f"the engine has {counted(gpus, 'GPU')}" if gpus else "the engine has no nvidia runtime"
    for key, needed in asked.items():
        if needed > gpus:
            return f"needs {key} = {needed}, but {has}; use a machine that has enough, with NVIDIA's container toolkit"
    return ""


def not_runnable_tasks(tasks: TaskSet, agent: str, gpus: int | None = None) -> dict[str, TrialError]:
    """Return by name why tasks cannot get a verdict; runnable tasks are left out."""
    known = {task.name: why_not_runnable(task, "", agent, gpus) for task in tasks.tasks}
    known |= {name: why_not_runnable(None, why, agent) for name, why in tasks.invalid.items()}
    return {name: error for name, error in sorted(known.items()) if error is not None}


def tasks_refused_by(backend: Backend, tasks: Sequence[Task]) -> dict[str, TrialError]:
    """Return by name why a backend cannot run tasks."""
    refused: dict[str, TrialError] = {}
    if not isinstance(backend, RefusesTasks):
        return refused
    for task in tasks:
        with contextlib.suppress(TrialError):  # its trials report it
            if why := next(filter(None, map(backend.refuse, task_environments(task))), ""):
                refused[task.name] = TrialError("task_unsupported", why)
    return refused


def require_runnable_task(tasks: TaskSet, agent: str) -> None:
    """Check that at least one task can run. Raises UsageError with the first refusal."""
    refused = not_runnable_tasks(tasks, agent)
    if len(refused) < len(tasks.names):
        return
    name, error = next(iter(refused.items()))
    message = refusal_words(name, error)
    if len(refused) > 1:
        counts = Counter(each.type for each in refused.values())
        kinds = ", ".join(f"{type_} {count}" for type_, count in counts.most_common())
        message = f"none of {len(refused)} tasks can run ({kinds}); the first: {message}"
    raise UsageError(message)


def refusal_words(name: str, error: TrialError) -> str:
    """Return a line about a task that cannot run."""
    return f"{name} cannot run: {error.type}: {error}"


def size_warning(
    demands: Iterable[tuple[str, Demand]], machines: Sequence[Capacity], cpu_overcommit: float
) -> str | None:
    """Return a line about the tasks that are larger than every machine; None if there are none.

    `demands` has the needs of a trial by task name. There must be at least one machine.
    """
    large = [
        (name, each) for name, each in demands if not any(_fits(each, one.cpus, one.memory_mb) for one in machines)
    ]
    if not large:
        return None
    shown = names_text(f"{name} ({_size(each)})" for name, each in large)
    largest = max(machines, key=lambda one: (one.memory_mb, one.cpus))
    has = _size(Demand(largest.cpus, largest.memory_mb))
    which = "the machine, which has" if len(machines) == 1 else "every machine; the largest has"
    are_alone = not any(_fits(each, one.cpus * cpu_overcommit, one.memory_mb) for _, each in large for one in machines)
    alone = ", and runs alone" if are_alone else ""
    return f"larger than {which} {has}: {shown}; each gets what the machine has{alone}"


def _fits(demand: Demand, cpus: float, memory_mb: float) -> bool:
    return demand.cpus <= cpus and demand.memory_mb <= memory_mb


def _size(demand: Demand) -> str:
    return f"{demand.cpus:g} cpus, {demand.memory_mb / 1024:,.1f} GB"


# The images of a run: size estimate, prefetching before the first trial, removal after a task's last trial.


def task_environments(task: Task) -> list[Environment]:
    """Return the environments of a task's agent and verifiers."""
    found = list(agent_environment(task).known_containers())
    for part in task.parts:
        if (own := verifier_environment(part)) is not None:
            found += own.known_containers()
    return found


async def get_ready(backend: Backend, tasks: Iterable[Task], say: Say, *, offline: bool, prefetch: bool) -> bool:
    """Report the images to pull for these tasks, and prefetch them if requested; return False if that failed.

    A task whose image is unavailable is reported; its trials end with the error, the others run.
    """
    if not isinstance(backend, HoldsImages):
        return True
    environments = [each for task in tasks for each in task_environments(task)]
    for line in await backend.describe_pulls(environments, ask=not offline):
        say(line)
    if not prefetch:
        return True
    failed = await backend.prefetch(environments)
    for name, error in failed.items():
        say(f"{name} has no image: {error.type}: {one_line(str(error), 300)}")
    say(f"images: {len(environments) - len(failed)} of {len(environments)} available")
    return not failed


class ImageRemover:
    """Removes the images of a task after its last trial."""

    def __init__(self, backend: Backend, plans: Sequence[TrialPlan]) -> None:
        self._backend = backend
        self._tasks = {plan.task_name: plan.task for plan in plans if plan.task is not None}
        self._left = Counter(plan.task_name for plan in plans)
        self._dropped = 0
        self._freed_bytes = 0

    async def note_finished(self, plan: TrialPlan) -> None:
        """Count a trial as finished, with its sandbox removed, and remove images no longer needed. Raises nothing."""
        self._left[plan.task_name] -= 1
        if plan.task is None or self._left[plan.task_name] or not isinstance(self._backend, HoldsImages):
            return
        others = [each for name, task in self._tasks.items() if self._left[name] for each in task_environments(task)]
        for environment in task_environments(plan.task):
            freed_bytes = await self._backend.drop_image(environment, others)
            self._dropped += freed_bytes > 0
            self._freed_bytes += freed_bytes

    @property
    def message(self) -> str:
        """Line about the removed images; empty for none."""
        if not self._dropped:
            return ""
        # Images share layers, which are counted with each of them.
        return f"{counted(self._dropped, 'image')} removed, up to {size_text(self._freed_bytes)}"
