"""Settings of other harnesses in one word: limits, sampling, observation cuts, as those harnesses document them.

A value that a harness leaves to the server cannot be left out here, because every parameter is sent: then it is the
default of the chat API. What a preset does not name is tbench's own default.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.protocols.base import ShellMode
from harness.terminal import Settling


@dataclass(frozen=True)
class Preset:
    """Values that a preset sets, under the field names of Sampling, Limits and Rendering."""

    protocol: str
    sampling: Mapping[str, Any] = field(default_factory=dict)
    limits: Mapping[str, Any] = field(default_factory=dict)
    rendering: Mapping[str, Any] = field(default_factory=dict)
    observation_bytes: int | None = None
    settling: Settling | None = None
    shell_state: ShellMode | None = None


_UNLIMITED = 1_000_000

TERMINUS_2 = Preset(
    protocol="keystrokes-json",  # parser_name: json; durations are capped at 60 s there as well
    # 0.7 was its default for long; Harbor's newer versions send none. It sends no top_p.
    sampling={"temperature": 0.7, "top_p": 1.0},
    limits={
        "steps": _UNLIMITED,  # max_turns, where none is given
        "format_errors": _UNLIMITED,  # it has no such limit
        "on_overflow": "summarize",  # enable_summarize: true
    },
    observation_bytes=10_000,  # _limit_output_length, first and last half
    settling="strict",  # it waits every duration to its end
)
"""Terminus-2 of Harbor (terminus_2.py)."""

TMAX = Preset(
    protocol="bash-tool",
    sampling={"temperature": 0.7, "top_p": 0.95, "max_tokens": 16_384},
    limits={
        "steps": 64,  # max_steps
        "format_errors": 64,  # max_format_errors, in a row
        "command_sec": 120.0,  # command_timeout
        "context_tokens": 65_536,  # the server's --max-model-len in its evaluations: prompt and reply together
        "on_overflow": "stop",  # a full context ends its run
    },
    observation_bytes=10_000,
    settling="adaptive",
    shell_state="persistent",
)
"""The harness of the Tmax models (Vanillux2Agent's defaults, and its launch scripts for the context)."""

MINI_SWE_AGENT = Preset(
    protocol="bash-tool",
    sampling={"temperature": 1.0, "top_p": 1.0},  # it sends neither
    limits={
        "steps": 250,  # step_limit
        "format_errors": 3,  # max_consecutive_format_errors of AgentConfig
        "command_sec": 60.0,  # environment.timeout
        "on_overflow": "stop",
    },
    observation_bytes=10_000,  # the observation template: 5,000 characters of head and of tail
    settling="adaptive",
    shell_state="fresh",  # environment.interpreter: bash -c, for each command
)
"""mini-swe-agent 2 (2.4.6) as in config/benchmarks/swebench.yaml. Version 1 is `--protocol bash-block`."""

THINKING_BASH = Preset(
    protocol="thinking-bash",
    sampling={"temperature": 0.7, "top_p": 0.95, "max_tokens": 256},
    rendering={"template": "contract"},
    shell_state="persistent",
)
"""Prompts (`### System`, `### Instruction`, `### Output`) and sampling that small models were trained with."""

PRESETS: dict[str, Preset] = {
    "terminus-2": TERMINUS_2,
    "tmax": TMAX,
    "mini-swe-agent": MINI_SWE_AGENT,
    "thinking-bash": THINKING_BASH,
}
