"""replicas: several HTTP servers of one model: distribution of trials, and failover."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest
from fault_server import FaultServer, answer

from harness.endpoint import replicas as module
from harness.endpoint.chat import ChatModel, OutagePolicy, RetryPolicy, Sampling
from harness.endpoint.outage import EndpointState
from harness.endpoint.replicas import Replicas
from harness.errors import ContextLimitReached, EndpointUnavailable, RequestRefused
from harness.model import Model, bind_trial
from harness.trajectory import Message, Reply

HELLO = [Message(role="user", content="hello")]
SMALL = RetryPolicy(total_sec=0.3, initial_sec=0.01, max_sec=0.02, reset_sec=0.01)
PATIENT = OutagePolicy(
    max_sec=60, first_pause_sec=0.02, longest_pause_sec=0.05, spread_sec=0.02, move_on_sec=0.2, probe_timeout_sec=0.3
)
Make = Callable[..., Replicas]


@pytest.fixture
def servers() -> Iterator[list[FaultServer]]:
    """Three servers that answer with their numbers."""
    with contextlib.ExitStack() as stack:
        made = [stack.enter_context(contextlib.closing(FaultServer())) for _ in range(3)]
        for number, server in enumerate(made):
            server.always_list({"id": "tiny", "max_model_len": 8192})
            server.will_reply(str(number))
        yield made


@pytest.fixture
async def make(servers: list[FaultServer]) -> AsyncIterator[Make]:
    async with contextlib.AsyncExitStack() as stack:

        def make(*, say: Callable[[str], None] = lambda _: None, **options: Any) -> Replicas:
            chats = [
                ChatModel(
                    server.base_url, "tiny", Sampling(), api_key=None, retry=SMALL, max_outage=PATIENT,
                    request_timeout_sec=20,
                )
                for server in servers
            ]  # fmt: skip
            made = Replicas(chats, say, **options)
            stack.push_async_callback(made.close)
            return made

        yield make


async def ask(model: Model) -> Reply:
    async with asyncio.timeout(10):
        return await model.query(HELLO, seed=1, max_tokens=100)


async def test_a_trial_stays_at_one_server(make: Make) -> None:
    replicas = make()
    with bind_trial(replicas) as trial:
        replies = [await ask(trial) for _ in range(5)]
    assert {reply.content for reply in replies} == {"0"}
    assert replies[0].base_url == replicas.urls[0]


async def test_new_trials_go_where_the_fewest_are(make: Make) -> None:
    replicas = make()
    with contextlib.ExitStack() as stack:
        trials = [stack.enter_context(bind_trial(replicas)) for _ in range(6)]
        assert sorted([(await ask(trial)).content for trial in trials]) == ["0", "0", "1", "1", "2", "2"]
        with contextlib.ExitStack() as more:
            for _ in range(3):
                more.enter_context(bind_trial(replicas))
    with bind_trial(replicas) as trial:
        assert (await ask(trial)).content == "0"


async def test_weights_say_how_many_trials_a_server_gets(make: Make) -> None:
    replicas = make(weights=[1, 2, 5])
    with contextlib.ExitStack() as stack:
        trials = [stack.enter_context(bind_trial(replicas)) for _ in range(16)]
        asked = [(await ask(trial)).content for trial in trials]
    assert [asked.count(each) for each in "012"] == [2, 4, 10]


async def test_a_server_that_goes_away_loses_its_trials_to_the_others_without_a_lost_request(
    make: Make, servers: list[FaultServer]
) -> None:
    replicas = make()
    with bind_trial(replicas) as one, bind_trial(replicas) as two:
        assert [(await ask(one)).content, (await ask(two)).content] == ["0", "1"]
        servers[0].go_away()
        moved = await ask(one)
        assert moved.content == "2", "where no trial is"
        assert moved.waited_sec > 0 and moved.attempts > 1
        servers[0].come_back()
        assert [(await ask(one)).content for _ in range(3)] == ["2"] * 3, "its prefix is there by now"


async def test_a_request_is_not_waited_for_where_its_server_hangs_and_another_one_is_there(
    make: Make, servers: list[FaultServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A lost machine is not reported: the connection stays open."""
    monkeypatch.setattr(module, "CHECK_EVERY_SEC", 0.05)
    replicas = make()
    with bind_trial(replicas) as trial:
        servers[0].freeze()
        assert (await ask(trial)).content == "1"


async def test_a_server_is_waited_for_where_all_are_away(make: Make, servers: list[FaultServer]) -> None:
    replicas = make()
    heard: list[EndpointState] = []
    replicas.outage.on_change = heard.append
    with bind_trial(replicas) as trial:
        for server in servers:
            server.go_away()
        routed = asyncio.create_task(ask(trial))
        async with asyncio.timeout(10):
            while not replicas.outage.is_away:  # noqa: ASYNC110 - all have to be found out
                await asyncio.sleep(0.01)
        servers[2].come_back()
        assert (await routed).content == "2"
    assert heard[0] == "away" and heard[-1] == "back"


async def test_all_that_stay_away_are_an_error(make: Make, servers: list[FaultServer]) -> None:
    replicas = make(retry_budget_sec=0.5)
    for chat in replicas.chats:
        chat.outage.policy = PATIENT.model_copy(update={"max_sec": 0.3})
    for server in servers:
        server.go_away()
    with bind_trial(replicas) as trial, pytest.raises(EndpointUnavailable, match="down"):
        await ask(trial)
    assert replicas.outage.gave_up is not None


async def test_what_a_server_says_of_the_request_is_no_reason_to_ask_another(
    make: Make, servers: list[FaultServer]
) -> None:
    replicas = make()
    words = "This model's maximum context length is 8192 tokens. However, your prompt contains 9000 input tokens"
    servers[0].answer_by(lambda _: answer(400, {"error": {"message": words}}))
    with bind_trial(replicas) as trial, pytest.raises(ContextLimitReached):
        await ask(trial)
    assert [len(server.seen) for server in servers] == [1, 0, 0]


async def test_a_server_that_forgot_the_model_is_passed_over(make: Make, servers: list[FaultServer]) -> None:
    said: list[str] = []
    replicas = make(say=said.append)
    servers[0].answer_by(lambda _: answer(404, {"error": {"message": "The model `tiny` does not exist."}}))
    for _ in range(module.MAX_STRIKES):
        with bind_trial(replicas) as trial:
            assert (await ask(trial)).content != "0"
    assert ["3 requests in a row failed there" in each for each in said] == [True]
    with bind_trial(replicas) as trial:
        await ask(trial)
    assert len(servers[0].seen) == module.MAX_STRIKES


async def test_servers_of_different_models_or_lengths_are_refused_with_both(
    make: Make, servers: list[FaultServer]
) -> None:
    servers[1].always_list({"id": "tiny", "max_model_len": 4096})
    replicas = make()
    with pytest.raises(RequestRefused, match=r"different context lengths \(.* 8192, .* 4096, .* 8192\)"):
        await replicas.connect(1.0)
    assert (await replicas.connect(1.0, same_context=False)).context_tokens == 4096
    for chat in replicas.chats:
        chat.model = None
    servers[1].always_list({"id": "other", "max_model_len": 8192})
    with pytest.raises(
        RequestRefused, match=r"different models \(other, tiny\): name the one to use, or all to compare them"
    ):
        await replicas.connect(1.0)


async def test_one_that_does_not_answer_at_first_gets_trials_when_it_does(
    make: Make, servers: list[FaultServer]
) -> None:
    said: list[str] = []
    replicas = make(say=said.append)
    servers[0].go_away()
    assert (await replicas.connect(0.2)).id == "tiny"
    assert len(said) == 1 and "the others take its requests until it answers" in said[0]
    with bind_trial(replicas) as trial:
        assert (await ask(trial)).content == "1"
    servers[0].come_back()
    async with asyncio.timeout(10):
        while replicas.chats[0].outage.is_away:  # noqa: ASYNC110 - it is probed
            await asyncio.sleep(0.01)
    with bind_trial(replicas) as trial:
        assert (await ask(trial)).content == "0"


async def test_a_draft_at_another_temperature_is_asked_of_the_same_server(
    make: Make, servers: list[FaultServer]
) -> None:
    replicas = make()
    with bind_trial(replicas):
        pass
    one = replicas.at_temperature(0.25)
    assert (await ask(one)).content == "0"
    assert servers[0].seen[-1].json["temperature"] == 0.25
