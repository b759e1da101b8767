"""cassette: valid files, and messages about invalid ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from harness.endpoint.answers import read_completion
from harness.errors import ContextLimitReached
from harness.trajectory import Reply, ToolCall, Usage
from tbench.cassettes.cassette import Cassette, CassetteUnreadable, RecordedAnswer, answer_body

CHAT, TEXT = "/chat/completions", "/completions"
MODELS = [{"id": "m", "object": "model", "max_model_len": 100}]


def exchange(*texts: str, answer: Any = None, **fields: Any) -> RecordedAnswer:
    messages = [{"role": "user", "content": text} for text in texts]
    return RecordedAnswer(CHAT, {"messages": messages, "model": "m", **fields}, 200, answer or {"choices": []})


def test_a_cassette_is_read_as_it_was_written(tmp_path: Path) -> None:
    whole = Cassette(
        MODELS,
        [
            exchange("a", seed=1),
            exchange("a", "b", seed=2, answer={"choices": ["\ud800"]}),
            RecordedAnswer(TEXT, {"prompt": "p"}, 400, {"error": "full"}),
        ],
    )
    whole.write(tmp_path / "c.jsonl")
    assert Cassette.read(tmp_path / "c.jsonl") == whole
    assert [path.name for path in tmp_path.iterdir()] == ["c.jsonl"]


def test_a_message_stands_once_in_the_file(tmp_path: Path) -> None:
    texts = [f"message {number} {'x' * 1000}" for number in range(100)]
    Cassette(MODELS, [exchange(*texts[:number]) for number in range(1, 100)]).write(tmp_path / "c.jsonl")
    assert (tmp_path / "c.jsonl").stat().st_size < 200_000


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "is empty"),
        ("{}\n", ":1: 'cassette': not a cassette"),
        ("[]\n", ":1: "),
        ("no json\n", ":1: Expecting value"),
        ('{"cassette": 2, "models": []}\n', "version 2, but this tbench reads version 1"),
        ('{"cassette": 1, "models": [{}]}\n', ":1: 'id'"),
        ('{"cassette": 1, "models": []}\n{"path": "/x"}\n', ":2: 'fields'"),
        ('{"cassette": 1, "models": []}\n{"path": "/x", "fields": {}, "messages": [5]}\n', ":2: list index"),
    ],
)
def test_what_is_no_cassette_is_reported_with_its_line(tmp_path: Path, text: str, why: str) -> None:
    (tmp_path / "c.jsonl").write_text(text)
    with pytest.raises(CassetteUnreadable) as error:
        Cassette.read(tmp_path / "c.jsonl")
    assert why in str(error.value)


def test_a_file_that_is_missing_is_reported(tmp_path: Path) -> None:
    with pytest.raises(CassetteUnreadable, match="No such file"):
        Cassette.read(tmp_path / "c.jsonl")


@pytest.mark.parametrize("path", [CHAT, TEXT])
def test_the_body_of_an_answer_reads_as_the_reply_that_it_was_made_of(path: str) -> None:
    calls = (ToolCall(id="c1", name="bash", arguments='{"command": "ls"}'),) if path == CHAT else ()
    reply = Reply(
        content="text",
        reasoning="because" if path == CHAT else None,
        tool_calls=calls,
        finish_reason="length",
        cut=True,
        usage=Usage(prompt_tokens=5, completion_tokens=3, cached_tokens=2),
        model="m",
    )
    status, body = answer_body(path, reply, "other")
    assert status == 200
    assert read_completion(json.loads(json.dumps(body)), max_tokens=100, context_tokens=None) == reply


def test_a_reply_that_was_mended_is_no_longer_cut() -> None:
    reply = Reply(content="mended", finish_reason="length", cut=False, usage=Usage(completion_tokens=3))
    _, body = answer_body(CHAT, reply, "m")
    assert not read_completion(body, max_tokens=100, context_tokens=None).cut


def test_a_full_context_is_refused_as_the_server_did() -> None:
    status, body = answer_body(CHAT, ContextLimitReached("HTTP 400: maximum context length is 9 tokens"), "m")
    assert status == 400
    assert "maximum context length" in body["error"]["message"]
