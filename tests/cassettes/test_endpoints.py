"""endpoints: cassettes over real HTTP."""

from __future__ import annotations

import http.client
import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from fault_server import FaultServer, Seen, answer, completion

from harness.endpoint.chat import ChatModel
from harness.errors import ContextLimitReached
from harness.model import Sampling
from harness.trajectory import Message, Reply
from tbench.cassettes.cassette import AnswerLookup, Cassette, NotRecorded, RecordedAnswer
from tbench.cassettes.endpoints import CassettePlayer, CassetteRecorder, EndpointNotListing

CHAT = "/chat/completions"
MODELS = [{"id": "m", "object": "model", "max_model_len": 100}]


def request(*texts: str, **fields: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": text} for text in texts], "model": "m", "seed": 1, **fields}


def recorded(asked: dict[str, Any], answer: Any, status: int = 200) -> RecordedAnswer:
    return RecordedAnswer(CHAT, asked, status, answer)


def asked(url: str, path: str, body: bytes | None = None) -> tuple[int, Any]:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port or 0, timeout=20)
    try:
        connection.request("GET" if body is None else "POST", path, body)
        answer = connection.getresponse()
        content = answer.read()
        return answer.status, json.loads(content) if content else None
    finally:
        connection.close()


def test_a_request_gets_its_answer_whatever_the_order_of_its_keys() -> None:
    cassette = Cassette(MODELS, [recorded(request("a"), "first"), recorded(request("a", "b"), "full", 400)])
    with CassettePlayer(cassette) as player:
        body = dict(reversed(list(request("a").items())))
        assert asked(player.base_url, f"/v1{CHAT}", json.dumps(body).encode()) == (200, "first")
        assert asked(player.base_url, f"/v1{CHAT}", json.dumps(request("a", "b")).encode()) == (400, "full")
        assert asked(player.base_url, "/v1/models") == (200, {"object": "list", "data": MODELS})
        assert asked(player.base_url, "/health") == (200, None)
        assert asked(player.base_url, "/v2/models")[0] == 404
        assert asked(player.base_url, "/nothing", b"{}")[0] == 404
        assert asked(player.base_url, f"/v1{CHAT}", b"[1]")[0] == 400
        assert asked(player.base_url, f"/v1{CHAT}", b"no json")[0] == 400
        status, body = asked(player.base_url, f"/v1{CHAT}", json.dumps(request("z")).encode())
        assert status == 400
        assert body["error"]["message"].startswith("not on this cassette: message 1 differs")
        assert (player.answered, player.refused) == (2, 1)


def test_many_at_once_get_one_answer_each() -> None:
    cassette = Cassette(MODELS, [recorded(request("a"), number) for number in range(40)])
    got: list[Any] = []
    with CassettePlayer(cassette) as player:

        def ask() -> None:
            got.append(asked(player.base_url, f"/v1{CHAT}", json.dumps(request("a")).encode())[1])

        threads = [threading.Thread(target=ask) for _ in range(40)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert sorted(got) == list(range(40))


def test_the_end_of_a_player_leaves_no_connection() -> None:
    with CassettePlayer(Cassette(MODELS, [])) as player, socket.create_connection(("127.0.0.1", player.port), 20):
        pass
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.1", player.port), 20)


def test_a_request_that_came_several_times_gets_the_answers_in_order_and_then_the_last() -> None:
    deck = AnswerLookup(Cassette(MODELS, [recorded(request("a"), 1), recorded(request("a"), 2)]))
    assert [deck.answer(CHAT, request("a")).answer for _ in range(3)] == [1, 2, 2]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (request("a", "x"), "message 2 differs: user 'x' where user 'b' was recorded"),
        (request("a"), "message 2 differs: nothing where user 'b' was recorded"),
        (request("a", "b", "c"), "the recording ends with message 2 of this conversation"),
        (request("a", "b", temperature=1.0), "temperature differs: '1.0' where 'null' was recorded"),
        (request("a", "b", seed=7), "seed differs: '7' where '1' was recorded"),
        ({"messages": [1], "model": "m"}, "message 1 differs: '1' where user 'q' was recorded"),
    ],
)
def test_what_was_not_recorded_is_reported_by_the_first_thing_that_differs(body: dict[str, Any], words: str) -> None:
    deck = AnswerLookup(Cassette(MODELS, [recorded(request("q"), 0), recorded(request("a", "b"), 1)]))
    with pytest.raises(NotRecorded) as error:
        deck.answer(CHAT, body)
    assert str(error.value) == words


def test_what_differs_each_time_makes_no_other_request_but_where_it_is_to_be_exact() -> None:
    listed = "-rw-r--r-- 1 root root 87 Nov 24 01:57 boiler.md\nreal 0m0.013s"
    again = "-rw-r--r-- 1 root root 87 Nov 25 11:03 boiler.md\nreal 0m0.021s"
    cassette = Cassette(MODELS, [recorded(request("a", listed), 1), recorded(request("a", listed, "b"), 2)])
    deck = AnswerLookup(cassette)
    assert [deck.answer(CHAT, request("a", text)).answer for text in (listed, again, again)] == [1, 1, 1]
    assert deck.answer(CHAT, request("a", again, "b")).answer == 2
    assert deck.alike == 3
    # The first message that differs is one of those that matter.
    with pytest.raises(NotRecorded, match=r"message 3 differs: user 'c' where user 'b'"):
        deck.answer(CHAT, request("a", again, "c"))
    with pytest.raises(NotRecorded, match="message 2 differs"):
        AnswerLookup(cassette, exact=True).answer(CHAT, request("a", again))
    prompt = RecordedAnswer("/completions", {"prompt": listed}, 200, 3)
    assert AnswerLookup(Cassette(MODELS, [prompt])).answer("/completions", {"prompt": again}).answer == 3


def test_another_path_is_reported() -> None:
    with pytest.raises(NotRecorded, match="no request to /completions was recorded"):
        AnswerLookup(Cassette(MODELS, [recorded(request("a"), 1)])).answer("/completions", {"prompt": "p"})


# recorder: what passes between clients and an endpoint, kept and played again.


@pytest.fixture
def server() -> Iterator[FaultServer]:
    with closing(FaultServer()) as server:
        server.always_list({"id": "m", "max_model_len": 4096})
        yield server


@contextmanager
def recording(file: Path, base_url: str) -> Iterator[CassetteRecorder]:
    recorder = CassetteRecorder(file, base_url, ("127.0.0.1", 0))
    thread = threading.Thread(target=recorder.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield recorder
    finally:
        recorder.shutdown()
        thread.join()
        recorder.close()


async def conversation(base_url: str) -> list[Any]:
    """Return a model's answers in three turns, the last of which exceeds its context."""
    said: list[Any] = []
    async with ChatModel(base_url, None, Sampling(), api_key=None) as model:
        await model.connect()
        messages: list[Message] = []
        for turn in range(3):
            messages.append(Message(role="user", content=f"turn {turn} ü"))
            try:
                reply = await model.query(messages, seed=turn, max_tokens=100)
            except ContextLimitReached as refusal:
                said.append(("full", refusal.prompt_tokens))
                continue
            said.append(reply.model_dump(exclude={"latency_sec", "waited_sec", "attempts"}))
            messages.append(Message(role="assistant", content=reply.content))
    return said


def talks(seen: Seen) -> bytes:
    turn = (len(seen.json["messages"]) - 1) // 2
    if turn == 2:
        words = "This model's maximum context length is 9 tokens. However, your prompt contains 12 input tokens."
        return answer(400, {"error": {"message": words, "type": "BadRequestError", "code": 400}})
    return answer(200, completion(f"answer {turn} \N{SNOWMAN}"))


async def test_a_recorded_conversation_is_played_twice_as_it_was(server: FaultServer, tmp_path: Path) -> None:
    server.answer_by(talks)
    file = tmp_path / "c.jsonl"
    with recording(file, server.base_url) as recorder:
        first = await conversation(recorder.base_url)
        assert recorder.kept == 3
    assert [Reply.model_validate(each).content for each in first[:2]] == [
        "answer 0 \N{SNOWMAN}",
        "answer 1 \N{SNOWMAN}",
    ]
    assert first[2] == ("full", 12)
    asked = len(server.seen)
    for _ in range(2):
        with CassettePlayer(Cassette.read(file)) as player:
            assert await conversation(player.base_url) == first
            assert (player.answered, player.refused) == (3, 0)
    assert len(server.seen) == asked


async def test_what_is_asked_again_is_kept_once(server: FaultServer, tmp_path: Path) -> None:
    server.will_answer(503, {"error": {"message": "busy"}}, {"retry-after": "0"})
    server.will_reply("late")
    with recording(tmp_path / "c.jsonl", server.base_url) as recorder:
        async with ChatModel(recorder.base_url, "m", Sampling(), api_key=None) as model:
            reply = await model.query([Message(role="user", content="a")], seed=None, max_tokens=5)
    assert (reply.content, reply.attempts, recorder.kept) == ("late", 2, 1)
    (exchange,) = Cassette.read(tmp_path / "c.jsonl").exchanges
    assert exchange.answer["choices"][0]["message"]["content"] == "late"


def test_a_recording_that_was_cut_short_is_read_up_to_there(server: FaultServer, tmp_path: Path) -> None:
    file = tmp_path / "c.jsonl"
    server.will_reply("one")
    with recording(file, server.base_url) as recorder:
        for text in ("a", "b"):
            recorder.answer("/chat/completions", json.dumps({"messages": [{"role": "user", "content": text}]}).encode())
        assert recorder.answer("/chat/completions", b'{"stream": true, "messages": []}')[0] == 400
        assert recorder.answer("/chat/completions", b"[]")[0] == 400
        file.write_bytes(file.read_bytes()[:-9])
        assert len(Cassette.read(file).exchanges) == 1


def test_an_endpoint_that_is_invalid_is_reported(server: FaultServer, tmp_path: Path) -> None:
    server.go_away()
    with pytest.raises(EndpointNotListing, match=r"/v1/models: HTTP 502: "):
        CassetteRecorder(tmp_path / "c.jsonl", server.base_url, ("127.0.0.1", 0))
    assert list(tmp_path.iterdir()) == []
