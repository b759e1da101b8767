"""`scripted-demo` over real HTTP, and through the project's own client."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

import pytest

from harness.endpoint.chat import ChatModel, Rendering, RetryPolicy, Sampling
from harness.errors import ContextLimitReached, EndpointUnavailable, RequestRefused
from harness.model import Template
from harness.rendering import render_prompt
from harness.trajectory import Message
from tbench.demo.replies import reply_for_step
from tbench.demo.requests import read_prompt
from tbench.demo.scripts import SCRIPTS, Scripts
from tbench.demo.server import DemoEndpoint, serve

SCRIPT = r"""
pass_rate = 0.5

[[pass]]
analysis = "Nothing is there yet."
plan = "I write the file."
commands = [
  { keystrokes = "echo hi > a\n", duration = 0.1 },
  { keystrokes = "C-c", duration = 0.1 },
  { keystrokes = "C-M-x Enter", duration = 0.1 },
  { keystrokes = "", duration = 2.0 },
  { keystrokes = "cat a\n", duration = 0.1 },
]

[[pass]]
analysis = "It is written."
plan = "I look once more."
commands = [{ keystrokes = "q", duration = 0.1 }, { keystrokes = "Enter", duration = 0.1 }]

[[fail]]
analysis = "Seems fine."
plan = "I leave it."
commands = [{ keystrokes = "C-d", duration = 0.1 }]
"""
INSTRUCTIONS = {"write": "Write hi into a.\n", "write-more": "Write hi into a. Then write more."}
AS_JSON = 'Answer in JSON with "keystrokes".\n\n'
AS_XML = 'Answer with <keystrokes duration="0.1">.\n\n'
THINKING_BASH = "You are a local OS Terminal Controller Agent. State your thinking process within <thinking> tags."
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
CALLED = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": "{}"}}
LOCAL = [template for template in get_args(Template) if template != "server"]


@pytest.fixture
def scripts(tmp_path: Path) -> Path:
    (tmp_path / "write.toml").write_text(SCRIPT)
    return tmp_path


@pytest.fixture
def demo(scripts: Path) -> Iterator[DemoEndpoint]:
    with DemoEndpoint(INSTRUCTIONS, scripts=scripts) as endpoint:
        yield endpoint


@pytest.fixture
def connection(demo: DemoEndpoint) -> Iterator[http.client.HTTPConnection]:
    opened = http.client.HTTPConnection(urlsplit(demo.base_url).netloc, timeout=10)
    yield opened
    opened.close()


def post(connection: http.client.HTTPConnection, body: Any, path: str = CHAT) -> tuple[int, Any]:
    payload = body if isinstance(body, bytes) else json.dumps(body)
    connection.request("POST", path, payload, {"Content-Type": "application/json"})
    response = connection.getresponse()
    return response.status, json.loads(response.read())


def conversation(opening: str, replies: int = 0, **changes: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": opening}]
    for _ in range(replies):
        messages += [{"role": "assistant", "content": "…"}, {"role": "user", "content": "done"}]
    return {"model": "scripted-demo", "messages": messages, **changes}


def talk(replies: int) -> list[tuple[str, str]]:
    return [("user", "x"), *[("assistant", "…"), ("user", "done")] * replies]


def say(connection: http.client.HTTPConnection, *args: Any, **changes: Any) -> str:
    status, body = post(connection, conversation(*args, **changes))
    assert status == 200, body
    return str(body["choices"][0]["message"]["content"])


def passing_seed(scripts: Path, passing: bool = True) -> int:
    """Find a seed that passes, or fails: the first step of a pass writes the file."""
    known = Scripts(INSTRUCTIONS, scripts)
    opening = [("user", INSTRUCTIONS["write"])]
    return next(
        seed for seed in range(99) if ("echo hi" in reply_for_step(known.step(opening, seed), opening).text) is passing
    )


class TestScripts:
    def test_the_steps_are_played_in_order_and_then_the_task_is_claimed(self, connection, scripts):
        seed, opening = passing_seed(scripts), AS_JSON + INSTRUCTIONS["write"]
        steps = [json.loads(say(connection, opening, replies, seed=seed)) for replies in range(4)]
        assert [step["analysis"] for step in steps[:2]] == ["Nothing is there yet.", "It is written."]
        assert steps[0]["commands"][0] == {"keystrokes": "echo hi > a\n", "duration": 0.1}
        assert [step["task_complete"] for step in steps] == [False, False, True, True]
        assert [len(step["commands"]) for step in steps] == [5, 2, 0, 0]

    def test_another_pass_rate_than_the_scripts_own_can_be_given(self, scripts):
        opening = [("user", INSTRUCTIONS["write"])]
        for rate, analysis in ((1.0, "Nothing is there yet."), (0.0, "Seems fine.")):
            known = Scripts(INSTRUCTIONS, scripts, {"write": rate})
            assert {known.step(opening, seed).analysis for seed in range(20)} == {analysis}

    def test_bash_blocks_leave_out_keys_and_pauses(self, connection, scripts):
        seed, opening = passing_seed(scripts), "Use one bash block.\n\n" + INSTRUCTIONS["write"]
        first, second, last = (say(connection, opening, replies, seed=seed) for replies in range(3))
        assert first == "Nothing is there yet. I write the file.\n\n```bash\necho hi > a\ncat a\n```"
        assert second.endswith("```bash\nq\n```")
        assert last.endswith("```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```")

    def test_a_step_of_keys_alone_is_still_one_bash_block(self, connection, scripts):
        reply = say(connection, INSTRUCTIONS["write"], seed=passing_seed(scripts, passing=False))
        assert reply == "Seems fine. I leave it.\n\n```bash\ntrue\n```"

    def test_the_protocol_may_stand_in_the_system_message(self, connection):
        body = conversation(INSTRUCTIONS["write"])
        body["messages"].insert(0, {"role": "system", "content": AS_JSON})
        assert json.loads(post(connection, body)[1]["choices"][0]["message"]["content"])["analysis"]

    def test_what_a_later_message_says_does_not_change_the_protocol(self, connection):
        body = conversation(INSTRUCTIONS["write"], replies=1)
        body["messages"][-1]["content"] = AS_JSON
        assert "```bash" in post(connection, body)[1]["choices"][0]["message"]["content"]

    def test_the_seed_alone_decides_over_pass_and_fail(self, connection, scripts):
        def passes(seed: int) -> bool:
            return "echo hi" in say(connection, INSTRUCTIONS["write"], seed=seed)

        ways = [passes(seed) for seed in range(40)]
        assert ways == [passes(seed) for seed in range(40)]
        assert 8 < sum(ways) < 32
        assert ("echo hi" in say(connection, INSTRUCTIONS["write"])) is ways[0]

    def test_an_unknown_task_is_looked_at_and_given_up(self, connection):
        opening = AS_JSON + "Prove the Riemann hypothesis."
        first, last = (json.loads(say(connection, opening, replies)) for replies in range(2))
        assert [command["keystrokes"] for command in first["commands"]] == ["ls -la\n"]
        assert last["task_complete"] is True

    def test_the_longer_of_two_instructions_is_meant(self, connection):
        assert "ls -la" in say(connection, INSTRUCTIONS["write-more"])

    def test_content_in_parts_is_understood(self, connection):
        body = conversation("")
        body["messages"][0]["content"] = [{"type": "text", "text": AS_JSON}, {"type": "text", "text": "Go."}]
        assert json.loads(post(connection, body)[1]["choices"][0]["message"]["content"])["plan"]

    def test_a_broken_script_is_named(self, scripts):
        (scripts / "write.toml").write_text("pass_rate = 7")
        with pytest.raises(ValueError, match=r"write\.toml"):
            DemoEndpoint(INSTRUCTIONS, scripts=scripts)

    @pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.toml")), ids=lambda path: path.stem)
    def test_the_bundled_scripts_can_be_read(self, path):
        assert Scripts({path.stem: "x"}).step([("user", "x")], seed=0)

    @pytest.mark.parametrize("path", sorted(SCRIPTS.glob("*.toml")), ids=lambda path: path.stem)
    def test_the_bundled_scripts_can_be_put_in_every_protocol(self, path):
        """Raw text between tags or fences must not hold the closing ones."""
        known = Scripts({path.stem: "x"})
        steps = [step for seed in range(20) for length in range(20) if (step := known.step(talk(length), seed))]
        assert steps
        for step in steps:
            as_xml = reply_for_step(step, [("user", AS_XML)]).text
            assert as_xml.count("</keystrokes>") == len(step.commands)
            assert reply_for_step(step, []).text.count("```") == 2


class TestProtocols:
    """Replies follow the formats; tests/cli checks that the protocols accept them."""

    def test_keystrokes_in_tags(self, connection, scripts):
        seed, opening = passing_seed(scripts), AS_XML + INSTRUCTIONS["write"]
        first, _, last = (say(connection, opening, replies, seed=seed) for replies in range(3))
        assert first.startswith("<response>\n<analysis>Nothing is there yet.</analysis>\n<plan>I write")
        assert '<commands>\n<keystrokes duration="0.1">echo hi > a\n</keystrokes>\n' in first
        assert '<keystrokes duration="0.1">C-c</keystrokes>\n' in first
        assert "task_complete" not in first
        assert last.endswith("<commands>\n</commands>\n<task_complete>true</task_complete>\n</response>")

    def test_thinking_and_a_bash_block(self, connection, scripts):
        def reply(replies: int) -> str:
            body = conversation(INSTRUCTIONS["write"], replies, seed=passing_seed(scripts))
            body["messages"].insert(0, {"role": "system", "content": THINKING_BASH})
            return str(post(connection, body)[1]["choices"][0]["message"]["content"])

        thinking = "<thinking>Nothing is there yet. I write the file.</thinking>"
        assert reply(0) == f"{thinking}\n```bash\necho hi > a\ncat a\n```"
        assert reply(2).endswith("```bash\necho COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT\n```")

    def test_a_tool_that_is_offered_is_called(self, connection, scripts):
        messages: list[Any] = [{"role": "user", "content": INSTRUCTIONS["write"]}]
        commands = []
        for _ in range(3):
            body = {"messages": messages, "tools": [BASH], "seed": passing_seed(scripts)}
            status, answer = post(connection, body)
            assert status == 200, answer
            choice = answer["choices"][0]
            assert choice["finish_reason"] == "tool_calls"
            (call,) = choice["message"]["tool_calls"]
            assert (call["type"], call["function"]["name"]) == ("function", "bash")
            commands.append(json.loads(call["function"]["arguments"])["command"])
            messages += [choice["message"], {"role": "tool", "tool_call_id": call["id"], "content": "done"}]
        assert commands == ["echo hi > a\ncat a", "q", "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"]
        assert messages[1]["content"] == "Nothing is there yet. I write the file."

    def test_another_tool_is_left_alone(self, connection):
        other = {"type": "function", "function": {"name": "search"}}
        assert "```bash" in say(connection, INSTRUCTIONS["write"], tools=[other])

    def test_a_call_that_is_cut_is_no_call(self, connection, scripts):
        body = conversation(INSTRUCTIONS["write"], tools=[BASH], max_tokens=15, seed=passing_seed(scripts))
        choice = post(connection, body)[1]["choices"][0]
        assert choice["finish_reason"] == "length"
        assert "tool_calls" not in choice["message"]
        assert "<tool_call>" in choice["message"]["content"]

    def test_a_call_is_streamed_too(self, connection):
        body = conversation(INSTRUCTIONS["write"], tools=[BASH], stream=True)
        connection.request("POST", CHAT, json.dumps(body))
        events = connection.getresponse().read().decode().split("\n\n")
        chunks = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]
        calls = [call for chunk in chunks for call in chunk["choices"][0]["delta"].get("tool_calls", ())]
        assert [call["function"]["name"] for call in calls] == ["bash"]
        assert chunks[-1]["choices"][0]["finish_reason"] == "tool_calls"

    @pytest.mark.parametrize("template", LOCAL)
    @pytest.mark.parametrize("opening", [AS_JSON, AS_XML, "Use one bash block.\n\n"])
    def test_rendered_prompts_are_understood(self, connection, scripts, template, opening):
        seed = passing_seed(scripts)
        for replies in range(3):
            body = conversation(opening + INSTRUCTIONS["write"], replies, seed=seed)
            history = [Message(**message) for message in body["messages"]]
            prompt = render_prompt(history, Rendering(template=template))
            status, answer = post(connection, {"prompt": prompt, "max_tokens": 500, "seed": seed}, TEXT)
            assert (status, answer["object"]) == (200, "text_completion")
            assert answer["choices"][0]["text"] == say(connection, opening + INSTRUCTIONS["write"], replies, seed=seed)

    @pytest.mark.parametrize("template", LOCAL)
    def test_prompts_are_read_back_turn_by_turn(self, template):
        spoken = [("system", "Be brief."), ("user", "Go\non."), ("assistant", "ls"), ("user", "a\n\nb")]
        history = [Message.model_validate({"role": role, "content": text}) for role, text in spoken]
        if template == "gemma":
            spoken[:2] = [("user", "Be brief.\n\nGo\non.")]
        assert list(read_prompt(render_prompt(history, Rendering(template=template)))) == spoken

    def test_any_other_prompt_is_one_message(self):
        assert list(read_prompt("Once upon a time")) == [("user", "Once upon a time")]

    def test_a_text_request_is_short_unless_asked(self, connection):
        _, answer = post(connection, {"prompt": "Go."}, TEXT)
        assert answer["usage"]["completion_tokens"] == 16  # as OpenAI and vLLM have it
        assert answer["choices"][0]["finish_reason"] == "length"

    @pytest.mark.parametrize(
        ("messages", "words"),
        [
            ([{"role": "assistant", "tool_calls": [CALLED]}], "without a message that answers them: call_1"),
            ([{"role": "assistant", "tool_calls": [CALLED]}, {"role": "user", "content": "x"}], "call_1"),
            ([{"role": "tool", "tool_call_id": "call_2", "content": "x"}], "No tool call with the id call_2"),
        ],
    )
    def test_calls_and_their_answers_must_pair(self, connection, messages, words):
        status, answer = post(connection, {"messages": [{"role": "user", "content": "x"}, *messages]})
        assert status == 400
        assert words in answer["error"]["message"]

    def test_text_is_not_streamed(self, connection):
        status, answer = post(connection, {"prompt": "Go.", "stream": True}, TEXT)
        assert (status, answer["error"]["param"]) == (400, "stream")


class TestWire:
    def test_health_and_models(self, connection):
        connection.request("GET", "/health")
        health = connection.getresponse()
        assert (health.status, health.read()) == (200, b"")
        connection.request("GET", "/v1/models")
        (card,) = json.loads(connection.getresponse().read())["data"]
        assert (card["id"], card["max_model_len"], card["owned_by"]) == (
            "scripted-demo",
            32768,
            "tbench-demo",
        )

    def test_a_completion_says_that_it_is_a_script(self, connection):
        status, body = post(connection, conversation("abcdefghi"))
        assert status == 200
        assert body["model"] == body["system_fingerprint"] == "scripted-demo"
        usage, text = body["usage"], body["choices"][0]["message"]["content"]
        assert usage["prompt_tokens"] == 3
        assert usage["completion_tokens"] == -(-len(text) // 4)
        assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]
        assert body["choices"][0]["finish_reason"] == "stop"

    def test_max_tokens_cuts(self, connection):
        _, body = post(connection, conversation("Go.", max_tokens=2))
        assert body["choices"][0]["finish_reason"] == "length"
        assert len(body["choices"][0]["message"]["content"]) == 8
        assert body["usage"]["completion_tokens"] == 2

    @pytest.mark.parametrize("include_usage", [True, False])
    def test_a_stream_says_the_same_as_a_plain_reply(self, connection, include_usage):
        options = {"stream_options": {"include_usage": True}} if include_usage else {}
        body = conversation(AS_JSON + INSTRUCTIONS["write"], stream=True, **options)
        connection.request("POST", "/v1/chat/completions", json.dumps(body))
        response = connection.getresponse()
        assert response.headers["Content-Type"].startswith("text/event-stream")
        events = [event.removeprefix("data: ") for event in response.read().decode().split("\n\n") if event]
        assert events.pop() == "[DONE]"
        chunks = [json.loads(event) for event in events]
        if include_usage:
            last = chunks.pop()
            assert (last["choices"], last["usage"]["prompt_tokens"] > 0) == ([], True)
        deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
        assert deltas[0] == {"role": "assistant", "content": ""}
        assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
        text = "".join(delta.get("content", "") for delta in deltas)
        assert text == say(connection, AS_JSON + INSTRUCTIONS["write"])

    @pytest.mark.parametrize(
        ("body", "status", "words", "param"),
        [
            (conversation("x", model="nope"), 404, "Valid aliases: scripted-demo.", "model"),
            (b'{"model": ', 400, "1 validation error:", "body"),
            ({"model": "scripted-demo"}, 400, "Field required", "body.messages"),
            ({"messages": []}, 400, "empty conversation", None),
            (conversation("x" * 131_073), 400, "maximum context length is 32768 tokens", "input_tokens"),
            (conversation("x" * 131_072), 400, "max_tokens must be at least 1, got 0", "max_tokens"),
            (conversation("x", max_tokens=0), 400, "max_tokens must be at least 1, got 0", "max_tokens"),
            (conversation("x", max_tokens=40_000), 400, "greater than max_model_len=32768", "max_tokens"),
            (conversation("x", tools=[]), 400, "tools must not be an empty array", None),
            (conversation("x", stream_options={}), 400, "Stream options", "stream_options"),
        ],
    )
    def test_refusals_are_worded_like_vllms(self, connection, body, status, words, param):
        got, answer = post(connection, body)
        assert got == status
        assert words in answer["error"]["message"]
        assert (answer["error"]["code"], answer["error"]["param"]) == (status, param)
        assert post(connection, conversation("x"))[0] == 200  # on the same connection

    @pytest.mark.parametrize(
        ("method", "path", "status"),
        [("GET", "/", 404), ("POST", "/v1/embeddings", 404), ("GET", CHAT, 405), ("GET", TEXT, 405)],
    )
    def test_other_paths_are_not_there(self, connection, method, path, status):
        connection.request(method, path, body=b"{}" if method == "POST" else None)
        response = connection.getresponse()
        assert response.status == status
        assert "detail" in json.loads(response.read())


class TestThroughTheClient:
    async def test_a_conversation(self, demo, scripts):
        async with ChatModel(demo.base_url, None, Sampling(), api_key=None) as model:
            served = await model.connect()
            assert (served.id, served.context_tokens) == ("scripted-demo", 32768)
            opening = [Message(role="user", content=AS_JSON + INSTRUCTIONS["write"])]
            reply = await model.query(opening, seed=passing_seed(scripts), max_tokens=1000)
            assert json.loads(reply.content)["plan"] == "I write the file."
            assert (reply.cut, reply.model, reply.reasoning) == (False, "scripted-demo", None)
            assert (await model.query(opening, seed=1, max_tokens=3)).cut

    async def test_a_tool_call(self, demo, scripts):
        async with ChatModel(demo.base_url, "scripted-demo", Sampling(), api_key=None) as model:
            opening = [Message(role="user", content=INSTRUCTIONS["write"])]
            seed = passing_seed(scripts)
            reply = await model.query(opening, seed=seed, max_tokens=1000, tools=(BASH,))
            (call,) = reply.tool_calls
            assert json.loads(call.arguments) == {"command": "echo hi > a\ncat a"}
            said = Message(role="assistant", content=reply.content, tool_calls=(call,))
            answered = Message(role="tool", content="hi", tool_call_id=call.id)
            history = [*opening, said, answered]
            second = await model.query(history, seed=seed, max_tokens=1000, tools=(BASH,))
            assert json.loads(second.tool_calls[0].arguments) == {"command": "q"}

    async def test_a_completion_of_the_contract(self, demo, scripts):
        contract = Rendering(template="contract")
        async with ChatModel(demo.base_url, None, Sampling(), api_key=None, rendering=contract) as model:
            await model.connect()
            system = Message(role="system", content=THINKING_BASH)
            task = Message(role="user", content=INSTRUCTIONS["write"])
            reply = await model.query([system, task], seed=passing_seed(scripts), max_tokens=256)
            assert reply.content.startswith("<thinking>Nothing is there yet.")
            assert not reply.cut

    async def test_refusals(self, demo):
        async with ChatModel(demo.base_url, "nope", Sampling(), api_key=None) as model:
            with pytest.raises(RequestRefused, match="lists scripted-demo"):
                await model.connect()
            with pytest.raises(RequestRefused, match="The model `nope` does not exist"):
                await model.query([Message(role="user", content="x")], seed=1, max_tokens=9)
        async with ChatModel(demo.base_url, "scripted-demo", Sampling(), api_key=None) as model:
            with pytest.raises(ContextLimitReached):
                await model.query([Message(role="user", content="x" * 140_000)], seed=1, max_tokens=9)


class TestLife:
    def test_stopping_does_not_wait_for_slow_replies_or_idle_connections(self):
        before = set(threading.enumerate())
        demo = DemoEndpoint({}, latency_sec=3600).start()
        place = urlsplit(demo.base_url).netloc
        idle, busy = (http.client.HTTPConnection(place, timeout=10) for _ in range(2))
        idle.request("GET", "/health")
        assert idle.getresponse().read() == b""
        busy.request("POST", "/v1/chat/completions", json.dumps(conversation("x")))
        demo.stop()
        demo.stop()
        assert set(threading.enumerate()) <= before
        idle.close()
        busy.close()

    async def test_a_stopped_endpoint_is_gone(self):
        with DemoEndpoint({}) as demo:
            url = demo.base_url
        with pytest.raises(RuntimeError, match="not running"):
            _ = demo.base_url
        retry = RetryPolicy(total_sec=0)
        async with ChatModel(url, None, Sampling(), api_key=None, retry=retry) as model:
            with pytest.raises(EndpointUnavailable, match="Connection refused"):
                await model.connect()

    def test_a_client_that_leaves_is_no_error(self, capfd):
        with DemoEndpoint({}, latency_sec=0.05) as demo:
            for _ in range(5):
                connection = http.client.HTTPConnection(urlsplit(demo.base_url).netloc, timeout=10)
                connection.request("POST", "/v1/chat/completions", json.dumps(conversation("x", stream=True)))
                connection.close()
        assert capfd.readouterr().err == ""

    def test_serving_announces_a_script_and_not_a_model(self):
        lines: list[str] = []

        def announce(line: str) -> None:
            lines.append(line)
            raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            serve("127.0.0.1", 0, {}, announce=announce)
        assert lines[0].startswith("scripted-demo at http://127.0.0.1:")
        assert "not a model" in lines[0]
