"""Text that is fit to be shown: nothing in it steers a terminal, ends a line or turns the reading direction."""

from __future__ import annotations

import json
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.text import counted, escape_invisible, one_line, plain, replace_unseen, visible_line

BIDI = {"LRE", "RLE", "PDF", "LRO", "RLO", "LRI", "RLI", "FSI", "PDI"}
# Whatever is drawn, half of it is what terminals obey.
HOSTILE = st.text(
    st.one_of(st.characters(), st.sampled_from("\x00\x07\x08\r\n\t\x1b\x7f\x85\x9b\u061c\u2028\u202e\u2066"))
)


def steers(char: str) -> bool:
    return unicodedata.category(char) in ("Cc", "Cs", "Zl", "Zp") or unicodedata.bidirectional(char) in BIDI


@given(HOSTILE)
def test_nothing_that_steers_is_left_but_lines_and_tabs(text: str) -> None:
    assert not [char for char in escape_invisible(text) if steers(char) and char not in "\n\t"]
    assert escape_invisible(escape_invisible(text)) == escape_invisible(text)


@pytest.mark.parametrize("shown", [visible_line, one_line, plain, lambda text: replace_unseen(text, "?")])
@given(text=HOSTILE)
def test_a_line_is_one_line(shown: object, text: str) -> None:
    assert callable(shown)
    assert not [char for char in shown(text) if steers(char)]


@given(HOSTILE)
def test_json_stays_the_same_json(text: str) -> None:
    whole = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert json.loads(escape_invisible(json.dumps({"text": whole}, ensure_ascii=False))) == {"text": whole}


def test_ordinary_text_is_left_alone() -> None:
    text = "déjà vu, 日本語, עברית, 👩\u200d🚀\tand\nmore"
    assert escape_invisible(text) == text
    assert visible_line("a\x1b[2J\u202eb\nc") == "a\\u001b[2J\\u202eb\\u000ac"


@given(HOSTILE)
def test_a_replaced_name_is_never_longer_than_it_was(text: str) -> None:
    assert len(replace_unseen(text, "?").encode("utf-8", "replace")) <= len(text.encode("utf-8", "replace"))


@pytest.mark.parametrize(
    ("number", "noun", "expected"),
    [
        (1, "reply", "1 reply"),
        (0, "reply", "0 replies"),
        (2, "key", "2 keys"),
        (1200, "trial", "1,200 trials"),
    ],
)
def test_a_number_has_its_noun_in_singular_or_plural(number: int, noun: str, expected: str) -> None:
    assert counted(number, noun) == expected
