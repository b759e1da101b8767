"""keystrokes-xml: well-formed, repairable and hopeless replies, and what goes back.

Long inputs are there to finish at all: they would take minutes if they were read more than once. They have 200 KB
here, and a megabyte under `make test-all`.
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampled import examples
from sizes import MUCH

from harness.errors import FormatError
from harness.protocols.base import Keys, Parsed, ScreenView
from harness.protocols.keystrokes_xml import KeystrokesXml

PROTOCOL = KeystrokesXml()
VIEW = ScreenView(screen="the screen", new_output="new text")
FRONT = "<analysis>a</analysis><plan>p</plan>"
LS = '<keystrokes duration="0.1">ls\n</keystrokes>'
KEYS = (Keys("ls\n", 0.1),)


def reply(commands: str = LS, *, front: str = FRONT, back: str = "") -> str:
    return f"<response>{front}<commands>{commands}</commands>{back}</response>"


def done(text: str) -> str:
    return reply(back=f"<task_complete>{text}</task_complete>")


def keys(text: str, attributes: str = ' duration="1"') -> str:
    return f"<keystrokes{attributes}>{text}</keystrokes>"


def kinds(warnings: tuple[str, ...]) -> list[str]:
    return [warning.partition(": ")[0] for warning in warnings]


def refused(content: str) -> FormatError:
    with pytest.raises(FormatError) as caught:
        PROTOCOL.parse(content)
    str(caught.value).encode()
    return caught.value


WHOLE = reply()
SPACED = """\
<response>
<analysis>
a < b && c > d
</analysis>
<plan>
Use <keystrokes> and <b>.
</plan>
<commands>
<keystrokes duration="0.1">ls
</keystrokes>
</commands>
<task_complete>false</task_complete>
</response>
"""

# -- well-formed ---------------------------------------------------------------------------------

WELL_FORMED: dict[str, tuple[str, tuple[Keys, ...]]] = {
    "plain": (WHOLE, KEYS),
    "spaced": (SPACED, KEYS),
    "thinking in front": (f"<think>hm</think>\n{WHOLE}", KEYS),
    "tags in thinking": (f"<think>{reply(keys('rm x'))}</think>{WHOLE}", KEYS),
    "thinking without its opening tag": (f"<response> I will</think>\n\n{WHOLE}", KEYS),
    "braces and fences in thinking": ("<think>{ ```xml <commands></think>" + WHOLE, KEYS),
    "no commands": (reply(""), ()),
    "blank commands": (reply(" \n"), ()),
    "self-closing sections": ("<response><analysis/><plan /><commands/></response>", ()),
    "self-closing wait": (reply('<keystrokes duration="10"/>'), (Keys("", 10.0),)),
    "empty wait": (reply(keys("", ' duration="10"') + LS), (Keys("", 10.0), *KEYS)),
    "a key": (reply(keys("C-c") + LS), (Keys("C-c", 1.0, key="C-c"), *KEYS)),
    "line breaks around a key are text": (reply(keys("\nC-c\n")), (Keys("\nC-c\n", 1.0),)),
    "raw text": (reply(keys("a <b> & </c> \"'\\ <!-- x -->\n")), (Keys("a <b> & </c> \"'\\ <!-- x -->\n", 1.0),)),
    "blanks are typed": (reply(keys("\n  x \n\n")), (Keys("\n  x \n\n", 1.0),)),
    "closing tags of sections are text": (
        reply(keys("</commands></response></think>\n")),
        (Keys("</commands></response></think>\n", 1.0),),
    ),
    "single quotes": (reply(keys("x", " duration='2'")), (Keys("x", 2.0),)),
    "blanks in the tag": (reply(keys("x", '  duration = "2"\n')), (Keys("x", 2.0),)),
    "zero": (reply(keys("x", ' duration="0"')), (Keys("x", 0.0),)),
    "a last command without a line break": (reply(LS + keys(":wq")), (*KEYS, Keys(":wq", 1.0))),
}


@pytest.mark.parametrize("name", WELL_FORMED)
def test_a_well_formed_reply_is_typed_without_a_warning(name: str) -> None:
    content, actions = WELL_FORMED[name]
    assert PROTOCOL.parse(content) == Parsed(actions=actions)


@pytest.mark.parametrize(
    ("content", "complete", "warned"),
    [
        (WHOLE, False, False),
        (done("true"), True, False),
        (done("\n True "), True, False),
        (done("false"), False, False),
        (done(""), False, True),
        (done("done"), False, True),
        (reply(back="<task_complete/>"), False, True),
        (reply(keys("<task_complete>true</task_complete>")), False, False),
        (reply(front="<analysis><task_complete>true</task_complete></analysis><plan/>"), False, False),
    ],
)
def test_completion_is_the_word_true_in_its_own_section(content: str, complete: bool, warned: bool) -> None:
    parsed = PROTOCOL.parse(content)
    assert parsed.complete is complete
    assert kinds(parsed.warnings) == ["task_complete_type"] * warned


# -- repaired or warned of -----------------------------------------------------------------------

REPAIRABLE: dict[str, tuple[str, list[str]]] = {
    "text before": (f"Sure! {WHOLE}", ["extra_text"]),
    "text after": (f"{WHOLE}\nDone.", ["extra_text"]),
    "text between": (reply(front=FRONT + "so:"), ["extra_text"]),
    "in a fence": (f"```xml\n{WHOLE}\n```", ["extra_text", "extra_text"]),
    "a draft in the analysis": (
        reply(front=f"<analysis><commands>{keys('rm x')}</commands></analysis>"),
        ["missing_section"],
    ),
    "two responses": (WHOLE + reply(keys("rm x\n")), ["extra_text"]),
    "a response said twice": (f"<response>\n{WHOLE}", ["extra_text"]),
    "no </response>": (WHOLE.removesuffix("</response>"), ["auto_corrected"]),
    "no </response>, and another": (WHOLE.removesuffix("</response>") + WHOLE, ["extra_text", "auto_corrected"]),
    "no </commands>": (WHOLE.replace("</commands>", ""), ["auto_corrected"]),
    "no </commands> before task_complete": (done("false").replace("</commands>", "\n"), ["auto_corrected"]),
    "neither": (WHOLE.partition("</commands>")[0], ["auto_corrected"]),
    "no </analysis>": (WHOLE.replace("</analysis>", ""), ["auto_corrected"]),
    "no </plan>": (WHOLE.replace("</plan>", ""), ["auto_corrected"]),
    "no </task_complete>": (done("false").replace("</task_complete>", ""), ["auto_corrected"]),
    "no <response>": (WHOLE.removeprefix("<response>"), ["auto_corrected"]),
    "a closing tag too many": (reply(back="</plan>"), ["extra_text"]),
    "no plan": (reply(front="<analysis>a</analysis>"), ["missing_section"]),
    "no analysis, no plan": (reply(front=""), ["missing_section"]),
    "wrong order": (reply(front="<plan>p</plan><analysis>a</analysis>"), ["field_order"]),
    "two plans": (reply(front=FRONT + "<plan>q</plan>"), ["duplicate_field"]),
    "an unknown section": (reply(front=FRONT + "<note/>"), ["unknown_field"]),
    "no duration": (reply(keys("ls\n", "")), ["missing_duration"]),
    "another attribute": (reply(keys("ls\n", ' duration="0.1" wait="1"')), ["unknown_field"]),
    "no quotes": (reply(keys("ls\n", " duration=0.1")), ["attribute_quotes"]),
    "half a surrogate pair": (reply(keys("ls\ud800\n")), ["lone_surrogate"]),
    "an entity": (reply(keys("a &lt; b &amp;\n")), ["entity"]),
    "an escaped newline": (reply(keys("ls\\n")), ["escaped_newline"]),
    "no line break": (reply(keys("ls") + LS), ["no_newline"]),
    "only completion": ("<response><task_complete>true</task_complete></response>", ["missing_section"]),
}


@pytest.mark.parametrize("name", REPAIRABLE)
def test_a_repairable_reply_is_typed_and_warned_of(name: str) -> None:
    content, expected = REPAIRABLE[name]
    parsed = PROTOCOL.parse(content)
    assert kinds(parsed.warnings) == expected
    assert [
        action for action in parsed.actions if isinstance(action, Keys) and action.keystrokes.startswith("rm")
    ] == []
    if set(expected) <= {"extra_text", "auto_corrected", "missing_section"} and not parsed.complete:
        assert parsed.actions == KEYS


@pytest.mark.parametrize("duration", ["", "abc", "-1", "nan", "inf", "1e999", "1s", "0x1"])
def test_an_invalid_duration_becomes_one_second(duration: str) -> None:
    parsed = PROTOCOL.parse(reply(keys("x", f' duration="{duration}"')))
    assert parsed.actions == (Keys("x", 1.0),)
    assert kinds(parsed.warnings) == ["invalid_duration"]


@pytest.mark.parametrize("duration", ["60.5", "9" * 300])
def test_a_long_duration_is_cut_to_sixty_seconds(duration: str) -> None:
    parsed = PROTOCOL.parse(reply(keys("x", f' duration="{duration}"')))
    assert parsed.actions == (Keys("x", 60.0),)
    assert kinds(parsed.warnings) == ["long_duration"]


def test_the_missing_tags_are_named() -> None:
    (warning,) = PROTOCOL.parse(WHOLE.partition("</commands>")[0]).warnings
    assert warning == "auto_corrected: Missing tags were added: </commands>, </response>."


# -- hopeless ------------------------------------------------------------------------------------

HOPELESS = {
    "empty": ("", "no_response"),
    "prose": ("I am done.", "no_response"),
    "all of it thinking": (f"<think>{WHOLE}", "no_response"),
    "only thinking": (f"<think>{WHOLE}</think>", "no_response"),
    "JSON": ('{"analysis": "", "plan": "", "commands": []}', "no_response"),
    "prose before sections without a response": (f"Well, {WHOLE.removeprefix('<response>')}", "no_response"),
    "an empty response": ("<response></response>", "missing_field"),
    "no commands": (f"<response>{FRONT}</response>", "missing_field"),
    "no commands, not complete": (f"<response>{FRONT}<task_complete>false</task_complete></response>", "missing_field"),
    "another name for commands": (WHOLE.replace("commands>", "command>"), "misplaced_keystrokes"),
    "keystrokes outside": (f"<response>{FRONT}{LS}</response>", "misplaced_keystrokes"),
    "two commands sections": (reply(back=f"<commands>{keys('rm x')}</commands>"), "several_commands"),
    "a draft in an open analysis": (reply(front=f"<analysis>say <commands>{LS}</commands><plan/>"), "several_commands"),
    "an open analysis in the first of two": (WHOLE.replace("</analysis>", "") + WHOLE, "unclosed_section"),
    "a response drafted in the analysis": (reply(front=f"<analysis>{reply(front='')}</analysis>"), "unclosed_section"),
    "another name for keystrokes": (reply("<command>ls\n</command>"), "stray_text"),
    "a misspelt command before another": (reply(f"<keystroke>cd x\n</keystroke>{LS}"), "stray_text"),
    "plain text": (reply("ls\n"), "stray_text"),
    "plain text between": (reply(f"{LS} and {LS}"), "stray_text"),
    "a comment": (reply(f"<!-- list -->{LS}"), "stray_text"),
    "no </keystrokes>": (WHOLE.replace("</keystrokes>", ""), "unclosed_keystrokes"),
    "no </keystrokes> before another": (reply(LS.replace("</keystrokes>", "") + LS), "unclosed_keystrokes"),
    "a misspelt closing tag": (WHOLE.replace("</keystrokes>", "</keystroke>"), "unclosed_keystrokes"),
    "a closing tag that comes too late": (WHOLE.replace("</keystrokes>", "") + "</keystrokes>", "unclosed_keystrokes"),
    "a tag that never ends": (WHOLE.replace('"0.1">', '"0.1"'), "stray_text"),
}


@pytest.mark.parametrize("name", HOPELESS)
def test_a_hopeless_reply_is_refused(name: str) -> None:
    content, kind = HOPELESS[name]
    assert refused(content).kind == kind


@pytest.mark.parametrize("size", range(WHOLE.index("ls"), WHOLE.index("</commands>") - 1))
def test_a_reply_cut_inside_its_keystrokes_is_never_typed(size: int) -> None:
    assert refused(WHOLE[:size]).kind == "unclosed_keystrokes"


def test_an_error_names_the_command_and_tells_the_warnings() -> None:
    error = refused(f"Well: <response>{FRONT}</response>")
    assert str(error).startswith(
        "Missing <commands> section; it may be empty.\nWarnings:\n- There is extra text before"
    )
    assert kinds(error.warnings) == ["extra_text", "missing_section"]
    assert "Command 2: " in str(refused(reply(LS + "<keystrokes>ls")))


# -- fuzz ----------------------------------------------------------------------------------------

anything = st.text(st.characters(exclude_categories=[]))
tokens = st.sampled_from(
    [
        *"<>/\"'=& \n",
        *("<response>", "</response>", "<analysis>", "</analysis>", "<plan/>", "<commands>", "</commands>"),
        *("<keystrokes>", '<keystrokes duration="', "</keystrokes>", "<task_complete>true</task_complete>"),
        *("<think>", "</think>", "```xml", "&lt;", "\ud800", "1e9", LS, WHOLE, FRONT),
    ]
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
    PROTOCOL.respond(parsed, VIEW, claimed=True).message.encode()


@given(anything)
def test_any_text_is_understood_or_refused(content: str) -> None:
    understood_or_refused(content)


@examples(500)
@given(st.lists(tokens | anything, max_size=25).map("".join))
def test_any_pieces_of_a_reply_are_understood_or_refused(content: str) -> None:
    understood_or_refused(content)


@examples(300)
@given(st.integers(0, len(SPACED)), st.integers(0, 40), tokens | anything)
def test_any_mutation_of_a_reply_is_understood_or_refused(at: int, length: int, text: str) -> None:
    understood_or_refused(SPACED[:at] + text + SPACED[at + length :])


@given(st.lists(st.tuples(anything, st.floats(0, 60)), max_size=5))
def test_a_well_formed_reply_is_typed_exactly(commands: list[tuple[str, float]]) -> None:
    clean = [(text.encode("utf-8", "ignore").decode(), duration) for text, duration in commands]
    typed = [(text, duration) for text, duration in clean if "keystrokes" not in text]
    parsed = PROTOCOL.parse(reply("\n".join(keys(text, f' duration="{duration}"') for text, duration in typed)))
    assert [(a.keystrokes, a.duration_sec) for a in parsed.actions if isinstance(a, Keys)] == typed


UNITS = [
    *("<", "</", "<a", "<a>", "</a>", "<a/>", "<response>", "<response ", "</response>", "<analysis>", "<analysis"),
    *("<plan>", "<plan ", "<commands>", "<commands ", "</commands", "<keystrokes>", "<keystrokes ", "<keystrokes"),
    *(
        "</keystrokes",
        "<task_complete>",
        "<think>",
        "</think>",
        "a",
        "a=",
        '="',
        "='",
        ' a="',
        "&lt;",
        " ",
        "\n",
        "```",
    ),
]


@pytest.mark.parametrize("unit", UNITS)
@MUCH
@pytest.mark.parametrize("front", ["<response>", "<response><commands><keystrokes "])
def test_much_of_anything_is_read_in_linear_time(front: str, unit: str, much: int) -> None:
    understood_or_refused(front + unit * (much // len(unit)) + ">x</keystrokes></commands></response>")


def test_many_open_sections_before_a_late_end_are_read_in_linear_time() -> None:
    understood_or_refused("<response>" + "<analysis>" * 100_000 + "</response></analysis>")
    understood_or_refused("<response>" + "<plan>" * 150_000 + "</analysis></plan></response>")


def test_a_megabyte_of_commands_is_typed() -> None:
    assert PROTOCOL.parse(reply(LS * 25_000)).actions == KEYS * 25_000


# -- messages ------------------------------------------------------------------------------------


def test_the_conversation_opens_with_one_user_message() -> None:
    (message,) = PROTOCOL.first_messages("Fix <it> & go.", "root@x:/app# ")
    assert message.role == "user"
    assert "Task description:\nFix <it> & go.\n" in message.content
    assert message.content.endswith("Current terminal state:\nroot@x:/app# ")


def test_the_format_example_of_the_prompt_is_itself_well_formed() -> None:
    (message,) = PROTOCOL.first_messages("", "")
    example = message.content[message.content.index("<response>") : message.content.index("Required sections")]
    assert PROTOCOL.parse(example) == Parsed(actions=(Keys("cd /srv/app\n", 0.1), Keys("make test\n", 20.0)))


def test_warnings_come_before_the_observation() -> None:
    message = PROTOCOL.respond(PROTOCOL.parse("Hi " + WHOLE), VIEW, claimed=False).message
    assert message.startswith(
        "Previous response had warnings:\n- There is extra text before <response>.\n\nNew terminal"
    )


def test_completion_has_to_be_said_twice() -> None:
    parsed = PROTOCOL.parse(done("true"))
    first = PROTOCOL.respond(parsed, VIEW, claimed=False)
    assert first.claimed
    assert not first.submitted
    assert "<task_complete>true</task_complete> again" in first.message
    assert PROTOCOL.respond(parsed, VIEW, claimed=True).submitted


def test_a_complaint_has_the_error_and_the_terminal_where_it_is_known() -> None:
    message = PROTOCOL.complain("No <response> tag found.", VIEW)
    assert "ERROR: No <response> tag found.\n\nNew terminal output:\nnew text\n\nAnswer again" in message
