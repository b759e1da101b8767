"""Run directories for tests: conversations that a real agent had over real HTTP, and what the endpoint received."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from fault_server import FaultServer, completion
from run_plans import a_document, a_plan

from harness.agent import Agent
from harness.endpoint.chat import ChatModel, Rendering, RetryPolicy, Sampling
from harness.errors import EndpointError
from harness.fakes import FakeTerminal
from harness.limits import Limits
from harness.protocols import PROTOCOLS, load_protocol
from harness.protocols.base import Command, CommandResult, Keys
from harness.protocols.bash import MARKER
from harness.trajectory import Reply, Trajectory
from tbench.results import TaskStepResult, TrialResult
from tbench.storage.run_store import write_files, write_trial

BEGAN = datetime(2026, 11, 23, 12, 0, tzinfo=UTC)
DONE = CommandResult(output=f"{MARKER}\n", exit_code=0)
LISTED = CommandResult(output="notes.txt\n", exit_code=0)


def called(command: str, content: str = "", number: int = 1) -> dict[str, Any]:
    """A reply that calls the function `bash`."""
    function = {"name": "bash", "arguments": json.dumps({"command": command})}
    return {"content": content, "tool_calls": [{"id": f"call-{number}", "type": "function", "function": function}]}


def keys(*typed: str, done: bool = False) -> str:
    commands = [{"keystrokes": each, "duration": 0.5} for each in typed]
    return json.dumps({"analysis": "a", "plan": "p", "commands": commands, "task_complete": done})


def script(name: str) -> tuple[list[Any], list[Any]]:
    """Replies in a protocol, of which the second is a format error, and what the terminal shows."""
    protocol = load_protocol(name)
    keys = [Keys("ls\n", 0.5), Keys("", 0.5, "C-c")]
    said = protocol.write("I look.", "", [Command("ls")] if protocol.types_commands else keys)
    done = as_message(protocol.write("Done.", "", [], complete=True), 2)
    replies = [as_message(said), "no", done]
    return (replies, ["$ ", LISTED, DONE]) if protocol.types_commands else ([*replies, done], [])


def as_message(reply: Reply, number: int = 1) -> Any:
    """A reply as text, or as a whole message if it calls a function."""
    arguments = [json.loads(call.arguments) for call in reply.tool_calls]
    return called(arguments[0]["command"], reply.content, number) if arguments else reply.content


SCRIPTS = {name: script(name) for name in PROTOCOLS}


async def conversation(
    server: FaultServer,
    protocol: str,
    replies: Sequence[Any] | None = None,
    views: Sequence[Any] | None = None,
    *,
    rendering: Rendering | None = None,
    context_tokens: int | None = None,
    **limits: Any,
) -> tuple[Trajectory, list[dict[str, Any]]]:
    """A trajectory, and the bodies of all requests to the model. Replies are texts, or whole messages."""
    script, shown = SCRIPTS[protocol]
    for reply in script if replies is None else replies:
        if isinstance(reply, tuple):
            server.will_answer(*reply)
            continue
        message = {"content": reply} if isinstance(reply, str) else reply
        server.will_answer(body=completion(**message))
    before = len(server.seen)
    async with ChatModel(
        server.base_url,
        "m",
        Sampling(),
        api_key=None,
        retry=RetryPolicy(total_sec=0.1, initial_sec=0.01, max_sec=0.01),
        rendering=rendering,
    ) as model:
        model.limits.listed_tokens = context_tokens
        terminal = FakeTerminal(shown if views is None else views)
        agent = Agent(model, terminal, load_protocol(protocol), Limits(**limits))
        try:
            trajectory = await agent.run("List the notes.")
        except EndpointError:
            trajectory = agent.trajectory
    return trajectory, [seen.json for seen in server.seen[before:]]


@dataclass
class StoredTrial:
    """A trial to be written: a trajectory, or one for each step of its task."""

    trajectory: Trajectory | None = None
    task: str = "list-notes"
    seed: int = 0
    reward: float | None = 1.0
    steps: dict[str, Trajectory] | None = None
    fields: dict[str, Any] | None = None


def store_run(directory: Path, trials: Iterable[StoredTrial], *, name: str = "nightly", **known: Any) -> Path:
    """A finished run with these trials, as the runner writes it; `known` are settings and what is locked."""
    trials = list(trials)
    first = next((each.trajectory for each in trials if each.trajectory is not None), None)
    protocol = first.protocol if first is not None and first.protocol in PROTOCOLS else "keystrokes-json"
    locked = {"agent": f"tbench:{protocol}", "model": "m", "protocol": protocol}
    if "prompt_hash" not in known:
        locked["prompt_hash"] = load_protocol(protocol).prompt_hash
    plan = a_plan(name, seeds=tuple(sorted({each.seed for each in trials}) or (0,)), **(locked | known))
    tasks = [{"name": task, "hash": f"sha256:{task}"} for task in sorted({each.task for each in trials})]
    document = a_document(plan).model_dump(mode="json")
    document |= {"tasks": tasks, "status": "finished", "tbench_version": "0.1.0"}
    directory.mkdir(parents=True)
    (directory / "run.json").write_text(json.dumps(document))
    results = [_write(directory, name, each, locked["agent"]) for each in trials]
    (directory / "results.jsonl").write_text("".join(f"{result.model_dump_json()}\n" for result in results))
    return directory


def _write(directory: Path, run: str, trial: StoredTrial, agent: str) -> TrialResult:
    place = directory / "trials" / trial.task / f"seed-{trial.seed}"
    parts = {**(trial.steps or {})}
    made = trial.trajectory
    result = TrialResult(
        **{
            "run": run,
            "trial": f"{trial.task}.s{trial.seed}.abc",
            "task": trial.task,
            "seed": trial.seed,
            "agent": agent,
            "model": "m",
            "reward": trial.reward,
            "outcome": None if made is None else made.outcome,
            "steps": 0 if made is None else len(made.steps),
            "started_at": BEGAN,
            "finished_at": BEGAN + timedelta(seconds=60),
            "task_steps": tuple(TaskStepResult(name=step, reward=1.0) for step in parts),
            **(trial.fields or {}),
        }
    )
    for step, trajectory in parts.items():
        write_files(place / "steps" / step, trajectory, {})
    write_trial(place, result, made, {"verifier/reward.txt": b"1\n", "verifier/stdout.txt": b"passed\n"})
    return result
