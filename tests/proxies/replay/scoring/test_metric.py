"""The step score against a slow implementation of its definition; the shell splitting against shlex."""

from __future__ import annotations

import json
import math
import random
import re
import shlex
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from replay_runs import CREATED, answer, good_answers, record, reply, write_dataset, write_lines, write_run

from tbench.errors import UsageError
from tbench.proxies.replay.scoring.metric import StepScore, aggregate, normalise, score_units, split_shell, tokenise
from tbench.proxies.replay.scoring.parser import REVISIONS, Revision
from tbench.proxies.replay.scoring.result import recompute, write_result
from tbench.proxies.replay.scoring.score_run import score_directory, score_responses

# -- as the definition reads ---------------------------------------------------------------------


def plain_tokens(unit: str) -> list[str]:
    text = unit.strip().lower()
    if text == "<wait>":
        return [text]
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def plain_sim(left: str, right: str) -> float:
    a, b = Counter(plain_tokens(left)), Counter(plain_tokens(right))
    overlap = (a & b).total()
    if not overlap:
        return 1.0 if not a and not b else 0.0
    p, r = overlap / a.total(), overlap / b.total()
    return 2 * p * r / (p + r)


def plain_score(predicted: list[str], reference: list[str]) -> StepScore:
    predicted = [re.sub(r"\s+", " ", unit.strip()) or "<WAIT>" for unit in predicted]
    reference = [re.sub(r"\s+", " ", unit.strip()) or "<WAIT>" for unit in reference]
    if not predicted or not reference:
        return StepScore(0.0, 0.0, 0.0, 0.0)
    first = float(predicted[0].lower() == reference[0].lower())
    p = math.fsum(max(plain_sim(unit, other) for other in reference) for unit in predicted) / len(predicted)
    r = math.fsum(max(plain_sim(unit, other) for other in predicted) for unit in reference) / len(reference)
    return StepScore(first, p, r, 2 * p * r / (p + r) if p + r else 0.0)


SHELL = " \t\r\n'\"\\ab#éİ\x1c\u2028;|$"
WORDS = ["ls", "LS", "-la", "cat", "x", "=", "=", "'a b'", "'a", '"b"', '"', "\\", "\\ ", "#", "<WAIT>", "''", "İ", "é"]
UNIT = st.lists(st.sampled_from([*WORDS, "  ", "\t", "\N{NO-BREAK SPACE}", "\x1c"]), max_size=6).map(" ".join)
UNITS = st.lists(UNIT, max_size=7)


@given(UNITS, UNITS)
@example(["<wait>"], [" "])
def test_scores_are_those_of_the_definition(predicted: list[str], reference: list[str]) -> None:
    assert score_units(predicted, reference) == plain_score(predicted, reference)


@given(st.text(alphabet=SHELL, max_size=12), st.text(alphabet=SHELL, max_size=12))
def test_scores_of_odd_text_are_those_of_the_definition(one: str, other: str) -> None:
    assert score_units([one], [other, one + " x"]) == plain_score([one], [other, one + " x"])


# -- tokens --------------------------------------------------------------------------------------


@given(st.text(alphabet=SHELL, max_size=14))
@example("a\\\nb")
@example("\"a\\x\\\"\\\\'b\"''")
def test_text_is_split_as_shlex_splits_it(text: str) -> None:
    try:
        expected = shlex.split(text)
    except ValueError:
        with pytest.raises(ValueError, match="no closing quotation"):
            split_shell(text)
    else:
        assert split_shell(text) == expected


@given(st.text(alphabet=SHELL, max_size=14) | UNIT)
def test_tokens_of_a_normalised_unit_are_those_of_shlex_or_of_whitespace(text: str) -> None:
    unit = normalise(text)
    counted, length = tokenise(unit)
    assert Counter(dict(counted)) == Counter(plain_tokens(unit))
    assert length == len(plain_tokens(unit)) > 0


EVERY = "".join(map(chr, range(sys.maxunicode + 1)))


def test_no_character_becomes_whitespace_or_a_quote_by_being_lowered() -> None:
    """The property that allows splitting unquoted units at blanks."""
    odd = re.compile(r"""[\s'"\\]""")
    assert len(odd.findall(EVERY.lower())) == len(odd.findall(EVERY))


def test_whitespace_is_the_same_for_normalising_by_split_and_by_expression() -> None:
    assert "".join(EVERY.split()) == re.sub(r"\s", "", EVERY)


# -- what the numbers do -------------------------------------------------------------------------


@pytest.mark.parametrize(("revision", "both_empty"), [("v0", 1.0), ("v1", 0.0), ("v2", 0.0)])
def test_nothing_for_nothing_scores_by_revision(revision: str, both_empty: float) -> None:
    assert score_units([], [], revision) == StepScore(*[both_empty] * 4)  # type: ignore[arg-type]
    assert score_units(["ls"], [], revision) == score_units([], ["ls"], revision) == StepScore(0.0, 0.0, 0.0, 0.0)  # type: ignore[arg-type]


def test_repeating_a_right_command_costs_no_precision() -> None:
    assert score_units(["ls", "ls", "ls"], ["ls", "pwd"]) == StepScore(1.0, 1.0, 0.5, 2 / 3)


def test_only_the_first_command_and_its_words_count_for_the_first_exact() -> None:
    assert score_units(["LS  -la", "x"], ["ls -la"]).first_cmd_exact == 1.0
    assert score_units(["x", "ls -la"], ["ls -la"]).first_cmd_exact == 0.0


def test_what_is_stored_has_four_digits() -> None:
    score = score_units(["ls -la /app/"], ["ls -la", "cat a b"])
    assert score.rounded == StepScore(0.0, 0.8, 0.4, 0.5333)


def test_scoring_is_many_times_faster_than_the_definition() -> None:
    """On 38 units either side, no two alike; some three hundred times.

    The least CPU time of several tries counts: a collection of other tests' garbage may fall into any one of them.
    """
    rng = random.Random(5)
    shapes = ("{} = {}", "for {} in {}:", "print('{}', {})", "if not {}.{}:", 'return {}[{}] + "x"', "cat {} {}")

    def units() -> list[str]:
        return [rng.choice(shapes).format(rng.randrange(300), rng.randrange(300)) for _ in range(38)]

    def seconds_per_step(score: Callable[[list[str], list[str]], StepScore], count: int) -> float:
        steps = [(units(), units()) for _ in range(count)]
        started = time.process_time()
        for predicted, reference in steps:
            score(predicted, reference)
        return (time.process_time() - started) / count

    least = min(seconds_per_step(score_units, 12) for _ in range(5))
    assert min(seconds_per_step(plain_score, 1) for _ in range(2)) > 30 * least


# From replies to a result: what is counted, what is reported, what is written.

FIELDS = [
    "steps",
    "tasks",
    "avg_ref_cmds",
    "avg_pred_cmds",
    "valid_json_pct",
    "has_analysis_pct",
    "has_plan_pct",
    "first_cmd_exact_pct",
    "avg_command_precision",
    "avg_command_recall",
    "avg_command_f1",
    "complete_true_recall_pct",
    "premature_complete_rate_pct",
    "by_bucket",
    "by_source_group",
    "next_action_score",
]


def scored(tmp_path: Path, answers: list[dict[str, Any]], revision: Revision = "v2", **manifest: Any) -> dict[str, Any]:
    return score_directory(write_run(tmp_path / "run", write_dataset(tmp_path), answers, **manifest), None, revision)


def test_a_run_has_upstreams_sixteen_fields_computed_by_hand(tmp_path: Path) -> None:
    answers = good_answers()
    answers[0] = answer(0, 0, "no JSON at all")
    answers[7] = answer(1, 3, reply("ls\n", task_complete=True))
    answers[6] = answer(1, 2, reply("ls\n", task_complete=True))
    result = scored(tmp_path, answers)
    # Recall with `ls` alone is 1, 1/2, 1/3, 1/4 for the four steps of a task; F1 1, .6667, .5, .4.
    assert list(result["aggregate"]) == FIELDS
    assert result["aggregate"] == {
        "steps": 8,
        "tasks": 2,
        "avg_ref_cmds": 2.5,
        "avg_pred_cmds": 0.88,
        "valid_json_pct": 87.5,
        "has_analysis_pct": 87.5,
        "has_plan_pct": 87.5,
        "first_cmd_exact_pct": 87.5,
        "avg_command_precision": 0.875,
        "avg_command_recall": 0.3958,  # (3.1666 of rounded values) / 8
        "avg_command_f1": 0.5167,
        "complete_true_recall_pct": 100.0,
        "premature_complete_rate_pct": 14.3,
        "by_bucket": {"early": {"steps": 4, "avg_command_f1": 0.5834}, "mid": {"steps": 4, "avg_command_f1": 0.45}},
        "by_source_group": {
            "code": {"steps": 4, "avg_command_f1": 0.6417, "first_cmd_exact_pct": 100.0},
            "math": {"steps": 4, "avg_command_f1": 0.3917, "first_cmd_exact_pct": 75.0},
        },
        "next_action_score": 62.42,
    }
    assert result["score"] == 51.67


def test_steps_without_a_reply_score_zero_and_are_counted_apart(tmp_path: Path) -> None:
    answers = good_answers()[3:]
    answers[0] = answer(0, 3, None, error="overflow: 9000 tokens")
    answers[1] = answer(1, 0, None)
    result = scored(tmp_path, answers)
    assert result["aggregate"]["steps"] == 8
    assert result["aggregate"]["avg_command_f1"] == round((0.6667 + 0.5 + 0.4) / 8, 4)
    assert result["coverage"] == {
        "steps": 8,
        "answered": 3,
        "unanswered": 5,
        "answered_pct": 37.5,
        "reasons": {"missing": 3, "null": 1, "overflow": 1},
        "score_over_answered": 52.22,
        "first_cmd_exact_pct_over_answered": 100.0,
    }
    assert {"step": "task-000/3", "reason": "overflow"} in result["errors"]
    assert not result["complete"]


def test_a_run_without_any_reply_has_no_score_over_answered_steps(tmp_path: Path) -> None:
    result = scored(tmp_path, [answer(0, 0, None, error="refused: 400")])
    assert (result["score"], result["coverage"]["score_over_answered"]) == (0.0, None)


def test_the_last_reply_without_an_error_counts(tmp_path: Path) -> None:
    first, good, late = answer(0, 0, "x"), answer(0, 0, reply("ls\n")), answer(0, 0, None, error="unavailable: reset")
    result = scored(tmp_path, [first, good, late])
    assert result["per_step"][0]["command_f1"] == 1.0


def test_the_tolerant_score_stands_beside_the_upstream_one(tmp_path: Path) -> None:
    answers = [answer(0, 0, "<think>so {x}</think>" + reply("ls\n", task_complete=False))]
    result = scored(tmp_path, answers)
    assert (result["aggregate"]["valid_json_pct"], result["tolerant"]["valid_json_pct"]) == (0.0, 12.5)
    assert list(result["tolerant"]) == FIELDS
    assert result["per_step"][0]["tolerant"] == {"valid_json": True, "command_f1": 1.0}


def test_references_without_a_command_are_named(tmp_path: Path) -> None:
    dataset = write_lines(tmp_path / "d.jsonl", [record(0, 0, "nothing to see"), record(0, 1, reply("ls\n"))])
    run = write_run(tmp_path / "run", dataset, [answer(0, 0, ""), answer(0, 1, reply("ls\n"))])
    for revision, score in (("v0", 100.0), ("v1", 50.0), ("v2", 50.0)):
        result = score_directory(run, None, revision)  # type: ignore[arg-type]
        assert (result["empty_references"], result["score"]) == (["task-000/0"], score)


def test_v0_takes_the_stored_reference_and_stores_normalised_commands(tmp_path: Path) -> None:
    stored = {"ref_command_units": ["make"], "ref_task_complete": True}
    dataset = write_lines(tmp_path / "d.jsonl", [record(0, 0, reply("ls\n"), **stored)])
    run = write_run(tmp_path / "run", dataset, [answer(0, 0, reply("make   all\n", task_complete=True))])
    (old,), (new,) = (score_directory(run, None, revision)["per_step"] for revision in ("v0", "v2"))
    assert (old["ref_command_units"], old["pred_command_units"]) == (["make"], ["make all"])
    assert (new["ref_command_units"], new["pred_command_units"]) == (["ls"], ["make   all"])
    assert (old["ref_task_complete"], new["ref_task_complete"], new["pred_task_complete_true"]) == (True, False, False)


def test_awful_replies_are_counted_and_the_result_is_written_as_utf8(tmp_path: Path) -> None:
    answers = [
        answer(0, 0, "[1]"),
        answer(0, 1, '{"keystrokes": "echo é'),
        answer(0, 2, '{"commands": [{"keystrokes": "echo \\ud83d"}]}'),
        answer(0, 3, "\ud800 {" + "{" * 100_000),
    ]
    result = scored(tmp_path, answers, model="a\ud800b")
    assert result["oddities"] == {"lone_surrogate": 1, "mojibake": 1, "not_an_object": 1}
    write_result(tmp_path / "result.json", result)
    text = (tmp_path / "result.json").read_text(encoding="utf-8")
    assert "echo \N{REPLACEMENT CHARACTER}" in text and "echo Ã©" in text
    assert text.startswith('{\n  "model": "a\N{REPLACEMENT CHARACTER}b"') and text.endswith("}")


def test_bad_lines_and_strange_steps_are_reported_with_their_place(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", write_dataset(tmp_path), [*good_answers(), answer(9, 9, "x")])
    with (run / "responses.jsonl").open("a") as file:
        file.write('[1]\n{"task_id": "task-000"}\n{"task_id": "task-0')
    problems = score_directory(run)["problems"]
    places = [problem.partition(": ")[0].rpartition("/")[2] for problem in problems]
    assert places == ["responses.jsonl:10", "responses.jsonl:11", "responses.jsonl:12", "responses.jsonl"]
    assert "task-009/9" in problems[-1]


def test_upstreams_other_fields_come_from_manifest_and_replies(tmp_path: Path) -> None:
    answers = [
        {**found, "template_status": "chat_template", "prompt_tokens": 100 * number, "finish_reason": "stop"}
        for number, found in enumerate(good_answers(), 1)
    ]
    result = scored(tmp_path, answers, prompt={"thinking_mode": "auto"})
    assert (result["model"], result["model_short"], result["timestamp"]) == (
        "org/some-model",
        "some-model",
        CREATED.removesuffix("+00:00"),
    )
    assert result["sampling"] == {"temperature": 0.0, "max_tokens": 1024}
    assert result["prompt_template"] == {
        "thinking_mode": "auto",
        "template_status": "chat_template",
        "template_status_counts": {"chat_template": 8},
        "rank_eligible": True,
        "stripped_thinking_blocks": 0,
        "row_count": 8,
        "messages_rows": 8,
        "prompt_tokens_min": 100,
        "prompt_tokens_max": 800,
        "prompt_tokens_p50": 500,
        "prompt_tokens_p95": 700,
        "prompt_tokens_p99": 700,
        "prompt_tokens_rows": 8,
    }
    assert result["per_step"][0]["finish_reason"] == "stop"
    assert (result["metric_revision"], result["prompt_sha256"], len(result["dataset_sha256"])) == ("v2", "aa", 64)


@pytest.mark.parametrize(
    ("statuses", "status", "eligible"),
    [
        (["server"] * 8, "server", True),
        (["chat_template"] * 7 + ["chatml_fallback"], "model_specific_or_mixed", True),
        (["chat_template"] * 7 + ["raw_fallback"], "mixed_or_raw", False),
    ],
)
def test_a_raw_prompt_excludes_from_ranking(tmp_path: Path, statuses: list[str], status: str, eligible: bool) -> None:
    answers = [{**found, "template_status": kind} for found, kind in zip(good_answers(), statuses, strict=True)]
    template = scored(tmp_path, answers)["prompt_template"]
    assert (template["template_status"], template["rank_eligible"]) == (status, eligible)


def test_what_the_run_has_stored_of_prompts_and_time_goes_before_what_replies_tell(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", write_dataset(tmp_path), good_answers(), prompt={"rank_eligible": False})
    (run / "timing.json").write_text('{"gen_time_sec": 4.0, "starts": 2}')
    (run / "prompt_template.json").write_text('{"max_model_len": 49152, "row_count": 8, "prompt_tokens_p99": null}')
    result = score_directory(run)
    assert (result["gen_time_sec"], result["avg_sec_per_step"]) == (4.0, 0.5)
    template = result["prompt_template"]
    assert (template["max_model_len"], template["rank_eligible"]) == (49152, False)
    assert "prompt_tokens_p99" not in template


@pytest.mark.parametrize("revision", REVISIONS)
def test_a_written_result_is_recomputed_identically_from_its_own_units(tmp_path: Path, revision: Revision) -> None:
    answers = [*good_answers()[:5], answer(1, 1, "x"), answer(1, 2, reply("echo 1\n", "LS  'a b'\n"))]
    path = tmp_path / "result.json"
    write_result(path, scored(tmp_path, answers, revision))
    (again,) = recompute(path, json.loads(path.read_bytes()))
    assert again.identical and again.revision == revision


def test_scoring_again_keeps_the_time_of_generation(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", write_dataset(tmp_path), good_answers())
    first = score_directory(run, gen_time_sec=12.345)
    write_result(run / "result.json", first)
    assert (first["gen_time_sec"], first["avg_sec_per_step"]) == (12.3, 1.538)  # of the rounded time
    assert score_directory(run, None, "v1")["gen_time_sec"] == 12.3


def test_only_the_steps_of_limit_and_shard_are_scored(tmp_path: Path) -> None:
    result = scored(tmp_path, good_answers()[:6], limit=6, shard_index=1, shard_count=2)
    assert [step["step_idx"] for step in result["per_step"]] == [1, 3, 1]
    assert (result["limit"], result["shard_index"], result["shard_count"], result["total_input_steps"]) == (6, 1, 2, 8)


def test_another_dataset_than_the_runs_is_refused(tmp_path: Path) -> None:
    dataset = write_dataset(tmp_path)
    run = write_run(tmp_path / "run", dataset, good_answers())
    dataset.write_text(dataset.read_text().replace("do it", "do that"))
    with pytest.raises(UsageError, match="is not the dataset of this run: its sha256"):
        score_directory(run)
    dataset.rename(tmp_path / "moved.jsonl")
    with pytest.raises(UsageError, match="give its path with --dataset"):
        score_directory(run)


def test_replies_to_another_dataset_are_refused(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "r" / "responses.jsonl", [answer(7, 7, "x"), answer(8, 8, "x")])
    with pytest.raises(UsageError, match=r"none of its steps \(task-007/7 and 1 more\)"):
        score_responses(path, write_dataset(tmp_path))


def test_a_bare_file_of_replies_is_scored_over_the_whole_dataset(tmp_path: Path) -> None:
    path = write_lines(tmp_path / "name" / "responses.jsonl", good_answers()[:4])
    result = score_responses(path, write_dataset(tmp_path))
    assert (result["model_short"], result["coverage"]["answered"], result["coverage"]["steps"]) == ("name", 4, 8)


def test_nothing_at_all_has_zeros() -> None:
    assert list(aggregate([])) == FIELDS
    assert aggregate([])["avg_command_f1"] == 0.0
