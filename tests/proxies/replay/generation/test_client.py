"""Replies to steps over real HTTP: order, several servers, servers that fail, contexts that are too short."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from typing import Any

import pytest
from fake_tokenizer import FakeTokenizer
from fault_server import FaultServer, Seen, answer, completion, text_completion
from replay_steps import CARD, asked, echo, question, record, serves

from harness.endpoint.chat import ChatModel, OutagePolicy, RetryPolicy
from harness.endpoint.replicas import Replicas
from harness.errors import RequestRefused
from harness.model import Sampling
from tbench.errors import UsageError
from tbench.proxies.datasets.records import Record
from tbench.proxies.replay.directory import ReplayResponse
from tbench.proxies.replay.generation.client import PromptedStep, ReplayProgress, ask
from tbench.proxies.replay.generation.plan import ContextCheck, check_context
from tbench.proxies.replay.generation.prompts import PromptBuilder, PromptOptions

SAMPLING = Sampling(temperature=0, top_p=1, max_tokens=64, extra_body={"repetition_penalty": 1.0})
Connect = Callable[..., Any]


@pytest.fixture
def servers() -> Iterator[list[FaultServer]]:
    started = [serves(FaultServer()) for _ in range(3)]
    yield started
    for server in started:
        server.close()


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    """Endpoints of these URLs, connected."""
    opened: list[Replicas] = []

    async def make(
        *urls: str,
        outage_sec: float = 0.0,
        budget_sec: float = 0.4,
        answer_sec: float = 20,
        said: list[str] | None = None,
    ) -> Any:
        chats = [
            ChatModel(
                url, None, SAMPLING, api_key=None, request_timeout_sec=answer_sec,
                retry=RetryPolicy(total_sec=budget_sec, initial_sec=0.05, max_sec=0.05),
                max_outage=OutagePolicy(max_sec=outage_sec, first_pause_sec=0.05, probe_timeout_sec=0.5, spread_sec=0),
            )
            for url in urls
        ]  # fmt: skip
        told = said if said is not None else []
        opened.append(Replicas(chats, told.append, retry_budget_sec=budget_sec))
        await opened[-1].connect(budget_sec)
        return opened[-1]

    yield make
    for each in opened:
        await each.close()


def steps(count: int, **options: Any) -> list[PromptedStep]:
    builder = PromptBuilder(PromptOptions(**options), "qwen")
    records = [Record.model_validate(record(number)) for number in range(count)]
    return [PromptedStep(each, builder.build(each)) for each in records]


async def replay(
    wanted: Sequence[PromptedStep], endpoints: Replicas, **more: Any
) -> tuple[dict[str, ReplayResponse], ReplayProgress]:
    written: list[ReplayResponse] = []
    progress = await ask(wanted, endpoints, written.append, max_tokens=64, **more)
    assert len(written) == len({response.key for response in written})
    return {response.key: response for response in written}, progress


async def test_every_step_gets_its_own_reply_whatever_the_order(servers: list[FaultServer], connect: Connect) -> None:
    endpoints = await connect(servers[0].base_url)
    alone, _ = await replay(steps(9), endpoints, concurrency=1)
    together, progress = await replay(steps(9)[::-1], endpoints, concurrency=8)
    assert {key: each.content for key, each in alone.items()} == {key: each.content for key, each in together.items()}
    assert alone["task-001/2"].content == "reply to question 5"
    assert (progress.planned, progress.answered, progress.errors) == (9, 9, 0)


async def test_the_sampling_and_the_history_are_sent_whole(servers: list[FaultServer], connect: Connect) -> None:
    await replay(steps(1), await connect(servers[0].base_url))
    sent = servers[0].seen[0].json
    assert sent.pop("messages") == record(0)["messages"]
    assert sent == {"model": "tiny", "temperature": 0, "top_p": 1, "max_tokens": 64, "repetition_penalty": 1.0}


async def test_a_prompt_rendered_here_goes_to_completions_and_its_reply_stays_verbatim(
    servers: list[FaultServer], connect: Connect
) -> None:
    servers[0].answer_by(lambda seen: answer(200, text_completion("\n\n  {\u00e2\u0080\u0094 \ufffd \U0001f600}\t ")))
    found, _ = await replay(steps(1, render="local"), await connect(servers[0].base_url))
    [response] = found.values()
    assert response.content == "\n\n  {\u00e2\u0080\u0094 \ufffd \U0001f600}\t "
    assert (response.template_status, response.prompt_tokens, response.completion_tokens) == ("chatml_fallback", 10, 3)
    assert servers[0].seen[0].path == "/v1/completions"
    assert servers[0].seen[0].json["prompt"].endswith("question 0<|im_end|>\n<|im_start|>assistant\n")


async def test_requests_go_round_several_servers(servers: list[FaultServer], connect: Connect) -> None:
    endpoints = await connect(*(server.base_url for server in servers))
    found, _ = await replay(steps(12), endpoints, concurrency=4)
    assert [len(asked(server)) for server in servers] == [4, 4, 4]
    assert len(found) == 12


@pytest.mark.parametrize("outage_sec", [0.0, 60.0])
async def test_a_server_that_is_not_there_costs_no_step(
    servers: list[FaultServer], connect: Connect, outage_sec: float
) -> None:
    servers[1].go_away()
    said: list[str] = []
    endpoints = await connect(*(each.base_url for each in servers[:2]), outage_sec=outage_sec, said=said)
    found, progress = await replay(steps(12), endpoints, concurrency=4)
    assert progress.answered == 12 and all(each.error is None for each in found.values())
    assert "cannot connect: Connection refused" in said[0] and "the others take its requests" in said[0]


async def test_a_server_that_dies_in_between_is_left_and_comes_back(
    servers: list[FaultServer], connect: Connect
) -> None:
    endpoints = await connect(*(each.base_url for each in servers[:2]), outage_sec=60)
    await replay(steps(4), endpoints, concurrency=1)
    servers[1].go_away()
    _, progress = await replay(steps(8), endpoints, concurrency=4)
    assert progress.answered == 8
    servers[1].come_back()
    async with asyncio.timeout(5):
        await endpoints.chats[1].outage.wait()
    before = len(asked(servers[1]))
    _, progress = await replay(steps(8), endpoints, concurrency=4)
    assert (progress.answered, len(asked(servers[1])) - before) == (8, 4)


async def test_while_all_servers_are_away_steps_wait_for_the_first_to_return(
    servers: list[FaultServer], connect: Connect
) -> None:
    endpoints = await connect(*(each.base_url for each in servers[:2]), outage_sec=60)
    for server in servers[:2]:
        server.go_away()
    asking = asyncio.create_task(replay(steps(4), endpoints, concurrency=4))
    await asyncio.sleep(0.3)
    assert not asking.done()
    servers[1].come_back()
    async with asyncio.timeout(5):
        _, progress = await asking
    assert (progress.answered, len(asked(servers[1]))) == (4, 4)


@pytest.mark.parametrize("status", [401, 404, 500])
async def test_a_server_that_fails_where_another_answers_is_given_up(
    servers: list[FaultServer], connect: Connect, status: int
) -> None:
    said: list[str] = []
    endpoints = await connect(*(each.base_url for each in servers[:2]), said=said, budget_sec=0.3)
    servers[0].answer_by(lambda seen: answer(status, {"error": "no"}))
    _, progress = await replay(steps(12), endpoints, concurrency=1)
    assert progress.answered == 12
    assert len({question(seen) for seen in servers[0].seen}) == 3
    assert [words for words in said if "3 requests in a row failed there" in words] == said[-1:]


async def test_servers_of_different_models_are_refused(servers: list[FaultServer], connect: Connect) -> None:
    servers[1].always_list({**CARD, "id": "other"})
    with pytest.raises(RequestRefused, match="different models"):
        await connect(*(each.base_url for each in servers[:2]))


def misbehaving(seen: Seen) -> bytes | None:
    """By the number of the question; the others are answered."""
    number = int(question(seen).split()[1])
    plays: dict[int, bytes | None] = {
        0: answer(429, {"error": "slow down"}),
        1: answer(500, {"error": {"message": "EngineCore"}}),
        2: None,
        3: answer(200, b"<html>"),
        4: answer(200, completion(None, "length", reasoning="hm")),
        5: answer(400, {"error": {"message": "bad template"}}),
        6: answer(400, {"error": {"message": "maximum context length is 8192 tokens"}}),
        7: answer(200, b'{"choices": [{"message": {"content": "half \\ud800 pair"}, "finish_reason": "stop"}]}'),
        8: answer(200, completion("x", "abort")),
    }
    return plays[number] if number in plays else echo(seen)


async def test_every_fault_is_the_error_of_its_own_step(servers: list[FaultServer], connect: Connect) -> None:
    servers[0].answer_by(misbehaving)
    found, progress = await replay(steps(12), await connect(servers[0].base_url, answer_sec=1.5), concurrency=12)
    kinds = [(each.error or "answered").partition(":")[0] for _, each in sorted(found.items())]
    assert kinds == [
        *("unavailable", "unavailable", "unavailable", "unavailable", "answered", "refused"),
        *("overflow", "answered", "unavailable", "answered", "answered", "answered"),
    ]
    null, half = found["task-001/1"], found["task-002/1"]
    assert (null.content, null.reasoning, null.finish_reason) == ("", "hm", "length")
    assert half.content == "half \ufffd pair" and half.prompt_tokens is None
    assert (progress.answered, progress.errors, progress.overflow) == (5, 7, 1)
    for response in found.values():
        assert ReplayResponse.model_validate_json(response.model_dump_json().encode()) == response


async def test_a_reply_that_the_server_cut_at_its_context_is_no_answer(
    servers: list[FaultServer], connect: Connect
) -> None:
    usage = {"prompt_tokens": 60, "completion_tokens": 40, "total_tokens": 100}
    servers[0].answer_by(lambda seen: answer(200, completion("half", "length", usage=usage)))
    endpoints = await connect(servers[0].base_url)
    found, progress = await replay(steps(1), endpoints, max_model_len=100)
    assert progress.overflow == 1 and found["task-000/0"].content == "half"
    assert "cut after 40 tokens" in (found["task-000/0"].error or "")
    _, progress = await replay(steps(1), endpoints, max_model_len=101)
    assert progress.overflow == 0


async def test_requests_stop_when_no_server_ever_answers(servers: list[FaultServer], connect: Connect) -> None:
    endpoints = await connect(servers[0].base_url, budget_sec=0.2)
    servers[0].answer_by(lambda seen: answer(500, {"error": "broken"}))
    found, progress = await replay(steps(12), endpoints, concurrency=1)
    assert len(found) == 3 and "HTTP 500: broken" in (progress.stopped or "")


async def test_what_was_written_before_a_cancellation_stays(servers: list[FaultServer], connect: Connect) -> None:
    fourth = threading.Event()

    def stall_at_the_fourth(seen: Seen) -> bytes | None:
        if question(seen) != "question 3":
            return echo(seen)
        fourth.set()
        return None

    servers[0].answer_by(stall_at_the_fourth)
    written: list[ReplayResponse] = []
    endpoints = await connect(servers[0].base_url)
    asking = asyncio.create_task(ask(steps(12), endpoints, written.append, max_tokens=64, concurrency=1))
    assert await asyncio.to_thread(fourth.wait, 5)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert [response.key for response in written] == ["task-000/0", "task-000/1", "task-000/2"]


def counting(seen: Seen) -> bytes:
    """A vLLM that counts ten tokens per message, and a thousand for question 2."""
    if seen.path != "/tokenize":
        return echo(seen)
    body = json.loads(seen.body)
    count = 1000 if "question 2" in str(body) else 10 * len(body.get("messages", "x"))
    return answer(200, {"count": count, "max_model_len": 512, "tokens": []})


async def check(wanted: Sequence[PromptedStep], endpoints: Replicas, **more: Any) -> ContextCheck:
    prompts = {step.record.key: step.prompt for step in wanted}
    return await check_context(prompts, endpoints.chats, max_tokens=64, max_model_len=8192, **more)


async def test_the_server_counts_every_prompt_and_what_does_not_fit_is_named(
    servers: list[FaultServer], connect: Connect
) -> None:
    servers[0].answer_by(counting)
    found = await check(steps(5), await connect(servers[0].base_url))
    assert (found.counted_by, found.max_model_len) == ("server", 512)
    assert found.counts["task-000/0"] == 30 and len(found.counts) == 5
    assert found.overflow == {"task-000/2": "overflow: 1000 prompt tokens + 64 max_tokens > max_model_len 512"}
    with pytest.raises(UsageError, match=r"1 of 5 steps do not fit: .*task-000/2, 1000 tokens.*--allow-overflow"):
        found.require_room()
    counted = [seen.json for seen in servers[0].seen]
    assert {seen.path for seen in servers[0].seen} == {"/tokenize"} and len(counted) == 5
    assert counted[0] == {"model": "tiny", "messages": record(0)["messages"]}


@pytest.mark.parametrize(("tokens", "fits"), [(448, True), (449, False)])
async def test_prompt_and_reply_may_fill_the_context_exactly(
    servers: list[FaultServer], connect: Connect, tokens: int, fits: bool
) -> None:
    servers[0].answer_by(lambda seen: answer(200, {"count": tokens, "max_model_len": 512}))
    assert bool((await check(steps(1), await connect(servers[0].base_url))).overflow) is not fits


@pytest.mark.parametrize(
    "raw",
    [answer(404, {"detail": "Not Found"}), answer(200, {"tokens": []}), answer(400, {"error": "no messages"})],
    ids=["no such path", "another answer", "refused"],
)
async def test_the_tokenizer_counts_if_the_server_cannot(
    servers: list[FaultServer], connect: Connect, raw: bytes
) -> None:
    servers[0].answer_by(lambda seen: raw)
    endpoints = await connect(servers[0].base_url)
    said: list[str] = []
    nobody = await check(steps(3), endpoints, say=said.append)
    assert (nobody.counted_by, nobody.counts, nobody.overflow) == (None, {}, {})
    assert "not checked" in said[0] and len(servers[0].seen) == 1
    local = await check(steps(3, render="local"), endpoints, tokenizer=FakeTokenizer())
    assert local.counted_by == "tokenizer" and local.counts["task-000/0"] == 9


async def test_a_prompt_that_is_too_long_even_to_count_does_not_fit(
    servers: list[FaultServer], connect: Connect
) -> None:
    refusal = {"error": {"message": "more than 262144 characters, which is the upper bound for 8192 input tokens"}}
    servers[0].answer_by(lambda seen: answer(400, refusal) if "question 1" in str(seen.json) else counting(seen))
    found = await check(steps(3), await connect(servers[0].base_url))
    assert set(found.overflow) == {"task-000/1", "task-000/2"}


async def test_a_context_without_room_for_any_prompt_is_refused(servers: list[FaultServer], connect: Connect) -> None:
    endpoints = await connect(servers[0].base_url)
    with pytest.raises(UsageError, match="which leaves none for a prompt"):
        await check_context({}, endpoints.chats, max_tokens=64, max_model_len=64)
