"""What an agent is told at its place of work: the instruction, MCP servers, and the skills that are in the sandbox."""

from __future__ import annotations

import shlex

from tbench.agents.trial_agent import Workplace, agent_user
from tbench.sandbox.backend import BUSYBOX
from tbench.tasks.told import instruction_with_servers, skills_told

_LOOK_SEC = 30.0
_LARGEST = 64 << 10
"""Bytes of a SKILL.md that are read."""
_MOST_SKILLS = 500
# Names and texts in turn, each ended by a NUL.
_SKILLS = f"""cd {{workdir}} 2>/dev/null
{BUSYBOX} find {{folder}} -mindepth 2 -maxdepth 2 -name SKILL.md -type f 2>/dev/null | {BUSYBOX} sort |
{BUSYBOX} head -n {_MOST_SKILLS} | while read -r path; do
    printf '%s\\0' "$path"
    {BUSYBOX} head -c {_LARGEST} "$path" 2>/dev/null | {BUSYBOX} tr -d '\\0'
    printf '\\0'
done
"""


async def told_at(place: Workplace) -> str:
    """The whole instruction for an agent at this place. Raises TrialError."""
    told = instruction_with_servers(place.task)
    if folder := place.task.file.environment.skills_dir:
        told += skills_told(await _skills(place, folder))
    return told


async def _skills(place: Workplace, folder: str) -> dict[str, str]:
    """The SKILL.md files one folder down, as far as the agent's user can read them."""
    script = _SKILLS.format(workdir=shlex.quote(place.sandbox.workdir), folder=shlex.quote(folder))
    ended = await place.sandbox.shell(script, timeout_sec=_LOOK_SEC, user=agent_user(place.task))
    parts = ended.output.decode("utf-8", "replace").split("\0")
    return dict(zip(parts[::2], parts[1::2], strict=False))
