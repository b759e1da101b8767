"""The command that repeats a trial gives the configuration that it had, but for what moves no score."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from run_plans import A_MODEL, a_document, a_plan

from tbench.config.layers import Layers
from tbench.config.setting import iter_settings
from tbench.config.settings import RunConfig
from tbench.storage.stored_trial import rerun_commands

FLAGS = {setting.flags[0]: setting for setting in iter_settings(RunConfig) if setting.flags} | {
    flag: setting for setting in iter_settings(RunConfig) for flag in setting.flags
}


def configuration(command: str) -> RunConfig:
    """The configuration that the words of a command give."""
    words = shlex.split(command.replace("\\\n", " "))
    assert words[:2] == ["tbench", "run"]
    layers, values = Layers(RunConfig), []
    for flag, value in zip(words[2::2], words[3::2], strict=True):
        values += layers.assignment(value) if flag == "-c" else [layers.option(FLAGS[flag].path, value, flag)]
    return layers.resolve(values).config


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"temperature": 0.2, "extra_body": {"top_k": 20, "name": "it's"}, "max_tokens": 4096},
        {"preset": "tmax", "temperature": 0.7},
        {"protocol": "bash-tool", "shell_state": "fresh", "steps": None, "settling": "strict"},
        {"network": "none", "build": True, "cap_add": ("SYS_PTRACE", "NET_ADMIN"), "timeout_multiplier": 2.0},
        {"metric": "accuracy", "verify": "both", "prompt": "my prompts.jinja"},
    ],
)
def test_the_configuration_is_the_same_in_all_that_is_measured(settings: dict[str, Any]) -> None:
    document = a_document(a_plan(**A_MODEL, base_url="http://h:1/v1", source="tasks dir", seeds=(0, 1), **settings))
    again = configuration(rerun_commands(document)("a task", 4))
    measured = [setting for setting in iter_settings(RunConfig) if setting.is_measured]
    assert {each.path: each.value_in(again) for each in measured} == {
        each.path: each.value_in(document.config) for each in measured
    }
    assert (again.tasks.source, again.tasks.include) == ("tasks dir", ("a task",))
    assert again.tasks.planned_seeds == (4,)
    assert again.model.base_url == "http://h:1/v1"


def test_a_task_is_named_and_not_a_pattern() -> None:
    command = rerun_commands(a_document(a_plan()))("what[1]*?", 0)
    assert configuration(command).tasks.include == ("what[[]1][*][?]",)


def test_another_agent_is_named() -> None:
    document = a_document(a_plan(agent="oracle"))
    config = document.config.with_values(agent={"name": "oracle"})
    assert configuration(rerun_commands(document.model_copy(update={"config": config}))("t", 0)).agent.name == "oracle"
