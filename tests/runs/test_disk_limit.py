"""An agent that writes more than its task allows ends, on an engine without quotas and without an engine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import tbench
from harness.trajectory import Outcome
from tbench.sandbox.docker.engine import Engine

pytestmark = pytest.mark.engine


async def test_an_agent_that_writes_too_much_ends_with_its_processes_and_is_judged(
    make_task: Any, tmp_path: Path, engine: Engine, run_name: str
) -> None:
    if engine.info.may_limit_disk:
        pytest.skip("this engine may enforce the limit itself")
    task = make_task(
        toml="[environment]\nmemory_mb = 1024\nstorage_mb = 20\nallow_internet = false\n",
        solve="while :; do head -c 2000000 /dev/zero >>/app/more; sleep 0.05; done &\nsleep 120; echo >/app/done\n",
        test="""before=$(wc -c </app/more); sleep 0.5; after=$(wc -c </app/more)
if [ ! -e /app/done ] && [ "$after" = "$before" ]; then echo 0.5; else echo 0; fi >/logs/verifier/reward.txt
""",
    )
    config = tbench.RunConfig.model_validate({"agent": {"name": "oracle"}})
    async with tbench.Runner(config, directory=tmp_path / run_name) as runner:
        record = await runner.trial(task)
    assert (record.result.outcome, record.reward, record.result.error) == (Outcome.DISK_LIMIT, 0.5, None)
    assert record.result.timings.agent_sec < 60
    assert record.result.integrity.verify == "shared", "a fresh container would hold the same once more"
