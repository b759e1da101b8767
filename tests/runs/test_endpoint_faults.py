"""Whole trials and runs against a faulty endpoint: a verdict, or a named error; never a false 0.

How the client treats each single answer is tested in tests/harness/endpoint.
"""

from __future__ import annotations

import ast
import asyncio
import contextlib
import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from endpoint_trials import CLAIM, PATIENT, QUICK, EndpointRun
from fake_tmux import Answer, FakeTmux
from fault_server import RECORDED, FaultServer, answer, completion
from small_context import SmallContext

from harness.endpoint.chat import ChatModel
from harness.limits import Limits
from harness.trajectory import Outcome
from tbench.errors import KINDS
from tbench.results import Blame, TrialResult
from tbench.sandbox.backend import ExecResult
from tbench.sandbox.fake import FakeBackend, FakeSandbox
from tbench.scores.summarise import summarise
from tbench.tasks.sources import TaskSet, read_tasks
from tbench.tasks.task import Task

MakeTask = Any
Fault = Callable[[FaultServer], None]
SSE = {"content-type": "text/event-stream; charset=utf-8"}
STREAMED_ERROR = b'data: {"error": {"message": "EngineCore encountered an issue.", "code": 500}}\n\ndata: [DONE]\n\n'
LOOK = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "look\\n", "duration": 0.1}]}'
"""Typed, it shows a screen full of words."""
WORDS = "\n".join(f"line {index} of some output with words in it" for index in range(30))
TALKATIVE = FakeBackend(lambda _: FakeSandbox(connect=FakeTmux(lambda _: Answer(WORDS)).connect))
REPLY = answer(200, completion(CLAIM))
ENDLESS = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n2\r\n{}\r\n"
CUT = REPLY[:-20]
DEADLINE_SEC = 0.3
"""For one request, if the fault is to be waited out."""


@pytest.fixture
def make_run(endpoint: FaultServer, tmp_path: Path) -> Callable[..., EndpointRun]:
    """Makes a run against the endpoint, which always lists its model."""
    endpoint.always_list({"id": "tiny"})
    return lambda **options: EndpointRun(endpoint.base_url, tmp_path / "run", **options)


@pytest.fixture
def one(make_task: MakeTask) -> TaskSet:
    return read_tasks(str(make_task()))


def many(make_task: MakeTask, number: int, toml: str = "") -> TaskSet:
    made = [make_task(f"task-{index}", toml=toml) for index in range(number)]
    return read_tasks(str(made[0].parent))


def check_recovered(run: EndpointRun, result: TrialResult) -> None:
    """Check for a verdict, a record of the fault, and no time charged to the agent."""
    assert (result.reward, result.error, result.outcome) == (1.0, None, Outcome.SUBMITTED)
    assert result.steps == 2
    waited = [step.reply.waited_sec for step in run.trajectory(result).steps]
    assert waited[0] > 0
    assert result.timings.waited_sec == pytest.approx(sum(waited), abs=0.05)
    assert result.timings.agent_sec >= result.timings.waited_sec


def one_thing_after_the_other(endpoint: FaultServer) -> None:
    endpoint.will_reset()
    for _ in range(5):
        endpoint.will_answer(503, {"error": {"message": "busy"}})
    endpoint.will_send(CUT)


AT_ONCE: dict[str, Fault] = {
    "reset": lambda e: e.will_reset(),
    "closed without a byte": lambda e: e.will_disconnect(),
    "closed in mid-body": lambda e: e.will_send(CUT),
    "429": lambda e: e.will_answer(429, {"error": {"message": "slow down"}}),
    "429 with Retry-After": lambda e: e.will_answer(429, {"error": "quota"}, {"retry-after": "0"}),
    "500": lambda e: e.will_answer(500, {"error": {"message": "EngineCore encountered an issue.", "code": 500}}),
    "503": lambda e: e.will_answer(503, {"error": {"message": "busy"}}),
    "aborted": lambda e: e.will_reply(CLAIM, finish_reason="abort"),
    "an error event, then [DONE], with 200": lambda e: e.will_answer(200, STREAMED_ERROR, SSE),
    "an error body with 200": lambda e: e.will_answer(200, {"error": {"message": "upstream", "code": 500}}),
    "garbage": lambda e: e.will_answer(200, b"\x00\xff\xfe garbage"),
    "no choices": lambda e: e.will_answer(200, {"choices": []}),
    "a page": lambda e: e.will_answer(200, b"<html>welcome</html>", {"content-type": "text/html"}),
    "one thing after the other": one_thing_after_the_other,
}
IN_TIME: dict[str, Fault] = {
    "no answer, connection open": lambda e: e.will_hang(),
    "a body that stops": lambda e: e.will_send(CUT, then_wait=True),
    "a body without end": lambda e: e.will_send(ENDLESS, then_wait=True),
    "a drip without end": lambda e: e.will_trickle(b"HTTP/1.1 200 OK\r\ncontent-length: 9999\r\n\r\n", 0.05),
}


class TestTrials:
    @pytest.mark.parametrize("fault", AT_ONCE)
    async def test_a_fault_that_passes_costs_nothing(self, endpoint, make_run, one, fault):
        AT_ONCE[fault](endpoint)
        endpoint.will_reply(CLAIM)
        run = make_run()
        (result,) = (await run.execute(one)).results
        check_recovered(run, result)
        assert run.told == []

    @pytest.mark.parametrize("fault", IN_TIME)
    async def test_a_request_that_hangs_has_a_deadline_and_is_made_again(self, endpoint, make_run, make_task, fault):
        IN_TIME[fault](endpoint)
        endpoint.will_reply(CLAIM)
        run = make_run(request_timeout_sec=DEADLINE_SEC)
        (result,) = (await run.execute(many(make_task, 1))).results
        check_recovered(run, result)
        assert result.timings.waited_sec >= DEADLINE_SEC

    async def test_a_slow_drip_that_ends_is_an_answer(self, endpoint, make_run, one):
        endpoint.will_drip(REPLY, pieces=10, every_sec=0.02)
        (result,) = (await make_run().execute(one)).results
        assert (result.reward, result.steps) == (1.0, 2)

    async def test_an_idle_connection_that_the_server_closes_between_steps_costs_nothing(self, endpoint, make_run, one):
        """Answers promise to keep the connection, which is then closed after each of them."""
        endpoint.will_send(answer(200, completion(CLAIM), {"connection": "keep-alive"}))
        run = make_run()
        (result,) = (await run.execute(one)).results
        assert [step.reply.attempts for step in run.trajectory(result).steps] == [1, 1]
        assert len(endpoint.seen) == 2

    @pytest.mark.parametrize(
        ("status", "body", "type_", "words"),
        [
            (404, {"error": {"message": "The model `tiny` does not exist."}}, "endpoint_refused", "does not exist"),
            (401, {"error": "Unauthorized"}, "endpoint_refused", "check OPENAI_API_KEY"),
            (422, {"detail": [{"msg": "Field required"}]}, "endpoint_refused", "Field required"),
            (500, {"error": {"message": "poison"}}, "endpoint_unavailable", "HTTP 500: poison (gave up after"),
            (200, {"choices": []}, "endpoint_unavailable", "without choices (gave up after"),
            (429, {"error": "quota"}, "endpoint_unavailable", "HTTP 429: quota (gave up after"),
        ],
    )
    async def test_a_fault_that_stays_is_an_error_with_a_name(
        self, endpoint, make_run, one, status, body, type_, words
    ):
        endpoint.will_reply(CLAIM)
        endpoint.will_answer(status, body)
        run = make_run(retry=QUICK.model_copy(update={"total_sec": 0.2}))
        (result,) = (await run.execute(one)).results
        assert result.error is not None
        assert (result.reward, result.error.type, result.error.blame) == (None, type_, KINDS[type_].blame)
        assert words in result.error.message
        assert (result.steps, result.outcome) == (1, None)
        # All of the query that failed in the end was waiting.
        spent = result.timings.agent_sec - result.timings.waited_sec
        assert type_ == "endpoint_refused" or result.timings.waited_sec > 0
        assert spent >= 0

    async def test_a_full_context_is_an_outcome_and_judged(self, endpoint, make_run, one):
        endpoint.will_reply(CLAIM)
        endpoint.will_answer(400, {"error": {"message": "This model's maximum context length is 8192 tokens."}})
        (result,) = (await make_run().execute(one)).results
        assert (result.reward, result.error, result.outcome) == (1.0, None, Outcome.CONTEXT_LIMIT)


def replay_live(endpoint: FaultServer, name: str) -> None:
    """The answers that the client of a recorded event got."""
    client = json.loads((RECORDED / f"{name}.json").read_text())["client"]
    kind = client["headers"]["content-type"]
    body: Any = client["body"].encode() if "event-stream" in kind else ast.literal_eval(client["body"])
    endpoint.will_answer(client["status"], body, {"content-type": kind})


class TestRecorded:
    @pytest.mark.parametrize(
        "name", ["live_engine_killed_inflight", "live_engine_killed_stream", "live_sigtermx1_inflight"]
    )
    async def test_a_vllm_that_dies_under_a_request_costs_nothing(self, recorded, make_run, one, name):
        replay_live(recorded, name)
        recorded.will_reply(CLAIM)
        run = make_run()
        check_recovered(run, (await run.execute(one)).results[0])

    async def test_a_full_queue_is_waited_for(self, recorded, make_run, one):
        responses = json.loads((RECORDED / "C_queue_full.json").read_text())["responses"]
        for refused in [response for response in responses if response["error"]]:
            recorded.will_answer(refused["status"], {"error": refused["error"]})
        recorded.will_reply(CLAIM)
        run = make_run()
        check_recovered(run, (await run.execute(one)).results[0])

    async def test_an_unrequested_stream_is_no_answer(self, recorded, make_run, one):
        recorded.will_answer(
            200, json.loads((RECORDED / "A_stream.json").read_text())["response"]["text"].encode(), SSE
        )
        recorded.will_reply(CLAIM)
        run = make_run()
        check_recovered(run, (await run.execute(one)).results[0])

    @pytest.mark.parametrize("name", ["A_wrong_model", "C_auth_none", "A_tools_auto", "A_lone_surrogate"])
    async def test_a_refusal_is_an_error(self, recorded, make_run, one, name):
        recorded.will_replay(name)
        (result,) = (await make_run().execute(one)).results
        assert result.error is not None
        assert (result.reward, result.error.type) == (None, "endpoint_refused")

    @pytest.mark.parametrize("name", ["A_prompt_too_long", "C_prompt_exact_8192"])
    async def test_a_context_full_from_the_first_is_no_verdict(self, recorded, make_run, one, name):
        recorded.will_replay(name)
        (result,) = (await make_run().execute(one)).results
        assert result.error is not None
        assert (result.reward, result.error.type, result.error.retryable) == (None, "never_answered", False)

    async def test_a_refused_max_tokens_is_asked_for_again_with_less(self, recorded, make_run, one):
        recorded.will_replay("A_max_tokens_beyond_context")
        recorded.will_reply(CLAIM)
        (result,) = (await make_run().execute(one)).results
        assert (result.reward, result.outcome, result.steps) == (1.0, Outcome.SUBMITTED, 2)


class TestSmallContexts:
    """The list of models has no context length, and all settings are defaults."""

    @pytest.mark.parametrize("style", ["vllm", "vllm-old", "litellm", "halving", "500"])
    async def test_trials_are_judged_and_the_first_alone_pays(self, endpoint, make_run, make_task, style):
        server = SmallContext(style, CLAIM)
        endpoint.answer_by(server)
        run = make_run()
        outcome = await run.execute(many(make_task, 4), concurrency=1)
        assert [(result.reward, result.outcome) for result in outcome.results] == [(1.0, Outcome.SUBMITTED)] * 4
        assert len(server.asked) - 4 * 2 <= (2 if style == "halving" else 1)
        assert len(run.told) == 1

    async def test_each_of_several_servers_is_learned_once(self, endpoint, make_run, make_task):
        other = FaultServer()
        servers = [SmallContext("vllm-old", CLAIM, context) for context in (8192, 4096)]
        endpoint.answer_by(servers[0])
        other.answer_by(servers[1])
        outcome = await make_run().execute(many(make_task, 6), others=[other.base_url], concurrency=2)
        other.close()
        assert [result.reward for result in outcome.results] == [1.0] * 6
        assert sum(asked > 8192 for server in servers for asked in server.asked) <= 4

    @pytest.mark.parametrize("style", ["vllm", "vllm-old", "halving", "500", "empty"])
    async def test_a_context_that_is_full_later_is_an_outcome(self, endpoint, make_run, one, style):
        endpoint.answer_by(SmallContext(style, LOOK, 4096))
        (result,) = (await make_run(sandboxes=TALKATIVE, limits=Limits(steps=30)).execute(one)).results
        assert (result.error, result.outcome) == (None, Outcome.CONTEXT_LIMIT)
        assert result.steps > 0

    @pytest.mark.parametrize("policy", ["stop", "drop-oldest-outputs"])
    async def test_a_proxy_that_takes_no_more_is_no_verdict_unless_the_history_can_be_shorter(
        self, endpoint, make_run, one, policy
    ):
        endpoint.answer_by(SmallContext("proxy", LOOK))
        run = make_run(sandboxes=TALKATIVE, limits=Limits(steps=30, on_overflow=policy))
        (result,) = (await run.execute(one)).results
        if policy == "stop":
            assert result.error is not None
            assert (result.error.type, result.error.blame) == ("request_too_large", Blame.INFRA)
            assert "client_max_body_size" in result.error.message
        else:
            assert (result.error, result.outcome) == (None, Outcome.STEP_LIMIT)

    async def test_a_prompt_that_is_truncated_in_silence_is_a_warning(self, endpoint, make_run, one):
        endpoint.answer_by(SmallContext("shifts", LOOK, 2048))
        run = make_run(sandboxes=TALKATIVE, limits=Limits(steps=12))
        (result,) = (await run.execute(one)).results
        assert (result.error, result.outcome) == (None, Outcome.STEP_LIMIT)
        trajectory = run.trajectory(result)
        assert trajectory.warnings["prompt_truncated"] == 1
        odd = ["prompt_truncated" in step.reply.signs for step in run.trajectory(result).steps]
        assert odd == sorted(odd)
        assert odd[-1]
        assert not odd[0]


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(60):
        while not is_so():  # noqa: ASYNC110 - there is no event for all of these
            await asyncio.sleep(0.01)


class TestOutages:
    @pytest.mark.slow
    async def test_a_restart_costs_no_trial_and_no_agents_time_and_starts_none(self, endpoint, make_run, make_task):
        """Refuses, then returns 503, then works: for longer than the retry budget and the agents' own time."""
        verifying, may_verify = asyncio.Event(), asyncio.Event()

        class HeldUp(FakeSandbox):
            """The verifier keeps its slot in the run until the endpoint is unavailable."""

            async def shell(self, script: str, **options: Any) -> ExecResult:
                verifying.set()
                await may_verify.wait()
                return await super().shell(script, **options)

        def make(task: Task) -> FakeSandbox:
            return (HeldUp if task.name == "task-0" else FakeSandbox)(connect=FakeTmux().connect)

        run = make_run(retry=QUICK.model_copy(update={"total_sec": 0.3}), sandboxes=FakeBackend(make))
        endpoint.will_reply(CLAIM)
        made = run.sandboxes.made

        async def restart(chat: ChatModel) -> None:
            await verifying.wait()
            endpoint.go_away()
            await until(lambda: chat.outage.is_away)
            known = set(made)
            may_verify.set()  # so that there is room for another trial
            await asyncio.sleep(2)
            waiting = [sandbox for sandbox in made.values() if not sandbox.removed]
            assert 1 <= len(waiting) <= 3
            endpoint.answer_all(503, {"error": {"message": "loading"}})
            endpoint.come_back()
            await asyncio.sleep(0.6)
            assert set(made) == known
            assert not any(sandbox.removed for sandbox in waiting)
            endpoint.behave()

        outcome = await run.execute(many(make_task, 40, "[agent]\ntimeout_sec = 2.0\n"), restart)
        assert outcome.stopped is None
        assert [(result.reward, result.outcome) for result in outcome.results] == [(1.0, Outcome.SUBMITTED)] * 40
        waited = [result for result in outcome.results if result.timings.waited_sec > 2]
        assert 1 <= len(waited) <= 4
        assert [words.split()[0] for words in run.told] == ["away:", "back"]

    async def test_an_outage_that_is_too_long_stops_the_run_and_keeps_what_it_has(self, endpoint, make_run, make_task):
        run = make_run(max_outage=PATIENT.model_copy(update={"max_sec": 0.5}))
        endpoint.will_reply(CLAIM)

        async def go_away(chat: ChatModel) -> None:
            await until(lambda: any(event.kind == "trial_verdict" for event in run.seen))
            endpoint.go_away()

        outcome = await run.execute(many(make_task, 30), go_away, concurrency=2)
        assert outcome.stopped is not None
        assert outcome.stopped.startswith("the endpoint was down for ")
        assert "longer than --max-outage (cannot connect: Connection refused)" in outcome.stopped
        assert not outcome.interrupted
        errors = [result.error.type for result in outcome.results if result.error is not None]
        assert set(errors) == {"endpoint_unavailable"}
        assert 1 <= len(errors) <= 2
        assert len(errors) < len(outcome.results) < 30

    async def test_a_run_whose_first_trials_get_no_answer_stops(self, endpoint, make_run, make_task):
        endpoint.will_answer(404, {"error": {"message": "The model `tiny` does not exist."}})
        run = make_run()
        outcome = await run.execute(many(make_task, 40), concurrency=2)
        assert outcome.stopped is not None
        assert "the first 3 trials ended with endpoint errors, and no request was answered" in outcome.stopped
        assert "The model `tiny` does not exist." in outcome.stopped
        assert 3 <= len(outcome.results) <= 5
        assert {result.error.type for result in outcome.results if result.error} == {"endpoint_refused"}

    async def test_a_run_that_had_an_answer_goes_on(self, endpoint, make_run, make_task):
        endpoint.will_reply(CLAIM)
        endpoint.will_answer(404, {"error": {"message": "The model `tiny` does not exist."}})
        outcome = await make_run().execute(many(make_task, 8), concurrency=1)
        assert (outcome.stopped, len(outcome.results)) == (None, 8)

    async def test_a_request_that_kills_the_server_again_and_again_is_given_up(self, endpoint, make_run, one):
        run = make_run(retry=QUICK.model_copy(update={"total_sec": 60}))
        endpoint.will_disconnect()

        async def die_at_each_request(chat: ChatModel) -> None:
            # It may be sent twice before the port is closed: requests are counted from each return.
            seen = 0
            for _ in range(PATIENT.most):
                await until(lambda: len(endpoint.seen) > seen)  # noqa: B023 - awaited here
                endpoint.go_away()
                await until(lambda: chat.outage.is_away)
                seen = len(endpoint.seen)
                endpoint.come_back()
            await until(lambda: not chat.outage.is_away)
            await until(lambda: len(endpoint.seen) > seen)
            endpoint.go_away()

        (result,) = (await run.execute(one, die_at_each_request)).results
        assert result.error is not None
        assert result.error.type == "endpoint_unavailable"
        assert "went away 6 times during this request" in result.error.message


async def test_a_replica_that_is_killed_under_a_run_costs_no_verdict(
    endpoint: FaultServer, tmp_path: Path, one: TaskSet
) -> None:
    """Half of the trials use a server that vanishes during their requests, and never returns."""
    with contextlib.closing(FaultServer()) as other:
        for server in (endpoint, other):
            server.always_list({"id": "tiny"})
        other.answer_by(lambda _: answer(200, completion(CLAIM)))
        endpoint.answer_by(lambda _: answer(200, completion(CLAIM)) if len(endpoint.seen) <= 2 else None)
        run = EndpointRun(endpoint.base_url, tmp_path / "run")

        async def kill(_: object) -> None:
            while len(endpoint.seen) < 4:  # noqa: ASYNC110 - requests have to be under way
                await asyncio.sleep(0.01)
            endpoint.go_away()

        outcome = await run.execute(one, beside=kill, others=[other.base_url], seeds=tuple(range(8)), concurrency=8)
    assert {(result.reward, result.error, result.attempt) for result in outcome.results} == {(1.0, None, 1)}
    assert not outcome.interrupted and outcome.stopped is None
    replies = [step.reply for result in outcome.results for step in run.trajectory(result).steps]
    assert {reply.base_url for reply in replies} == {endpoint.base_url, other.base_url}
    counted = summarise(outcome.results, one.names, range(8)).replies_from
    assert sum(counted.values()) == len(replies) and counted.keys() == {endpoint.base_url, other.base_url}
    assert sum(reply.waited_sec > 0 for reply in replies) >= 2


class TestOtherWeights:
    async def test_a_run_stops_where_other_weights_take_the_place_of_the_first_and_no_reply_of_theirs_counts(
        self, endpoint, make_run, make_task
    ):
        asked = itertools.count()

        def of_two_weights(_: object) -> bytes:
            return answer(200, {**completion(CLAIM), "system_fingerprint": "first" if next(asked) < 5 else "second"})

        endpoint.answer_by(of_two_weights)
        run = make_run(max_outage=PATIENT.model_copy(update={"max_sec": 0.2}))
        outcome = await run.execute(many(make_task, 5), concurrency=1)
        assert "other weights under the same name" in (outcome.stopped or "")
        assert [result.reward for result in outcome.results] == [1.0, 1.0, None]
        assert all(set(result.replies.fingerprints) <= {"first"} for result in outcome.results)
        assert any("away: other weights" in words for words in run.told)
