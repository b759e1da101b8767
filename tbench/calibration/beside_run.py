"""The calibration of a run's tasks beside its trials: what is not known yet is measured in the room that is left."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from typing import get_args

from tbench.calibration.conditions import conditions, is_healthy
from tbench.calibration.measuring import AGENTS, REPETITIONS, CalibratedTask, Calibrating
from tbench.config.setting import settings_of
from tbench.config.settings import RunConfig, SandboxConfig
from tbench.runs.beside import Say, Spare
from tbench.tasks.task import Task
from tbench.text import counted
from tbench.verify.calibration import CalibratingAgent, Calibration

_SAME_CONTAINER = frozenset({"pin_cpus", "allow_env", "trust"})
"""Settings of sandboxes with any of which a task's containers may do the same."""


class CalibrationBeside:
    """Measures those of a run's tasks that have an oracle and are not known, and judges all of them.

    With `all` they are measured anew, and waited for; with `off`, and `missing` beside the oracle or nobody, none is.
    """

    def __init__(self, config: RunConfig, tasks: Sequence[Task]) -> None:
        """`config` is said in words, so it has no passwords."""
        which = config.schedule.calibrate
        self._config = config
        self._tasks = [task for task in tasks if task.has_oracle and not task.unsupported]
        self._measures = which == "all" or (which == "missing" and config.agent.name not in get_args(CalibratingAgent))
        self._why_not = _why_not(config)
        self._done: dict[str, CalibratedTask] = {}
        self._wanted: list[Task] = []
        self.is_waited_for = which == "all"

    async def measure(self, spare: Spare, say: Say) -> None:
        if not self._measures or self._why_not:
            return
        self._wanted = [task for task in self._tasks if task.name in spare.tasks]
        trying = Calibrating.of(self._config, REPETITIONS, again=self.is_waited_for, spare=spare)

        async def one(task: Task) -> None:
            await spare.image(task.name)
            (self._done[task.name],) = await trying.tasks([task])

        try:
            async with asyncio.TaskGroup() as group:
                for task in self._wanted:
                    group.create_task(one(task))
        except BaseExceptionGroup as failures:
            raise failures.exceptions[0] from None

    def unhealthy(self, known: Mapping[str, Calibration]) -> dict[str, str] | None:
        found, is_complete = dict[str, str](), bool(self._tasks)
        for task in self._tasks:
            each = self._done.get(task.name) or CalibratedTask(task, known.get(task.name))
            if each.calibration is None and each.error is None:
                is_complete = False
            elif not is_healthy(of_task := conditions(each)):
                found[task.name] = next(iter(of_task))
            else:
                is_complete &= each.calibration is not None and all(map(each.calibration.of, AGENTS))
        return found if found or is_complete else None

    def left_words(self) -> str:
        if self._why_not and self.is_waited_for:
            return f"calibration: none beside a run with {self._why_not}; measure with: tbench calibrate"
        left = [task.name for task in self._wanted if task.name not in self._done]
        if not left:
            return ""
        source = shlex.quote(self._config.tasks.source)
        chosen = "" if len(left) > 3 else "".join(f" -t {shlex.quote(name)}" for name in left)
        words = f"{len(left)} of {counted(len(self._wanted), 'task')} not measured beside the trials"
        return f"calibration: {words}; go on with: tbench calibrate -d {source}{chosen}"


def _why_not(config: RunConfig) -> str:
    """The option for which tasks could not be measured as they are, or without their images coming anew; else empty."""
    if config.sandbox.drop_images:
        return "--drop-images"
    usual = SandboxConfig()
    deciding = [each for each in settings_of(RunConfig) if each.section == "sandbox" and each.is_measured]
    changed = (
        each.flags[0]
        for each in deciding
        if each.name not in _SAME_CONTAINER and getattr(config.sandbox, each.name) != getattr(usual, each.name)
    )
    return next(changed, "")
