"""keystrokes-json: well-formed, repairable and hopeless replies, and what goes back.

Long inputs are there to finish at all: they would take minutes if they were read more than once. They have 200 KB
here, and a megabyte under `make test-all`.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled import examples
from sizes import MUCH

from harness.errors import FormatError
from harness.protocols.base import CommandResult, Keys, Parsed, ScreenView
from harness.protocols.keystrokes_json import KeystrokesJson

PROTOCOL = KeystrokesJson()
LS = {"keystrokes": "ls\n", "duration": 0.1}
VIEW = ScreenView(screen="the screen", new_output="new text")


def reply(*commands: object, **fields: object) -> str:
    return json.dumps({"analysis": "a", "plan": "p", "commands": list(commands), **fields})


def kinds(parsed: Parsed) -> list[str]:
    return [warning.partition(": ")[0] for warning in parsed.warnings]


def refused(content: str) -> FormatError:
    with pytest.raises(FormatError) as caught:
        PROTOCOL.parse(content)
    str(caught.value).encode()
    return caught.value


# -- well-formed ---------------------------------------------------------------------------------


def test_a_reply_becomes_keys_in_order() -> None:
    parsed = PROTOCOL.parse(reply(LS, {"keystrokes": "C-c", "duration": 1}))
    assert parsed == Parsed(actions=(Keys("ls\n", 0.1), Keys("C-c", 1.0, key="C-c")))


@pytest.mark.parametrize(
    "content",
    [
        reply(LS),
        "\n " + reply(LS) + " \n",
        "<think>hm</think>\n" + reply(LS),
        '<think>{"analysis": 1} }}} {{ ```json</think>' + reply(LS),
        "the opening tag is missing {</think>\n\n" + reply(LS),
        "<think>a</think> b {</think>" + reply(LS),
        json.dumps(json.loads(reply(LS)), indent=4),
        reply(LS, task_complete=False),
    ],
)
def test_replies_without_anything_to_warn_of(content: str) -> None:
    assert PROTOCOL.parse(content) == Parsed(actions=(Keys("ls\n", 0.1),))


def test_no_commands_is_a_look() -> None:
    assert PROTOCOL.parse(reply()) == Parsed()


def test_empty_keystrokes_are_a_wait() -> None:
    parsed = PROTOCOL.parse(reply({"keystrokes": "", "duration": 10.0}, LS))
    assert parsed == Parsed(actions=(Keys("", 10.0), Keys("ls\n", 0.1)))


def test_zero_is_a_duration() -> None:
    assert PROTOCOL.parse(reply({"keystrokes": "x", "duration": 0})) == Parsed(actions=(Keys("x", 0.0),))


def test_control_characters_and_backslashes_go_through() -> None:
    text = "\x03\x1b[A\x00\t\\n é😀\n"
    assert PROTOCOL.parse(reply({"keystrokes": text, "duration": 1})).actions == (Keys(text, 1.0),)


def test_a_megabyte_of_keystrokes_is_typed() -> None:
    text = '"\\{' * 350_000 + "\n"
    assert PROTOCOL.parse(reply({"keystrokes": text, "duration": 1})).actions == (Keys(text, 1.0),)


@pytest.mark.parametrize("front", ["", "<think>a </think> b</think>", "<think>\n</think>\n\n", "\n", "b</think>"])
def test_a_thinking_tag_inside_keystrokes_is_text(front: str) -> None:
    text = "grep '</think>' template.jinja\n"
    content = reply({"keystrokes": text, "duration": 1})
    if front.count("</think>") > 1:
        assert refused(front + content).kind == "no_json"
    else:
        assert PROTOCOL.parse(front + content) == Parsed(actions=(Keys(text, 1.0),))


# -- warned of -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ("Sure! " + reply(LS), ["extra_text"]),
        (reply(LS) + "\nDone.", ["extra_text"]),
        ("```json\n" + reply(LS) + "\n```", ["extra_text", "extra_text"]),
        (reply(LS) + reply({"keystrokes": "rm x\n", "duration": 1}), ["extra_text"]),
        (reply({"keystrokes": "ls\n"}), ["missing_duration"]),
        (reply(LS, note="x"), ["unknown_field"]),
        (reply(LS | {"is_blocking": True}), ["unknown_field"]),
        ('{"plan": "", "analysis": "", "commands": []}', ["field_order"]),
        ('{"task_complete": false, "analysis": "", "plan": "", "commands": []}', []),
        (reply({"keystrokes": "ls", "duration": 1}, LS), ["no_newline"]),
        (reply({"keystrokes": "Enter", "duration": 1}, LS), []),
        (reply(LS, {"keystrokes": ":wq", "duration": 1}), []),
        (reply(analysis=1, plan=None), ["text_type", "text_type"]),
        ('{"analysis": "", "plan": "", "commands": [], "commands": []}', ["duplicate_field"]),
        (reply({"keystrokes": "a\ud800\n", "duration": 1}), ["lone_surrogate"]),
        (reply({"keystrokes": "ls\n"}, {"keystrokes": "ls\n"}), ["missing_duration"] * 2),
    ],
)
def test_oddities_are_warned_of(content: str, expected: list[str]) -> None:
    parsed = PROTOCOL.parse(content)
    assert kinds(parsed) == expected
    json.dumps([action.__dict__ for action in parsed.actions], ensure_ascii=False).encode()


def test_of_two_objects_the_first_is_taken() -> None:
    parsed = PROTOCOL.parse(reply(LS) + "\n" + reply({"keystrokes": "rm x\n", "duration": 1}))
    assert parsed.actions == (Keys("ls\n", 0.1),)


@pytest.mark.parametrize(
    "duration",
    ['"1"', "null", "true", "[]", "-1", "-0.001", "NaN", "Infinity", "-Infinity", "1e999", "9" * 5_000],
)
def test_an_invalid_duration_becomes_one_second(duration: str) -> None:
    content = reply({"keystrokes": "x", "duration": 77}).replace("77", duration)
    parsed = PROTOCOL.parse(content)
    assert parsed.actions == (Keys("x", 1.0),)
    assert kinds(parsed) == ["invalid_duration"]


@pytest.mark.parametrize("duration", ["60.5", "3600", "9" * 300])
def test_a_long_duration_is_cut_to_sixty_seconds(duration: str) -> None:
    parsed = PROTOCOL.parse(reply({"keystrokes": "x", "duration": 77}).replace("77", duration))
    assert parsed.actions == (Keys("x", 60.0),)
    assert kinds(parsed) == ["long_duration"]


@pytest.mark.parametrize(
    ("value", "complete", "warned"),
    [
        (True, True, False),
        (False, False, False),
        ("true", True, True),
        (" True", True, True),
        ("false", False, True),
        ("done", False, True),
        (1, False, True),
        (None, False, True),
    ],
)
def test_task_complete(value: object, complete: bool, warned: bool) -> None:
    parsed = PROTOCOL.parse(reply(task_complete=value))
    assert parsed.complete is complete
    assert kinds(parsed) == ["task_complete_type"] * warned


# -- repaired ------------------------------------------------------------------------------------

WHOLE = reply(LS)


@pytest.mark.parametrize(
    "content",
    [
        WHOLE[:-1],
        WHOLE[:-2],
        WHOLE[:-3],
        WHOLE[:-1] + "\n",
        "```json\n" + WHOLE[:-1] + "\n```",
        WHOLE.replace("}]}", "]}"),
        WHOLE.replace("}]}", "}}"),
        '{"response": ' + WHOLE + "}",
        '{"response": ' + WHOLE,
        "{analysis first} " + WHOLE,
        "{} " + WHOLE,
        "I open a { here. " + WHOLE,
        'Say "{". ' + WHOLE,
        '{"arguments": ' + WHOLE + ", oops}",
    ],
)
def test_a_repairable_reply_is_repaired_and_warned_of(content: str) -> None:
    parsed = PROTOCOL.parse(content)
    assert parsed.actions == (Keys("ls\n", 0.1),)
    assert kinds(parsed) == ["auto_corrected"]


def test_brackets_inside_strings_are_not_missing_closers() -> None:
    content = reply({"keystrokes": "echo '{[' \"\\\n", "duration": 1})[:-1]
    assert PROTOCOL.parse(content).actions == (Keys("echo '{[' \"\\\n", 1.0),)


# -- hopeless ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        ("", "no_json"),
        ("I am done.", "no_json"),
        ("3 apples", "no_json"),
        ("<think>" + WHOLE, "no_json"),
        ("<think>" + WHOLE + "</think>", "no_json"),
        ("<think>" + WHOLE + "</think> That was it.", "no_json"),
        ("[]", "not_an_object"),
        ('"ls"', "not_an_object"),
        ("null", "not_an_object"),
        ("{oops}", "invalid_json"),
        (WHOLE.replace("ls\\n", "ls\n"), "invalid_json"),
        (WHOLE.replace('"p"', '"p" "q"'), "invalid_json"),
        ('{"a": "never closed', "invalid_json"),
        ('{"a":' * 100_000, "invalid_json"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "invalid_json"),
        ("[" * 100_000, "no_json"),
        ("{}", "missing_field"),
        ('{"analysis": "", "commands": []}', "missing_field"),
        (reply(commands="ls"), "wrong_type"),
        (reply(commands=None), "wrong_type"),
        (reply(commands={"keystrokes": "ls\n"}), "wrong_type"),
        (reply("ls\n"), "wrong_type"),
        (reply(LS, []), "wrong_type"),
        (reply({"duration": 1}), "wrong_type"),
        (reply({"keystrokes": None}), "wrong_type"),
        (reply({"keystrokes": ["ls"]}), "wrong_type"),
    ],
)
def test_a_hopeless_reply_is_refused(content: str, kind: str) -> None:
    assert refused(content).kind == kind


@pytest.mark.parametrize("size", range(WHOLE.index("ls"), WHOLE.index("ls") + 4))
def test_a_reply_cut_inside_its_keystrokes_is_never_run(size: int) -> None:
    assert refused(WHOLE[:size]).kind == "invalid_json"


def test_a_refused_reply_keeps_its_warnings() -> None:
    error = refused("Well: " + reply({"keystrokes": "a"}, "b"))
    assert [warning.partition(":")[0] for warning in error.warnings] == [
        "extra_text",
        "missing_duration",
        "no_newline",
    ]


def test_an_error_names_what_is_missing_and_the_warnings() -> None:
    message = str(refused('Well: {"analysis": ""}'))
    assert message == "Missing required fields: plan, commands."
    message = str(refused("Well: " + reply({"keystrokes": "a"}, "b")))
    assert message.startswith("Command 2 must be an object.\nWarnings:\n- There is extra text before")
    assert "- Command 1: No duration" in message


def test_an_error_shows_the_place_but_not_the_whole_reply() -> None:
    message = str(refused(reply({"keystrokes": "x" * 5_000}).replace('"p"', "p")))
    assert "Expecting value" in message
    assert len(message) < 400


# -- fuzz ----------------------------------------------------------------------------------------

anything = st.text(st.characters(exclude_categories=[]))
tokens = st.sampled_from(
    [
        *'{}[]",:\\` \n',
        *('"analysis"', '"plan": "", ', '"commands": [', '{"keystrokes": "ls\\n"', '"task_complete": '),
        *("true", "1e9", "NaN", "</think>", "<think>", "```", "\\ud800", "\ud800", WHOLE, WHOLE[:-1]),
    ]
)
json_values = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | anything,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(anything, inner, max_size=3),
    max_leaves=8,
)


def understood_or_refused(content: str) -> None:
    try:
        parsed = PROTOCOL.parse(content)
    except FormatError as error:
        PROTOCOL.complain(str(error), VIEW).encode()
        return
    for action in parsed.actions:
        assert isinstance(action, Keys)
        assert 0 <= action.duration_sec <= 60
        action.keystrokes.encode()
    for claimed in (False, True):
        PROTOCOL.respond(parsed, VIEW, claimed=claimed).message.encode()


@given(anything)
def test_any_text_is_understood_or_refused(content: str) -> None:
    understood_or_refused(content)


@examples(500)
@given(st.lists(tokens | anything, max_size=25))
def test_any_pieces_of_a_reply_are_understood_or_refused(pieces: list[str]) -> None:
    understood_or_refused("".join(pieces))


@given(
    st.fixed_dictionaries(
        {"analysis": json_values, "plan": json_values},
        optional={
            "commands": st.lists(
                st.fixed_dictionaries({"keystrokes": anything | json_values}, optional={"duration": json_values})
                | json_values
            ),
            "task_complete": json_values,
            "other": json_values,
        },
    ),
    st.integers(0, 20),
)
def test_any_values_and_cuts_are_understood_or_refused(fields: dict[str, Any], cut: int) -> None:
    content = json.dumps(fields)
    understood_or_refused(content[: len(content) - cut])


@examples(300)
@given(st.integers(0, 110), st.integers(0, 30), tokens | anything)
def test_any_mutation_of_a_reply_is_understood_or_refused(at: int, length: int, text: str) -> None:
    whole = reply(LS, {"keystrokes": "C-c", "duration": 1}, task_complete=True)
    understood_or_refused(whole[:at] + text + whole[at + length :])


@pytest.mark.parametrize(
    "unit",
    [
        *("{", "}", "[", "{[", '"', "\\", '"\\', '{"', '{"\\"', '{"a":', '{"analysis":', '"commands": [', " ", "9"),
        *("<think>", "</think>", "```", json.dumps(LS), "{}", WHOLE),
    ],
)
@MUCH
@pytest.mark.parametrize("front", ["{", WHOLE[:-1]])
def test_much_of_anything_is_read_in_linear_time(front: str, unit: str, much: int) -> None:
    understood_or_refused(front + unit * (much // len(unit)))


@given(st.lists(st.tuples(anything, st.floats(0, 60)), max_size=5), st.booleans())
def test_a_well_formed_reply_is_typed_exactly(commands: list[tuple[str, float]], complete: bool) -> None:
    typed = [(text.encode("utf-8", "ignore").decode(), duration) for text, duration in commands]
    objects = [{"keystrokes": text, "duration": duration} for text, duration in typed]
    parsed = PROTOCOL.parse(reply(*objects, task_complete=complete))
    assert [(a.keystrokes, a.duration_sec) for a in parsed.actions if isinstance(a, Keys)] == typed
    assert parsed.complete is complete


# -- messages ------------------------------------------------------------------------------------


def test_the_conversation_opens_with_one_user_message() -> None:
    (message,) = PROTOCOL.first_messages("Fix <it> & go.", "root@x:/app# ")
    assert message.role == "user"
    assert "Task description:\nFix <it> & go.\n" in message.content
    assert message.content.endswith("Current terminal state:\nroot@x:/app# ")
    assert '"keystrokes": "cd /srv/app\\n"' in message.content


def test_new_output_is_shown_where_it_can_be_told() -> None:
    response = PROTOCOL.respond(Parsed(), VIEW, claimed=False)
    assert response.message == "New terminal output:\nnew text"
    assert not response.claimed
    assert not response.submitted


def test_the_screen_is_shown_where_new_output_cannot_be_told() -> None:
    response = PROTOCOL.respond(Parsed(), ScreenView("the screen", None), claimed=False)
    assert response.message == "Current terminal screen:\nthe screen"


def test_a_long_observation_is_cut_to_ten_thousand_bytes() -> None:
    message = PROTOCOL.respond(Parsed(), ScreenView("", "x" * 30_000), claimed=False).message
    assert "[... 20000 bytes left out ...]" in message
    assert message.count("x") == 10_000


def test_warnings_come_before_the_observation() -> None:
    parsed = PROTOCOL.parse("Hi " + reply({"keystrokes": "ls\n"}))
    message = PROTOCOL.respond(parsed, VIEW, claimed=False).message
    assert message == (
        "Previous response had warnings:\n"
        "- There is extra text before the JSON object.\n"
        "- Command 1: No duration; 1.0 seconds were used.\n"
        "\n"
        "New terminal output:\nnew text"
    )


def test_completion_has_to_be_said_twice() -> None:
    parsed = PROTOCOL.parse(reply(LS, task_complete=True))
    first = PROTOCOL.respond(parsed, VIEW, claimed=False)
    assert first.claimed
    assert not first.submitted
    assert "new text" in first.message
    assert '"task_complete": true again' in first.message
    assert PROTOCOL.respond(parsed, VIEW, claimed=True).submitted


def test_a_claim_is_dropped_by_a_turn_without_it() -> None:
    response = PROTOCOL.respond(PROTOCOL.parse(reply(LS)), VIEW, claimed=True)
    assert not response.claimed
    assert not response.submitted


def test_a_complaint_has_the_error_and_the_terminal_where_it_is_known() -> None:
    message = PROTOCOL.complain("No JSON object found.", VIEW)
    assert "ERROR: No JSON object found.\n\nNew terminal output:\nnew text\n\nAnswer again" in message
    assert "terminal" not in PROTOCOL.complain("No JSON object found.", None)


def test_the_exact_output_of_a_command_can_be_shown_too() -> None:
    response = PROTOCOL.respond(Parsed(), CommandResult("out\ud800", 0), claimed=False)
    assert response.message == "New terminal output:\nout\ufffd"
