"""A model whose mistake is at a known step, and the trial that it loses by that."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fault_server import FaultServer, Seen, answer, completion

import tbench
from tbench.config.settings import RunConfig

MakeTask = Any
MISTAKE = 3
LAST = 5
TEST = 'if [ "$(cat /app/done 2>/dev/null)" = 12345 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt\n'
CLAIM = '{"analysis": "", "plan": "", "commands": [], "task_complete": true}'


class Model:
    """A model that writes a digit a step, and writes a wrong one the first time that it comes to a certain step."""

    def __init__(self, *, varies: bool = False, never: bool = False) -> None:
        self._varies, self._never = varies, never
        self._asked: list[int] = []

    def __call__(self, seen: Seen) -> bytes:
        step = sum(message["role"] == "assistant" for message in seen.json["messages"]) + 1
        is_wrong = self._never or (step == MISTAKE and MISTAKE not in self._asked)
        self._asked.append(step)
        return answer(200, completion(self._reply(step, is_wrong)))

    def _reply(self, step: int, is_wrong: bool) -> str:
        if step > LAST:
            return CLAIM
        command = f"printf {9 if is_wrong else step} >> done; cat done"
        if self._varies and step == 2:
            command += "; cat /proc/sys/kernel/random/uuid | tr -d a-f | tr 0-9 A-J"
        return json.dumps({"analysis": "", "plan": "", "commands": [{"keystrokes": f"{command}\n"}]})


async def lost_trial(server: FaultServer, make_task: MakeTask, directory: Path, *, varies: bool = False) -> str:
    """Run a trial of small-task that fails by its third step, of which the second may vary; its name."""
    task = make_task(test=TEST)
    server.always_list({"id": "m", "max_model_len": 32768})
    server.answer_by(Model(varies=varies))
    config = RunConfig().with_values(
        model={"base_url": server.base_url},
        tasks={"source": str(Path(task).parent)},
        verify={"mode": "shared"},  # a third of the containers, also for its forks
    )
    async with tbench.Runner(config, directory=directory) as runner:
        record = await runner.trial(Path(task))
    assert (record.reward, record.result.steps) == (0.0, 7)
    return f"{directory}/small-task/0"
