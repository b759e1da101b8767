"""The images of a run: told of and got before it, dropped when the last trial of a task is over."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from run_plans import a_plan

from tbench.agents.trial_agent import AgentReport, NopAgent, TrialAgent, Workplace
from tbench.errors import TrialError, UsageError
from tbench.events import Event, Events, Note
from tbench.runs.images import Dropping
from tbench.runs.plan import plan_trials
from tbench.runs.run import RunOutcome, execute_run
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.tasks.environment import Environment
from tbench.tasks.sources import TaskSet, read_tasks


class Imaging(FakeBackend):
    """Keeps account of what is asked about images, beside the sandboxes that were removed by then."""

    def __init__(self, **more: Any) -> None:
        super().__init__(**more)
        self.asked: list[tuple[list[str], bool]] = []
        self.others: list[list[str]] = []
        self.left_at_drop: list[int] = []
        self.failing: Mapping[str, TrialError] = {}
        self.has_dropped = asyncio.Event()

    async def about_pulls(self, environments: Sequence[Environment], *, ask: bool) -> Sequence[str]:
        self.asked.append(([each.name for each in environments], ask))
        return ("3 images to be pulled", "the images may not fit")

    async def prefetch(self, environments: Sequence[Environment]) -> Mapping[str, TrialError]:
        assert not self.made, "no trial has begun"
        await super().prefetch(environments)
        return self.failing

    async def drop_image(self, environment: Environment, others: Sequence[Environment]) -> int:
        self.others.append([each.name for each in others])
        own = [trial for trial in self.left if trial.startswith(f"{environment.name}.")]
        self.left_at_drop.append(len(own))
        self.has_dropped.set()
        return await super().drop_image(environment, others)


@pytest.fixture
def tasks(make_task: Any) -> TaskSet:
    paths = [make_task(name) for name in ("alpha", "beta")]
    return read_tasks(str(paths[0].parent))


async def run(
    tasks: TaskSet,
    directory: Path,
    backend: FakeBackend,
    make_agent: Callable[[], TrialAgent] = NopAgent,
    **settings: Any,
) -> tuple[RunOutcome, list[str]]:
    """The outcome, and what was said."""
    seen: list[Event] = []
    plan = a_plan(**{"seeds": (0, 1), "agent": "nop", "concurrency": 2} | settings)
    outcome = await execute_run(plan, tasks, directory / "run", make_agent, Events(seen.append), backend=backend)
    return outcome, [event.text for event in seen if isinstance(event, Note)]


async def test_a_run_says_before_it_begins_what_has_to_be_pulled(tasks: TaskSet, tmp_path: Path) -> None:
    backend = Imaging()
    _, said = await run(tasks, tmp_path, backend)
    assert said[:2] == ["3 images to be pulled", "the images may not fit"]
    assert backend.asked == [(["alpha", "beta"], True)] and backend.prefetched == [] and backend.dropped == []


async def test_offline_no_registry_is_asked(tasks: TaskSet, tmp_path: Path) -> None:
    backend = Imaging()
    await run(tasks, tmp_path, backend, offline=True)
    assert backend.asked == [(["alpha", "beta"], False)]


async def test_prefetch_gets_all_images_before_the_first_trial_and_one_that_fails_stops_nobody(
    tasks: TaskSet, tmp_path: Path
) -> None:
    backend = Imaging()
    backend.failing = {"beta": TrialError("image_denied", "HOST wants a login")}
    outcome, said = await run(tasks, tmp_path, backend, prefetch=True)
    assert backend.prefetched == ["alpha", "beta"] and len(outcome.results) == 4
    assert said[2:4] == ["beta has no image: image_denied: HOST wants a login", "images: 1 of 2 are there"]


async def test_a_task_that_is_refused_gets_no_image(make_task: Any, tmp_path: Path) -> None:
    make_task("alpha")
    path = make_task("beta", toml='[environment]\nos = "windows"\n')
    backend = Imaging()
    await run(read_tasks(str(path.parent)), tmp_path, backend, prefetch=True)
    assert backend.prefetched == ["alpha"]


async def test_the_image_of_a_task_is_dropped_once_when_its_last_sandbox_is_gone(
    tasks: TaskSet, tmp_path: Path
) -> None:
    backend = Imaging()
    _, said = await run(tasks, tmp_path, backend, drop_images=True, concurrency=1)
    assert backend.dropped == ["alpha", "beta"], "seed by seed: the second seeds are the last"
    assert backend.others == [["beta"], []] and backend.left_at_drop == [0, 0]
    assert said[-1] == "2 images dropped, which had up to 2.0 MB"


async def test_an_attempt_that_another_follows_is_not_the_last(tasks: TaskSet, tmp_path: Path) -> None:
    backend = Imaging(make=lambda _: FakeSandbox(answers=[TrialError("verifier_failed", "once")]))
    outcome, _ = await run(tasks, tmp_path, backend, drop_images=True, seeds=(0,), retries=1)
    assert len(outcome.results) == 4 and sorted(backend.dropped) == ["alpha", "beta"]


class Waits(NopAgent):
    """Works until it is cancelled, where the task is called beta."""

    begun = asyncio.Event()

    async def work(self, place: Workplace) -> AgentReport:
        if place.task.name == "beta":
            self.begun.set()
            await asyncio.Event().wait()
        return await super().work(place)


async def test_a_run_that_is_cut_short_keeps_the_images_of_trials_that_are_still_to_come(
    tasks: TaskSet, tmp_path: Path
) -> None:
    Waits.begun, backend = asyncio.Event(), Imaging()
    running = asyncio.create_task(run(tasks, tmp_path, backend, Waits, drop_images=True, seeds=(0,)))
    async with asyncio.timeout(20):
        await Waits.begun.wait()
        await backend.has_dropped.wait()
        running.cancel()
        await asyncio.wait({running})
    assert running.cancelled() and backend.dropped == ["alpha"]


async def test_what_cannot_be_dropped_is_not_counted(tasks: TaskSet) -> None:
    class Keeping(Imaging):
        async def drop_image(self, environment: Environment, others: Sequence[Environment]) -> int:
            return 0

    plans = plan_trials(tasks, a_plan())
    dropping = Dropping(Keeping(), plans)
    for plan in plans:
        await dropping.after(plan)
    assert dropping.words == ""


@pytest.mark.parametrize("option", ["prefetch", "drop_images"])
async def test_a_backend_without_images_refuses_what_is_about_them(tasks: TaskSet, tmp_path: Path, option: str) -> None:
    class Without:
        def __init__(self) -> None:
            self._backend = FakeBackend()

        def __getattr__(self, name: str) -> Any:
            if name in ("prefetch", "drop_image", "about_pulls"):
                raise AttributeError(name)
            return getattr(self._backend, name)

    with pytest.raises(UsageError, match=f"--{option.replace('_', '-')}: the fake backend"):
        await run(tasks, tmp_path, Without(), **{option: True})  # type: ignore[arg-type]
    outcome, _ = await run(tasks, tmp_path, Without())  # type: ignore[arg-type]
    assert len(outcome.results) == 4
