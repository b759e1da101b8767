"""Checks before anything starts, and the images that are fetched: tasks without a verdict, larger than the machine."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tbench.agents.trial_agent import OracleAgent
from tbench.errors import TrialError, UsageError
from tbench.runs.admission import Demand
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.backend import Backend, Capacity, HoldsImages, Say
from tbench.tasks.environment import Environment, agent_environment, verifier_environment
from tbench.tasks.sources import TaskSet
from tbench.tasks.task import Task
from tbench.text import counted, names_shown, one_line, size_shown


def refusal(task: Task | None, invalid: str, agent: str, gpus: int | None = None) -> TrialError | None:
    """Why no trial of a task can come to a verdict with an agent of this name; None where nothing is known against it.

    `invalid` says why `task` is None. `gpus` is how many the machine has, None where that is not known.
    """
    if task is None:
        return TrialError("task_invalid", invalid)
    if task.unsupported:
        return TrialError("task_unsupported", f"needs {', '.join(task.unsupported)}, which tbench does not have")
    if task.host_access:
        wanted = "; ".join(f"{path}: {'; '.join(keys)}" for path, keys in task.host_access.items())
        return TrialError("trust_missing", f"{wanted}; --trust allows it")
    if gpus is not None and (why := _too_many_gpus(task, gpus)):
        return TrialError("task_unsupported", why)
    tables = ("environment", "solution", "verifier") if agent == OracleAgent.name else ("environment", "verifier")
    if missing := task.missing_variables(tables):
        return TrialError("env_missing", "; ".join(missing))
    if agent == OracleAgent.name and not task.has_oracle:
        script = next(part.solve_script for part in task.parts if not part.has_oracle)
        return TrialError("oracle_missing", f"{script}: missing, so there is no oracle")
    return None


def _too_many_gpus(task: Task, gpus: int) -> str:
    """Why a machine with so many GPUs has too few for the agent or a verifier of its own; empty where it has enough."""
    asked = {"environment.gpus": task.file.environment.gpus}
    for part in task.parts:
        of_step = "" if part.step is None else f" (step {part.step.name})"
        if part.file.verifier.is_separate and (own := part.file.verifier.environment) is not None:
            asked[f"verifier.environment.gpus{of_step}"] = own.gpus
    has = f"the engine has {counted(gpus, 'GPU')}" if gpus else "the engine has no nvidia runtime"
    for key, needed in asked.items():
        if needed > gpus:
            return f"needs {key} = {needed}, and {has}; run it where there are, with NVIDIA's container toolkit"
    return ""


def refusals(tasks: TaskSet, agent: str, gpus: int | None = None) -> dict[str, TrialError]:
    """By name, why tasks cannot come to a verdict; those that can are left out."""
    known = {task.name: refusal(task, "", agent, gpus) for task in tasks.tasks}
    known |= {name: refusal(None, why, agent) for name, why in tasks.invalid.items()}
    return {name: error for name, error in sorted(known.items()) if error is not None}


def require_a_task_that_can_run(tasks: TaskSet, agent: str) -> None:
    """Check that not every task is refused. Raises UsageError, which says why the first one is."""
    refused = refusals(tasks, agent)
    if len(refused) < len(tasks.names):
        return
    name, error = next(iter(refused.items()))
    words = refusal_words(name, error)
    if len(refused) > 1:
        counts = Counter(each.type for each in refused.values())
        kinds = ", ".join(f"{type_} {count}" for type_, count in counts.most_common())
        words = f"none of {len(refused)} tasks can run ({kinds}); the first: {words}"
    raise UsageError(words)


def refusal_words(name: str, error: TrialError) -> str:
    """One line about a task that is refused."""
    return f"{name} cannot run: {error.type}: {error}"


def words_about_size(
    demands: Iterable[tuple[str, Demand]], machines: Sequence[Capacity], cpu_overcommit: float
) -> str | None:
    """One line about the tasks, by name with what a trial needs, that are larger than every machine; None without any.

    At least one machine.
    """
    large = [
        (name, each) for name, each in demands if not any(_fits(each, one.cpus, one.memory_mb) for one in machines)
    ]
    if not large:
        return None
    shown = names_shown(f"{name} ({_size(each)})" for name, each in large)
    largest = max(machines, key=lambda one: (one.memory_mb, one.cpus))
    has = _size(Demand(largest.cpus, largest.memory_mb))
    which = "the machine, which has" if len(machines) == 1 else "every machine; the largest has"
    are_alone = not any(_fits(each, one.cpus * cpu_overcommit, one.memory_mb) for _, each in large for one in machines)
    alone = ", and runs alone" if are_alone else ""
    return f"larger than {which} {has}: {shown}; each gets what there is{alone}"


def _fits(demand: Demand, cpus: float, memory_mb: float) -> bool:
    return demand.cpus <= cpus and demand.memory_mb <= memory_mb


def _size(demand: Demand) -> str:
    return f"{demand.cpus:g} cpus, {demand.memory_mb / 1024:,.1f} GB"


# The images of a run: what they will cost, got before the first trial, dropped after a task's last one.


def environments_of(task: Task) -> list[Environment]:
    """What the sandboxes of a task's trials are made of."""
    found = list(agent_environment(task).known_containers())
    for part in task.parts:
        if (own := verifier_environment(part)) is not None:
            found += own.known_containers()
    return found


async def get_ready(backend: Backend, tasks: Iterable[Task], say: Say, *, offline: bool, prefetch: bool) -> None:
    """Say what has to be pulled for these tasks, and get it now where that is asked for.

    A task whose image cannot be had is said, and has its error when its trial begins; the others go on.
    """
    if not isinstance(backend, HoldsImages):
        return
    environments = [each for task in tasks for each in environments_of(task)]
    for line in await backend.about_pulls(environments, ask=not offline):
        say(line)
    if prefetch:
        tell_prefetched(environments, await backend.prefetch(environments), say)


def tell_prefetched(environments: Sequence[Environment], failed: Mapping[str, TrialError], say: Say) -> None:
    """Say what came of getting images."""
    for name, error in failed.items():
        say(f"{name} has no image: {error.type}: {one_line(str(error), 300)}")
    say(f"images: {len(environments) - len(failed)} of {len(environments)} are there")


class Dropping:
    """Removes the images of tasks when their last trial is over."""

    def __init__(self, backend: Backend, plans: Sequence[TrialPlan]) -> None:
        self._backend = backend
        self._tasks = {plan.task_name: plan.task for plan in plans if plan.task is not None}
        self._left = Counter(plan.task_name for plan in plans)
        self._dropped = 0
        self._freed_bytes = 0

    async def after(self, plan: TrialPlan) -> None:
        """Take it that no attempt at this trial follows and its sandbox is gone. Raises nothing."""
        self._left[plan.task_name] -= 1
        if plan.task is None or self._left[plan.task_name] or not isinstance(self._backend, HoldsImages):
            return
        others = [each for name, task in self._tasks.items() if self._left[name] for each in environments_of(task)]
        for environment in environments_of(plan.task):
            freed_bytes = await self._backend.drop_image(environment, others)
            self._dropped += freed_bytes > 0
            self._freed_bytes += freed_bytes

    @property
    def words(self) -> str:
        """One line about what was removed; empty where nothing was."""
        if not self._dropped:
            return ""
        # Images share layers, which are counted with each of them.
        return f"{counted(self._dropped, 'image')} dropped, which had up to {size_shown(self._freed_bytes)}"
