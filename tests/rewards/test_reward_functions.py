"""The rewards of a text: equal to their definitions, bounded in time, no exception for any completion."""

from __future__ import annotations

import inspect
import math
import re
import subprocess
import sys
import time
from statistics import stdev
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from sampled import examples

from tbench.rewards import (
    RewardFunction,
    combine,
    combined,
    conciseness,
    execution_relevance,
    formatting,
    group_advantages,
    has_strict_form,
    make_conciseness,
    make_execution_relevance,
)

PRINTED = re.compile(r"^<thinking>\s*[\s\S]+?\s*</thinking>\s*```bash\n[\s\S]+?\n```$")
FRONT = "<thinking>a</thinking>\n```bash\n"
MB = 1_000_000
FUNCTIONS = [
    formatting,
    execution_relevance,
    conciseness,
    combined,
    make_execution_relevance("occurrences"),
    make_execution_relevance("literal"),
    make_conciseness("linear"),
    make_conciseness("negative"),
]
ASKS_FOR_ALL = "Find the files, grep for a pattern, count the lines, extract the tar archive, list docker images."


def reply(command: str) -> str:
    return f"{FRONT}{command}\n```"


# -- formatting ----------------------------------------------------------------------------------

PIECES = ["<thinking>", "</thinking>", "```bash\n", "\n```", "```", "`", "\n", " ", "\r", "\x0b", "\u2028", "a", "bash",
          "```sh\n", "</think>", "<think>"]  # fmt: skip
pieces = st.lists(st.sampled_from(PIECES), max_size=9).map("".join)


@examples(300)
@given(pieces)
def test_the_form_is_what_the_printed_pattern_says(text: str) -> None:
    assert has_strict_form(text) == (PRINTED.match(text) is not None)


@examples(300)
@given(pieces, pieces, pieces, st.sampled_from(["", "\n", "\n\n", " ", "x", "\n```"]))
@example("", "", "", "")
@example("a", "", "\n", "")
@example("a</thinking>", "```bash\nx\n```\n<thinking>b</thinking>", "b", "\n")
def test_so_it_is_near_the_form(thinking: str, between: str, command: str, end: str) -> None:
    text = f"<thinking>{thinking}</thinking>{between}```bash\n{command}\n```{end}"
    assert has_strict_form(text) == (PRINTED.match(text) is not None)


@pytest.mark.parametrize(
    ("text", "reward"),
    [
        (reply("ls"), 1.5),
        ("<thinking>a</thinking>```bash\nls\n```", 1.5),
        (reply("ls") + "\n", 1.5),
        ("<thinking> </thinking>\n```bash\nls\n```", 1.5),
        (reply(" "), 1.5),
        (reply("ls\n```\nthen\n```bash\npwd"), 1.5),
        ("<thinking>a</thinking><thinking>b</thinking>\n```bash\nls\n```", 1.5),
        (reply("ls") + "\n\n", 0.0),
        (reply("ls") + " ", 0.0),
        ("\n" + reply("ls"), 0.0),
        (reply("ls") + "\nDone.", 0.0),
        ("<thinking>a</thinking>\nSo:\n```bash\nls\n```", 0.0),
        ("<thinking>a</thinking>\n```sh\nls\n```", 0.0),
        ("<thinking>a</thinking>\n```bash \nls\n```", 0.0),
        (reply("ls").replace("\n", "\r\n"), 0.0),
        ("<think>a</think>\n```bash\nls\n```", 0.0),
        ("<thinking></thinking>\n```bash\nls\n```", 0.0),
        (reply(""), 0.0),
        (FRONT + "ls", 0.0),
        ("", 0.0),
    ],
)
def test_formatting_of_a_reply(text: str, reward: float) -> None:
    assert formatting([text]) == [reward]


# -- execution relevance -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("command", "request_", "distinct", "occurrences", "literal"),
    [
        ("find . -name '*.log' | wc -l", "Find the logs and count them.", 2, 2, 1),
        ("find a; find b", "Locate both files.", 1, 2, 0),
        ("echo find grep", "Find it, or grep for it.", 0, 0, 2),
        ("sudo tar xf a.tgz", "Extract a.tgz.", 1, 1, 0),
        ("tar xf a.tgz", "Start the server.", 0, 0, 1),
        ("ls", "Find the files.", 0, 0, 0),
        ("docker ps", "Which containers are up?", 1, 1, 0),
        ("grep x f", "Which lines contain x?", 1, 1, 0),
        ("grep x f", "What is in the container?", 0, 0, 0),
    ],
)
def test_relevance_counts_verbs_that_are_asked_for_and_used(
    command: str, request_: str, distinct: float, occurrences: float, literal: float
) -> None:
    text = reply(command)
    assert execution_relevance([text], [request_]) == [distinct]
    assert make_execution_relevance("occurrences")([text], [request_]) == [occurrences]
    assert make_execution_relevance("literal")([text], [request_]) == [literal]


def test_the_verbs_and_the_reward_of_a_match_can_be_other_ones() -> None:
    reward = make_execution_relevance(verbs={"sed": "replac"}, per_match=0.25)
    assert reward([reply("sed s/a/b/ f"), reply("find .")], ["Replace a.", "Find it, replace it."]) == [0.25, 0.0]


def test_only_the_first_shell_block_after_the_thinking_is_read() -> None:
    text = "<thinking>I could\n```bash\nfind .\n```\n</thinking>\n```bash\nls\n```\n```bash\nfind .\n```"
    assert execution_relevance([text, "find .", FRONT + "find ."], ["Find it."] * 3) == [0.0, 0.0, 0.0]


def test_the_request_of_a_contract_prompt_is_its_last_instruction() -> None:
    prompt = "### System: Find things.\n### Instruction: Count them.\n### Output:\n"
    assert execution_relevance([reply("find . | wc -l")], [prompt]) == [1.0]
    assert execution_relevance([reply("find . | wc -l")], ["Find them, count them."]) == [2.0]


def test_without_its_prompts_relevance_is_an_error_and_not_0() -> None:
    with pytest.raises(ValueError, match="pass prompts"):
        execution_relevance([reply("ls")])
    with pytest.raises(ValueError, match="2 completions, but 1 prompts"):
        execution_relevance([reply("ls")] * 2, ["a"])


def test_an_unknown_variant_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'twice': unknown; known: distinct, occurrences, literal"):
        make_execution_relevance("twice")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="'round': unknown; known: step, linear, negative"):
        make_conciseness("round")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1"):
        make_conciseness(limit=0)


# -- conciseness ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("length", "step", "linear", "negative"),
    [(0, 0.2, 0.2, 0.2), (300, 0.2, 0.2, 0.2), (301, 0, 0.2 * 299 / 300, -0.2), (450, 0, 0.1, -0.2), (900, 0, 0, -0.2)],
)
def test_conciseness_of_a_length(length: int, step: float, linear: float, negative: float) -> None:
    text = ["x" * length]
    assert conciseness(text) == [step]
    assert make_conciseness("linear")(text) == [pytest.approx(linear)]
    assert make_conciseness("negative")(text) == [negative]


def test_length_is_in_characters_not_bytes() -> None:
    assert conciseness(["\U0001f40d" * 300, "é" * 301]) == [0.2, 0.0]


# -- as a trainer calls them ---------------------------------------------------------------------


def test_the_combined_reward_is_the_sum() -> None:
    completions, prompts = [reply("find ."), "x" * 400], ["Find it.", "Find it."]
    assert combined(completions, prompts) == [pytest.approx(2.7), 0.0]
    assert combine(formatting, conciseness, name="mine")(completions, prompts) == [pytest.approx(1.7), 0.0]


def test_every_function_has_a_name_of_its_own_for_the_log() -> None:
    names = [function.__name__ for function in FUNCTIONS]
    assert names == [
        "formatting", "execution_relevance", "conciseness", "combined", "execution_relevance_occurrences",
        "execution_relevance_literal", "conciseness_linear", "conciseness_negative",
    ]  # fmt: skip
    assert combine(formatting, name="mine").__name__ == "mine"
    assert all(inspect.isfunction(function) for function in FUNCTIONS)


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_trainer_s_keywords_and_conversations_make_no_difference(function: RewardFunction) -> None:
    text, request = reply("find . | wc -l"), "Find the files and count them."
    plain = function([text], [request])
    chat = function(
        prompts=[[{"role": "system", "content": "Count."}, {"role": "user", "content": request}]],
        completions=[[{"role": "assistant", "content": text}]],
        completion_ids=[[1, 2]],
        trainer_state=object(),
        task=["a"],
    )
    parts = function(
        [[{"role": "assistant", "content": [{"type": "text", "text": text}]}]],
        [[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": request}]}]],
    )
    assert chat == parts == plain
    assert plain != [0.0]


NO_TEXT: list[Any] = [None, 7, b"ls", {}, [], [None], [{}], [{"role": "assistant", "content": None}], [{"content": 3}]]


@pytest.mark.parametrize("function", FUNCTIONS, ids=lambda function: function.__name__)
def test_a_completion_without_text_gets_0(function: RewardFunction) -> None:
    assert function(NO_TEXT, ["Find it."] * len(NO_TEXT)) == [0.0] * len(NO_TEXT)
    assert function([], []) == []


wild = st.lists(st.sampled_from([*PIECES, "\ud800", "\x00", "find ", "$(", "<<E\n", '"']) | st.text(max_size=5)).map(
    "".join
)


@settings(max_examples=40)
@given(wild, wild)
def test_whatever_a_model_writes_each_reward_is_a_finite_number(text: str, request: str) -> None:
    for function in FUNCTIONS:
        (reward,) = function([text], [request])
        assert isinstance(reward, float) and math.isfinite(reward)


def test_prompts_without_text_ask_for_nothing() -> None:
    assert execution_relevance([reply("find .")] * 3, [None, 3, []]) == [0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    "unit", ["<thinking>", "</thinking>", " ", "\n", "```bash\n", "\n```", "</thinking> ", "a;", "$("]
)
@pytest.mark.parametrize("size", [MB, 60_000])
def test_a_megabyte_of_anything_costs_milliseconds(unit: str, size: int) -> None:
    """The bound is ten times the promised one, for a busy machine; the printed pattern would take minutes or more."""
    execution_relevance([reply("ls")], ["Find it."])  # the first call imports the protocols
    text = FRONT + unit * (size // len(unit)) + "\n```"
    for function in (formatting, execution_relevance, conciseness):
        began = time.process_time()
        function([text], [ASKS_FOR_ALL])
        assert time.process_time() - began < 0.5


def test_importing_the_rewards_brings_no_library_with_it() -> None:
    heavy = "{'torch', 'pydantic', 'openai', 'jinja2', 'docker'}"
    code = f"import sys, tbench.rewards; print(sorted({heavy} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# Group advantages against the formula.

rewards = st.floats(-5, 5).map(lambda value: round(value, 3))


def test_the_advantages_of_a_group_are_deviations_over_the_sample_std() -> None:
    std = stdev([1.7, 0.0, 0.0, 0.3])
    expected = [(reward - 0.5) / (std + 1e-8) for reward in (1.7, 0.0, 0.0, 0.3)]
    assert group_advantages([1.7, 0.0, 0.0, 0.3]) == pytest.approx(expected, rel=1e-12)


def test_the_population_s_std_can_be_asked_for() -> None:
    assert group_advantages([1.0, 0.0], 2, ddof=0) == pytest.approx([1.0, -1.0])
    assert group_advantages([1.0, 0.0], 2) == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5)])


def test_each_group_is_apart() -> None:
    both = [1.0, 0.0, 0.5, 0.5, 7.0, 7.0, 8.0, 9.0]
    assert group_advantages(both) == group_advantages(both[:4]) + group_advantages(both[4:])


@given(rewards, st.integers(1, 8))
def test_equal_rewards_have_no_advantage_at_all(reward: float, size: int) -> None:
    assert group_advantages([reward + 0.1] * size, size) == [0.0] * size


@given(st.lists(rewards, min_size=4, max_size=4))
def test_advantages_sum_to_zero(group: list[float]) -> None:
    assert sum(group_advantages(group)) == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (([1.0] * 6,), "6 rewards cannot be split into groups of 4"),
        (([1.0], 0), "groups of 0"),
        (([1.0, math.nan], 2), "not a finite number"),
    ],
)
def test_rewards_that_cannot_be_grouped_are_refused(arguments: tuple[list[float], int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        group_advantages(*arguments)
    with pytest.raises(ValueError, match="ddof"):
        group_advantages([1.0], 1, ddof=2)
