"""Variables of compose files: where they come from, their defaults, and what is no variable."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.compose.variables import RequestedVariable, Variables

OWN = {"NAME": "apple", "EMPTY": ""}


def filled(text: str, **given_: str) -> str:
    return Variables(OWN, given_).substitute("key", text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain", "plain"),
        ("$NAME-${NAME}", "apple-apple"),
        ("$$NAME $${NAME}", "$NAME ${NAME}"),
        ("${EMPTY-x}${EMPTY:-y}", "y"),
        ("${NONE-x}${NONE:-y}", "xy"),
        ("${NONE:-}", ""),
        ("${NAME:+there}${EMPTY:+not}${EMPTY+there}${NONE+not}", "therethere"),
        ("${NONE:-${NAME}s}", "apples"),
        ("${NONE:-${OTHER:-deep}}", "deep"),
        ("${NAME:?must}", "apple"),
        ("${NONE:-a:b/c}", "a:b/c"),
        ("a } b", "a } b"),
        ("$NAME.txt", "apple.txt"),
        ("${NONE:-$$}", "$"),
    ],
)
def test_variables_are_filled_in_with_their_defaults(text: str, expected: str) -> None:
    assert filled(text) == expected


def test_what_a_task_has_itself_wins_over_what_is_given() -> None:
    assert filled("$NAME $MORE", NAME="pear", MORE="less") == "apple less"


def test_what_is_asked_for_is_written_down_once_and_own_variables_are_not() -> None:
    variables = Variables(OWN, {"GIVEN": "1"})
    for text in ("$NAME $GIVEN $LOST", "${LOST}", "${SOFT:-x}", "${WORDS:?say it}"):
        variables.substitute("a.b", text)
    assert variables.asked == [
        RequestedVariable("a.b", "GIVEN", has_default=False, is_given=True),
        RequestedVariable("a.b", "LOST", has_default=False, is_given=False),
        RequestedVariable("a.b", "SOFT", has_default=True, is_given=False),
        RequestedVariable("a.b", "WORDS", has_default=False, is_given=False, advice="say it"),
    ]
    assert [asked.name for asked in variables.missing] == ["LOST", "WORDS"]


@pytest.mark.parametrize("text", ["$", "${", "${}", "${NAME", "${NAME:x}", "$1", "${1}", "a $ b", "${NAME:-${NAME}"])
def test_what_is_no_variable_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="for a dollar sign"):
        filled(text)


def test_variables_within_defaults_have_a_limit() -> None:
    with pytest.raises(ValueError, match="deeper than 8"):
        filled("${A:-" * 50 + "x" + "}" * 50)


@given(st.text(alphabet="${}AB:-+?x ", max_size=40))
def test_any_text_is_filled_in_or_refused_in_words(text: str) -> None:
    try:
        filled(text)
    except ValueError as error:
        assert "\n" not in str(error)


@given(st.text(max_size=60))
def test_a_text_whose_dollars_are_doubled_stays_what_it_is(text: str) -> None:
    assert filled(text.replace("$", "$$")) == text
