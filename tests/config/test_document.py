"""run.json: what is written is read back as the same, and what is damaged or of another version is refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from run_plans import A_MODEL, a_config, a_plan

from harness.model import ServedModel
from harness.reply_stats import ReplyStats
from tbench.config.document import ForeignRunDocument, PlannedTask, RunDocument, read_document, replies_fields
from tbench.config.setting import Setting, iter_settings
from tbench.config.settings import RunConfig
from tbench.results import TrialResult
from tbench.storage.read_run import RunUnreadable, read_run, read_run_document

Change = Callable[[dict[str, Any]], object]


def another_value(setting: Setting) -> Any:
    """A value that is not the default."""
    special = {
        "tasks.source": "/tasks",
        "agent.preset": "tmax",
        "agent.protocol": "bash-block",
        "model.template": "server",  # others have no place for some of the rest
        "model.strip_thinking": "off",
        "output.min_coverage": 0.5,
        "model.top_p": 0.5,
        "model.rename_fields": {"top_p": None, "max_tokens": "max_completion_tokens"},
        "sandbox.allow_env": ("A", "B"),
        "sandbox.cap_add": ("SYS_PTRACE",),
        "sandbox.ray": None,  # it excludes engines
        "sandbox.network_pool": "10.99.0.0/16",
        "sandbox.container_proxy": "http://10.1.2.3:3128",
        "schedule.stop_after": "8h",
        "schedule.stop_at": "06:00",
        "schedule.keep_cut": "90m",
        "schedule.retry_only": ("sandbox_lost",),
        "schedule.retry_never": ("terminal_failed",),
        "model.endpoints": ({"base_url": "http://a/v1", "weight": 2.0}, {"base_url": "http://b/v1"}),
        "schedule.shard": "1/4",
        "agent.approve": "ask,allowlist=rules.txt",
    }
    if setting.path in special:
        return special[setting.path]
    if setting.choices:
        return next(word for word in setting.choices if word != setting.default)
    kind, default = setting.kind, setting.default
    if kind is bool:
        return not default
    return {int: 1234, float: 12.5, str: "x", tuple: ("a*", "b"), dict: {"key": {"inner": [1, None]}}}[kind]


def a_document_of(config: RunConfig) -> RunDocument:
    plan = a_plan(**A_MODEL, served=ServedModel(id="m", context_tokens=4096), seeds=(3, 4))
    return RunDocument(
        **{**dict(plan), "config": config},
        status="stopped",
        stopped="the endpoint is away",
        created_at="2026-11-22T13:01:51+00:00",
        resumed_at=("2026-11-22T14:01:51+00:00",),
        engine={"version": "20"},
        tasks=(PlannedTask(name="a", hash="h", image_id="sha256:1"), PlannedTask(name="b", invalid="no task.toml")),
    )


def test_a_document_is_read_back_as_the_same_object() -> None:
    values = {setting.name: another_value(setting) for setting in iter_settings(RunConfig) if setting.name != "name"}
    config = a_config(**{name: value for name, value in values.items() if name != "mode"}, verify="isolated")
    config = config.with_values(agent={"name": "my:Agent"}, model={"name": "m"})
    document = a_document_of(config)
    again = read_document(json.loads(document.model_dump_json()))
    assert again == document
    assert again.config.model_dump() == config.model_dump()
    same = {
        each.path
        for each in iter_settings(RunConfig)
        if getattr(getattr(config, each.section), each.name) == each.default
    }
    assert same == {"model.template", "sandbox.ray"}


def test_a_stored_configuration_does_not_follow_its_preset_any_more() -> None:
    """The values of a preset are spelled out in run.json: a later tbench may have others."""
    document = a_document_of(a_config(preset="tmax", temperature=0.1))
    content = json.loads(document.model_dump_json())
    assert content["config"]["limits"]["steps"] == 64
    content["config"]["limits"]["steps"] = 65
    assert read_document(content).config.limits.steps == 65


def without(*keys: str) -> Change:
    return lambda content: [content.pop(key) for key in keys]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            lambda content: content.update(schema_version=4),
            "schema_version 4 is from another version of tbench, this",
        ),
        (lambda content: content.update(schema_version="two"), 'schema_version "two" is from another version of'),
        (lambda content: content["config"]["limits"].update(steps=0), "config.limits.steps: Input should be greater"),
        (lambda content: content["config"]["limits"].update(colour=1), "config.limits.colour: Extra inputs are not"),
        (lambda content: content["config"]["agent"].update(preset="vim"), "config: vim: unknown; known: "),
        (lambda content: content.update(status="asleep"), "status: Input should be 'running', 'finished'"),
        (without("locked"), "locked: Field required"),
        (without("tasks"), "`tasks` is not a list of objects with a name"),
        (without("seeds"), "`seeds` is not a list of whole numbers"),
    ],
)
def test_a_damaged_run_json_is_named_in_one_line_with_what_to_do(change: Change, said: str, tmp_path: Path) -> None:
    content = json.loads(a_document_of(a_config()).model_dump_json())
    change(content)
    file = tmp_path / "run.json"
    file.write_text(json.dumps(content))
    with pytest.raises(RunUnreadable) as caught:
        read_run_document(file)
    line = str(caught.value)
    assert line.startswith(f"{file}: ") and said in line and "\n" not in line
    assert "use the version that wrote it" in line or "restore it or delete the run" in line


def test_a_plan_beside_imported_results_is_no_document(tmp_path: Path) -> None:
    plan = {"seeds": [0], "tasks": [{"name": "a"}], "model": "theirs"}
    with pytest.raises(ForeignRunDocument):
        read_document(plan)
    (tmp_path / "run.json").write_text(json.dumps(plan))
    (tmp_path / "results.jsonl").write_text('{"task": "a", "seed": 0, "reward": 1}\n')
    stored = read_run(tmp_path)
    assert (stored.document, stored.model, stored.planned_tasks, stored.planned_seeds) == (None, "theirs", ["a"], [0])
    with pytest.raises(RunUnreadable, match="has no configuration, so the run cannot be continued"):
        read_run_document(tmp_path / "run.json")


def test_a_run_says_at_its_end_what_its_replies_say_of_themselves() -> None:
    seen = ReplyStats(total=4, models={"other": 4}, signs={"prompt_truncated": 1}, first="0" * 16)
    results = [
        TrialResult(
            run="r", trial=f"t{seed}", task="t", seed=seed, agent="a", replies=seen,
            started_at=datetime.now(UTC), finished_at=datetime.now(UTC),
        )
        for seed in range(3)
    ]  # fmt: skip
    about = replies_fields(a_plan(**A_MODEL, served=ServedModel(id="m")), results)
    assert (about["replies"].total, about["replies"].models, about["replies"].first) == (12, {"other": 12}, None)
    kinds = ("name the model other, but m was requested", "silently truncated", "the same reply as another seed")
    assert [kind in note for kind, note in zip(kinds, about["reply_notes"], strict=True)] == [True] * 3
