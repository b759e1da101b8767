"""A trial that is cut again and again: how soon the model is asked again, how often in all, and what an uncut one pays.

The figure begins when the container is found again, and ends when the model is asked for the next step; it leaves out
the start of Python and the engine's answers about the container, which every run has.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import resource
import statistics
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import steps
from cut_runs import CutRun
from endpoint import Endpoint
from fault_server import FaultServer, Seen, answer, completion
from figures import Figures
from small_task import Place

from harness.agent import Agent, Limits
from harness.endpoint.chat import ChatModel
from harness.model import Sampling
from harness.protocols import load_protocol
from tbench.storage.read_run import read_steps
from tbench.storage.run_files import CHECKPOINTS_NAME, trial_directory
from tbench.storage.run_store import StepLog

STEPS, CUTS, ROUNDS = 150, 5, 3
_CLAIMS, _SHORT = 2, 2


class Model:
    """A model that types a line a step, and notes when it was asked for each."""

    def __init__(self) -> None:
        self.asked: list[float] = []

    def __call__(self, seen: Seen) -> bytes:
        self.asked.append(time.time())
        step = sum(message["role"] == "assistant" for message in seen.json["messages"]) + 1
        commands = [{"keystrokes": f"echo step-{step}\n"}] if step <= STEPS else []
        reply = {"analysis": "", "plan": "", "commands": commands, "task_complete": step > STEPS}
        return answer(200, completion(json.dumps(reply)))

    @property
    def requests(self) -> int:
        return len(self.asked)


async def after_cuts(place: Place, figures: Figures, scratch: Path) -> None:
    """Kill the run at evenly spaced steps, the last time just before the end, and resume it each time."""
    await asyncio.to_thread(_measure, place, figures, scratch)
    shares = []
    for number in range(ROUNDS):  # both in turn, so that they see the same machine
        directory = scratch / f"uncut-{number}"
        directory.mkdir()
        step_sec = await asyncio.to_thread(_uncut_step_sec, place, directory)
        shares.append(await _saving_sec(place, directory) / step_sec)
    figures.add("going_on_step_cpu_share", statistics.median(shares), "")


def _uncut_step_sec(place: Place, scratch: Path) -> float:
    """CPU time of a run's process for a step: of a whole run, less a run that hardly has steps."""
    began = _uncut_sec(place, scratch / "short", _SHORT)
    return (_uncut_sec(place, scratch / "long", STEPS) - began) / (STEPS - _SHORT)


def _uncut_sec(place: Place, directory: Path, steps: int) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with closing(FaultServer()) as server:
        options = ["--seeds", "1", "--steps", str(steps)]
        run = CutRun(directory, place.task.path.parent, server, Model(), *options)
        run.start().communicate()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class SavingAgent(Agent):
    """An agent that counts the CPU time of its checkpoints."""

    saving_sec = 0.0
    _is_saving = False

    def _save(self, *args: Any, **options: Any) -> None:
        self._count(super()._save, *args, **options)

    def _save_followed(self, *args: Any, **options: Any) -> None:
        self._count(super()._save_followed, *args, **options)

    def _count(self, save: Callable[..., None], *args: Any, **options: Any) -> None:
        if self._is_saving:  # the one saves by the other
            return save(*args, **options)
        self._is_saving, began = True, time.thread_time()
        save(*args, **options)
        self._is_saving, self.saving_sec = False, self.saving_sec + time.thread_time() - began
        return None


async def _saving_sec(place: Place, scratch: Path) -> float:
    """CPU time of a step for the checkpoints of a conversation that is never cut."""
    log = StepLog(scratch / "steps", CHECKPOINTS_NAME)
    async with contextlib.AsyncExitStack() as stack:
        sandboxes = await stack.enter_async_context(place.sandboxes(1))
        base_url = stack.enter_context(Endpoint(steps.REPLY, 0.0))
        chat = await stack.enter_async_context(ChatModel(base_url, None, Sampling(), api_key=None))
        await chat.connect()
        [terminal] = await steps.opened(sandboxes)
        protocol, limits = load_protocol("keystrokes-json"), Limits(steps=STEPS)
        agent = SavingAgent(chat, terminal, protocol, limits, on_checkpoint=log.append)
        await agent.run("Go on.")
        await terminal.close()
    log.close()
    return agent.saving_sec / STEPS


def _measure(place: Place, figures: Figures, scratch: Path) -> None:
    model, waits = Model(), list[float]()
    with closing(FaultServer()) as server:
        run = CutRun(scratch / "cut", place.task.path.parent, server, model, "--seeds", "1", "--steps", "none")
        for number in range(1, CUTS + 1):
            asked = model.requests
            run.start()
            run.end(lambda number=number: model.requests >= number * STEPS // CUTS)
            if number > 1 and model.requests > asked:
                waits.append(model.asked[asked] - run.notes[0].entered_at)
        asked = model.requests
        run.start()
        while model.requests == asked:
            time.sleep(0.001)
        waits.append(model.asked[asked] - run.notes[0].entered_at)
        assert run.process is not None
        run.process.communicate()
    figures.add("going_on_attached_ms", statistics.median(waits) * 1e3, "ms")
    figures.add("going_on_requests_ratio", model.requests / (STEPS + _CLAIMS), "")
    figures.add("going_on_replay_ms_per_step", _replay_sec(place, scratch / "replayed") / (STEPS - 1) * 1e3, "ms")


def _replay_sec(place: Place, directory: Path) -> float:
    """Time for which the agent waited while its steps were replayed in a new container, without their commands."""
    model = Model()
    with closing(FaultServer()) as server:
        run = CutRun(directory, place.task.path.parent, server, model, "--seeds", "1", "--steps", "none")
        run.start()
        run.end(lambda: model.requests >= STEPS)
        place.engine.api.remove_container(run.notes[0].sandbox, force=True)
        run.finish()
    (result,) = (each for each in run.results if each.final)
    (goes_on,) = result.went_on
    assert goes_on.how == "replayed"
    steps = read_steps(trial_directory(run.directory, result.task, result.seed, result.attempt))
    return result.timings.waited_sec - sum(step.command_sec for step in steps[: goes_on.at_step - 1])
