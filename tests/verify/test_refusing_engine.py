"""Verification of passing work on the real engine, behind a relay that answers some calls itself."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from own_relay import CUT, FAILS, OwnRelay, own_relay

from tbench.errors import TrialError
from tbench.results import is_weak
from tbench.sandbox.backend import SandboxSettings, open_backend
from tbench.sandbox.docker.backend import DockerBackend
from tbench.sandbox.docker.engine import Engine
from tbench.tasks.environment import agent_environment
from tbench.tasks.task import Task
from tbench.verify.policy import verify_by
from tbench.verify.verifier import Verdict

pytestmark = pytest.mark.engine
BOUND_SEC = 120
CREATE, START, EXEC, RUN, ASK, DIFF = (
    *(r"/containers/create\?", r"/containers/\w+/start$", r"/containers/\w+/exec$", r"/exec/\w+/start$"),
    *(r"/exec/\w+/json$", r"/containers/\w+/changes$"),
)
WORDS = b"OCI runtime exec failed: fork/exec /proc/self/exe: resource temporarily unavailable\r\n"
STARTS_NOTHING = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\n"
STARTS_NOTHING += b"\1\0\0\0" + len(WORDS).to_bytes(4, "big") + WORDS
"""Response of an engine that accepted a command, but whose machine has no resources to start it."""


@pytest.fixture
def relay() -> Iterator[OwnRelay]:
    with own_relay() as relay:
        yield relay


def refusing(pattern: str, first: int, answer: bytes) -> Callable[[str], bytes | None]:
    """Answer every second matching call from the `first` on, so that retries fail but the control does not."""
    count = 0

    def answers(request: str) -> bytes | None:
        nonlocal count
        count += bool(found := re.search(pattern, request))
        return answer if found and count >= first and (count - first) % 2 == 0 else None

    return answers


slow = pytest.mark.slow


@pytest.mark.parametrize(
    ("mode", "pattern", "first", "answer"),
    [
        ("shared", CREATE, 1, FAILS),
        ("shared", RUN, 1, STARTS_NOTHING),
        ("both", CREATE, 2, FAILS),
        ("isolated", START, 2, FAILS),
        pytest.param("shared", START, 1, FAILS, marks=slow),
        pytest.param("shared", DIFF, 1, FAILS, marks=slow),
        pytest.param("shared", RUN, 2, CUT, marks=slow),
        pytest.param("both", EXEC, 4, FAILS, marks=slow),
        pytest.param("both", RUN, 4, STARTS_NOTHING, marks=slow),
        pytest.param("both", ASK, 1, FAILS, marks=slow),
        pytest.param("isolated", CREATE, 1, FAILS, marks=slow),
        pytest.param("isolated", RUN, 5, STARTS_NOTHING, marks=slow),
        pytest.param("isolated", RUN, 4, CUT, marks=slow),
    ],
)
async def test_a_refused_call_is_never_a_zero_of_the_agent(
    relay: OwnRelay,
    tools_volume: str,
    make_task: Any,
    run_name: str,
    mode: Any,
    pattern: str,
    first: int,
    answer: bytes,
) -> None:
    engine, task = Engine.connect(4, host=relay.host, outage_sec=10), Task.read(make_task())
    verdict: Verdict | None = None
    async with asyncio.timeout(BOUND_SEC), open_backend(DockerBackend(engine, SandboxSettings(run_name))) as backend:
        sandbox = await backend.sandbox(agent_environment(task), "trial")
        assert (await sandbox.shell("mkdir -p /app; touch /app/done", timeout_sec=30)).exit_code == 0
        relay.answers = refusing(pattern, first, answer)
        try:
            verdict = await verify_by(mode, task, sandbox)
        except TrialError as error:
            assert error.kind.retryable, error
        relay.answers = lambda _: None
        await sandbox.remove()
    engine.close()
    if verdict is not None:
        # Calls that are repeated or not needed cost nothing.
        assert verdict.reward == 1.0
        assert all(map(is_weak, verdict.integrity.tamper)), verdict.integrity.tamper
        assert verdict.integrity.tamper or mode != "shared"
