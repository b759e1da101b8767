"""Datasets of replay, endpoints for them, and the command, for tests."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from click.testing import CliRunner
from fault_server import FaultServer, Seen, answer, completion

from tbench.cli import app

CARD = {"id": "tiny", "max_model_len": 8192, "root": "tiny"}


def record(number: int, **changes: Any) -> dict[str, Any]:
    """A corrected record; its last message is `question NUMBER`."""
    return {
        "task_id": f"task-{number // 3:03d}",
        "sample_idx": number // 3,
        "step_idx": number % 3,
        "source_group": "swe",
        "messages": [
            {"role": "user", "content": "start"},
            {"role": "assistant", "content": "<think>hm</think>\nearlier"},
            {"role": "user", "content": f"question {number}"},
        ],
        "ref_raw": '{"commands": [{"keystrokes": "ls\\n"}]}',
        **changes,
    }


def write_dataset(path: Path, records: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(each) + "\n" for each in records))
    return path


def question(seen: Seen) -> str:
    """The last message of a chat request."""
    content: str = seen.json["messages"][-1]["content"]
    return content


def echo(seen: Seen) -> bytes:
    """A reply that tells which step it is for; for /tokenize there is nothing."""
    if seen.path == "/tokenize":
        return answer(404, {"detail": "Not Found"})
    return answer(200, completion(f"reply to {question(seen)}"))


def serves(server: FaultServer, **changes: Any) -> FaultServer:
    server.always_list({**CARD, **changes})
    server.answer_by(echo)
    return server


def asked(server: FaultServer) -> list[str]:
    """The questions that the server was asked."""
    return [question(seen) for seen in server.seen if seen.path.endswith("/chat/completions")]


def invoke(*arguments: str) -> Any:
    """`tbench replay run …` in this process."""
    return CliRunner().invoke(app, ["replay", "run", *arguments])


def command(*arguments: str) -> list[str]:
    """Run it in a separate process."""
    return [sys.executable, "-c", "from tbench.cli import main; main()", "replay", "run", *arguments]


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}


def lines(directory: Path) -> list[dict[str, Any]]:
    # Not splitlines(): a reply may hold U+2028, which ends no line of JSON.
    return [json.loads(line) for line in (directory / "responses.jsonl").read_bytes().split(b"\n")[:-1]]


def by_key(directory: Path) -> dict[str, dict[str, Any]]:
    """The last response to every step."""
    return {f"{line['task_id']}/{line['step_idx']}": line for line in lines(directory)}
