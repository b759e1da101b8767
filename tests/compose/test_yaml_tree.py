"""YAML of strangers: bounded, with lines in errors, and words as YAML 1.2 has them."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.compose.yaml_tree import TEXT_BYTES, YamlNode, parse
from tbench.errors import TaskInvalid


def plain(node: YamlNode) -> Any:
    """The tree without its lines."""
    if isinstance(node.content, dict):
        return {key: plain(value) for key, value in node.content.items()}
    return [plain(item) for item in node.content] if isinstance(node.content, list) else node.content


def read(text: str) -> YamlNode:
    return parse("c.yaml", text.encode())


def test_words_that_old_yaml_takes_for_something_else_are_texts() -> None:
    found = plain(read("a: 22:22\nb: yes\nc: 010\nd: 1.10\ne: 2024-01-01\nf: '~'\ng: ~\nh:\ni: off\n"))
    assert found == {
        "a": "22:22",
        "b": "yes",
        "c": "010",
        "d": "1.10",
        "e": "2024-01-01",
        "f": "~",
        "g": None,
        "h": None,
        "i": "off",
    }


def test_aliases_and_merged_mappings_are_written_out_and_what_is_written_wins() -> None:
    text = "x: &x {a: 1, b: 2}\ny: &y {b: 3, c: 4}\nz: {<<: [*x, *y], a: 9}\nw: {<<: *x}\nv: *y\n"
    found = plain(read(text))
    assert (found["z"], found["w"], found["v"]) == (
        {"a": "9", "b": "2", "c": "4"},
        {"a": "1", "b": "2"},
        {"b": "3", "c": "4"},
    )


def test_a_value_knows_its_key_and_its_line() -> None:
    node = read("a:\n  b:\n    - x\n    - y: 1\n")
    item = node.mapping()["a"].mapping()["b"].items()[1].mapping()["y"]
    assert (item.key, item.line) == ("a.b[1].y", 4)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a: [1, 2\nb: 3\n", "c.yaml:2: not valid YAML: expected ',' or ']'"),
        ("a: 1\na: 2\n", "c.yaml:2: duplicate key 'a'"),
        (
            "a: !!python/object:os.system x\n",
            "c.yaml:1: a: the tag tag:yaml.org,2002:python/object:os.system is unsupp",
        ),
        ("a: !reset []\n", "c.yaml:1: a: the tag !reset is unsupported"),
        ("? [1]\n: 2\n", "c.yaml:1: a key has to be a text"),
        ("a: *b\n", "c.yaml:1: not valid YAML: found undefined alias 'b'"),
        ("a: &a\n  <<: *a\n", "is merged into itself"),
        ("a: {<<: 1}\n", "<< has to be a mapping"),
        ("a: &a [*a]\n", "is nested deeper than"),
        ("a: 1\n---\nb: 2\n", "c.yaml:2: not valid YAML"),
        ("\x00", "not valid YAML"),
        ("a: " + "[" * 100 + "]" * 100, "is nested deeper than 40 levels"),
        ("[" * 20_000, "not valid YAML"),
    ],
)
def test_what_cannot_be_read_is_named_by_file_and_line(text: str, words: str) -> None:
    with pytest.raises(TaskInvalid) as caught:
        read(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bytes_that_are_no_text_are_refused() -> None:
    with pytest.raises(TaskInvalid, match=r"c\.yaml: not valid YAML"):
        parse("c.yaml", b"a: \xff\xfe")


def test_a_file_cannot_grow_by_its_aliases_nor_be_long() -> None:
    bomb = "a: &a [x, x, x, x, x, x, x, x, x]\n"
    for one, before in zip("bcdefgh", "abcdefg", strict=True):
        bomb += f"{one}: &{one} [{', '.join([f'*{before}'] * 9)}]\n"
    with pytest.raises(TaskInvalid, match="more than 20,000 values"):
        read(bomb)
    long = f"a: &a {'x' * 200_000}\nb: [{', '.join(['*a'] * 100)}]\n"
    with pytest.raises(TaskInvalid, match=r"more than 4,194,304 characters"):
        read(long)
    with pytest.raises(TaskInvalid, match="make it shorter"):
        parse("c.yaml", b"#" * (TEXT_BYTES + 1))


@given(st.text(alphabet="ab:-[]{}&*!|>'\"\n \t#?,<~", max_size=60))
def test_any_text_is_read_or_refused_in_one_line(text: str) -> None:
    try:
        read(text)
    except TaskInvalid as error:
        assert "\n" not in str(error)
        assert str(error).startswith("c.yaml")
