"""A trial that is done again up to a step: what that costs beside its container and its commands.

The floor is what a fork may cost: the start of its container, 10 ms for each step that is done again, and the time that
the commands of those steps take by themselves.
"""

from __future__ import annotations

import json
import statistics
import time
from contextlib import closing
from pathlib import Path

from fault_server import FaultServer, Seen, answer, completion
from figures import Figures
from small_task import Place

import tbench
from tbench.api.forking import fork
from tbench.config.settings import RunConfig
from tbench.storage.stored_trial import find_trial

AT_STEP, STEPS, ROUNDS = 30, 34, 7
PER_STEP_SEC = 0.01


class Replies:
    """A model that types a line a step, and knows when it was first asked."""

    def __init__(self) -> None:
        self.first: float | None = None

    def __call__(self, seen: Seen) -> bytes:
        if self.first is None:
            self.first = time.perf_counter()
        step = sum(message["role"] == "assistant" for message in seen.json["messages"]) + 1
        commands = [{"keystrokes": f"echo step-{step}\n"}] if step <= STEPS else []
        reply = {"analysis": "", "plan": "", "commands": commands, "task_complete": step > STEPS}
        return answer(200, completion(json.dumps(reply)))


async def to_a_step(place: Place, figures: Figures, scratch: Path) -> None:
    """From asking for a fork at step 30 until the model is asked for that step."""
    with closing(FaultServer()) as server:
        server.always_list({"id": "m", "max_model_len": 1 << 20})
        server.answer_by(Replies())
        config = RunConfig().with_values(
            model={"base_url": server.base_url}, tasks={"source": str(place.task.path.parent)}
        )
        async with tbench.Runner(config, directory=scratch / "recorded") as runner:
            await runner.trial(place.task)
        trial = f"{scratch}/recorded/{place.task.name}/0"
        until, allowed, replayed = list[float](), list[float](), list[float]()
        for number in range(ROUNDS):
            replies = Replies()
            server.answer_by(replies)
            started = time.perf_counter()
            done = await fork(trial, AT_STEP, directory=scratch / f"fork-{number}")
            assert replies.first is not None and not done.differs
            result, again = done.trials[0].result, find_trial(f"{scratch}/fork-{number}/{place.task.name}/0")
            commands = sum(step.command_sec for step in again.steps[: AT_STEP - 1])
            until.append((replies.first - started) * 1e3)
            allowed.append((result.timings.sandbox_sec + (AT_STEP - 1) * PER_STEP_SEC + commands) * 1e3)
            replayed.append(commands * 1e3 / (AT_STEP - 1))
    figures.add("fork_at_30_ms_p50", statistics.median(until), "ms", statistics.median(allowed))
    figures.add("fork_step_ms_p50", statistics.median(replayed), "ms")
