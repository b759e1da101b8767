"""The endpoint over HTTP: who may ask, what is refused in which words, and how an answer is waited for."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from harness.errors import ContextLimitReached
from harness.trajectory import Message, Outcome, Reply, ToolCall, Usage
from tbench.gateway import server
from tbench.gateway.server import Gateway

SECRET = {"Authorization": "Bearer s3cret"}
CHAT = {"model": "any", "messages": [{"role": "user", "content": "Hello"}]}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/responses": {"model": "any", "input": "Hello"},
    "/v1/messages": {"model": "any", "max_tokens": 50, "messages": CHAT["messages"]},
}


class Model:
    """Answers, and keeps what it was asked."""

    def __init__(self, answer: Callable[[], Reply] = lambda: Reply(content="Hi", usage=Usage(prompt_tokens=5))) -> None:
        self.asked: list[tuple[Sequence[Message], int]] = []
        self.answer = answer
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.is_busy = asyncio.Event()
        """Set when it is asked as much as may be at once."""

    async def __call__(
        self, messages: Sequence[Message], max_tokens: int, tools: Sequence[Mapping[str, Any]] = ()
    ) -> Reply:
        self.asked.append((messages, max_tokens))
        if len(self.asked) == server.MAX_AT_ONCE:
            self.is_busy.set()
        await self.may_answer.wait()
        return self.answer()


@asynccontextmanager
async def serving(model: Model, context_tokens: int | None = 4096) -> AsyncIterator[aiohttp.ClientSession]:
    gateway = Gateway(model, secret="s3cret", model="tiny", max_tokens=1000, context_tokens=context_tokens)
    listening = await asyncio.get_running_loop().create_server(gateway.serve, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        async with aiohttp.ClientSession(base, headers=SECRET) as session:
            yield session
    finally:
        listening.close()
        await gateway.close()


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_each_dialect_is_answered(path: str, stream: bool) -> None:
    model = Model()
    async with serving(model) as session, session.post(path, json=BODIES[path] | {"stream": stream}) as response:
        assert response.status == 200
        assert "Hi" in await response.text()
        assert response.content_type == ("text/event-stream" if stream else "application/json")
    assert [message.content for message in model.asked[0][0]] == ["Hello"]


@pytest.mark.parametrize("path", BODIES)
async def test_the_secret_of_another_trial_is_refused(path: str) -> None:
    model = Model()
    for headers in ({"Authorization": "Bearer other"}, {"x-api-key": "s3cret2"}, {"Authorization": ""}):
        async with serving(model) as session, session.post(path, json=BODIES[path], headers=headers) as response:
            assert response.status == 401
            assert "key" in await response.text()
    assert model.asked == []


async def test_the_key_may_stand_in_either_header() -> None:
    async with (
        serving(Model()) as session,
        session.post("/v1/messages", json=BODIES["/v1/messages"], headers={"x-api-key": "s3cret"}) as response,
    ):
        assert response.status == 200


async def test_models_are_listed_and_anybody_may_look_whether_the_server_is_there() -> None:
    async with serving(Model()) as session:
        async with session.get("/v1/models") as response:
            card = (await response.json())["data"][0]
            assert (card["id"], card["max_model_len"]) == ("tiny", 4096)
        async with session.head("/", headers={"Authorization": ""}) as response:
            assert response.status == 200
        async with session.get("/v1/secrets/../models") as response:
            assert response.status in (200, 404)
        async with session.get("/etc/passwd") as response:
            assert response.status == 404


async def test_max_tokens_is_bounded_by_the_runs_own() -> None:
    model = Model()
    async with serving(model) as session:
        for tokens in (50, 32_000):
            await session.post("/v1/messages", json=BODIES["/v1/messages"] | {"max_tokens": tokens})
        await session.post("/v1/responses", json=BODIES["/v1/responses"])
    assert [tokens for _, tokens in model.asked] == [50, 1000, 1000]


def overflow() -> Reply:
    raise ContextLimitReached("too long", 4097)


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/chat/completions", "context_length_exceeded"),
        ("/v1/responses", "context_length_exceeded"),
        ("/v1/messages", "prompt is too long: 4097 tokens > 4096 maximum"),
    ],
)
@pytest.mark.parametrize("stream", [False, True])
async def test_an_overflow_is_said_in_the_words_of_the_dialect(path: str, words: str, stream: bool) -> None:
    body = BODIES[path] | {"stream": stream}
    async with serving(Model(overflow)) as session, session.post(path, json=body) as response:
        assert response.status == 400
        assert words in await response.text()


@pytest.mark.parametrize("path", BODIES)
async def test_a_stream_is_kept_alive_while_the_model_is_waited_for(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_QUIET_SEC", 0.01)
    model = Model()
    model.may_answer.clear()
    async with serving(model) as session, session.post(path, json=BODIES[path] | {"stream": True}) as response:
        assert (await response.content.readline()).startswith(b": ")
        model.may_answer.set()
        assert "Hi" in await response.text()


@pytest.mark.parametrize("path", BODIES)
async def test_a_late_overflow_is_an_event(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "_QUIET_SEC", 0.01)
    model = Model(overflow)
    model.may_answer.clear()
    async with serving(model) as session, session.post(path, json=BODIES[path] | {"stream": True}) as response:
        await response.content.readline()
        model.may_answer.set()
        events = [line for line in (await response.text()).splitlines() if line.startswith("data: {")]
        assert "maximum context length" in events[0]
        assert "error" in json.loads(events[0].removeprefix("data: ")).get("response", json.loads(events[0][6:]))


async def test_an_agent_that_hangs_up_does_not_end_the_question() -> None:
    model = Model()
    model.may_answer.clear()
    async with serving(model) as session:
        with pytest.raises(TimeoutError):
            await session.post("/v1/chat/completions", json=CHAT, timeout=aiohttp.ClientTimeout(total=0.2))
        model.may_answer.set()
        async with session.post("/v1/chat/completions", json=CHAT) as response:
            assert response.status == 200
    assert len(model.asked) == 2


async def test_a_cut_reply_has_no_calls() -> None:
    call = ToolCall(id="c", name="bash", arguments="{}")
    model = Model(lambda: Reply(content="half", tool_calls=(call,), cut=True))
    async with serving(model) as session, session.post("/v1/chat/completions", json=CHAT) as response:
        (choice,) = (await response.json())["choices"]
    assert choice["finish_reason"] == "length"
    assert "tool_calls" not in choice["message"]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
async def test_bodies_that_are_no_object_are_refused(body: bytes) -> None:
    model = Model()
    async with serving(model) as session, session.post("/v1/responses", data=body) as response:
        assert response.status == 400
        assert "JSON" in await response.text()
    assert model.asked == []


async def test_a_body_without_end_is_refused_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server, "LARGEST_BODY", 1 << 20)

    async def without_end() -> AsyncIterator[bytes]:
        while True:
            yield b" " * (1 << 16)

    async with serving(Model()) as session:
        try:
            async with session.post("/v1/responses", data=without_end()) as response:
                assert response.status == 413
        except aiohttp.ClientError:  # the connection was closed while the rest was being sent
            pass


async def test_a_body_that_says_that_it_is_too_large_is_refused_unread() -> None:
    async with serving(Model()) as session:
        headers = {"Content-Length": str(1 << 30)}
        async with session.post("/v1/responses", data=b"", headers=headers) as response:
            assert response.status == 413


async def test_only_so_many_requests_are_held_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model()
    model.may_answer.clear()
    async with serving(model) as session:
        asking = [asyncio.create_task(session.post("/v1/chat/completions", json=CHAT)) for _ in range(40)]
        await asyncio.wait_for(model.is_busy.wait(), 20)
        await asyncio.sleep(0.1)
        assert len(model.asked) == server.MAX_AT_ONCE
        model.may_answer.set()
        assert {response.status for response in await asyncio.gather(*asking)} == {200}
    assert len(model.asked) == 40


async def test_what_has_no_effect_is_counted() -> None:
    gateway = Gateway(Model(), secret="s3cret", model="tiny", max_tokens=1000, context_tokens=None)
    listening = await asyncio.get_running_loop().create_server(gateway.serve, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    body = {"input": "Hello", "tools": [{"type": "web_search"}], "temperature": 1.5, "user": None}
    async with aiohttp.ClientSession(base, headers=SECRET) as session:
        for _ in range(2):
            await session.post("/v1/responses", json=body)
    listening.close()
    await gateway.close()
    assert gateway.left_out == {"web_search": 2, "temperature": 2}


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        (lambda: Reply(content="Hi"), None),
        (lambda: Reply(content="Hi", cut=True), Outcome.FORMAT_LIMIT),
        (overflow, Outcome.CONTEXT_LIMIT),
    ],
)
async def test_the_model_may_be_the_reason_why_an_agent_gives_up(
    answer: Callable[[], Reply], outcome: Outcome | None
) -> None:
    gateway = Gateway(Model(answer), secret="s3cret", model="tiny", max_tokens=1000, context_tokens=4096)
    listening = await asyncio.get_running_loop().create_server(gateway.serve, "127.0.0.1", 0)
    base = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    async with aiohttp.ClientSession(base, headers=SECRET) as session:
        await session.post("/v1/chat/completions", json=CHAT)
    listening.close()
    await gateway.close()
    assert gateway.reason_to_give_up is outcome


async def test_tokens_are_estimated_by_what_the_server_has_counted() -> None:
    model = Model(lambda: Reply(content="Hi", usage=Usage(prompt_tokens=50)))
    async with serving(model) as session:
        body = BODIES["/v1/messages"]
        async with session.post("/v1/messages/count_tokens", json=body) as response:
            assert 1 <= (await response.json())["input_tokens"] < 10
        await session.post("/v1/messages", json=body)
        async with session.post("/v1/messages/count_tokens", json=body) as response:
            assert (await response.json())["input_tokens"] == 50


@pytest.mark.parametrize("value", ["1,", '"\\"[",', '"\\ud800",'])
async def test_a_body_of_very_many_values_is_refused_and_a_long_text_is_not(
    value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(server, "MOST_PARTS", 100)
    model = Model()
    async with serving(model) as session:
        for number, status in ((1, 200), (50, 200), (150, 400)):
            body = {**CHAT, "messages": [{"role": "user", "content": '[{"a", \\'}] * 4}
            data = json.dumps(body)[:-1] + f', "metadata": [{value * number}0]}}'
            async with session.post("/v1/chat/completions", data=data) as response:
                assert response.status == status, number
        text = {**CHAT, "messages": [{"role": "user", "content": '[{"a",\\' * 1000}]}
        async with session.post("/v1/chat/completions", json=text) as response:
            assert response.status == 200


@pytest.mark.parametrize("kind", ["gzip", "deflate"])
async def test_a_body_that_cannot_be_unpacked_is_refused(kind: str) -> None:
    model = Model()
    headers = {"Content-Encoding": kind}
    async with (
        serving(model) as session,
        session.post("/v1/chat/completions", data=b"nonsense", headers=headers) as response,
    ):
        assert response.status == 400
        assert "cannot be read" in await response.text()


async def test_a_tool_that_could_not_be_stored_with_the_trial_is_refused() -> None:
    model = Model()
    async with serving(model) as session:
        for depth, status in ((server.DEEPEST - 5, 200), (server.DEEPEST, 400)):
            parameters = '{"a": ' * depth + "[]" + "}" * depth
            tool = f'{{"type": "function", "function": {{"name": "f", "parameters": {parameters}}}}}'
            data = json.dumps(CHAT)[:-1] + f', "tools": [{tool}]}}'
            async with session.post("/v1/chat/completions", data=data) as response:
                assert response.status == status, await response.text()
