"""Which runs can be compared, and what is said of those that cannot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run_plans import A_MODEL, a_plan

from tbench.config.document import PlannedTask, RunDocument
from tbench.config.setting import iter_settings
from tbench.config.settings import RunConfig
from tbench.origin import DatasetOrigin
from tbench.results import UNKNOWN_TIME, TrialResult
from tbench.storage.comparable import differences, differing_keys, doubtful_settings, fingerprint, score_keys
from tbench.storage.read_run import StoredRun

MOVES_A_SCORE = """
    model.template model.chat_template_kwargs model.strip_thinking model.send_reasoning model.temperature model.top_p
    model.max_tokens model.extra_body model.rename_fields model.omit_seed model.seed_scheme
    agent.name agent.protocol agent.prompt agent.observation_bytes agent.settling agent.shell_state
    agent.neutralise_special_tokens agent.approve
    limits.steps limits.format_errors limits.completion_tokens limits.context_tokens limits.on_overflow
    limits.command_sec
    sandbox.network sandbox.block_host sandbox.pin_cpus sandbox.no_new_privileges sandbox.allow_env sandbox.trust
    sandbox.cap_add sandbox.ignore_keys
    overrides.timeout_multiplier overrides.agent_timeout_multiplier overrides.verifier_timeout_multiplier
    overrides.cpus overrides.memory_mb overrides.resume_trajectory
    verify.mode verify.metric
"""
MOVES_NONE = """
    tasks.source tasks.include tasks.exclude tasks.limit tasks.seeds tasks.first_seed tasks.shuffle tasks.registry
    tasks.refresh tasks.offline
    model.name model.base_url model.endpoints model.request_timeout_sec model.retry_budget_sec model.max_outage_sec
    model.other_weights
    agent.preset agent.version
    sandbox.build sandbox.no_build_cache sandbox.pull sandbox.pull_concurrency sandbox.prefetch sandbox.drop_images
    sandbox.keep sandbox.snapshot sandbox.network_pool sandbox.engines sandbox.ray
    overrides.build_timeout_multiplier overrides.healthcheck_timeout_multiplier
    sandbox.require_limits sandbox.container_proxy sandbox.pull_timeout_sec verify.artifacts_mb
    schedule.concurrency schedule.order schedule.shard schedule.durations schedule.retries schedule.retry_only
    schedule.retry_never schedule.cpu_overcommit schedule.max_load schedule.calibrate
    schedule.stop_after schedule.stop_at schedule.keep_cut schedule.go_on schedule.count_differing
    cost.prompt_price cost.cached_price cost.completion_price cost.hour_price cost.gpus cost.currency
    output.directory output.min_coverage output.log_level output.verbosity output.json_lines
"""
BY_LOCK = {"agent.name", "agent.prompt", "agent.shell_state", "agent.approve"}
"""Settings that count by what they stood for when the run began."""


def a_run(
    *, dataset: str | None = None, tasks: dict[str, str] | None = None, version: str = "0.1.0", **known: Any
) -> StoredRun:
    hashes = {"t": "1"} if tasks is None else tasks
    plan = a_plan(**{**A_MODEL, **known})
    document = RunDocument(
        **dict(plan),
        tbench_version=version,
        dataset=None if dataset is None else DatasetOrigin(name=dataset, source="tbench", tasks=1),
        tasks=tuple(PlannedTask(name=name, hash=digest or None) for name, digest in hashes.items()),
    )
    return StoredRun(
        path=Path("r"), name="r", planned_tasks=list(hashes), planned_seeds=[0], results=[], document=document
    )


def imported(agent: str = "unknown") -> StoredRun:
    result = TrialResult(
        run="x", trial="t/0", task="t", seed=0, agent=agent, started_at=UNKNOWN_TIME, finished_at=UNKNOWN_TIME
    )
    return StoredRun(path=Path("x"), name="x", planned_tasks=["t"], planned_seeds=[0], results=[result], imported=True)


def test_every_setting_has_chosen_whether_it_moves_a_score() -> None:
    """A new setting fails here until its name stands in one of the two lists above."""
    assert sorted([*MOVES_A_SCORE.split(), *MOVES_NONE.split()]) == sorted(
        setting.path for setting in iter_settings(RunConfig)
    )
    assert set(MOVES_A_SCORE.split()) - BY_LOCK == {key for key in score_keys(a_run()) if "." in key} - BY_LOCK - {
        "tasks.t"
    }


def test_two_runs_of_one_configuration_are_comparable_wherever_they_went() -> None:
    here = a_run(base_url="http://a/v1", concurrency=1, seeds=(0,))
    there = a_run(base_url="http://b/v1", concurrency=9, retries=4, model="other", seeds=(1, 2), run="another")
    assert differing_keys(here, there) == ()
    assert fingerprint(here) == fingerprint(there)


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ({"protocol": "bash-block"}, 'agent.protocol: "keystrokes-json" → "bash-block"'),
        ({"temperature": 0.0}, "model.temperature: 0.7 → 0.0"),
        ({"extra_body": {"top_k": 20}}, "model.extra_body.top_k: nothing → 20"),
        ({"seed_scheme": "bare"}, 'model.seed_scheme: "hashed" → "bare"'),
        ({"prompt_hash": "q"}, 'agent.prompt: "p" → "q"'),
        ({"steps": None}, "limits.steps: 100 → null"),
        ({"timeout_multiplier": 2.0}, "overrides.timeout_multiplier: 1.0 → 2.0"),
        ({"verify": "isolated"}, 'verify.mode: "both" → "isolated"'),
        ({"network": "none"}, 'sandbox.network: "task" → "none"'),
        ({"version": "0.2.0"}, 'tbench: "0.1" → "0.2"'),
    ],
)
def test_what_may_move_a_score_is_named_with_both_values(known: dict[str, Any], words: str) -> None:
    assert differing_keys(a_run(), a_run(**known)) == (words,)
    assert fingerprint(a_run()) != fingerprint(a_run(**known))


def test_a_setting_without_effect_is_no_difference() -> None:
    nobody = {"agent": "oracle", "model": None, "prompt_hash": None}
    assert differing_keys(a_run(**nobody), a_run(**nobody, temperature=0.0, steps=3, protocol="bash-block")) == ()


def packaged(agent: str, **known: Any) -> StoredRun:
    return a_run(**{"agent": agent, "prompt_hash": None, "agent_sha256": "1", **known})


def test_packaged_agents_may_differ_but_nothing_else_may() -> None:
    codex, other = packaged("codex@1"), packaged("claude-code@2")
    assert len(differing_keys(codex, other)) == 1
    assert doubtful_settings(codex, other) == doubtful_settings(codex, a_run()) == ()
    assert doubtful_settings(codex, packaged("claude-code@2", temperature=0.1)) == ("model.temperature: 0.7 → 0.1",)
    assert doubtful_settings(codex, packaged("codex@1", agent_sha256="other"))
    assert doubtful_settings(a_run(), a_run(agent="tbench:bash-block")) == differing_keys(
        a_run(), a_run(agent="tbench:bash-block")
    )


def test_limits_have_an_effect_on_packaged_agents() -> None:
    assert differing_keys(packaged("codex@1"), packaged("codex@1", steps=3)) == ("limits.steps: 100 → 3",)
    assert differing_keys(packaged("codex@1"), packaged("codex@1", protocol="bash-block")) == ()


def test_another_patch_of_the_same_release_measures_the_same() -> None:
    assert differing_keys(a_run(), a_run(version="0.1.7")) == ()


def test_changed_tasks_are_one_line_and_leave_the_series_as_it_is() -> None:
    old, new = (
        a_run(tasks={"a": "1", "b": "1", "c": "1", "d": ""}),
        a_run(tasks={"a": "1", "b": "2", "c": "2", "e": "1"}),
    )
    assert differing_keys(old, new) == ("content of 2 of 3 common tasks: b, c",)
    assert fingerprint(old) == fingerprint(new)


def test_another_dataset_is_a_difference_unless_its_common_tasks_are_the_same() -> None:
    old = a_run(dataset="one", tasks={"a": "1", "b": "1"})
    assert differing_keys(old, a_run(dataset="two", tasks={"a": "1", "c": "5"})) == ()
    for other in ({"x": "1"}, {"a": ""}):
        assert differing_keys(old, a_run(dataset="two", tasks=other)) == ('dataset: "one" → "two"',)
    assert fingerprint(old) != fingerprint(a_run(dataset="two"))


def test_of_imported_results_only_what_they_tell_is_compared() -> None:
    assert differing_keys(a_run(), imported()) == ()
    assert differing_keys(imported(), imported("a")) == ()
    assert differing_keys(a_run(), imported("terminus")) == ('agent.name: "tbench:keystrokes-json" → "terminus"',)
    assert score_keys(imported()) == {}


# What differs between two starts, in words.


def test_equal_settings_have_no_differences_and_null_is_as_good_as_absent() -> None:
    assert differences({"a": {"b": [1, 2]}, "c": None}, {"a": {"b": [1, 2], "d": None}}) == ""


def test_each_value_that_differs_is_named_with_both_in_the_order_of_the_keys() -> None:
    old = {"z": 1, "sampling": {"top_p": 0.9, "extra": {"k": 5}}, "model": "é"}
    new = {"z": 1, "sampling": {"top_p": 1.0, "extra": {"k": 5, "p": 0.1}}, "model": None}
    assert differences(old, new) == 'model: "é" → null; sampling.extra.p: nothing → 0.1; sampling.top_p: 0.9 → 1.0'


def test_what_may_differ_is_left_out_by_its_dotted_name() -> None:
    old, new = {"a": {"b": 1, "c": 1}, "b": 1}, {"a": {"b": 2, "c": 2}, "b": 2}
    assert differences(old, new, apart_from={"a.b", "b"}) == "a.c: 1 → 2"


def test_long_values_and_many_differences_are_cut() -> None:
    words = differences({f"k{number:02}": "x" * 500 for number in range(40)}, {})
    assert words.startswith('k00: "xxx') and words.endswith("… → nothing; and 28 more")
    assert len(words) < 1500
