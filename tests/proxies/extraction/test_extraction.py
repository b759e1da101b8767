"""Requesting, storing, resuming and scoring: with a real HTTP server that misbehaves, and with stored replies."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from fault_server import FaultServer

from harness.endpoint.chat import ChatModel, RetryPolicy
from harness.model import Rendering, Sampling, Seeds
from harness.protocols import load_protocol
from tbench.errors import UsageError
from tbench.proxies.extraction.generation import ask_all, default_prompt, entries, missing_replies
from tbench.proxies.extraction.records import (
    ExtractionDirectory,
    ExtractionManifest,
    ReplyRecord,
    TaskEntry,
    check_same,
    line,
    read_manifest,
    read_replies,
)
from tbench.proxies.extraction.score import BashSyntax, Result, Rewards, render, score
from tbench.rewards import make_conciseness, make_execution_relevance
from tbench.tasks.sources import read_tasks

MakeTask = Any
SAMPLING = {"temperature": 0.7, "top_p": 0.95, "max_tokens": 256}
PROTOCOL = load_protocol("thinking-bash", default_prompt("thinking-bash"))
BASH = BashSyntax()
GOOD = "<thinking>a</thinking>\n```bash\nfind .\n```"
BROKEN = "<thinking>a</thinking>\n```bash\nif\n```"
LOOSE = "```sh\nls\n```"


def manifest(
    *names: str, seeds: tuple[int, ...] = (0, 1), invalid: tuple[str, ...] = (), **more: Any
) -> ExtractionManifest:
    known: dict[str, Any] = {
        "source": "s", "protocol": "thinking-bash", "prompt_hash": "p", "sampling": dict(SAMPLING), "rendering": {},
        "model": "m", "base_url": "http://h/v1", "seeds": seeds,
        "tasks": [TaskEntry(name=name, hash="h", instruction="Find it.") for name in names]
        + [TaskEntry(name=name, invalid="task.toml: missing") for name in invalid],
    }  # fmt: skip
    return ExtractionManifest(**(known | more))


def scored(
    plan: ExtractionManifest, contents: dict[tuple[str, int], str | None], rewards: Rewards | None = None
) -> Result:
    replies = {
        key: ReplyRecord(
            task=key[0], seed=key[1], content=content, error=None if content is not None else "refused: no"
        )
        for key, content in contents.items()
    }
    return score(plan, replies, load_protocol(plan.protocol), BASH, rewards)


# -- scoring -------------------------------------------------------------------------------------


def test_each_level_is_a_share_of_all_tasks_with_its_std_over_seeds() -> None:
    plan = manifest("a", "b", "c", "d")
    result = scored(plan, {
        ("a", 0): GOOD, ("b", 0): BROKEN, ("c", 0): LOOSE, ("d", 0): "",
        ("a", 1): GOOD, ("b", 1): GOOD, ("c", 1): "ls", ("d", 1): "no",
    })  # fmt: skip
    assert result.levels["strict"].per_seed == (0.5, 0.5)
    assert result.levels["extractable"].per_seed == (0.75, 0.5)
    assert result.levels["syntactic"].per_seed == (0.5, 0.5)
    headline = result.levels[result.headline]
    assert headline.mean == pytest.approx(0.625)
    assert headline.std == pytest.approx(0.1767767)
    assert (result.replies, result.planned, result.empty) == (8, 8, 1)
    assert result.problems == {"syntax": 1, "empty_reply": 1, "no_block": 2}


def test_errors_missing_replies_and_unreadable_tasks_count_as_failed_and_are_listed() -> None:
    plan = manifest("a", "b", seeds=(5,), invalid=("z",))
    result = scored(plan, {("a", 5): GOOD, ("b", 5): None, ("other", 5): GOOD, ("a", 9): GOOD})
    assert result.levels["extractable"].mean == pytest.approx(1 / 3)
    assert result.levels["extractable"].std is None
    assert result.levels["extractable"].replies_only == 1.0
    assert result.errors == {"refused": 1, "task_invalid": 1}
    assert result.rewards is not None and result.rewards["formatting"].mean == pytest.approx(0.5)
    text = "\n".join(render(result))
    assert (
        "extractable 33.33 % of all 3 tasks (headline; no std for a single seed; replies 1/3, of these 100.00 %)"
        in text
    )
    assert "1 x task_invalid\n      z seed 5: task.toml: missing" in text
    assert scored(plan, {}).errors == {"missing": 2, "task_invalid": 1}


def test_the_rewards_are_those_of_the_functions_and_named_after_them() -> None:
    plan = manifest("a", seeds=(0,))
    result = scored(plan, {("a", 0): GOOD})
    assert result.rows[0].rewards == {
        "formatting": 1.5, "execution_relevance": 1.0, "conciseness": 0.2, "combined": pytest.approx(2.7)
    }  # fmt: skip
    other = Rewards(make_execution_relevance("literal"), make_conciseness("linear"))
    assert scored(plan, {("a", 0): GOOD}, other).rewards.keys() == {  # type: ignore[union-attr]
        "formatting", "execution_relevance_literal", "conciseness_linear", "combined"
    }  # fmt: skip
    block = scored(manifest("a", seeds=(0,), protocol="bash-block"), {("a", 0): GOOD})
    assert (block.rewards, block.rows[0].rewards, block.levels["strict"].mean) == (None, None, 1.0)
    assert "rewards: none, as they are defined for thinking-bash only, not for bash-block" in list(render(block))


def test_the_table_has_a_line_per_task_with_its_command_and_nothing_that_moves_a_cursor() -> None:
    plan = manifest("a", "b")
    first = GOOD.replace("find .", "printf '\x1b[2J'\nls")
    lines = list(render(scored(plan, {("a", 0): first, ("a", 1): GOOD, ("b", 0): "x", ("b", 1): "y"})))
    assert lines[1].split()[:4] == ["a", "2/2", "2/2", "2/2"]
    assert lines[1].endswith("printf '\\u001b[2J' \u2424 ls")
    assert lines[2].split() == ["b", "0/2", "0/2", "0/2", "-", "no_block"]


# -- the directory -------------------------------------------------------------------------------


def test_a_stored_extraction_is_read_back_and_bad_lines_are_named(tmp_path: Path) -> None:
    directory = tmp_path / "x"
    ExtractionDirectory.open(directory, manifest("a")).close()
    assert read_manifest(directory) == manifest("a")
    records = [
        ReplyRecord(task="a", seed=0, error="unavailable: gone"),
        ReplyRecord(task="a", seed=0, content="first \u2028 \u00e9"),
        ReplyRecord(task="a", seed=0, error="unavailable: later"),
        ReplyRecord(task="a", seed=1, error="unavailable: one"),
        ReplyRecord(task="a", seed=1, error="unavailable: two"),
    ]
    lines = [line(records[0]), "{", "[1]", *map(line, records[1:]), '{"task": "a"', "null", "\xff"]
    (directory / "extraction.jsonl").write_bytes("\n".join(lines).encode("latin-1"))
    replies, problems = read_replies(directory)
    assert replies == {("a", 0): records[1], ("a", 1): records[4]}
    assert [problem.rpartition("/")[2].split(":")[1] for problem in problems] == ["2", "3", "8", "9", "10"]


def test_a_directory_without_an_extraction_is_a_clear_line(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"extraction.json: No such file .*; give the directory of an extraction"):
        read_manifest(tmp_path)
    (tmp_path / "extraction.json").write_text("{}")
    with pytest.raises(UsageError, match=r"extraction.json: source: Field required"):
        read_manifest(tmp_path)


def test_another_configuration_is_refused_with_what_differs_and_more_seeds_are_not(tmp_path: Path) -> None:
    check_same(manifest("a"), manifest("a", seeds=(0, 1, 2)), tmp_path)
    with pytest.raises(UsageError, match='model: "m" → "n"; start a new extraction'):
        check_same(manifest("a"), manifest("a", model="n"), tmp_path)
    with pytest.raises(UsageError, match=r"seeds: \[0, 1\] → \[0\]"):
        check_same(manifest("a"), manifest("a", seeds=(0,)), tmp_path)
    with pytest.raises(UsageError, match=r"tasks\.a: "):
        check_same(manifest("a"), manifest("b"), tmp_path)


# -- asking --------------------------------------------------------------------------------------


def chat(endpoint: FaultServer, template: Any = "contract") -> ChatModel:
    return ChatModel(
        endpoint.base_url,
        "m",
        Sampling(**SAMPLING),
        api_key=None,
        request_timeout_sec=5,
        retry=RetryPolicy(total_sec=0),
        rendering=Rendering(template=template),
    )


async def test_the_request_is_the_bare_instruction_in_the_contract_with_the_locked_sampling(
    endpoint: FaultServer, make_task: MakeTask, tmp_path: Path
) -> None:
    plan = manifest().model_copy(update={"tasks": entries(read_tasks(str(make_task()))), "seeds": (3,)})
    endpoint.will_complete(GOOD)
    records: list[ReplyRecord] = []
    async with chat(endpoint) as model:
        await ask_all(model, PROTOCOL, missing_replies(plan, ()), records.append, concurrency=2)
    (seen,) = endpoint.seen
    sent = seen.json
    assert seen.path.endswith("/completions") and "chat" not in seen.path
    assert {key: sent[key] for key in ("temperature", "top_p", "max_tokens", "seed")} == {
        **SAMPLING,
        "seed": Seeds("small-task", 3).for_step(1),
    }
    assert sent["prompt"] == (
        "### System: You are a local OS Terminal Controller Agent. State your thinking process within <thinking> tags, "
        "followed by the exact terminal command block.\n### Instruction: Create the file /app/done.\n### Output:\n"
    )
    (record,) = records
    assert (record.key, record.content, record.error) == (("small-task", 3), GOOD, None)


async def test_one_failed_request_costs_one_reply_and_is_asked_again_on_resuming(
    endpoint: FaultServer, tmp_path: Path
) -> None:
    plan = manifest("a", "b", "c", "d", seeds=(0,), invalid=("z",))
    directory = ExtractionDirectory.open(tmp_path / "x", plan)
    endpoint.will_reply(GOOD)
    endpoint.will_answer(400, {"message": "no such thing"})
    endpoint.will_answer(500, {"message": "oops"})
    endpoint.will_reply("half \ud800 of it")
    async with chat(endpoint, "server") as model:
        await ask_all(model, PROTOCOL, missing_replies(plan, directory.answered), directory.append, concurrency=1)
        directory.close()
        replies, problems = read_replies(tmp_path / "x")
        kinds = [record.error and record.error.partition(":")[0] for record in replies.values()]
        assert (kinds, problems) == ([None, "refused", "unavailable", None], [])
        assert replies["d", 0].content == "half \ufffd of it"
        again = ExtractionDirectory.open(tmp_path / "x", plan)
        left = missing_replies(plan, again.answered)
        assert [task.name for task, _ in left] == ["b", "c"]
        endpoint.will_reply(LOOSE)
        await ask_all(model, PROTOCOL, left, again.append, concurrency=2)
        again.close()
    result = score(plan, read_replies(tmp_path / "x")[0], PROTOCOL, BASH)
    assert result.levels["extractable"].mean == pytest.approx(3 / 5)
    assert result.errors == {"task_invalid": 1}
    assert json.loads(result.model_dump_json())["rows"][1]["command"] == "ls"


def test_an_extraction_that_is_under_way_elsewhere_is_left_alone(tmp_path: Path) -> None:
    directory = ExtractionDirectory.open(tmp_path / "x", manifest("a"))
    with pytest.raises(UsageError, match=r"/x: this extraction is still going on; wait for its end, or end it first"):
        ExtractionDirectory.open(tmp_path / "x", manifest("a", seeds=(0, 1, 2)))
    assert read_manifest(tmp_path / "x") == manifest("a")
    directory.close()


def test_an_extraction_that_goes_on_with_more_seeds_keeps_when_it_began(tmp_path: Path) -> None:
    ExtractionDirectory.open(tmp_path, manifest("a", created_at="then")).close()
    ExtractionDirectory.open(tmp_path, manifest("a", seeds=(0, 1, 2), created_at="now")).close()
    assert read_manifest(tmp_path) == manifest("a", seeds=(0, 1, 2), created_at="then")


def test_a_start_killed_before_its_manifest_does_not_block_another(tmp_path: Path) -> None:
    (tmp_path / "extraction.jsonl").touch()
    ExtractionDirectory.open(tmp_path, manifest("a")).close()
    assert read_manifest(tmp_path) == manifest("a")
