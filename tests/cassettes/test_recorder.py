"""recorder: what passes between clients and an endpoint, kept and played again."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer, Seen, answer, completion

from harness.endpoint.chat import ChatModel
from harness.errors import ContextLimitReached
from harness.model import Sampling
from harness.trajectory import Message, Reply
from tbench.cassettes.cassette import Cassette
from tbench.cassettes.player import CassettePlayer
from tbench.cassettes.recorder import CassetteRecorder, EndpointSilent


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
    """What a model says in three turns, the last of which is too long for it."""
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


def test_an_endpoint_that_is_none_is_told(server: FaultServer, tmp_path: Path) -> None:
    server.go_away()
    with pytest.raises(EndpointSilent, match=r"/v1/models: HTTP 502: "):
        CassetteRecorder(tmp_path / "c.jsonl", server.base_url, ("127.0.0.1", 0))
    assert list(tmp_path.iterdir()) == []
