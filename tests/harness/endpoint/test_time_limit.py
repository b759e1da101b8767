"""Time limit of requests by the server's pace, and replies that exceed it."""

from __future__ import annotations

import contextlib

import pytest
from fault_server import FaultServer

from harness.endpoint import chat as chat_module
from harness.endpoint.chat import ChatModel, OutagePolicy, RetryPolicy, Sampling
from harness.endpoint.replicas import Replicas
from harness.endpoint.server_state import LEAST_SEC, LONGEST_SEC, TimeLimit
from harness.errors import EndpointUnavailable, ReplyTimeout
from harness.trajectory import Message, Reply

HELLO = [Message(role="user", content="hello")]
RETRY = RetryPolicy(total_sec=60, initial_sec=0.01, max_sec=0.02)
PAGE = b"<html><head><title>504 Gateway Time-out</title></head></html>"
FROM_NGINX = {"content-type": "text/html", "server": "nginx/1.25.3"}


def seen(*replies: tuple[int, float]) -> TimeLimit:
    limit = TimeLimit(None)
    for tokens, seconds in replies:
        limit.record(tokens, seconds)
    return limit


class TestLimit:
    def test_it_is_never_below_the_least_nor_above_the_longest(self):
        for limit in (seen(), seen(*[(1000, 0.001)] * 50), seen(*[(64, 1e6)] * 50)):
            assert (
                LEAST_SEC < limit.seconds_for(1) <= limit.seconds_for(16384) <= limit.seconds_for(10**9) == LONGEST_SEC
            )

    def test_before_anything_is_seen_16384_tokens_at_a_slow_pace_fit(self):
        assert seen().seconds_for(16384) > 16384 / 5

    def test_it_follows_the_pace_down_and_up(self):
        fast, slow = seen(*[(1000, 20.0)] * 50), seen(*[(1000, 100.0)] * 50)
        assert fast.seconds_for(16384) < seen().seconds_for(16384) < slow.seconds_for(16384)
        assert slow.seconds_for(16384) > 2 * 16384 / 10

    def test_one_fast_or_slow_reply_moves_little_and_short_ones_nothing(self):
        usual = [(1000, 50.0)] * 50
        for odd in ((16384, 0.01), (1000, 3000.0)):
            assert seen(*usual, odd).seconds_for(16384) == pytest.approx(seen(*usual).seconds_for(16384))
        assert seen(*[(3, 500.0)] * 50).seconds_for(16384) == seen().seconds_for(16384)

    def test_a_few_fast_replies_at_the_beginning_are_not_believed(self):
        assert seen(*[(1000, 5.0)] * 5).seconds_for(16384) == seen().seconds_for(16384)

    def test_a_second_attempt_has_twice_the_time_but_not_with_a_number(self):
        assert seen().seconds_for(1000, times_cut=1) == 2 * seen().seconds_for(1000)
        assert TimeLimit(30).seconds_for(10**6) == TimeLimit(30).seconds_for(1, times_cut=1) == 30


def model_at(endpoint: FaultServer, **options: object) -> ChatModel:
    settings: dict[str, object] = {"request_timeout_sec": 0.4, "retry": RETRY, "max_outage": OutagePolicy()} | options
    return ChatModel(endpoint.base_url, "m", Sampling(), api_key=None, **settings)  # type: ignore[arg-type]


async def ask(model: ChatModel) -> Reply:
    async with model:
        return await model.query(HELLO, seed=1, max_tokens=100)


async def test_a_reply_that_takes_too_long_is_asked_for_twice_and_named_with_the_options(endpoint):
    endpoint.always_list({"id": "m"})
    endpoint.will_hang()
    with pytest.raises(
        ReplyTimeout,
        match=r"no answer within 0\.4 s \(gave up after 2 attempts\); the server is there: "
        r"give a reply more time \(--request-timeout\), or fewer tokens",
    ):
        await ask(model_at(endpoint))
    assert len(endpoint.seen) == 2


async def test_where_the_server_is_not_there_it_is_no_matter_of_the_limit(endpoint):
    endpoint.freeze()
    with pytest.raises(EndpointUnavailable):
        await ask(model_at(endpoint, max_outage=OutagePolicy(max_sec=0), retry=RetryPolicy(total_sec=0)))


async def test_a_gateway_that_gives_up_waiting_is_named_and_not_asked_for_a_quarter_of_an_hour(endpoint, monkeypatch):
    monkeypatch.setattr(chat_module, "_LONG_WAIT_SEC", 0.0)
    endpoint.always_list({"id": "m"})
    endpoint.will_answer(504, PAGE, FROM_NGINX)
    with pytest.raises(
        ReplyTimeout, match=r"HTTP 504 from a gateway \(nginx\) after \d+ s: .*proxy_read_timeout"
    ) as caught:
        await ask(model_at(endpoint))
    assert "<" not in str(caught.value) and len(endpoint.seen) == 2


async def test_a_gateway_whose_server_is_not_there_yet_is_asked_again(endpoint):
    endpoint.always_list({"id": "m"})
    for _ in range(4):
        endpoint.will_answer(504, PAGE, FROM_NGINX)
    endpoint.will_reply("there")
    assert (await ask(model_at(endpoint))).content == "there"


async def test_of_several_servers_a_second_one_is_asked_and_no_third(endpoint):
    with contextlib.closing(FaultServer()) as second, contextlib.closing(FaultServer()) as third:
        servers = [endpoint, second, third]
        for each in servers:
            each.always_list({"id": "m"})
            each.will_hang()
        replicas = Replicas([model_at(each) for each in servers])
        with pytest.raises(ReplyTimeout):
            await replicas.query(HELLO, seed=1, max_tokens=100)
        await replicas.close()
        assert sorted(len(each.seen) for each in servers) == [0, 1, 1]


async def test_a_reply_near_the_limit_has_a_sign(endpoint):
    endpoint.will_reply("quick")
    assert (await ask(model_at(endpoint))).signs == ()
    slow = model_at(endpoint)
    slow._limit.seconds_for = lambda *_: 20.0 if not endpoint.seen[1:] else 0.0  # type: ignore[method-assign]
    assert (await ask(slow)).signs == ("near_time_limit",)
