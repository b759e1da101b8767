"""The images of a run: what they will cost, got before the first trial, dropped after a task's last one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from tbench.config.settings import RunConfig
from tbench.errors import TrialError
from tbench.runs.trial_progress import TrialPlan
from tbench.sandbox.backend import Backend, HoldsImages, Say
from tbench.tasks.environment import Environment, agent_environment, verifier_environment
from tbench.tasks.task import Task
from tbench.text import counted, one_line, size_shown


def environments_of(task: Task) -> list[Environment]:
    """What the sandboxes of a task's trials are made of."""
    found = list(agent_environment(task).known_containers())
    for part in task.parts:
        if (own := verifier_environment(part)) is not None:
            found += own.known_containers()
    return found


async def get_ready(backend: Backend, tasks: Iterable[Task], config: RunConfig, say: Say) -> None:
    """Say what has to be pulled for these tasks, and get it now where that is asked for.

    A task whose image cannot be had is said, and has its error when its trial begins; the others go on.
    """
    if not isinstance(backend, HoldsImages):
        return
    environments = [each for task in tasks for each in environments_of(task)]
    for line in await backend.about_pulls(environments, ask=not config.tasks.offline):
        say(line)
    if config.sandbox.prefetch:
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
