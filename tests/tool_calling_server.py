"""An endpoint whose model calls whatever shell tool it is offered: a command for each turn, then the agent's end."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from tbench.serving import JsonHandler, LocalServer

SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
_ARGUMENT = {"bash": "command", "Bash": "command", "exec_command": "cmd", "run_shell_command": "command"}
"""Name of the argument with the command, by the name of an agent's shell tool."""


class ToolCallingServer(LocalServer):
    """Answers at `base_url`. `bodies` has all requests; the first `failing` ones get HTTP 503."""

    def __init__(self, commands: Sequence[str], *, failing: int = 0, port: int = 0) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.commands, self.failing = tuple(commands), failing
        self.bodies: list[dict[str, Any]] = []
        self.text = "Done."
        """The reply to a request without tools, and the last one of a conversation with them."""
        self.refuses_tools = False
        """Whether it refuses tools, as vLLM does without a parser of tool calls."""
        self.longest = 65_536
        """Tokens of a prompt, of four bytes each, beyond which it is refused."""

    def fault(self, turn: int, handler: JsonHandler) -> bool:
        """Answer a request otherwise, and return whether that was done."""
        return False

    def reply(self, body: dict[str, Any]) -> dict[str, Any]:
        """Return the message of the model for a conversation."""
        turn = sum(message["role"] == "assistant" for message in body["messages"])
        names = [tool["function"]["name"] for tool in body.get("tools", ())]
        tool = next((name for name in names if name in _ARGUMENT), None)
        # Only mini-swe-agent has one tool; it ends by a command.
        script = [*self.commands, SUBMIT] if tool == "bash" and len(names) == 1 else self.commands
        if tool is None or turn >= len(script):
            return {"role": "assistant", "content": self.text}
        return called(body, turn + 1, script[turn])


def called(body: Mapping[str, Any], number: int, command: str) -> dict[str, Any]:
    """Return a reply that calls the shell tool that `body` offers."""
    names = [tool["function"]["name"] for tool in body["tools"]]
    tool = next(name for name in names if name in _ARGUMENT)
    arguments = {_ARGUMENT[tool]: command} | ({"description": "a step"} if tool == "Bash" else {})
    call = {"name": tool, "arguments": json.dumps(arguments)}
    return {
        "role": "assistant",
        "content": f"Turn {number}.",
        "reasoning": f"Now comes {number}.",
        "tool_calls": [{"id": f"call_{number}", "type": "function", "function": call}],
    }


class _Handler(JsonHandler):
    server: ToolCallingServer

    def get(self, path: str) -> None:
        self.send_json(
            200, {"object": "list", "data": [{"id": "tiny", "object": "model", "max_model_len": self.server.longest}]}
        )

    def post(self, path: str, body: bytes) -> None:
        asked = json.loads(body)
        self.server.bodies.append(asked)
        if self.server.fault(sum(message["role"] == "assistant" for message in asked["messages"]), self):
            return
        if self.server.failing > 0:
            self.server.failing -= 1
            self.send_json(503, {"error": {"message": "busy", "type": "Service Unavailable", "code": 503}})
            return
        if self.server.refuses_tools and asked.get("tools"):
            words = '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set'
            self.send_json(400, {"error": {"message": words, "type": "BadRequestError", "code": 400}})
            return
        if (tokens := len(body) // 4) > self.server.longest:
            words = f"This model's maximum context length is {self.server.longest} tokens. However, your prompt "
            error = {"message": f"{words}contains {tokens} input tokens.", "type": "BadRequestError", "code": 400}
            self.send_json(400, {"error": {**error, "param": "input_tokens"}})
            return
        message = self.server.reply(asked)
        finish = "tool_calls" if "tool_calls" in message else "stop"
        usage = {"prompt_tokens": len(body) // 4, "completion_tokens": 20, "total_tokens": len(body) // 4 + 20}
        choice: dict[str, Any] = {"index": 0, "message": message, "finish_reason": finish}
        answer: dict[str, Any] = {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "tiny"}
        if asked.get("return_token_ids"):
            # Two tokens for each message, by its place.
            before = 2 * len(asked["messages"])
            answer["prompt_token_ids"] = list(range(before))
            choice |= {"token_ids": [before, before + 1], "logprobs": {"content": [{"logprob": -0.5}] * 2}}
        self.send_json(200, {**answer, "choices": [choice], "usage": usage})
