"""Reads prompts of `/v1/completions` back into conversations, where a template of harness.rendering made them."""

from __future__ import annotations

import re

from tbench.demo.scripts import ChatTurns

_ROLES = {"model": "assistant", "System": "system", "Instruction": "user", "Output": "assistant"}
_ACROSS_LINES = re.DOTALL | re.MULTILINE
_TEMPLATES = [
    re.compile(r"<\|im_start\|>(\w+)\n(.*?)<\|im_end\|>\n", re.DOTALL),
    re.compile(r"<start_of_turn>(\w+)\n(.*?)<end_of_turn>\n", re.DOTALL),
    re.compile(r"<\|turn>(\w+)\n(.*?)<turn\|>\n", re.DOTALL),
    re.compile(
        r"^### (System|Instruction|Output):[ \n](.*?)\n(?=### (?:System|Instruction|Output):)", re.DOTALL | re.M
    ),
]


def read_prompt(prompt: str) -> ChatTurns:
    """The turns of a rendered prompt, the open one at its end left out; anything else is one user message."""
    for template in _TEMPLATES:
        if turns := template.findall(prompt):
            return [(_ROLES.get(role, role), text) for role, text in turns]
    return [("user", prompt)]
