"""Rollouts: a trial token by token, and errors instead of a reward of 0."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path
from typing import Any

import pytest
from fake_backends import Fakes
from fake_tmux import FakeTmux
from fault_server import FaultServer, answer, completion
from hypothesis import given
from hypothesis import strategies as st

import tbench
from harness.trajectory import Outcome, Reply, ReplyTokens, Step, Trajectory
from tbench.agents.setup import connect_if_used
from tbench.api.rollouts import Rollout, flatten
from tbench.sandbox.fake import FakeSandbox

CLAIM = '{"analysis": "a", "plan": "p", "commands": [], "task_complete": true}'
ids = st.lists(st.integers(0, 9), min_size=1, max_size=5)


@pytest.fixture
def fakes() -> Fakes:
    made = Fakes()
    made.make = lambda: FakeSandbox(connect=FakeTmux().connect)
    return made


def tokens(prompt: list[int], completed: list[int], logprobs: list[float] | None = None) -> ReplyTokens:
    values = [-0.5] * len(completed) if logprobs is None else logprobs
    return ReplyTokens(prompt=tuple(prompt), completion=tuple(completed), logprobs=tuple(values))


# -- tokens --------------------------------------------------------------------------------------


@given(ids, st.lists(st.tuples(ids, st.lists(st.integers(0, 9), max_size=5)), min_size=1, max_size=6))
def test_turns_that_go_on_from_each_other_are_one_sequence(first: list[int], drawn: list[tuple[Any, Any]]) -> None:
    turns, whole = [], list(first)
    for sampled, between in drawn:
        turns.append(tokens(whole, sampled))
        whole = [*whole, *sampled, *between]
    (found,) = flatten(turns)
    assert found.prompt_ids == first and found.turns == len(drawn)
    assert [*found.prompt_ids, *found.response_ids] == [*turns[-1].prompt, *turns[-1].completion]
    assert len(found.response_ids) == len(found.loss_mask) == len(found.logprobs)
    kept = [each for each, mask in zip(found.response_ids, found.loss_mask, strict=True) if mask]
    assert kept == [each for sampled, _ in drawn for each in sampled]
    assert all(value == -0.5 * mask for value, mask in zip(found.logprobs, found.loss_mask, strict=True))


@given(st.lists(st.tuples(ids, ids), min_size=1, max_size=8))
def test_no_sampled_token_is_lost_whatever_the_prompts_are(drawn: list[tuple[list[int], list[int]]]) -> None:
    found = flatten(tokens(*each) for each in drawn)
    sampled = [
        each for one in found for each, mask in zip(one.response_ids, one.loss_mask, strict=True) if mask
    ]  # fmt: skip
    assert sampled == [each for _, completed in drawn for each in completed]
    assert sum(one.turns for one in found) == len(drawn)


def test_a_prompt_that_does_not_begin_with_what_was_before_begins_a_sequence() -> None:
    found = flatten([tokens([1, 2], [3]), tokens([1, 2, 9], [4]), tokens([1, 2, 9, 4, 5], [6])])
    assert [(each.prompt_ids, each.response_ids, each.loss_mask) for each in found] == [
        ([1, 2], [3], [1]),
        ([1, 2, 9], [4, 5, 6], [1, 0, 1]),
    ]


def test_turns_beside_a_conversation_do_not_cut_it() -> None:
    title = tokens([7, 8], [9])
    found = flatten([tokens([1], [2]), title, tokens([1, 2, 3], [4]), title, tokens([1, 2, 3, 4, 5], [6])])
    assert [each.turns for each in found] == [3, 1, 1]
    assert (found[0].response_ids, found[0].loss_mask) == ([2, 3, 4, 5, 6], [1, 0, 1, 0, 1])


def test_logprobs_are_kept_only_where_each_token_has_one() -> None:
    (found,) = flatten([tokens([1], [2, 3]), tokens([1, 2, 3, 4], [5], logprobs=[])])
    assert found.logprobs == [] and found.loss_mask == [1, 1, 0, 1]


def a_rollout(outcome: Outcome | None, *turns: ReplyTokens | None) -> Rollout:
    steps = tuple(
        Step(index=index, reply=Reply(content="x", tokens=each)) for index, each in enumerate(turns, start=1)
    )  # fmt: skip
    from run_trees import a_result

    result = a_result("a", 0, 1.0).model_copy(update={"outcome": outcome})
    return Rollout.from_trial(result, [Trajectory(protocol="p", steps=steps)])


@pytest.mark.parametrize(
    ("outcome", "said"),
    [
        (Outcome.SUBMITTED, "complete"), (Outcome.FINISHED, "complete"), (None, "complete"),
        (Outcome.CONTEXT_LIMIT, "context_length"), (Outcome.AGENT_TIMEOUT, "agent_timeout"),
    ],
)  # fmt: skip
def test_the_stop_reason_is_in_the_trainers_words(outcome: Outcome | None, said: str) -> None:
    assert a_rollout(outcome).stop_reason == said


def test_the_longest_sequence_has_most_of_what_was_sampled() -> None:
    rollout = a_rollout(Outcome.SUBMITTED, tokens([1, 1, 1, 1], [2]), tokens([3], [4, 5]))
    assert rollout.longest_sequence() == rollout.sequences()[1]
    assert a_rollout(Outcome.AGENT_TIMEOUT).longest_sequence() is None
    with pytest.raises(tbench.TokensMissing, match="a seed 0: the endpoint gave no token ids"):
        a_rollout(Outcome.SUBMITTED, None).sequences()


def test_tokens_are_on_no_disk() -> None:
    reply = Reply(content="x", tokens=tokens([1], [2]))
    assert "tokens" not in reply.model_dump() and "ReplyTokens" not in repr(reply)


# -- trials --------------------------------------------------------------------------------------


def config(endpoint: FaultServer, **sections: Any) -> tbench.RunConfig:
    endpoint.always_list({"id": "tiny"})
    return tbench.RunConfig.model_validate(
        {"model": {"base_url": endpoint.base_url}, "schedule": {"retries": 0, "concurrency": 64}, **sections}
    )


def with_tokens(content: str) -> dict[str, Any]:
    body = completion(content)
    body["prompt_token_ids"] = [1, 2, 3]
    body["choices"][0] |= {
        "token_ids": [4, 5],
        "logprobs": {"content": [{"token": "a", "logprob": -0.1}, {"token": "b", "logprob": -0.2}]},
    }
    return body


async def test_a_rollout_has_the_tokens_as_the_server_had_them(
    fakes: Fakes, endpoint: FaultServer, make_task: Any, tmp_path: Path
) -> None:
    endpoint.answer_by(lambda _: answer(200, with_tokens(CLAIM)))
    async with tbench.Runner(config(endpoint), backend=fakes) as runner:
        rollout = await runner.rollout(make_task(), seed=7, sampling={"temperature": 0.25})
        assert list((runner.directory / "trials").rglob("*.json*")) == [], "files of rollouts pile up"
        assert (runner.directory / "results.jsonl").read_text() == ""
    sent = endpoint.seen[-1].json
    assert (sent["return_token_ids"], sent["logprobs"], sent["temperature"]) == (True, True, 0.25)
    assert rollout.reward == 1.0 and rollout.outcome is Outcome.SUBMITTED and rollout.result.seed == 7
    assert rollout.turns[0].tokens == tokens([1, 2, 3], [4, 5], [-0.1, -0.2])
    assert rollout.messages[-1].role == "user" or rollout.messages[-1].content == CLAIM
    assert rollout.sequences()


async def test_the_same_task_and_seed_may_be_asked_for_again_and_all_share_one_engine(
    fakes: Fakes, endpoint: FaultServer, make_task: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clients: list[Any] = []

    async def connect(*args: Any) -> Any:
        clients.append(await connect_if_used(*args))
        return clients[-1]

    monkeypatch.setattr("tbench.api.runner.connect_if_used", connect)
    endpoint.answer_by(lambda _: answer(200, with_tokens(CLAIM)))
    task = make_task()
    async with tbench.Runner(config(endpoint), backend=fakes, directory=tmp_path / "run") as runner:
        done = await asyncio.gather(*(runner.rollout(task, seed=0) for _ in range(64)))
        assert (await runner.trial(task, seed=0)).reward == 1.0
    assert [each.reward for each in done] == [1.0] * 64 and len(fakes.backends) == 1
    assert len(clients) == 2, "one for all rollouts, and one for trials, which are sampled otherwise"
    kept = list((tmp_path / "run" / "trials").rglob("trajectory.json"))
    assert len(kept) == 65, "a directory keeps the files of all"
    assert [each.reward for each in tbench.read_run(tmp_path / "run").results] == [1.0]


async def test_rollouts_of_one_seed_do_not_take_each_other_s_files(
    fakes: Fakes, endpoint: FaultServer, make_task: Any
) -> None:
    endpoint.answer_by(lambda _: answer(200, with_tokens(CLAIM)))
    task = make_task()
    async with tbench.Runner(config(endpoint), backend=fakes) as runner:
        record = await runner.trial(task, seed=0)
        done = await asyncio.gather(*(runner.rollout(task, seed=seed) for seed in (0, 1) for _ in range(16)))
        assert [each.reward for each in done] == [1.0] * 32
        assert (record.directory / "trajectory.json").exists(), "a trial's files stay until the end"
        assert [path.name for path in (runner.directory / "trials" / "small-task").iterdir()] == ["seed-0"]
        assert not list(record.directory.glob("attempt-*"))


async def test_a_seed_is_drawn_where_none_is_given(fakes: Fakes, endpoint: FaultServer, make_task: Any) -> None:
    endpoint.answer_by(lambda _: answer(200, with_tokens(CLAIM)))
    task = make_task()
    async with tbench.Runner(config(endpoint), backend=fakes) as runner:
        seeds = {(await runner.rollout(task)).result.seed for _ in range(5)}
    assert len(seeds) == 5


async def test_an_infrastructure_fault_is_raised_and_no_reward(
    fakes: Fakes, endpoint: FaultServer, make_task: Any
) -> None:
    fakes.make = FakeSandbox  # in which no terminal can be had
    endpoint.answer_by(lambda _: answer(200, with_tokens(CLAIM)))
    async with tbench.Runner(config(endpoint), backend=fakes) as runner:
        with pytest.raises(tbench.TrialFailed, match="sandbox_failed") as failed:
            await runner.rollout(make_task())
        assert failed.value.result.reward is None
    assert fakes.backends[0].left == []


async def test_an_endpoint_without_token_ids_is_refused_unless_not_needed(
    fakes: Fakes, endpoint: FaultServer, make_task: Any
) -> None:
    endpoint.answer_by(lambda _: answer(200, completion(CLAIM)))
    task = make_task()
    async with tbench.Runner(config(endpoint), backend=fakes) as runner:
        with pytest.raises(tbench.TokensMissing, match=re.escape(endpoint.base_url)):
            await runner.rollout(task)
        assert (await runner.rollout(task, tokens=False)).turns[0].tokens is None
        assert "return_token_ids" not in endpoint.seen[-1].json


@pytest.mark.parametrize(
    ("sampling", "said"),
    [({"temprature": 1}, "sampling: temprature: no such field"), ({"temperature": -1}, r"model\.temperature: ")],
)
async def test_impossible_sampling_is_refused_in_one_line(
    fakes: Fakes, endpoint: FaultServer, make_task: Any, sampling: dict[str, Any], said: str
) -> None:
    async with tbench.Runner(config(endpoint), backend=fakes) as runner:
        with pytest.raises(tbench.UsageError, match=f"^{said}"):
            await runner.rollout(make_task(), sampling=sampling)


async def test_a_key_of_its_own_is_sent_over_a_connection_of_its_own(
    fakes: Fakes, endpoint: FaultServer, make_task: Any
) -> None:
    endpoint.answer_by(lambda _: answer(200, with_tokens(CLAIM)))
    task = make_task()
    async with tbench.Runner(config(endpoint), backend=fakes) as runner:
        for key in ("sk-one", "sk-two"):
            await runner.rollout(task, api_key=key)
            assert endpoint.seen[-1].headers["authorization"] == f"Bearer {key}"


async def test_prompts_that_are_rendered_here_have_tokens_as_well(
    fakes: Fakes, endpoint: FaultServer, make_task: Any
) -> None:
    choice = {
        "index": 0, "text": CLAIM, "finish_reason": "stop", "prompt_token_ids": [1], "token_ids": [2],
        "logprobs": {"token_logprobs": [-0.3]},
    }  # fmt: skip
    endpoint.answer_by(lambda _: answer(200, {"model": "tiny", "choices": [choice], "usage": {}}))
    settings = config(endpoint).with_values(model={"template": "chatml"})
    async with tbench.Runner(settings, backend=fakes) as runner:
        rollout = await runner.rollout(make_task())
    assert endpoint.seen[-1].json["logprobs"] == 1
    assert rollout.turns[0].tokens == tokens([1], [2], [-0.3])
