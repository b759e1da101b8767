"""identity: other weights under the same name are noticed by what a server says of itself, and never followed."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from fault_server import FaultServer, Seen, answer, completion

from harness.endpoint.chat import ChatModel, OutagePolicy, RetryPolicy, Sampling
from harness.endpoint.identity import Replier, served_otherwise
from harness.endpoint.replicas import Replicas
from harness.endpoint.retry import TransientError
from harness.errors import EndpointUnavailable, RequestRefused
from harness.model import ServedModel
from harness.trajectory import Message, Reply

QUICK = RetryPolicy(total_sec=20, initial_sec=0.01, max_sec=0.02, reset_sec=0.01)
PATIENT = OutagePolicy(max_sec=60, first_pause_sec=0.02, longest_pause_sec=0.05, spread_sec=0.02)
IMPATIENT = PATIENT.model_copy(update={"max_sec": 0.2})
FAILURE = TransientError("HTTP 500")
HELLO = [Message(role="user", content="hello")]


class Server:
    """Says of itself what it is told to."""

    def __init__(self, endpoint: FaultServer, **said: Any) -> None:
        self.endpoint = endpoint
        self.card: dict[str, Any] = {"id": "tiny", "root": "/ckpt/1", "max_model_len": 8192}
        self.aliases: list[dict[str, Any]] = []
        self.said: list[dict[str, Any]] = [{"model": "tiny"} | said]
        """What the replies say in turn; the last one stays."""
        self.asked = 0
        endpoint.answer_by(self._answer)

    def _answer(self, seen: Seen) -> bytes:
        if seen.path.endswith("/models"):
            return answer(200, {"data": [self.card, *self.aliases]})
        said = self.said[min(self.asked, len(self.said) - 1)]
        self.asked += 1
        body = completion("hi") | {key: value for key, value in said.items() if key != "weight_versions"}
        if "weight_versions" in said:
            body["choices"][0]["weight_versions"] = said["weight_versions"]
        return answer(200, body)


@pytest.fixture
async def connect(endpoint: FaultServer) -> AsyncIterator[Callable[..., ChatModel]]:
    async with contextlib.AsyncExitStack() as stack:

        def make(url: str = endpoint.base_url, model: str | None = "tiny", **options: Any) -> ChatModel:
            given: dict[str, Any] = {"api_key": None, "retry": QUICK, "max_outage": PATIENT} | options
            made = ChatModel(url, model, Sampling(), **given)
            stack.push_async_callback(made.close)
            return made

        yield make


async def ask(chat: ChatModel) -> Reply:
    return await chat.query(HELLO, seed=1, max_tokens=100)


OTHERS = [
    {"model": "fallback"},
    {"model": "tiny", "system_fingerprint": "fp-2"},
    {"model": "tiny", "system_fingerprint": "fp-1", "weight_versions": ["2"]},
]
FIRST = {"model": "tiny", "system_fingerprint": "fp-1", "weight_versions": ["1"]}


@pytest.mark.parametrize("other", OTHERS)
async def test_a_reply_of_other_weights_is_dropped_and_waited_for_the_first_ones(endpoint, connect, other):
    server, said = Server(endpoint), []
    server.said = [FIRST, other, other, other, FIRST]
    chat = connect(on_outage=said.append)
    await chat.connect()
    assert (await ask(chat)).weights == '["1"]'
    assert (await ask(chat)).fingerprint == "fp-1"
    assert any("away: other weights under the same name" in words for words in said)


@pytest.mark.parametrize("other", OTHERS)
async def test_where_the_first_weights_do_not_come_back_the_model_is_given_up_in_words(endpoint, connect, other):
    server = Server(endpoint)
    server.said = [FIRST, other]
    chat = connect(max_outage=IMPATIENT)
    await chat.connect()
    await ask(chat)
    with pytest.raises(EndpointUnavailable, match="other weights under the same name"):
        await ask(chat)
    assert chat.outage.gave_up is not None


async def test_a_server_that_comes_back_with_other_weights_stays_away(endpoint, connect):
    server, said = Server(endpoint), []
    chat = connect(on_outage=said.append)
    await chat.connect()
    await ask(chat)
    endpoint.go_away()
    asking = asyncio.create_task(ask(chat))
    while not said:  # noqa: ASYNC110 - the server is polled, too
        await asyncio.sleep(0.01)
    server.card = {**server.card, "root": "/ckpt/2"}
    endpoint.come_back()
    await asyncio.sleep(0.3)
    assert not asking.done()
    server.card = {**server.card, "root": "/ckpt/1"}
    assert (await asking).content == "hi"


async def test_servers_of_a_fleet_that_reply_in_turn_are_all_taken(endpoint, connect):
    server, said = Server(endpoint), []
    server.said = [{"model": "tiny", "system_fingerprint": f"fp-{n % 2}"} for n in range(20)]
    chat = connect(on_outage=said.append)
    await chat.connect()
    assert {(await ask(chat)).fingerprint for _ in range(6)} == {"fp-0", "fp-1"}
    assert len([words for words in said if "taken for servers of one model" in words]) == 1
    assert not any("away" in words for words in said)


async def test_other_names_of_the_same_weights_are_no_difference(endpoint, connect):
    server = Server(endpoint)
    server.aliases = [{"id": "alias", "root": "/ckpt/1"}]
    server.said = [{"model": "alias"}, {"model": "tiny"}, {"model": "alias"}]
    chat = connect(max_outage=IMPATIENT)
    await chat.connect()
    assert [(await ask(chat)).model for _ in range(3)] == ["alias", "tiny", "alias"]


async def test_what_an_earlier_start_has_seen_is_expected(endpoint, connect):
    Server(endpoint, system_fingerprint="fp-2")
    chat = connect(max_outage=IMPATIENT)
    await chat.connect()
    chat.replier.expect({"model": ["tiny"], "fingerprint": ["fp-1"], "weights": []})
    with pytest.raises(EndpointUnavailable, match="fp-2; before it was fp-1"):
        await ask(chat)


async def test_one_that_is_not_strict_takes_whatever_comes(endpoint, connect):
    server = Server(endpoint)
    server.said = [FIRST, *OTHERS]
    chat = connect()
    chat.replier.is_strict = False
    await chat.connect()
    assert [(await ask(chat)).model for _ in range(4)] == ["tiny", "fallback", "tiny", "tiny"]


async def test_replicas_of_different_weights_are_refused_unless_they_are_taken(endpoint, connect, server_at):
    Server(endpoint)
    other = Server(server_at())
    other.card = {**other.card, "root": "/ckpt/2"}
    replicas = Replicas([connect(), connect(other.endpoint.base_url)])
    with pytest.raises(RequestRefused, match=r"/ckpt/1.*/ckpt/2.*--other-weights take"):
        await replicas.connect(1.0)
    for chat in replicas.chats:
        chat.replier.is_strict = False
    assert (await replicas.connect(1.0)).root == "/ckpt/1"


@pytest.fixture
def server_at():
    with contextlib.ExitStack() as stack:
        yield lambda: stack.enter_context(contextlib.closing(FaultServer()))


def test_unknown_never_differs_from_known():
    known = ServedModel(id="m", root="a", context_tokens=5)
    assert served_otherwise(known, ServedModel(id="m")) is None
    assert served_otherwise(ServedModel(id="m"), known) is None
    assert "b" in (served_otherwise(known, ServedModel(id="m", root="b")) or "")
    assert "6" in (served_otherwise(known, ServedModel(id="m", root="a", context_tokens=6)) or "")
    assert Replier(lambda _: None).difference(Reply(content="")) is None


# -- no list of models ---------------------------------------------------------------------------

LISTINGS = [
    answer(404, {"detail": "Not Found"}),
    answer(500, b"Internal Server Error"),
    answer(405, b""),
    answer(200, {"data": []}),
    answer(200, b"<html>hello</html>"),
    answer(200, {"models": {}}),
]


@pytest.mark.parametrize("listing", LISTINGS)
async def test_a_model_that_is_named_is_asked_without_a_list(endpoint, connect, listing):
    said: list[str] = []
    endpoint.answer_by(lambda seen: listing if seen.path.endswith("/models") else answer(200, completion("hi")))
    chat = connect(model="tiny", on_outage=said.append)
    assert (await chat.connect()).id == "tiny"
    assert (await ask(chat)).content == "hi"
    assert len(said) == 1 and "'tiny' replies" in said[0]
    assert not await chat.outage.is_to_blame_for(FAILURE)
    nameless = connect(model=None, retry=QUICK.model_copy(update={"total_sec": 0}))
    with pytest.raises((RequestRefused, EndpointUnavailable)):
        await nameless.connect()


@pytest.mark.parametrize("listing", LISTINGS[:3])
async def test_without_a_list_a_gateway_whose_server_is_gone_is_away(endpoint, connect, listing):
    endpoint.answer_by(lambda seen: listing if seen.path.endswith("/models") else answer(200, completion("hi")))
    chat = connect()
    await chat.connect()
    endpoint.answer_by(lambda _: answer(502, b"<html><title>502 Bad Gateway</title></html>"))
    assert await chat.outage.is_to_blame_for(FAILURE)


async def test_a_server_that_takes_any_name_does_not_serve_every_model(endpoint, connect):
    Server(endpoint)
    with pytest.raises(RequestRefused, match="does not serve 'huge'; it lists tiny"):
        await connect(model="huge").connect()


async def test_a_model_that_is_not_listed_and_replies_by_its_name_is_taken(endpoint, connect):
    Server(endpoint).said = [{"model": "hidden"}]
    assert (await connect(model="hidden").connect()).context_tokens is None
