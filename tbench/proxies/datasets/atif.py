"""Conversations out of ATIF, the trajectory format of Harbor (`ATIF-v1.0` to `v1.7`; RFC 0001 of that project).

Terminus-2 writes it in two ways. With `raw_content` a step's message is the reply itself. Otherwise the message is
`Analysis: …` and `Plan: …`, and each command a call of `bash_command`: then the reply is put together again as the JSON
that its prompt asks for. What cannot be told for certain ends the conversation there: later turns saw it.
"""

from __future__ import annotations

import json
from typing import Any

from tbench.proxies.datasets.references import RecordedConversation, Turn

_PARSE_ERROR = "Previous response had parsing errors:"
_ANALYSIS, _PLAN, _BETWEEN = "Analysis: ", "Plan: ", "\nPlan: "
_COMMAND, _COMPLETE = "bash_command", "mark_task_complete"


class Refused(Exception):
    """A recording that gives no dataset. The message says why, in one line without the file's name."""


class _Cut(Exception):
    """A step from which on it is not known what the model was shown or answered."""


def is_atif(value: object) -> bool:
    """Whether `value` is the root object of an ATIF file."""
    return isinstance(value, dict) and str(value.get("schema_version", "")).startswith("ATIF")


def read_atif(root: dict[str, Any], source: str) -> RecordedConversation:
    """Read a trajectory. Raises Refused for one whose replies were not Terminus-2's JSON."""
    steps = root.get("steps")
    if not isinstance(steps, list) or not all(isinstance(step, dict) for step in steps):
        raise Refused("ATIF without a list of steps")
    is_rebuilt = _is_rebuilt(root, steps)
    turns: list[Turn] = []
    rebuilt, cut = 0, ""
    try:
        for step in steps:
            turns += _turns(step, is_rebuilt)
            rebuilt += is_rebuilt and _is_own_reply(step)
    except _Cut as reason:
        cut = f"step {step.get('step_id', '?')}: {reason}"
    replies = sum(step.get("source") == "agent" for step in steps)
    return RecordedConversation(tuple(turns), source, total_steps=replies, cut=cut, rebuilt=rebuilt)


def _is_own_reply(step: dict[str, Any]) -> bool:
    return step.get("source") == "agent" and not step.get("is_copied_context")


def _is_rebuilt(root: dict[str, Any], steps: list[dict[str, Any]]) -> bool:
    """Whether replies have to be put together from calls. Raises Refused where that is not possible."""
    agent = root.get("agent")
    agent = agent if isinstance(agent, dict) else {}
    extra = agent.get("extra")
    parser = extra.get("parser") if isinstance(extra, dict) else None
    if parser not in (None, "json"):
        raise Refused(f"its agent answers in {str(parser)[:40]!r}, and a replay dataset is answered in JSON")
    calls = [step["tool_calls"] for step in steps if _is_own_reply(step) and step.get("tool_calls")]
    if not calls:
        return False
    if agent.get("name") != "terminus-2":
        raise Refused(
            f"agent {str(agent.get('name'))[:60]!r} acts by tool calls; only Terminus-2's can be turned into JSON"
        )
    if parser is None and not any('"keystrokes"' in str(step.get("message")) for step in steps[:2]):
        raise Refused("neither agent.extra.parser nor the prompt says that replies were JSON")
    return True


def _turns(step: dict[str, Any], is_rebuilt: bool) -> list[Turn]:
    source, text = step.get("source"), step.get("message")
    results = _results(step)
    if any(result.get("subagent_trajectory_ref") for result in results):
        raise _Cut("the context was summarised; what the model was shown after that is not recorded")
    if not isinstance(text, str):
        raise _Cut("the message is not text")
    if source in ("system", "user"):
        return [Turn(source, text)]
    if source != "agent":
        raise _Cut(f"unknown source {str(source)[:40]!r}")
    if step.get("is_copied_context"):
        return [Turn("assistant", text, is_copy=True)]
    shown = _shown(results)
    reply = _rebuilt_reply(step, text, shown) if is_rebuilt else text
    fault = "format_error" if shown.startswith(_PARSE_ERROR) else ""
    return [Turn("assistant", reply, fault=fault), *([Turn("user", shown)] if shown else [])]


def _results(step: dict[str, Any]) -> list[dict[str, Any]]:
    observation = step.get("observation")
    results = observation.get("results") if isinstance(observation, dict) else None
    return [result for result in results if isinstance(result, dict)] if isinstance(results, list) else []


def _shown(results: list[dict[str, Any]]) -> str:
    """The text that went back to the model: one for all commands of a reply. Raises _Cut."""
    contents = [result["content"] for result in results if result.get("content") is not None]
    if len(contents) > 1 or not all(isinstance(content, str) for content in contents):
        raise _Cut("several observations, or one that is not text: the message that the model got is not recorded")
    return str(contents[0]) if contents else ""


def _rebuilt_reply(step: dict[str, Any], text: str, shown: str) -> str:
    """The reply as the JSON of Terminus-2's prompt. Raises _Cut.

    Durations are those that were used, which are 60 at most.
    """
    if shown.startswith(_PARSE_ERROR):
        raise _Cut("a reply that could not be read is not recorded")
    analysis, plan = _analysis_and_plan(text)
    commands: list[dict[str, Any]] = []
    complete = False
    calls = step.get("tool_calls") or []
    for call in calls if isinstance(calls, list) else [calls]:
        name = call.get("function_name") if isinstance(call, dict) else None
        arguments = call.get("arguments") if isinstance(call, dict) else None
        if name == _COMPLETE:
            complete = True
        elif name == _COMMAND and isinstance(arguments, dict) and isinstance(arguments.get("keystrokes"), str):
            commands.append({"keystrokes": arguments["keystrokes"], "duration": arguments.get("duration", 1.0)})
        else:
            raise _Cut(f"a call of {str(name)[:40]!r} is no command of Terminus-2")
    reply = {"analysis": analysis, "plan": plan, "commands": commands, "task_complete": complete}
    return json.dumps(reply, ensure_ascii=False, indent=2)


def _analysis_and_plan(text: str) -> tuple[str, str]:
    if text.count(_BETWEEN) > 1:
        raise _Cut("where the analysis ends and the plan begins cannot be told")
    if text.startswith(_ANALYSIS):
        analysis, _, plan = text.removeprefix(_ANALYSIS).partition(_BETWEEN)
        return analysis, plan
    if text.startswith(_PLAN) and _BETWEEN not in text:
        return "", text.removeprefix(_PLAN)
    if not text:
        return "", ""
    raise _Cut("the message is neither a reply nor its analysis and plan")
