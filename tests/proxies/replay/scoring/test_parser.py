"""Replies as the published evaluation parses them, in its three revisions, and tolerantly; nothing makes them crash."""

from __future__ import annotations

import json
import re
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.proxies.replay.scoring.parser import REVISIONS, Revision, parse, parse_tolerant

SAMPLE = Path(__file__).parents[5] / "shared" / "data" / "replay" / "result_GLM-5.1-API-test.json"

LS = '{"analysis": "a", "plan": "p", "commands": [{"keystrokes": "ls\\n", "duration": 0.1}], "task_complete": true}'
CUT = '{"analysis": "a", "commands": [{"keystrokes": "cat > f <<EOF\\nline'
WORDS = """```json ``` json { } [ ] "keystrokes" "cmd" "command":"w : " \\ \\n é \\u00e9 \\ud83d \\x41 \\d null 1 ,
    <think> </think> {"cmd":"pwd"} "keystrokes":"ls\\n" {"commands":[{}]} {"args":{"cmd":"id"}}"""
WILD = st.lists(
    st.sampled_from([*WORDS.split(), LS, " ", "\n", "\r", "\x1c", "\N{NO-BREAK SPACE}", "\ud800"]), max_size=12
).map("".join)


# -- the parser as its specification reads -------------------------------------------------------


def plainly(text: str, revision: Revision) -> tuple[bool, list[str]]:
    """Validity and units by backtracking expressions, without care for long texts."""
    trimmed = text.strip()
    fenced = re.search(r"```(json)?\s*(?P<object>\{.*\})\s*```", trimmed, re.DOTALL)
    if fenced:
        trimmed = fenced["object"]
    elif "{" in trimmed and trimmed.rfind("}") > trimmed.find("{"):
        trimmed = trimmed[trimmed.find("{") : trimmed.rfind("}") + 1]
    try:
        found: Any = json.loads(trimmed)
    except (ValueError, RecursionError):
        found = None
    fields = found if isinstance(found, dict) else {}
    units = []
    for command in fields.get("commands", []) if isinstance(fields.get("commands"), list) else []:
        if isinstance(command, dict):
            units += split(str(command.get("keystrokes", ""))) or ["<WAIT>"]
    if revision == "v2":
        inner = next((value for key in ("arguments", "args") if isinstance(value := fields.get(key), dict)), {})
        for holder in (fields, inner):
            for key in ("keystrokes", "command", "cmd"):
                if isinstance(holder.get(key), str):
                    units += split(holder[key])
    if not units:
        keys, end = (("keystrokes", "command", "cmd"), "") if revision == "v2" else (("keystrokes",), '"')
        for key in keys:
            for value in re.findall(rf'"{key}"\s*:\s*"((?:[^"\\]|\\.)*){end}', text):
                units += split(unescaped(value))
    return isinstance(found, dict), units


def split(text: str) -> list[str]:
    return [line.strip() for line in re.split("\r\n|\r|\n", text) if line.strip()]


def unescaped(value: str) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return value.encode().decode("unicode_escape")
        except UnicodeError:
            return value


def writable(text: str) -> str:
    """Halves of surrogate pairs joined or replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


@given(WILD, st.sampled_from(REVISIONS))
def test_replies_are_parsed_as_the_specification_reads(text: str, revision: Revision) -> None:
    valid, units = plainly(text, revision)
    answer = parse(text, revision)
    assert (answer.valid_json, answer.units) == (valid, tuple(map(writable, units)))


@given(WILD, st.sampled_from(REVISIONS))
def test_whatever_is_parsed_can_be_written(text: str, revision: Revision) -> None:
    for answer in (parse(text, revision), parse_tolerant(text, revision)):
        "".join(answer.units).encode()
        assert all(unit == unit.strip() and unit for unit in answer.units)


# -- what each revision makes of a reply ---------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "valid", "units"),
    [
        (LS, True, ["ls"]),
        (f"Here:\n```json\n{LS}\n```\nDone.", True, ["ls"]),
        (f"I think. {LS} That is all.", True, ["ls"]),
        ("{}", True, []),
        ("null", False, []),
        ("", False, []),
        ('{"commands": [{"keystrokes": "a\\r\\nb\\rc\\n\\n  d  "}]}', True, ["a", "b", "c", "d"]),
        ('{"commands": [{"keystrokes": ""}, {}, {"keystrokes": null}, 5, "x"]}', True, ["<WAIT>", "<WAIT>", "None"]),
        ('{"commands": [{"keystrokes": 7}]}', True, ["7"]),
        ('{"commands": {"keystrokes": "ls"}}', True, ["ls"]),  # no list: the fallback finds it all the same
        ('{"plan": [{"keystrokes": "make"}]}', True, ["make"]),
        ("{'commands': []}", False, []),
        (f"{LS}\n{LS}", False, ["ls", "ls"]),
        ("<think>a {brace}</think>" + LS, False, ["ls"]),
        ('{"keystrokes": "  \\n"', False, []),  # blank ones give no <WAIT> here
    ],
)
@pytest.mark.parametrize("revision", REVISIONS)
def test_a_reply_has_these_units_in_every_revision(
    text: str, valid: bool, units: list[str], revision: Revision
) -> None:
    answer = parse(text, revision)
    assert (answer.valid_json, list(answer.units)) == (valid, units)


@pytest.mark.parametrize(
    ("text", "before", "since"),
    [
        (CUT, [], ["cat > f <<EOF", "line"]),
        ('{"command": "ls", "cmd": "pwd", "keystrokes": "id"}', ["id"], ["id", "ls", "pwd"]),
        ('{"name": "bash", "arguments": {"cmd": "pwd"}}', [], ["pwd"]),
        ('{"arguments": "{}", "args": {"command": "ls\\npwd"}}', [], ["ls", "pwd"]),
        ('{"commands": [{"keystrokes": "ls"}], "cmd": "pwd"}', ["ls"], ["ls", "pwd"]),
        ('{"command": 5}', [], []),
        ('x "cmd": "b", "keystrokes": "a" y', ["a"], ["a", "b"]),
    ],
)
def test_what_only_v2_finds(text: str, before: list[str], since: list[str]) -> None:
    found = [list(parse(text, revision).units) for revision in REVISIONS]
    assert found == [before, before, since]


def test_fields_count_by_truth_and_completion_only_as_a_boolean() -> None:
    answer = parse('{"analysis": ["x"], "plan": "", "task_complete": "true"}')
    assert (answer.has_analysis, answer.has_plan, answer.task_complete) == (True, False, None)
    assert parse(LS).task_complete is True
    assert parse('{"task_complete": false}').task_complete is False


@pytest.mark.parametrize("text", ["[1]", "5", '"text"', "true", "[[]]", "NaN"])
def test_json_that_is_no_object_is_invalid_where_upstream_crashes(text: str) -> None:
    answer = parse(text)
    assert (answer.valid_json, answer.units, answer.oddities) == (False, (), {"not_an_object"})


def test_the_fallback_mangles_like_upstream_and_reports_it() -> None:
    answer = parse('{"keystrokes": "echo é", ')
    assert (answer.units, answer.oddities) == (("echo Ã©",), {"mojibake"})
    assert parse_tolerant('{"keystrokes": "echo é", ').units == ("echo é",)
    assert parse('{"keystrokes": "echo \\d\\/", ').units == ("echo \\d\\/",)


def test_surrogates_are_joined_to_characters_and_halves_replaced() -> None:
    pair = parse('"keystrokes": "echo \\ud83d\\ude00"', "v1")
    assert (pair.units, pair.oddities) == (("echo 😀",), {"lone_surrogate"})
    half = parse('{"commands": [{"keystrokes": "echo \\ud83d"}]}')
    assert (half.units, half.oddities) == (("echo \N{REPLACEMENT CHARACTER}",), {"lone_surrogate"})


# -- the tolerant parser -------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        f"<think>what if {{x}}?</think>\n{LS}",
        f"what if {{x}}?</think>\n{LS}",
        f"{LS}\nor rather\n{LS}",
        f"```json\n{LS}\n```",
        f"Use {{braces}} so: {LS}",
        LS.replace('"a"', '"</think> {"'),
    ],
)
def test_a_whole_answer_is_found_whatever_stands_around_it(text: str) -> None:
    answer = parse_tolerant(text)
    assert (answer.valid_json, answer.units, answer.task_complete) == (True, ("ls",), True)


@pytest.mark.parametrize("text", [CUT, "<think>" + LS, "[1]", "null", "", "{not json}", "{" * 50])
def test_what_is_no_whole_answer_stays_invalid(text: str) -> None:
    assert not parse_tolerant(text).valid_json


def test_units_of_the_tolerant_parser_follow_the_revision() -> None:
    assert [parse_tolerant(CUT, revision).units for revision in REVISIONS] == [(), (), ("cat > f <<EOF", "line")]
    assert [parse_tolerant('{"cmd": "ls"}', revision).units for revision in REVISIONS] == [(), (), ("ls",)]


# -- size ----------------------------------------------------------------------------------------

MILLIONS = 5_000_000
LONG = {
    "opening braces": "{" * MILLIONS,
    "pairs of braces": "{}" * (MILLIONS // 2),
    "deep lists": '{"a":' + "[" * MILLIONS,
    "deep objects": '{"analysis":' * (MILLIONS // 12),
    "fences": "```{" * (MILLIONS // 4),
    "fence ends": "```{" + "}```" * (MILLIONS // 16),
    "blanks behind a fence": "```json" + " " * MILLIONS,
    "an open string": '"keystrokes": "' + "\\n" * (MILLIONS // 10),
    "many open keys": '"keystrokes": "\\' * (MILLIONS // 160),
    "a long number": '{"commands": ' + "9" * MILLIONS + "}",
    "quotes": '"' * MILLIONS,
    "thinking": "<think>" * (MILLIONS // 7) + "{",
}


@pytest.mark.parametrize("name", LONG)
def test_megabytes_are_parsed_in_linear_time(name: str) -> None:
    started = time.process_time()
    for revision in ("v1", "v2"):
        parse(LONG[name], revision)
        parse_tolerant(LONG[name], revision)
    assert time.process_time() - started < 4.0


# -- the published file --------------------------------------------------------------------------


def test_whole_previews_of_the_published_file_give_its_units_and_flags() -> None:
    if not SAMPLE.is_file():
        pytest.skip(f"no sample at {SAMPLE}")
    checked = 0
    for step in json.loads(SAMPLE.read_bytes())["per_step"]:
        if len(step["pred_preview"]) < 800:
            answer = parse(step["pred_preview"], "v1")
            assert list(answer.units) == step["pred_command_units"]
            assert (answer.valid_json, answer.task_complete) == (step["valid_json"], step["pred_task_complete"])
            checked += 1
    assert checked == 4
