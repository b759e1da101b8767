"""Finds the features that a model lacks for a packaged agent, by one trial on a tiny task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.trajectory import Outcome, Step, ToolCall
from tbench.doctor import Finding, fail, ok, skipped, warn
from tbench.text import counted

STEPS, MAX_TOKENS = 12, 4096
"""Limits of the trial."""
_FILES = {
    "task.toml": "[agent]\ntimeout_sec = 600\n[environment]\nmemory_mb = 2048\nallow_internet = false\n",
    "instruction.md": 'Create /app/hello.txt containing "Hello, world!".\n',
    "environment/Dockerfile": "FROM debian:bookworm-slim\nWORKDIR /app\n",
    "tests/test.sh": """grep -qs 'Hello, world!' /app/hello.txt && reward=1 || reward=0
echo $reward >/logs/verifier/reward.txt
""",
}
_TOOLS = "vLLM: --enable-auto-tool-choice and the --tool-call-parser of this model"


@dataclass(frozen=True)
class Tried:
    """A trial of an agent on the tiny task."""

    steps: Sequence[Step]
    outcome: Outcome | None
    is_solved: bool
    error: str
    """Why there is no verdict; empty if there is one."""
    context_tokens: int | None
    calls_tools: bool
    """Whether the agent needs tool calls."""


def write_tiny_task(folder: Path) -> Path:
    """Write the tiny task, and return its directory."""
    for name, text in _FILES.items():
        path = folder / "doctors-task" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder / "doctors-task"


def judge(agent: str, tried: Tried) -> list[Finding]:
    """Return one finding for each feature that an agent needs of a model."""
    results = {agent: _end(tried)}
    if tried.steps:
        results |= {"tool calls": _tool_calls(tried), "context": _context(tried)}
        results |= {"reasoning": _reasoning(tried), "replies": _replies(tried)}
    return [replace(each, name=name) for name, each in results.items()]


def _end(tried: Tried) -> Finding:
    requests = counted(len(tried.steps), "request")
    if tried.error:
        return fail(f"no verdict after {requests}: {tried.error}", "read the message; the lines below may say why")
    if tried.is_solved:
        return ok(f"solved a tiny task with {requests}")
    how = tried.outcome.value if tried.outcome is not None else "ended"
    return warn(
        f"did not solve a tiny task ({how} after {requests})", "the lines below may say why; if not, the model is weak"
    )


def _tool_calls(tried: Tried) -> Finding:
    if not tried.calls_tools:
        return skipped("the agent works without them")
    calls = [call for step in tried.steps for call in step.reply.tool_calls]
    if not calls:
        return fail("no reply has one, so the agent can do nothing", f"serve the model with tool calls ({_TOOLS})")
    if broken := sum(not _has_arguments(call) for call in calls):
        return warn(
            f"{broken} of {len(calls)} have arguments that are not a JSON object",
            f"check the server's parser ({_TOOLS})",
        )
    return ok(f"{len(calls)} in {counted(len(tried.steps), 'reply')}")


def _has_arguments(call: ToolCall) -> bool:
    try:
        return isinstance(json.loads(call.arguments), dict)
    except ValueError:
        return False


def _context(tried: Tried) -> Finding:
    first, most = tried.steps[0].reply.usage.prompt_tokens, tried.context_tokens
    said = f"the agent's first prompt has {first:,} tokens" + (f", the context {most:,}" if most is not None else "")
    longer = "serve the model with a longer context (vLLM: --max-model-len)"
    if tried.outcome is Outcome.CONTEXT_LIMIT:
        return fail(f"full; {said}", longer)
    return warn(said, longer) if most is not None and 2 * first > most else ok(said)


def _reasoning(tried: Tried) -> Finding:
    parser = "vLLM: the --reasoning-parser of this model"
    if any("</think>" in step.reply.content for step in tried.steps):
        return warn("it is in the text of replies, where the agent takes it for an answer", f"separate it ({parser})")
    if not (count := sum(bool(step.reply.reasoning) for step in tried.steps)):
        return skipped(f"no reply has any: right for a model that does not reason ({parser})")
    return ok(f"in {count} of {counted(len(tried.steps), 'reply')}")


def _replies(tried: Tried) -> Finding:
    if cut := sum(step.reply.cut for step in tried.steps):
        return warn(
            f"{cut} of {len(tried.steps)} were cut, here at {MAX_TOKENS} tokens or at the end of the context",
            "check that the model ends its replies (its chat template and stop tokens)",
        )
    return ok("none was cut")
