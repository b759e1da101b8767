"""identity: detection of other weights under the same name, and servers without a usable list of models."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from endpoint_trials import CLAIM, PATIENT, QUICK, EndpointRun
from fault_server import FaultServer, answer, completion
from run_plans import a_document
from run_trees import a_result, write_run

from harness.endpoint.answers import ModelCard, read_completion
from harness.endpoint.chat import ChatModel, Sampling
from harness.endpoint.replicas import Replicas
from harness.endpoint.server_state import listing_difference
from harness.errors import EndpointError, RequestRefused
from harness.model import ServedModel
from harness.reply_stats import ReplyStats
from harness.trajectory import Message
from tbench.api.stored_runs import remarks
from tbench.cli.execute import require_same_weights
from tbench.doctor.endpoint import check_listing
from tbench.errors import UsageError
from tbench.results import TrialResult
from tbench.runs.resume import EarlierRun
from tbench.storage.read_run import read_run
from tbench.tasks.sources import read_tasks

HELLO = [Message(role="user", content="hello")]
CARD = {"id": "tiny", "root": "/checkpoints/step-5", "max_model_len": 8192}
BRIEF = PATIENT.model_copy(update={"max_sec": 0.5})
Connect = Callable[..., ChatModel]


def said(content: str = "ok", versions: Any = None, **changes: Any) -> bytes:
    """A complete answer with identifying fields."""
    body = {**completion(content), **changes}
    if versions is not None:
        body["choices"][0]["weight_versions"] = versions
    return answer(200, body)


@pytest.fixture
def notices() -> list[str]:
    return []


@pytest.fixture
async def chat(endpoint: FaultServer, notices: list[str]) -> AsyncIterator[Connect]:
    async with contextlib.AsyncExitStack() as stack:

        def make(model: str | None = "tiny", **options: Any) -> ChatModel:
            known = {"api_key": None, "retry": QUICK, "max_outage": PATIENT, "on_outage": notices.append}
            made = ChatModel(endpoint.base_url, model, Sampling(), **(known | options))
            stack.push_async_callback(made.close)
            return made

        yield make


async def ask(model: ChatModel, times: int = 1) -> list[str]:
    async with asyncio.timeout(20):
        return [(await model.query(HELLO, seed=1, max_tokens=100)).content for _ in range(times)]


class TestListing:
    @pytest.mark.parametrize(
        ("status", "body"),
        [
            (200, {"object": "list", "data": []}),
            (200, [{"id": "tiny"}]),
            (200, {"models": ["tiny"]}),
            (200, b"<html>Welcome</html>"),
            (200, b""),
            *((status, {"error": "no"}) for status in (401, 403, 404, 405, 500, 501, 503)),
        ],
    )
    async def test_a_named_model_is_used_without_a_list(self, endpoint, chat, notices, status, body):
        endpoint.answer_by(lambda seen: answer(status, body) if seen.method == "GET" else said())
        model = chat()
        served = await model.connect(budget_sec=0)
        assert (served.id, served.context_tokens) == ("tiny", None)
        assert ["'tiny' replies; its context length will be learned" in line for line in notices] == [True]
        await model.outage.check()
        assert not model.outage.is_away
        assert await ask(model) == ["ok"]
        assert "'tiny' replies" in (await check_listing(chat)).seen

    @pytest.mark.parametrize(("status", "body"), [(404, {}), (500, {}), (200, b"<html>" * 500), (405, {})])
    async def test_without_a_name_one_line_says_to_name_it(self, endpoint, chat, status, body):
        endpoint.answer_by(lambda seen: answer(status, body) if seen.method == "GET" else said())
        with pytest.raises(EndpointError, match="needs --model NAME") as error:
            await chat(model=None).connect(budget_sec=0)
        assert "\n" not in str(error.value) and len(str(error.value)) < 400

    async def test_without_a_list_and_without_a_reply_the_first_failure_counts(self, endpoint, chat):
        endpoint.answer_all(404, {"detail": "Not Found"})
        with pytest.raises(EndpointError, match="/models: HTTP 404"):
            await chat().connect(budget_sec=0)

    @pytest.mark.parametrize(("name", "is_taken"), [("wild/card", True), ("wild/card@main", True), ("tiny", False)])
    async def test_a_model_that_is_not_listed_is_taken_unless_the_reply_names_a_listed_one(
        self, endpoint, chat, name, is_taken
    ):
        endpoint.always_list(CARD)
        endpoint.will_send(said(model=name))
        taking = chat("wild/card").connect(budget_sec=0)
        if is_taken:
            assert (await taking).id == "wild/card"
        else:
            with pytest.raises(RequestRefused, match="does not serve 'wild/card'; it lists tiny"):
                await taking

    @pytest.mark.parametrize(
        ("fields", "tokens"),
        [
            ({"max_model_len": 8192, "context_length": 99}, 8192),
            ({"max_input_tokens": 8192, "max_output_tokens": 8192}, 8192),
            ({"max_input_tokens": 4096, "max_output_tokens": 8192}, None),
            ({"meta": {"n_ctx": 8192, "n_ctx_train": 32768}}, 8192),
            ({"meta": {"n_ctx_train": 32768}}, None),
            ({"context_length": 8192, "top_provider": {"context_length": 4096, "max_completion_tokens": 99}}, 8192),
            ({"context_window": 8192, "max_completion_tokens": 4096}, 8192),
            ({"max_context_length": 131072, "loaded_context_length": 8192}, 8192),
            ({"context_length": "long", "contextual": True}, None),
        ],
    )
    def test_the_context_is_read_under_any_name_for_it(self, fields, tokens):
        assert ModelCard.model_validate({"id": "tiny", **fields}).max_model_len == tokens


class TestReplies:
    @pytest.mark.parametrize(
        ("versions", "short"),
        [
            ("w1", "w1"),
            (7, "7"),
            (["w1", "w2", "w1"], "w1, w2"),
            ([{"version": "w2", "start": 0, "end": 60}], "w2"),
            ([{"version": "w1", "start": 0, "end": 9}, {"version": "w2", "start": 9, "end": 60}], "w1, w2"),
            ([{"id": "w3", "from": 5}], "w3"),
            (["x" * 999], "x" * 120),
            ([], None),
        ],
    )
    def test_versions_of_weights_are_short_and_without_positions(self, versions, short):
        body = completion("ok")
        beside = {"provider_specific_fields": {"weight_versions": versions}}
        for fields in ({"weight_versions": versions}, beside):
            body["choices"][0] = {**completion("ok")["choices"][0], **fields}
            assert read_completion(body, max_tokens=99, context_tokens=None).weights == short

    async def test_replies_of_a_named_version_differ_only_by_that(self, endpoint, chat, notices):
        endpoint.always_list(CARD)
        for end in (5, 9):
            endpoint.will_send(said(versions=[{"version": "w1", "start": 0, "end": end}]))
        model = chat()
        await model.connect()
        assert await ask(model, 2) == ["ok", "ok"] and notices == []

    @pytest.mark.parametrize(
        "other", [{"model": "spare"}, {"system_fingerprint": "B"}, {"versions": "w2"}, {"versions": ["w1", "w2"]}]
    )
    async def test_a_reply_of_other_weights_is_not_followed_and_the_first_are_waited_for(
        self, endpoint, chat, notices, other
    ):
        endpoint.always_list(CARD)
        same = {"system_fingerprint": "A", "versions": "w1"}
        endpoint.will_send(said("first", **same))
        for _ in range(20):
            endpoint.will_send(said("other", **(same | other)))
        endpoint.will_send(said("again", **same))
        model = chat()
        await model.connect()
        assert await ask(model, 2) == ["first", "again"]
        assert notices[0].startswith("away: other weights under the same name: its reply says that")
        assert notices[1].startswith("back after") and len(notices) == 2
        assert "B" not in model.model_identity.known["fingerprint"]

    async def test_other_weights_that_stay_end_in_words(self, endpoint, chat, notices):
        endpoint.always_list(CARD)
        endpoint.will_send(said(system_fingerprint="A"))
        endpoint.will_send(said(system_fingerprint="B"))
        model = chat(max_outage=BRIEF)
        await model.connect()
        with pytest.raises(EndpointError, match=r"longer than --max-outage \(other weights under the same name"):
            await ask(model, 2)

    async def test_a_fleet_that_answers_in_turn_is_taken_and_said_once(self, endpoint, chat, notices):
        endpoint.always_list(CARD)
        for _ in range(30):
            for name in "AB":
                endpoint.will_send(said(system_fingerprint=name))
        model = chat()
        await model.connect()
        await ask(model, 40)
        assert notices == ["replies alternate between system_fingerprint B and another: several servers of one model?"]

    async def test_all_names_of_one_root_are_one_model_and_a_dated_name_may_be_the_only_one(
        self, endpoint, chat, notices
    ):
        endpoint.always_list(CARD, CARD | {"id": "alias"})
        for name in ("alias", "tiny"):
            endpoint.will_send(said(model=name))
        model = chat()
        await model.connect()
        await ask(model, 2)
        endpoint.will_send(said(model="tiny-2026-08-06"))
        other = chat()
        await other.connect()
        await ask(other, 2)
        assert notices == []

    async def test_a_list_with_another_root_after_an_outage_is_no_return(self, endpoint, chat, notices):
        endpoint.always_list(CARD)
        endpoint.will_reply("ok")
        model = chat()
        await model.connect()
        endpoint.always_list(CARD | {"root": "/checkpoints/step-6"})
        await model.outage.check()
        assert model.outage.is_away
        endpoint.always_list(CARD)
        async with asyncio.timeout(20):
            await model.outage.wait()
        assert "tiny is now /checkpoints/step-6; it was /checkpoints/step-5 before" in notices[0]


def test_what_is_not_known_does_not_differ() -> None:
    known = ServedModel(id="tiny", context_tokens=8192, root="/a")
    assert listing_difference(ServedModel(id="tiny"), known) is None
    assert listing_difference(known, ServedModel(id="alias", root="/a")) is None
    assert listing_difference(known, known.model_copy(update={"root": "/b"})) == "tiny is now /b; it was /a before"
    assert "8,192" in (listing_difference(known, ServedModel(id="tiny", context_tokens=4096)) or "")


def run_with(path: Path, fingerprint: str) -> Path:
    """A stored run whose replies have this fingerprint."""
    replies = ReplyStats(total=2, fingerprints={fingerprint: 2})
    write_run(path, [a_result("one", 0, 1.0, replies=replies)], {"one": "0" * 64}, (0,))
    return path


def test_a_comparison_says_that_two_runs_of_one_name_had_other_servers(tmp_path: Path) -> None:
    paths = [run_with(tmp_path / name, name[0]) for name in ("A", "B", "A2")]
    runs = [read_run(path) for path in paths]
    apart = [line for line in remarks(paths, runs) if "not the same weights" in line]
    assert len(apart) == 2 and apart[0].endswith("under the name m: fingerprints A and B")


def test_a_run_does_not_go_on_with_other_weights(chat: Connect, tmp_path: Path) -> None:
    before, model = ServedModel(id="tiny", root="/a"), chat()
    document = a_document()
    document = document.model_copy(update={"locked": document.locked.model_copy(update={"served": before})})
    run_with(tmp_path / "run", "A")
    earlier = cast(EarlierRun, SimpleNamespace(directory=tmp_path / "run", document=document))
    with pytest.raises(
        UsageError, match=r"the model's weights have changed: tiny is now /b; it was /a before; .*--other"
    ):
        require_same_weights(model, before.model_copy(update={"root": "/b"}), earlier)
    require_same_weights(model, ServedModel(id="tiny"), earlier)
    assert model.model_identity.known["fingerprint"] == {"A"}


@pytest.fixture
def two() -> Iterator[list[FaultServer]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(contextlib.closing(FaultServer())) for _ in range(2)]


async def test_replicas_of_other_weights_are_refused_or_not_followed(two: list[FaultServer]) -> None:
    for number, server in enumerate(two):
        server.always_list(CARD)
        server.will_send(said(str(number), versions=f"w{number}"))
    chats = [ChatModel(each.base_url, "tiny", Sampling(), api_key=None, max_outage=BRIEF, retry=QUICK) for each in two]
    replicas = Replicas(chats)
    try:
        await replicas.connect(5)
        async with asyncio.timeout(20):
            replies = [await replicas.query(HELLO, seed=1, max_tokens=9) for _ in range(4)]
        assert {reply.weights for reply in replies} == {"w0"}
        two[1].always_list(CARD | {"root": "/checkpoints/step-6"})
        with pytest.raises(RequestRefused, match="different weights under one name"):
            await replicas.connect(5)
    finally:
        await replicas.close()


async def test_a_run_whose_server_gets_other_weights_stops_and_has_no_result_of_theirs(
    endpoint: FaultServer, make_task: Any, tmp_path: Path
) -> None:
    endpoint.always_list({"id": "tiny"})
    for _ in range(3):
        endpoint.will_send(said(CLAIM, system_fingerprint="A"))
    endpoint.will_send(said(CLAIM, system_fingerprint="B"))
    tasks = read_tasks(str(make_task("one").parent)) if make_task("two") else None
    assert tasks is not None
    run = EndpointRun(endpoint.base_url, tmp_path / "run", max_outage=BRIEF)
    outcome = await run.execute(tasks, concurrency=1)
    results: list[TrialResult] = list(outcome.results)
    assert outcome.stopped is not None and "other weights under the same name" in outcome.stopped
    assert [each.reward for each in results if each.error is None] == [1.0]
    assert all(set(each.replies.fingerprints) <= {"A"} for each in results if each.replies is not None)


async def test_the_name_that_was_asked_for_is_right_also_where_a_fallback_answered_first(endpoint, chat, notices):
    names = iter(["fallback", "tiny", "tiny", "fallback", "tiny", "tiny"])
    cards = {"object": "list", "data": [CARD]}
    endpoint.answer_by(lambda seen: answer(200, cards) if seen.method == "GET" else said(model=next(names)))
    model = chat()
    await model.connect()
    replies = [await model.query(HELLO, seed=1, max_tokens=100) for _ in range(4)]
    assert [reply.model for reply in replies] == ["fallback", "tiny", "tiny", "tiny"]
    assert any("named fallback before: another model" in line for line in notices)
