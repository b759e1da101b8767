"""Memory of this side per trial in flight, beyond the first: containers and endpoint are other processes.

Runs itself in a fresh process. All trials of a run talk to the endpoint and step; when each of them has
STEPS replies with an observation of about 4 KB in its history, the garbage is collected and the resident set is read.
"""

from __future__ import annotations

import asyncio
import gc
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from endpoint import Endpoint
from figures import Figures
from small_task import Place, make_task

from harness.agent import Limits
from harness.endpoint.chat import ChatModel
from harness.model import Sampling
from harness.protocols import load_protocol
from tbench.agents.model_agent import ModelAgent
from tbench.events import Event, TrialStep
from tbench.sandbox.docker.engine import Engine

TRIALS, STEPS = 33, 20
REPLY = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "seq -s, 900\\n", "duration": 5.0}]}'


def resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / (1 << 20)


class Watch:
    """Reads the memory at the moment when the last of `trials` begins the step after STEPS."""

    def __init__(self, trials: int) -> None:
        self._missing = trials
        self.mb = 0.0

    def __call__(self, event: Event) -> None:
        if isinstance(event, TrialStep) and event.step == STEPS + 1:
            self._missing -= 1
            if not self._missing:
                gc.collect()
                self.mb = resident_mb()


async def in_flight_mb(place: Place, chat: ChatModel, trials: int) -> float:
    watch, protocol = Watch(trials), load_protocol("keystrokes-json")
    # Enough further steps that the first is still at work when the last comes to be looked at.
    limits = Limits(steps=3 * STEPS)
    await place.run_trials(lambda: ModelAgent(chat, protocol, limits), trials, trials, "keystrokes-json", watch)
    assert watch.mb
    return watch.mb


async def measure(directory: Path) -> float:
    engine = Engine.connect(TRIALS)
    try:
        place = await Place.prepare(engine, make_task(directory / "memory-task", memory_mb=64))
        with Endpoint(REPLY, 0.5) as base_url:
            chat = ChatModel(base_url, None, Sampling(), api_key=None)
            await chat.connect()
            await in_flight_mb(place, chat, 1)  # what is loaded at first use
            first = await in_flight_mb(place, chat, 1)
            all_ = await in_flight_mb(place, chat, TRIALS)
            await chat.close()
    finally:
        engine.close()
    return (all_ - first) / (TRIALS - 1)


async def per_trial(place: Place, figures: Figures, scratch: Path) -> None:
    """Megabytes per trial in flight beyond the first."""
    argv, environ = [sys.executable, __file__], {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = await asyncio.to_thread(subprocess.run, argv, check=True, stdout=subprocess.PIPE, text=True, env=environ)
    figures.add("memory_per_trial_mb", float(done.stdout.splitlines()[-1]), "MB")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as directory:
        print(asyncio.run(measure(Path(directory))))
