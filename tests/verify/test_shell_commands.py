"""The commands of a script with their arguments. What is a call of pytest is tested in test_pytest_calls.py."""

from __future__ import annotations

import pytest

from tbench.verify.shell_commands import SimpleCommand, simple_commands


def words(script: str) -> list[list[str]]:
    return [command.words for command in simple_commands(script)]


@pytest.mark.parametrize(
    ("script", "commands"),
    [
        ("a b; c|d && e || f & g", [["a", "b"], ["c"], ["d"], ["e"], ["f"], ["g"]]),
        ("a 'b c'\"d e\"f\\ g", [["a", "b cd ef g"]]),
        ("a \\\n  b # c\nd#e", [["a", "b"], ["d#e"]]),
        ("a $b ${c:-d e} $((1 + 2)) \"$f\"", [["a", "$b", "${c:-d e}", "$((1 + 2))", "$f"]]),
        ("a $(b c) \"d $(e) f\" `g \\`h\\``", [["b", "c"], ["e"], ["h"], ["g", "``"], ["a", "$()", "d $() f", "``"]]),
        ("a $'it\\'s' b", [["a", "it\\'s", "b"]]),
        ("( a; b ) && { c; }", [["a"], ["b"], ["{", "c"], ["}"]]),
        ("a() { b; }", [["{", "b"], ["}"]]),
        ("case $x in a|b) c ;; *) d ;; esac", [["case", "$x", "in", "a"], ["c"], ["d"], ["esac"]]),
        ("a=(b c) d", [["a=", "d"]]),
        ("(( a << 2 )); b", [["b"]]),
        ("a 2>&1 >b <c 3<>d &>e f", [["a", "f"]]),
        ("a <(b) > >(c d)", [["b"], ["c", "d"], ["a", "", ""]]),
        ("a <<X b\nc 'd\nX\ne", [["a", "b", "-c", "c 'd"], ["e"]]),
        ("a <<-'X Y' | b <<Z\n\tc\n\tX Y\nd\nZ\ne", [["a", "-c", "\tc"], ["b", "-c", "d"], ["e"]]),
        ("a <<< 'b c'", [["a", "-c", "b c"]]),
        ("a 'b", [["a", "b"]]),
        ("a \"b $(c", [["c"], ["a", "b $()"]]),
        ("a\\", [["a"]]),
    ],
)  # fmt: skip
def test_commands_are_told_apart_and_their_words_are_without_quotes(script: str, commands: list[list[str]]) -> None:
    assert words(script) == commands


@pytest.mark.parametrize(
    "script", ["a >f", "a >>f", "a >|f", "a &>f", "a &>>f", "a 1>f", "x=$(a)", "x=`a`", 'x="$(a)"']
)
def test_output_that_goes_elsewhere_is_not_shown(script: str) -> None:
    assert SimpleCommand(["a"], is_shown=False) in simple_commands(script)


@pytest.mark.parametrize("script", ["a", "a | b", "a 2>f", "a >&2", "a >/dev/stderr", "a <f", "if a; then b; fi"])
def test_any_other_output_is(script: str) -> None:
    assert all(command.is_shown for command in simple_commands(script))
