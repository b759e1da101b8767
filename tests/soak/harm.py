"""Harm to the containers of a run: removed, stopped for a while, emptied of processes, out of memory.

Not `docker pause`: with an exec that is just beginning it makes Docker 20.10 lock that container for good.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import Counter, defaultdict

from tbench.events import Event, TrialPhase, TrialStep
from tbench.sandbox.backend import BUSYBOX
from tbench.sandbox.docker.engine import Engine, EngineError
from tbench.sandbox.owner import LABEL_RUN, LABEL_TRIAL

HARMED_EVENTS, SOON_SEC = 0.1, 0.4
"""The share of events of trials that harm follows, and how soon."""
STOP_SEC = 1.5
AT_ANY_TIME = ("removed", "stopped")
WHILE_THE_AGENT_WORKS = ("all processes killed", "tmux killed", "out of memory")
"""Not later: a verifier that is killed has no verdict to give, and nobody can say who killed it."""
_SCRIPTS = {
    # Continued by the same process, and no other harm meanwhile: while the process of an exec that is just beginning is
    # stopped, the engine locks the container.
    "stopped": f"kill -STOP -1; sleep {STOP_SEC}; kill -CONT -1",
    "all processes killed": "kill -9 -1",
    "tmux killed": f"{BUSYBOX} pkill -9 tmux",
    "out of memory": "dd if=/dev/zero of=/dev/null bs=900M count=1",
}


class Harm:
    """A subscriber that knows what each trial is at, and does harm to the containers of some soon after an event.

    So a trial is harmed as often as it has events, however long these take on the machine.
    """

    def __init__(self, engine: Engine, run: str, chance: random.Random, last_step: int) -> None:
        self.injected: Counter[str] = Counter()
        self._engine = engine
        self._run = run
        self._chance = chance
        self._last_step = last_step
        self._working: dict[str, int] = {}
        """The attempt of each trial that is at such a step."""
        self._under_way: set[asyncio.Task[None]] = set()
        self._one_at_a_time: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)
        """By trial."""

    def __call__(self, event: Event) -> None:
        match event:
            case TrialStep() if event.step <= self._last_step:
                self._working[event.trial] = event.attempt
            case TrialStep() | TrialPhase() if self._working.get(event.trial) == event.attempt:
                del self._working[event.trial]
            case _:
                pass
        if isinstance(event, TrialStep | TrialPhase) and self._chance.random() < HARMED_EVENTS:
            task = asyncio.create_task(self._one(event.trial))
            self._under_way.add(task)
            task.add_done_callback(self._under_way.discard)

    async def ended(self) -> None:
        """Wait for what is under way."""
        await asyncio.gather(*self._under_way)

    async def _one(self, trial: str) -> None:
        await asyncio.sleep(self._chance.uniform(0, SOON_SEC))
        async with self._one_at_a_time[trial]:
            await self._harm(trial)

    async def _harm(self, trial: str) -> None:
        api = self._engine.api
        labels = [f"{LABEL_RUN}={self._run}", f"{LABEL_TRIAL}={trial}"]
        with contextlib.suppress(EngineError):  # it ended by itself in the meantime
            if not (found := await self._engine.call(api.containers, filters={"label": labels})):
                return
            victim = self._chance.choice(found)["Id"]
            working = trial in self._working
            fault = self._chance.choice([*AT_ANY_TIME, *(WHILE_THE_AGENT_WORKS if working else ())])
            if fault == "removed":
                await self._engine.call(api.remove_container, victim, force=True)
            else:
                await self._engine.call(self._exec, victim, _SCRIPTS[fault])
            self.injected[fault] += 1
            if fault == "stopped":
                await asyncio.sleep(2 * STOP_SEC)

    def _exec(self, container: str, script: str) -> None:
        api = self._engine.api
        created = api.exec_create(container, [BUSYBOX, "sh", "-c", script], user="root")
        api.exec_start(created["Id"], detach=True)
