"""outage: an endpoint that is away is distinguished from a failing request, and all requests wait for its return."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from harness.endpoint.chat import ChatModel, OutagePolicy, RetryPolicy, Sampling
from harness.endpoint.outage import Outage, OutageTooLongError
from harness.endpoint.retry import TransientError
from harness.errors import ContextLimitReached, EndpointUnavailable, RequestRefused
from harness.trajectory import Message, Reply

KEY = "sk-very-secret-0123"
CARD = {"id": "tiny"}
HELLO = [Message(role="user", content="hello")]
PATIENT = OutagePolicy(max_sec=60, first_pause_sec=0.02, longest_pause_sec=0.05, spread_sec=0.02)
SMALL = RetryPolicy(total_sec=0.3, initial_sec=0.01, max_sec=0.02, reset_sec=0.01)
"""A budget far below the outages here."""
REFUSED = TransientError("cannot connect: Connection refused", refused=True)
STALLED = TransientError("no answer within 5 s")
Models = Callable[..., ChatModel]


class Probe:
    """Fails with `failure` while it is set."""

    def __init__(self, failure: TransientError | None) -> None:
        self.failure = failure
        self.calls = 0

    async def __call__(self) -> None:
        self.calls += 1
        await asyncio.sleep(0)
        if self.failure is not None:
            raise self.failure


@contextlib.asynccontextmanager
async def watching(probe: Probe, policy: OutagePolicy = PATIENT, **options: Any) -> AsyncIterator[Outage]:
    outage = Outage(probe, policy, **options)
    async with asyncio.timeout(30):
        yield outage
    await outage.close()


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110 - there is no event for all of these
            await asyncio.sleep(0.005)


class TestWatching:
    async def test_a_failure_while_the_probe_is_answered_is_no_outage(self) -> None:
        probe = Probe(None)
        async with watching(probe) as outage:
            assert not await outage.request().was_away(STALLED)
            assert (outage.is_away, probe.calls) == (False, 1)

    async def test_a_server_that_asks_to_come_again_is_there_and_not_probed(self) -> None:
        probe = Probe(REFUSED)
        async with watching(probe) as outage:
            assert not await outage.request().was_away(TransientError("HTTP 429", answered=True))
        assert probe.calls == 0

    async def test_all_requests_share_one_prober_and_hear_of_the_return(self) -> None:
        probe, notices = Probe(REFUSED), []
        async with watching(probe, say=notices.append) as outage:
            waiting = [asyncio.create_task(outage.request().was_away(STALLED)) for _ in range(50)]
            await until(lambda: probe.calls == 4)
            assert not any(task.done() for task in waiting)
            probe.failure = None
            assert all(await asyncio.gather(*waiting))
        assert probe.calls <= 5
        assert notices == ["away: cannot connect: Connection refused; pausing", "back after 0 s"]

    async def test_a_new_request_waits_as_well_and_a_run_starts_nothing(self) -> None:
        probe = Probe(REFUSED)
        async with watching(probe) as outage:
            first = asyncio.create_task(outage.request().was_away(STALLED))
            await until(lambda: outage.is_away)
            others = [asyncio.create_task(outage.request().wait_while_away()), asyncio.create_task(outage.wait())]
            await until(lambda: probe.calls > 3)
            assert not any(task.done() for task in others)
            probe.failure = None
            await asyncio.gather(first, *others)

    async def test_an_outage_that_is_too_long_ends_every_request_and_says_why(self) -> None:
        policy = PATIENT.model_copy(update={"max_sec": 0.1})
        probe = Probe(REFUSED)
        async with watching(probe, policy) as outage:
            with pytest.raises(OutageTooLongError, match=r"down for 0 s, longer than --max-outage \(cannot connect"):
                await outage.request().was_away(STALLED)
            assert outage.gave_up is not None
            asked = probe.calls
            with pytest.raises(OutageTooLongError):  # at once
                await outage.request().was_away(STALLED)
            assert probe.calls == asked + 1
            await outage.wait()

    async def test_a_request_under_way_that_is_answered_ends_an_outage_unless_the_port_is_closed(self) -> None:
        slow = PATIENT.model_copy(update={"first_pause_sec": 3600, "longest_pause_sec": 3600, "max_sec": 7200})
        async with watching(Probe(STALLED), slow) as outage:
            waiting = asyncio.create_task(outage.request().was_away(STALLED))
            await until(lambda: outage.is_away)
            outage.note_answer()
            assert await waiting
        probe = Probe(REFUSED)
        async with watching(probe, slow) as outage:
            waiting = asyncio.create_task(outage.request().was_away(REFUSED))
            await until(lambda: outage.is_away)
            outage.note_answer()
            await until(lambda: probe.calls == 2)  # a hint to look, no more
            assert outage.is_away
            waiting.cancel()

    @pytest.mark.parametrize(("failure", "is_lost"), [(REFUSED, True), (STALLED, False)])
    async def test_what_a_process_had_that_is_gone_is_lost(self, failure: TransientError, is_lost: bool) -> None:
        probe = Probe(failure)
        async with watching(probe) as outage:

            async def attempt() -> bool:
                with contextlib.suppress(TimeoutError):
                    async with outage.attempt(0.5) as flight:
                        await asyncio.Future()
                return flight.lost

            under_way = asyncio.create_task(attempt())
            waiting = asyncio.create_task(outage.request().was_away(failure))
            await until(lambda: probe.calls > 2)
            probe.failure = None
            await waiting
            assert await under_way is is_lost

    async def test_a_request_that_meets_one_outage_after_the_other_is_given_up(self) -> None:
        """The request itself may crash the server."""
        probe = Probe(REFUSED)
        async with watching(probe) as outage:
            request = outage.request()
            for _ in range(PATIENT.most):
                waiting = asyncio.create_task(request.was_away(REFUSED))
                await until(lambda: outage.is_away)
                probe.failure = None
                assert await waiting
                probe.failure = REFUSED
            with pytest.raises(OutageTooLongError, match="went away 6 times during this request"):
                await request.was_away(REFUSED)

    async def test_outages_that_add_up_are_too_long_for_one_request(self) -> None:
        policy = PATIENT.model_copy(update={"max_sec": 0.4, "probe_timeout_sec": 0.1})
        probe = Probe(REFUSED)
        async with watching(probe, policy) as outage:
            request = outage.request()
            with pytest.raises(OutageTooLongError, match="longer than --max-outage"):
                for _ in range(3):
                    waiting = asyncio.create_task(request.was_away(REFUSED))
                    await asyncio.sleep(0.3)
                    probe.failure = None
                    await waiting
                    probe.failure = REFUSED

    async def test_a_cancelled_request_leaves_the_prober_to_the_others(self) -> None:
        probe = Probe(REFUSED)
        async with watching(probe) as outage:
            one, other = (asyncio.create_task(outage.request().was_away(STALLED)) for _ in range(2))
            await until(lambda: outage.is_away)
            one.cancel()
            probe.failure = None
            assert await other

    async def test_closing_ends_the_prober(self) -> None:
        before = asyncio.all_tasks()
        async with watching(Probe(REFUSED)) as outage:
            waiting = asyncio.create_task(outage.request().was_away(STALLED))
            await until(lambda: outage.is_away)
            waiting.cancel()
            await outage.close()
            await until(lambda: asyncio.all_tasks() <= before)

    def test_patience_covers_the_longest_outage_and_is_bounded(self) -> None:
        assert OutagePolicy(max_sec=0).patience_sec(600) == 0
        assert 3600 < OutagePolicy().patience_sec(600) < 3 * 3600


@pytest.fixture
async def models(endpoint: Any) -> AsyncIterator[Models]:
    """Makes models for the endpoint, which lists them at any time."""
    endpoint.always_list(CARD)
    async with contextlib.AsyncExitStack() as stack:

        def make(**options: Any) -> ChatModel:
            defaults = {"api_key": KEY, "retry": SMALL, "max_outage": PATIENT, "request_timeout_sec": 20}
            made = ChatModel(endpoint.base_url, "tiny", Sampling(), **(defaults | options))
            stack.push_async_callback(made.close)
            return made

        yield make


async def ask(model: ChatModel) -> Reply:
    async with asyncio.timeout(30):
        return await model.query(HELLO, seed=1, max_tokens=9)


class TestOverHttp:
    async def test_a_restart_longer_than_the_budget_costs_the_requests_nothing(self, endpoint, models):
        """Refused, then 503, then fine; one request is pending when it begins, the others begin during it."""
        notices: list[str] = []
        model = models(on_outage=notices.append)
        became: list[str] = []
        model.outage.on_change = became.append
        endpoint.will_disconnect()
        endpoint.will_reply("at last")
        endpoint.go_away()
        asking = [asyncio.create_task(ask(model)) for _ in range(4)]
        await until(lambda: model.outage.is_away)
        await asyncio.sleep(2 * SMALL.total_sec)
        endpoint.answer_all(503, {"error": {"message": "loading"}})
        endpoint.come_back()
        late = asyncio.create_task(ask(model))
        await asyncio.sleep(SMALL.total_sec)
        assert not any(task.done() for task in (*asking, late))
        endpoint.behave()
        replies = await asyncio.gather(*asking, late)
        assert {reply.content for reply in replies} == {"at last"}
        assert all(reply.waited_sec > 3 * SMALL.total_sec for reply in replies[:4])
        assert replies[4].waited_sec >= SMALL.total_sec
        assert notices[0] == "away: cannot connect: Connection refused; pausing"
        assert [words.split()[0] for words in notices] == ["away:", "back"]
        assert became == ["away", "back"]

    async def test_a_server_that_is_frozen_is_away_and_costs_nothing(self, endpoint, models):
        """The request that detected it took longer than its budget."""
        policy = PATIENT.model_copy(update={"probe_timeout_sec": 0.2})
        model = models(max_outage=policy, request_timeout_sec=0.5)
        endpoint.will_reply("awake again")
        endpoint.freeze()
        asking = asyncio.create_task(ask(model))
        await until(lambda: model.outage.is_away)
        late = asyncio.create_task(ask(model))
        await asyncio.sleep(SMALL.total_sec)
        endpoint.behave()
        assert {(await task).content for task in (asking, late)} == {"awake again"}
        assert (await asking).waited_sec > 0.5

    async def test_after_an_outage_the_budget_is_what_it_was_before(self, endpoint, models):
        endpoint.will_answer(500, {"error": {"message": "still warming up"}})
        endpoint.will_reply("at last")
        model = models()
        endpoint.go_away()
        asking = asyncio.create_task(ask(model))
        await until(lambda: model.outage.is_away)
        await asyncio.sleep(2 * SMALL.total_sec)
        endpoint.come_back()
        assert (await asking).content == "at last"

    async def test_a_request_that_always_fails_is_no_outage_and_spends_its_budget(self, endpoint, models):
        endpoint.will_answer(500, {"error": {"message": "poison"}})
        model = models()
        with pytest.raises(EndpointUnavailable, match=r"HTTP 500: poison \(gave up after \d+ attempts\)"):
            await ask(model)
        assert len(endpoint.listed) == len(endpoint.seen) > 1
        assert not model.outage.is_away

    async def test_an_outage_that_is_too_long_names_the_endpoint_and_the_reason(self, endpoint, models):
        model = models(max_outage=PATIENT.model_copy(update={"max_sec": 0.2}))
        endpoint.answer_all(503, {"error": {"message": f"closed for {KEY}"}})
        with pytest.raises(EndpointUnavailable) as caught:
            await ask(model)
        where = f"{endpoint.base_url}/chat/completions"
        assert str(caught.value).startswith(
            f"{where}: the endpoint was down for 0 s, longer than --max-outage (HTTP 503"
        )
        assert KEY not in str(caught.value) + str(model.outage.gave_up)
        assert caught.value.__context__ is None

    async def test_without_outages_the_budget_alone_decides(self, endpoint, models):
        model = models(max_outage=None)
        endpoint.go_away()
        with pytest.raises(EndpointUnavailable, match="gave up after"):
            await ask(model)
        assert endpoint.listed == []

    async def test_a_single_attempt_stays_one(self, endpoint, models):
        endpoint.go_away()
        with pytest.raises(EndpointUnavailable, match="gave up after 1 attempt"):
            await ask(models(retry=RetryPolicy(total_sec=0)))

    async def test_connecting_does_not_sit_out_an_outage(self, endpoint, models):
        endpoint.go_away()
        with pytest.raises(EndpointUnavailable, match="gave up after"):
            await models().connect(budget_sec=0.1)

    async def test_a_request_that_hangs_in_a_dying_server_is_made_again_after_the_restart(self, endpoint, models):
        """Like vLLM on SIGTERM: the port closes at once, the connection stays open without an answer."""
        model = models(request_timeout_sec=600, retry=RetryPolicy(total_sec=60, initial_sec=0.01))
        endpoint.will_hang()
        endpoint.will_reply("from the new one")
        hanging = asyncio.create_task(ask(model))
        await until(endpoint.first_request.is_set)
        endpoint.go_away(hang_up=False)
        other = asyncio.create_task(ask(model))
        await until(lambda: model.outage.is_away)
        endpoint.come_back()
        started = time.monotonic()
        replies = await asyncio.gather(hanging, other)
        assert time.monotonic() - started < 20
        assert {reply.content for reply in replies} == {"from the new one"}
        assert replies[0].waited_sec > 0

    async def test_a_refusal_after_an_outage_says_how_long_that_was(self, endpoint, models):
        endpoint.will_answer(400, {"error": {"message": "maximum context length"}})
        endpoint.will_answer(404, {"error": {"message": "no such model"}})
        model = models()
        for expected in (ContextLimitReached, RequestRefused):
            endpoint.go_away()
            asking = asyncio.create_task(ask(model))
            await until(lambda: model.outage.is_away)
            await asyncio.sleep(0.3)
            endpoint.come_back()
            with pytest.raises(expected) as caught:
                await asking
            assert caught.value.waited_sec >= 0.3

    async def test_patience_is_longer_than_any_outage(self, models):
        assert models().patience_sec > PATIENT.max_sec + SMALL.total_sec + 20
