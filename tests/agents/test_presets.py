"""presets: the documented settings of other harnesses, each of them a value that tbench can take."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from harness.limits import Limits
from harness.model import Rendering, Sampling
from harness.protocols import PROTOCOLS, load_protocol
from harness.protocols.base import ShellMode
from harness.terminal import Settling
from tbench.agents.presets import PRESETS, Preset

KNOWN_PROTOCOLS = {"keystrokes-json", "keystrokes-xml", "bash-block", "bash-tool", "thinking-bash"}
DOCS = Path(__file__).parents[2] / "docs" / "presets.md"


@pytest.mark.parametrize("preset", PRESETS.values(), ids=PRESETS.keys())
def test_every_value_is_one_that_tbench_takes(preset: Preset) -> None:
    Sampling(**preset.sampling)
    Limits(**preset.limits)
    Rendering(**preset.rendering)
    assert preset.settling is None or preset.settling in get_args(Settling)
    assert preset.shell_state is None or preset.shell_state in get_args(ShellMode)
    assert preset.protocol in KNOWN_PROTOCOLS


@pytest.mark.parametrize("preset", [p for p in PRESETS.values() if p.protocol in PROTOCOLS])
def test_its_protocol_takes_its_observation_limit(preset: Preset) -> None:
    assert load_protocol(preset.protocol, None, preset.observation_bytes or 10_000).name == preset.protocol


def test_tmax_is_as_its_harness_documents_it() -> None:
    tmax = PRESETS["tmax"]
    assert tmax.sampling == {"temperature": 0.7, "top_p": 0.95, "max_tokens": 16_384}
    assert (tmax.limits["steps"], tmax.limits["command_sec"], tmax.limits["context_tokens"]) == (64, 120, 65_536)
    assert tmax.protocol == "bash-tool"


def test_terminus_2_summarises_and_waits_durations_out() -> None:
    terminus = PRESETS["terminus-2"]
    assert (terminus.protocol, terminus.settling) == ("keystrokes-json", "strict")
    assert terminus.limits["on_overflow"] == "summarize"


def test_mini_swe_agent_starts_a_process_per_command_and_the_others_keep_their_shell() -> None:
    states = {name: preset.shell_state for name, preset in PRESETS.items()}
    assert states == {
        "terminus-2": None, "tmax": "persistent", "mini-swe-agent": "fresh", "thinking-bash": "persistent"
    }  # fmt: skip


@pytest.mark.parametrize("name", PRESETS)
def test_the_page_names_every_value_of_a_preset(name: str) -> None:
    row = next(line for line in DOCS.read_text(encoding="utf-8").splitlines() if line.startswith(f"| `{name}`"))
    preset = PRESETS[name]
    values = [*preset.sampling.values(), *preset.limits.values(), *preset.rendering.values(), preset.protocol]
    for value in (*values, preset.observation_bytes, preset.settling, preset.shell_state):
        shown = f"{value:,g}" if isinstance(value, float) else f"{value:,}" if isinstance(value, int) else value
        assert shown is None or shown in row, f"{name}: {value}"
