"""presets: the documented settings of other harnesses, each of them a value that tbench can take."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tbench.config.presets import PRESETS, preset
from tbench.config.settings import RunConfig

DOCS = Path(__file__).parents[2] / "docs" / "presets.md"
DIRECTORY = Path(__file__).parents[2] / "tbench" / "config" / "presets"


def test_every_file_is_a_preset() -> None:
    assert sorted(PRESETS) == sorted(path.stem for path in DIRECTORY.glob("*.toml"))


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_sets_what_it_names_and_leaves_the_rest(name: str) -> None:
    made, plain = RunConfig(agent={"preset": name}).model_dump(), RunConfig().model_dump()
    for section, values in preset(name).items():
        plain[section] |= values
    assert made == {**plain, "agent": {**plain["agent"], "preset": name}}


def test_an_explicit_value_wins_over_the_preset_also_where_it_is_the_default() -> None:
    config = RunConfig.model_validate(
        {
            "agent": {"preset": "terminus-2", "protocol": "bash-block", "settling": "adaptive"},
            "model": {"temperature": 0.2},
            "limits": {"steps": 100},
        }
    )
    assert (config.agent.protocol, config.agent.settling, config.limits.steps) == ("bash-block", "adaptive", 100)
    assert (config.model.temperature, config.model.top_p, config.limits.on_overflow) == (0.2, 1.0, "summarize")


def test_a_preset_fills_up_parts_that_are_models_already() -> None:
    config = RunConfig.model_validate({"agent": RunConfig().agent.model_copy(), "limits": {"steps": 3}})
    assert config.limits.steps == 3
    given = type(config.agent)(preset="tmax")
    assert RunConfig(agent=given).limits.steps == 64


def test_a_shell_state_is_left_to_protocols_that_have_a_shell() -> None:
    keys: dict[str, Any] = {"preset": "mini-swe-agent", "protocol": "keystrokes-json"}
    assert RunConfig(agent=keys).agent.shell_state is None
    assert RunConfig(agent={"preset": "mini-swe-agent"}).agent.shell_state == "fresh"
    assert RunConfig(agent={"preset": "mini-swe-agent", "shell_state": "persistent"}).agent.shell_state == "persistent"


def test_an_agent_of_one_s_own_takes_nothing_of_the_built_in_loop() -> None:
    config = RunConfig(agent={"preset": "terminus-2", "name": "mine:Agent"})
    assert (config.agent.protocol, config.limits.on_overflow) == (
        RunConfig().agent.protocol,
        RunConfig().limits.on_overflow,
    )
    assert (config.limits.steps, config.agent.settling) == (1_000_000, "strict")


def test_tmax_is_as_its_harness_documents_it() -> None:
    tmax = preset("tmax")
    assert tmax["model"] == {"temperature": 0.7, "top_p": 0.95, "max_tokens": 16_384}
    limits = tmax["limits"]
    assert (limits["steps"], limits["command_sec"], limits["context_tokens"]) == (64, 120, 65_536)
    assert tmax["agent"]["protocol"] == "bash-tool"


def test_terminus_2_summarises_and_waits_durations_out() -> None:
    terminus = preset("terminus-2")
    assert (terminus["agent"]["protocol"], terminus["agent"]["settling"]) == ("keystrokes-json", "strict")
    assert terminus["limits"]["on_overflow"] == "summarize"


def test_mini_swe_agent_starts_a_process_per_command_and_the_others_keep_their_shell() -> None:
    states = {name: preset(name)["agent"].get("shell_state") for name in PRESETS}
    assert states == {
        "terminus-2": None, "tmax": "persistent", "mini-swe-agent": "fresh", "thinking-bash": "persistent"
    }  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_the_page_names_every_value_of_a_preset(name: str) -> None:
    row = next(line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}`"))
    for value in (each for section in preset(name).values() for each in section.values()):
        shown = f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
        assert shown in row, f"{name}: {value}"
