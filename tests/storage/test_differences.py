"""What differs between two starts, in words."""

from __future__ import annotations

from tbench.storage.differences import differences


def test_equal_settings_have_no_differences_and_null_is_as_good_as_absent() -> None:
    assert differences({"a": {"b": [1, 2]}, "c": None}, {"a": {"b": [1, 2], "d": None}}) == ""


def test_each_value_that_differs_is_named_with_both_in_the_order_of_the_keys() -> None:
    old = {"z": 1, "sampling": {"top_p": 0.9, "extra": {"k": 5}}, "model": "é"}
    new = {"z": 1, "sampling": {"top_p": 1.0, "extra": {"k": 5, "p": 0.1}}, "model": None}
    assert differences(old, new) == 'model: "é" → null; sampling.extra.p: nothing → 0.1; sampling.top_p: 0.9 → 1.0'


def test_what_may_differ_is_left_out_by_its_dotted_name() -> None:
    old, new = {"a": {"b": 1, "c": 1}, "b": 1}, {"a": {"b": 2, "c": 2}, "b": 2}
    assert differences(old, new, apart_from={"a.b", "b"}) == "a.c: 1 → 2"


def test_long_values_and_many_differences_are_cut() -> None:
    words = differences({f"k{number:02}": "x" * 500 for number in range(40)}, {})
    assert words.startswith('k00: "xxx') and words.endswith("… → nothing; and 28 more")
    assert len(words) < 1500
