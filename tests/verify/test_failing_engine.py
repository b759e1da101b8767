"""Verification of passing work with an engine that fails once or from some call on: the result is never a 0."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from tbench.errors import Origin, TrialError
from tbench.results import Integrity, is_weak
from tbench.sandbox.archive import FileEntry
from tbench.sandbox.backend import BackendFacts, ExecResult
from tbench.sandbox.fake import FakeSandbox
from tbench.tasks.environment import verifier_environment
from tbench.tasks.task import Task
from tbench.verify.policy import verify_by
from tbench.verify.separate.grading import SeparateVerifier
from tbench.verify.separate.handover import ArtifactEntry, HandedOver
from tbench.verify.verifier import Verdict

MakeTask = Any
DONE = ArtifactEntry(source="/app/done", destination="artifacts/app/done", type="file", status="ok")
FAILURES: Mapping[str, Callable[[bool], TrialError]] = {
    "refuses": lambda is_fresh: TrialError("sandbox_failed", "500", origin=Origin("exec", is_fresh, 500)),
    "is away": lambda is_fresh: TrialError("engine_unreachable", "cut", origin=Origin("exec", is_fresh)),
    "loses the container": lambda _: TrialError("sandbox_lost", "gone"),
    "has no room": lambda _: TrialError("image_no_space", "full"),
    # Either the engine's machine or the agent may be the cause.
    "starts nothing": lambda is_fresh: TrialError("sandbox_failed", "126", origin=Origin("exec", is_fresh, ran=True)),
}


class FailingEngine:
    """Counts the calls for its sandboxes; raises `fails` at the call `at` and, unless `once`, at all later ones."""

    def __init__(self, fails: Callable[[bool], TrialError], at: int, *, once: bool) -> None:
        self.calls = 0
        self._fails, self._at, self._once = fails, at, once

    def asked(self, *, is_fresh: bool) -> None:
        self.calls += 1
        if self.calls == self._at or (self.calls > self._at and not self._once):
            raise self._fails(is_fresh)


class OnIt(FakeSandbox):
    """A sandbox of a failing engine."""

    def __init__(self, engine: FailingEngine, *, is_fresh: bool = False) -> None:
        super().__init__()
        self.engine, self.is_fresh = engine, is_fresh
        self.files = {} if is_fresh else {"/app/done": FileEntry(b"")}

    def _asks(self) -> None:
        self.engine.asked(is_fresh=self.is_fresh)

    async def shell(self, script: str, **options: Any) -> ExecResult:
        self._asks()
        return await super().shell(script, **options)

    async def fetch(self, directory: str, limit_bytes: int) -> dict[str, bytes]:
        self._asks()
        return await super().fetch(directory, limit_bytes)

    async def backend_facts(self) -> BackendFacts:
        self._asks()
        return await super().backend_facts()

    async def make_room(self) -> tuple[str, ...]:
        self._asks()
        return await super().make_room()

    async def original(self) -> FakeSandbox:
        return await self.make_fresh()

    async def make_fresh(self) -> FakeSandbox:
        self.engine.asked(is_fresh=True)
        return OnIt(self.engine, is_fresh=True)


async def verdict_of(mode: str, task: Task, engine: FailingEngine, directory: Path) -> Verdict:
    if mode != "separate":
        return await verify_by(mode, task, OnIt(engine))  # type: ignore[arg-type]
    environment = verifier_environment(task)
    assert environment is not None
    (directory / "artifacts.tar").touch()
    return await SeparateVerifier(environment, OnIt(engine).make_fresh).verify(
        HandedOver(directory / "artifacts.tar", (DONE,))
    )


@pytest.mark.parametrize("once", [True, False], ids=["once", "from then on"])
@pytest.mark.parametrize("failure", FAILURES)
@pytest.mark.parametrize("mode", ["shared", "both", "isolated", "separate"])
async def test_a_failure_of_any_call_is_a_retryable_error_or_leaves_the_pass(
    make_task: MakeTask, tmp_path: Path, mode: str, failure: str, once: bool
) -> None:
    toml = '[verifier]\nenvironment_mode = "separate"\n' if mode == "separate" else ""
    task = Task.read(make_task(toml=toml))
    ended: list[str] = []
    while True:
        engine = FailingEngine(FAILURES[failure], len(ended) + 1, once=once)
        integrity = Integrity()
        try:
            verdict = await verdict_of(mode, task, engine, tmp_path)
            integrity = verdict.integrity
            assert verdict.reward == 1.0, integrity
            ended.append("pass")
        except TrialError as error:
            assert error.kind.retryable, error
            ended.append(error.type)
        assert all(map(is_weak, integrity.tamper)), integrity
        if engine.calls < len(ended):
            break
    assert ended[-1] == "pass"
    assert len(ended) > 3
    assert set(ended[:-1]) != {"pass"}
