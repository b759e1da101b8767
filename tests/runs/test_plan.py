"""plan: which settings make another measurement, and which runs may be resumed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from conftest import MakeTask
from run_plans import A_MODEL, a_config, a_document, a_plan

from harness.trajectory import Outcome
from tbench.agents.trial_agent import AgentReport, NopAgent, Workplace
from tbench.config.document import RunDocument
from tbench.config.setting import iter_settings
from tbench.config.settings import RunConfig
from tbench.errors import UsageError
from tbench.events import Events
from tbench.runs.plan import apply_overrides, as_configured, check_same_run, plan_trials, semantic, trial_id
from tbench.runs.resume import EarlierRun
from tbench.runs.run import Run, task_demand
from tbench.sandbox.fake import FakeBackend
from tbench.storage.run_store import RunStore
from tbench.tasks.format import TaskFile
from tbench.tasks.sources import TaskSet, read_tasks
from tbench.tasks.task import Task

TOKEN_PRICES = ("prompt_price", "cached_price", "completion_price")
BASH = {**A_MODEL, "agent": "tbench:bash-tool", "protocol": "bash-tool", "shell_state": "persistent"}
UNUSUAL: dict[str, Any] = {
    **A_MODEL, "agent": "tbench:bash-block", "protocol": "bash-block", "temperature": 0.3, "extra_body": {"top_k": 20},
    "steps": 9, "context_tokens": 4096, "on_overflow": "summarize", "strip_thinking": "on", "settling": "strict",
    "observation_bytes": 500, "neutralise_special_tokens": True, "shell_state": "fresh", "verify": "both",
    "network": "none", "block_host": True, "no_new_privileges": True,
}  # fmt: skip


def test_the_longest_trials_come_first_where_that_is_asked_for(make_task: Any, tmp_path: Path) -> None:
    for name, seconds in {"a": 60, "b": 600, "c": 3600, "d": 600}.items():
        make_task(name, toml=f"[agent]\ntimeout_sec = {seconds}\n")
    tasks = read_tasks(str(tmp_path / "tasks"))
    plain = a_plan(agent="nop", seeds=(0, 1))
    longest = plain.model_copy(update={"config": plain.config.with_values(schedule={"order": "longest"})})
    # A task without a known duration counts with its time limit; equal ones go seed by seed.
    assert [(each.task_name, each.seed) for each in plan_trials(tasks, longest, {"a": 900.0, "c": 30.0})] == [
        ("a", 0), ("a", 1), ("b", 0), ("d", 0), ("b", 1), ("d", 1), ("c", 0), ("c", 1)
    ]  # fmt: skip
    seeds = plan_trials(tasks, plain, {"a": 900.0})
    assert [each.task_name for each in seeds] == [*"abcd", *"abcd"]
    assert {each.trial for each in seeds} == {each.trial for each in plan_trials(tasks, longest)}


@pytest.mark.parametrize(
    ("known", "digest"),
    [
        ({"agent": "nop"}, "bf7173e577"),
        (A_MODEL, "c8877faf30"),
        (BASH, "7449769568"),
        (UNUSUAL, "ba982416dd"),
    ],
)
def test_an_id_stays_what_it_was(known: dict[str, Any], digest: str) -> None:
    # Written down once: a change of them makes every stored run look unfinished.
    assert trial_id("alpha", "0123", 7, a_plan(**known)) == f"alpha.s7.{digest}"


def test_the_seed_scheme_makes_another_trial_where_a_model_is_sent_seeds() -> None:
    hashed, bare = (a_plan(**A_MODEL, seed_scheme=scheme) for scheme in ("hashed", "bare"))
    assert trial_id("alpha", "0123", 7, hashed) != trial_id("alpha", "0123", 7, bare)
    silent = [a_plan(**A_MODEL, seed_scheme=scheme, omit_seed=True) for scheme in ("hashed", "bare")]
    idle = [a_plan(agent="nop", seed_scheme=scheme) for scheme in ("hashed", "bare")]
    for one, other in (silent, idle):
        assert trial_id("alpha", "0123", 7, one) == trial_id("alpha", "0123", 7, other)


@pytest.mark.parametrize(
    "setting",
    [setting for setting in iter_settings(RunConfig) if setting.is_measured],
    ids=lambda setting: setting.path,
)
def test_every_measured_setting_makes_another_trial(setting: Any) -> None:
    plan = a_plan(**BASH)
    other = plan.model_copy(
        update={"config": plan.config.with_values(**{setting.section: {setting.name: another(setting)}})}
    )
    if setting.path in (
        "agent.name",
        "agent.prompt",
        "agent.shell_state",
        "agent.approve",
    ):  # what they stand for is locked
        assert semantic(other) == semantic(plan)
    else:
        assert semantic(other) != semantic(plan)


@pytest.mark.parametrize(
    "setting",
    [setting for setting in iter_settings(RunConfig) if not setting.is_measured and setting.name != "preset"],
    ids=lambda setting: setting.path,
)
def test_the_others_do_not(setting: Any) -> None:
    plan = a_plan(**BASH)
    values = {setting.name: another(setting)}
    if setting.name in TOKEN_PRICES:
        values = dict.fromkeys(TOKEN_PRICES, 0.5)  # none is valid alone
    changed = plan.config.with_values(**{setting.section: values})
    assert semantic(plan.model_copy(update={"config": changed})) == semantic(plan)


def another(setting: Any) -> Any:
    """A value of the setting that is not its default."""
    if setting.choices:
        return next(choice for choice in setting.choices if choice != setting.default)
    if setting.path == "agent.protocol":
        return "bash-block"
    if setting.path == "model.endpoints":
        return ({"base_url": "http://a/v1"}, {"base_url": "http://b/v1", "weight": 2.0})
    if setting.path == "agent.name":
        return "oracle"
    if setting.path == "agent.approve":
        return "ask"
    if setting.path == "schedule.shard":
        return "1/4"
    if setting.path in ("schedule.stop_after", "schedule.keep_cut"):
        return "8h"
    if setting.path == "schedule.stop_at":
        return "06:00"
    if setting.path == "sandbox.cap_add":
        return ("NET_RAW",)
    if setting.path == "sandbox.engines":
        return ("tcp://a:2376",)
    if setting.path == "sandbox.network_pool":
        return "10.0.0.0/16"
    if setting.path in ("schedule.retry_only", "schedule.retry_never"):
        return ("sandbox_lost",)
    if setting.path == "sandbox.container_proxy":
        return "none"
    if setting.path == "model.rename_fields":
        return {"top_p": None}
    values: dict[type, Any] = {bool: not setting.default, str: "other", tuple: ("other",), dict: {"other": 1}}
    if setting.kind is float:
        return 0.5 if setting.default != 0.5 and "sec" not in setting.name else 7.0
    return values.get(setting.kind, 300)


def test_other_locked_values_make_another_trial() -> None:
    for change in (
        {"model": "n"},
        {"prompt_hash": "q"},
        {"agent_sha256": "a"},
        {"shell_state": "fresh"},
        {"approval": "ask"},
    ):
        assert semantic(a_plan(**BASH | change)) != semantic(a_plan(**BASH))
    for change in ({"base_url": "http://elsewhere/v1"}, {"served": {"id": "m", "context_tokens": 8192}}):
        assert semantic(a_plan(**BASH | change)) == semantic(a_plan(**BASH))


# -- going on --------------------------------------------------------------------------------------


def check(begun: RunDocument, now: dict[str, Any]) -> None:
    check_same_run(EarlierRun(Path("runs/earlier"), begun), a_plan(**now), TaskSet((), {}))


@pytest.mark.parametrize(
    ("begun", "now", "words"),
    [
        ({"shell_state": "fresh"}, {}, 'agent.shell_state: "fresh" → "persistent"'),
        ({}, {"shell_state": "fresh"}, 'agent.shell_state: "persistent" → "fresh"'),
        ({}, {"temperature": 0.1}, "model.temperature: 0.7 → 0.1"),
        ({}, {"no_new_privileges": True}, "sandbox.no_new_privileges: false → true"),
    ],
)
def test_a_run_does_not_go_on_with_another_setting(begun: dict[str, Any], now: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=re.escape(words)):
        check(a_document(a_plan(**BASH | begun)), BASH | now)
    check(a_document(a_plan(**BASH | begun)), BASH | begun)


def test_a_shuffled_run_has_the_same_trials_in_another_order_within_each_seed(make_task: Any) -> None:
    paths = [make_task(f"task-{number}") for number in range(6)]
    tasks = read_tasks(str(paths[0].parent))

    def order(shuffle: int | None) -> list[str]:
        return [trial.trial for trial in plan_trials(tasks, a_plan(seeds=(0, 1, 2), shuffle=shuffle))]

    in_order, shuffled = order(None), order(7)
    assert in_order == sorted(in_order, key=lambda trial: (trial.split(".")[1], trial))
    assert sorted(in_order) == sorted(shuffled) and in_order != shuffled == order(7) != order(8)
    seeds = [[trial.split(".")[0] for trial in shuffled[at : at + 6]] for at in (0, 6, 12)]
    assert [trial.split(".")[1] for trial in shuffled] == ["s0"] * 6 + ["s1"] * 6 + ["s2"] * 6
    assert seeds[0] != seeds[1] != seeds[2]


# Overrides in a run: one copy of what a task says, from which admission, sandbox, agent and verifier have limits.

SAID: dict[str, Any] = {
    "agent": {"timeout_sec": 900},
    "verifier": {"timeout_sec": 60},
    "environment": {
        "build_timeout_sec": 600,
        "cpus": 2,
        "memory_mb": 4096,
        "healthcheck": {"command": "true", "timeout_sec": 10, "start_period_sec": 4, "interval_sec": 7},
    },
}


def file_with(**overrides: Any) -> TaskFile:
    return apply_overrides(TaskFile.model_validate(SAID), a_config(**overrides).overrides)


def test_without_overrides_a_task_is_as_it_is_written() -> None:
    assert file_with() == file_with(timeout_multiplier=1) == TaskFile.model_validate(SAID)


def test_the_factor_of_all_timeouts_is_that_of_each() -> None:
    file = file_with(timeout_multiplier=1.5)
    check = file.environment.healthcheck
    assert check is not None
    assert (file.agent.timeout_sec, file.verifier.timeout_sec, file.environment.build_timeout_sec) == (1350, 90, 900)
    assert (check.timeout_sec, check.start_period_sec, check.retries, check.interval_sec) == (15, 6, 5, 7)


@pytest.mark.parametrize("kind", ["agent", "verifier", "build", "healthcheck"])
def test_a_factor_of_its_own_leaves_the_other_timeouts_alone(kind: str) -> None:
    file, written = file_with(**{f"{kind}_timeout_multiplier": 3}), TaskFile.model_validate(SAID)
    changed = {
        "agent": file.agent != written.agent,
        "verifier": file.verifier != written.verifier,
        "build": file.environment.build_timeout_sec != written.environment.build_timeout_sec,
        "healthcheck": file.environment.healthcheck != written.environment.healthcheck,
    }
    assert [name for name, is_other in changed.items() if is_other] == [kind]


def test_an_agent_without_a_timeout_goes_on_without_one() -> None:
    assert apply_overrides(TaskFile(), a_config(timeout_multiplier=9).overrides).agent.timeout_sec is None


def test_resources_replace_those_of_the_task() -> None:
    environment = file_with(cpus=0.5, memory_mb=512).environment
    assert (environment.cpus, environment.memory_mb) == (0.5, 512)


def test_overrides_apply_once_and_the_hash_is_of_the_written_task(make_task: MakeTask) -> None:
    task = Task.read(make_task(toml="[agent]\ntimeout_sec = 10\n"))
    config = a_config(timeout_multiplier=2)
    once = as_configured(task, config)
    twice = as_configured(once, config)
    assert twice is once and twice.file.agent.timeout_sec == 20
    assert twice.hash == Task.read(task.path).hash
    assert as_configured(twice, a_config()).file == task.file


def test_admission_counts_overridden_resources(make_task: MakeTask) -> None:
    task = as_configured(Task.read(make_task()), a_config(cpus=3, memory_mb=1000))
    assert (task_demand(task, "shared").cpus, task_demand(task, "both").memory_mb) == (3, 2000)


async def test_agent_and_verifier_work_under_the_overridden_timeouts(make_task: MakeTask, tmp_path: Path) -> None:
    path = make_task(toml="[agent]\ntimeout_sec = 10\n[verifier]\ntimeout_sec = 20\n[environment]\nmemory_mb = 64\n")
    seen: list[float | None] = []

    class Looking(NopAgent):
        async def work(self, place: Workplace) -> AgentReport:
            seen.append(place.timeout_sec)
            return AgentReport(Outcome.FINISHED)

    async def verifier_limit(**overrides: Any) -> float:
        backend = FakeBackend()
        store = RunStore.create(tmp_path / f"run-{len(seen)}", a_document())
        plan = a_plan(**overrides)
        tasks = TaskSet((as_configured(Task.read(path), plan.config),), {})
        await Run(plan, tasks, make_agent=Looking, backend=backend, store=store, events=Events()).execute()
        store.close()
        (sandbox,) = backend.made.values()
        (copy,) = sandbox.copies
        return next(call.timeout_sec for call in copy.calls if "/tests/test.sh" in call.script)

    plain, doubled = await verifier_limit(), await verifier_limit(timeout_multiplier=2)
    assert seen == [10, 20]
    assert doubled - plain == 20


def test_only_what_changes_the_measurement_makes_other_trials(make_task: MakeTask) -> None:
    tasks = read_tasks(str(make_task()))

    def trial(**overrides: Any) -> str:
        return plan_trials(tasks, a_plan(**overrides))[0].trial

    for same in ({"timeout_multiplier": 1}, {"build_timeout_multiplier": 3}, {"healthcheck_timeout_multiplier": 3}):
        assert trial(**same) == trial(no_build_cache=True) == trial()
    for other in ({"timeout_multiplier": 2}, {"agent_timeout_multiplier": 2}, {"cpus": 2}, {"memory_mb": 64}):
        assert trial(**other) != trial()
    assert trial(resume_trajectory=True) != trial()
    steps = TaskFile.model_validate({"steps": [{"name": "one"}, {"name": "two"}]})
    resumed = apply_overrides(steps, a_config(resume_trajectory=True).overrides)
    assert [step.inherit_prior_session for step in resumed.steps] == [True, True]
    assert semantic(a_plan(cpus=2))["overrides.cpus"] == 2
