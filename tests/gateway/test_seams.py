"""Faults at the seams between agents and the model, in each dialect."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from harness.custom import Assignment, CustomRun
from harness.limits import Limits
from harness.model import Seeds
from harness.trajectory import Message, Outcome, Reply, ToolCall, Usage
from tbench.gateway.dialect import LEFT_OUT
from tbench.gateway.server import LARGEST_BODY, Gateway

SECRET = {"Authorization": "Bearer s3cret"}
CHAT, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/responses", "/v1/messages"
PATHS = (CHAT, RESPONSES, MESSAGES)
SCHEMA = {"type": "object", "properties": {"command": {"type": "string"}}}
FACE = "\N{GRINNING FACE}"


class Asked:
    """A gateway whose model gives the same reply to each request."""

    def __init__(self, session: aiohttp.ClientSession, gateway: Gateway) -> None:
        self.session, self.gateway = session, gateway
        self.messages: list[Sequence[Message]] = []
        self.tools: list[Sequence[Mapping[str, Any]]] = []


@asynccontextmanager
async def gateway_of(reply: Reply | None = None) -> AsyncIterator[Asked]:
    reply = reply or Reply(content="Hi", usage=Usage(prompt_tokens=5, completion_tokens=1))

    async def ask(messages: Sequence[Message], max_tokens: int, tools: Sequence[Mapping[str, Any]]) -> Reply:
        asked.messages.append(messages)
        asked.tools.append(tools)
        return reply

    gateway = Gateway(ask, secret="s3cret", model="tiny", max_tokens=1000, context_tokens=4096)
    listening = await asyncio.get_running_loop().create_server(gateway.serve, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        async with aiohttp.ClientSession(base, headers=SECRET) as session:
            asked = Asked(session, gateway)
            yield asked
    finally:
        listening.close()
        await gateway.close()


def body_of(path: str, content: Any = "Hello", **fields: Any) -> dict[str, Any]:
    key = "input" if path == RESPONSES else "messages"
    return {"model": "any", key: [{"role": "user", "content": content}], **fields}


def tool_of(path: str, name: str, schema: Any) -> dict[str, Any]:
    if path == CHAT:
        return {"type": "function", "function": {"name": name, "parameters": schema}}
    if path == RESPONSES:
        return {"type": "function", "name": name, "parameters": schema}
    return {"name": name, "input_schema": schema}


@pytest.mark.parametrize("path", PATHS)
async def test_half_a_character_in_a_request_spoils_neither_question_nor_record(path: str) -> None:
    """Programs in JavaScript cut texts between the halves of a surrogate pair."""
    async with gateway_of() as asked:
        body = body_of(path, f"{FACE}\ud83d", tools=[tool_of(path, "bash", SCHEMA | {"description": "\ude00"})])
        async with asked.session.post(path, data=json.dumps(body)) as response:
            assert response.status == 200
    (message,) = asked.messages[0]
    assert message.content == f"{FACE}\N{REPLACEMENT CHARACTER}"
    assert json.dumps(asked.tools, ensure_ascii=False).encode()


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
async def test_numbers_that_json_does_not_have_are_refused(path: str, number: str) -> None:
    async with gateway_of() as asked:
        body = json.dumps(body_of(path, tools=[tool_of(path, "bash", SCHEMA | {"x": 0.5})])).replace("0.5", number)
        async with asked.session.post(path, data=body) as response:
            assert response.status == 400
            assert number in await response.text()
    assert asked.messages == []


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"type": "object"},
        {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}},
        {"type": ["object", "null"], "anyOf": [{"properties": {}}, True]},
        {"type": "object", "properties": {"ünï": {"enum": [None, 1, "x"]}}, "additionalProperties": False},
    ],
)
async def test_an_odd_schema_of_a_tool_reaches_the_model_unchanged(path: str, schema: dict[str, Any]) -> None:
    async with gateway_of() as asked:
        await asked.session.post(path, json=body_of(path, tools=[tool_of(path, "bash", schema)]))
    ((tool,),) = asked.tools
    assert tool["function"]["parameters"] == schema


@pytest.mark.parametrize("arguments", [{"command": "ls"}, '{"command": "ls"}'])
async def test_arguments_as_an_object_are_the_same_as_their_text(arguments: Any) -> None:
    call = {"id": "c", "type": "function", "function": {"name": "bash", "arguments": arguments}}
    messages = [{"role": "user", "content": "Go"}, {"role": "assistant", "content": None, "tool_calls": [call]}]
    async with gateway_of() as asked:
        await asked.session.post(CHAT, json={"messages": [*messages, {"role": "tool", "tool_call_id": "c"}]})
    assert json.loads(asked.messages[0][1].tool_calls[0].arguments) == {"command": "ls"}


@pytest.mark.parametrize("path", PATHS)
async def test_a_header_of_another_dialect_does_not_change_the_dialect_of_a_path(path: str) -> None:
    async with gateway_of() as asked:
        headers = {"anthropic-version": "2023-06-01"}
        async with asked.session.post(path, json=body_of(path), headers=headers) as response:
            kinds = {CHAT: "chat.completion", RESPONSES: "response", MESSAGES: None}
            assert (response.status, (await response.json()).get("object")) == (200, kinds[path])


@pytest.mark.parametrize("path", PATHS)
async def test_what_has_no_effect_is_counted_within_bounds(path: str) -> None:
    async with gateway_of() as asked:
        for number in range(3):
            many = {f"field {number} {index} {'x' * 500}": 1 for index in range(2000)}
            await asked.session.post(path, json=body_of(path, **many, temperature=1))
    assert asked.gateway.left_out["temperature"] in (0, 3)
    assert sum(map(len, asked.gateway.left_out)) < 200_000


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("stream", [False, True])
async def test_broken_arguments_of_a_call_reach_the_agent_as_json(path: str, stream: bool) -> None:
    call = ToolCall(id="c", name="bash", arguments='{"command": "ls')
    async with gateway_of(Reply(content="", tool_calls=(call,))) as asked:
        body = body_of(path, stream=stream, tools=[tool_of(path, "bash", SCHEMA)])
        async with asked.session.post(path, json=body) as response:
            text = await response.text()
    for line in text.splitlines() if not stream else [each[6:] for each in text.splitlines() if each[:7] == "data: {"]:
        json.loads(line)
    assert '{\\"command\\": \\"ls' in text.replace("\\\\\\", "\\")


@pytest.mark.parametrize("path", PATHS)
async def test_long_texts_with_characters_of_four_bytes_pass_both_ways(path: str) -> None:
    text = "ab" + FACE * 50_000
    for stream in (False, True):
        async with gateway_of(Reply(content=text)) as asked:
            data = json.dumps(body_of(path, text, stream=stream), ensure_ascii=False).encode()
            pieces = [data[at : at + 65_535] for at in range(0, len(data), 65_535)]

            async def send(pieces: Sequence[bytes] = tuple(pieces)) -> AsyncIterator[bytes]:
                for piece in pieces:
                    yield piece
                    await asyncio.sleep(0)

            async with asked.session.post(path, data=send()) as response:
                said = (await response.text()).encode().decode("unicode_escape", "surrogatepass")
        assert asked.messages[0][0].content == text
        found = said.encode("utf-16", "surrogatepass").decode("utf-16").count(FACE)
        assert found >= 50_000 and found % 50_000 == 0


@pytest.mark.parametrize("path", PATHS)
async def test_an_image_becomes_words_wherever_it_stands(path: str) -> None:
    data = "data:image/png;base64,AAAA"
    source = {"type": "base64", "media_type": "image/png", "data": "AAAA"}
    image = {
        CHAT: {"type": "image_url", "image_url": {"url": data}},
        RESPONSES: {"type": "input_image", "image_url": data},
        MESSAGES: {"type": "image", "source": source},
    }[path]
    note = LEFT_OUT.format(kind=image["type"])
    body = body_of(path, [image])
    if path == CHAT:
        call = {"id": "c", "type": "function", "function": {"name": "view", "arguments": "{}"}}
        body["messages"] += [
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": [image]},
        ]
    elif path == RESPONSES:
        body["input"] += [
            {"type": "function_call", "call_id": "c", "name": "view", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": [image]},
        ]
    else:
        body["messages"] += [
            {"role": "assistant", "content": [{"type": "tool_use", "id": "c", "name": "view", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c", "content": [image]}]},
        ]
    async with gateway_of() as asked, asked.session.post(path, json=body) as response:
        assert response.status == 200
    assert [message.content for message in asked.messages[0]] == [note, "", note]


@pytest.mark.parametrize(
    ("path", "fields", "words"),
    [
        (CHAT, {"n": 2}, "n: only one reply"),
        (CHAT, {"n": True}, "n: has the wrong type"),
        (CHAT, {"stream": "yes"}, "stream: has the wrong type"),
        (CHAT, {"stream_options": []}, "stream_options: has the wrong type"),
        (CHAT, {"max_tokens": 0}, "max_tokens: must be at least 1"),
        (RESPONSES, {"max_output_tokens": -1}, "max_output_tokens: must be at least 1"),
        (RESPONSES, {"input": None}, "no message"),
        (MESSAGES, {"messages": [{"role": "tool", "content": "x"}]}, "role: 'tool' is unknown"),
        (MESSAGES, {"max_tokens": 1.5}, "max_tokens: has the wrong type"),
    ],
)
async def test_a_field_that_cannot_be_meant_is_named(path: str, fields: dict[str, Any], words: str) -> None:
    async with gateway_of() as asked, asked.session.post(path, json=body_of(path) | fields) as response:
        assert response.status == 400
        assert words in await response.text()
    assert asked.messages == []


@pytest.mark.parametrize(
    "other", ["/v1/completions", "/v1/embeddings", "/v1/responses/resp_1", "/v1/chat", "/api/chat"]
)
async def test_an_endpoint_that_is_not_there_is_named(other: str) -> None:
    async with gateway_of() as asked, asked.session.post(other, json=body_of(CHAT)) as response:
        assert response.status == 404
        assert f"there is no POST {other}" in await response.text()


async def test_the_counts_at_the_end_of_a_stream_come_if_they_are_asked_for() -> None:
    async with gateway_of() as asked:
        for options, expected in (({}, 0), ({"include_usage": True}, 1), ({"include_usage": None}, 0)):
            async with asked.session.post(CHAT, json=body_of(CHAT, stream=True, stream_options=options)) as response:
                assert (await response.text()).count('"total_tokens":6') == expected


async def test_tokens_are_counted_without_asking_the_model() -> None:
    body = body_of(MESSAGES, "x" * 1000, system=[{"type": "text", "text": "Be brief."}], unknown={"a": 1})
    async with gateway_of() as asked:
        async with asked.session.post(f"{MESSAGES}/count_tokens?beta=true", json=body) as response:
            assert 200 < (await response.json())["input_tokens"] < 500
        async with asked.session.post(f"{MESSAGES}/count_tokens", json={"messages": []}) as response:
            assert response.status == 400
            assert (await response.json())["error"]["type"] == "invalid_request_error"
    assert asked.messages == []


@pytest.mark.parametrize("path", PATHS)
async def test_a_stream_that_is_hung_up_in_the_middle_leaves_the_endpoint_as_it_was(path: str) -> None:
    async with gateway_of(Reply(content="x" * (8 << 20))) as asked:
        for _ in range(3):
            response = await asked.session.post(path, json=body_of(path, stream=True))
            assert await response.content.read(10)
            response.close()
        async with asked.session.post(path, json=body_of(path)) as answered:
            assert answered.status == 200
            assert len(await answered.read()) > 8 << 20
    assert asked.gateway.failure is None
    assert len(asked.messages) == 4


@pytest.mark.parametrize("path", PATHS)
async def test_a_packed_body_is_bounded_by_its_unpacked_size(path: str) -> None:
    import gzip

    async with gateway_of() as asked:
        headers = {"Content-Encoding": "gzip"}
        packed = gzip.compress(json.dumps(body_of(path)).encode())
        async with asked.session.post(path, data=packed, headers=headers) as response:
            assert response.status == 200
        bomb = gzip.compress(b" " * (LARGEST_BODY + 1))
        async with asked.session.post(path, data=bomb, headers=headers) as response:
            assert response.status == 413


async def test_half_a_character_in_a_request_does_not_spoil_the_trajectory() -> None:
    """The whole way: from an agent's request to the file."""
    from harness.fakes import FakeTerminal, ScriptedModel

    class Asking:
        async def run(self, assignment: Assignment) -> Outcome | None:
            assert assignment.model is not None
            model = assignment.model

            async def ask(messages: Sequence[Message], limit: int, tools: Sequence[Mapping[str, Any]]) -> Reply:
                return await model.query(messages, max_tokens=limit, tools=tools)

            gateway = Gateway(ask, secret="s3cret", model="tiny", max_tokens=1000, context_tokens=4096)
            listening = await asyncio.get_running_loop().create_server(gateway.serve, "127.0.0.1", 0)
            base = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
            async with aiohttp.ClientSession(base, headers=SECRET) as session:
                for path in PATHS:
                    async with session.post(path, data=json.dumps(body_of(path, "\ud83d"))) as response:
                        assert response.status == 200
            listening.close()
            await gateway.close()
            return None

    run = CustomRun(
        Asking(),
        "a",
        ScriptedModel(["one", "two", "three"]),
        FakeTerminal(),
        Limits(),
        seeds=Seeds("t", 0),
        acts_unseen=True,
    )
    trajectory = await run.run("Go")
    assert "\N{REPLACEMENT CHARACTER}" in trajectory.model_dump_json()
