"""Command words: which words of a shell text are commands, and which are not."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.rewards.shell_words import command_words

CASES = [
    ("", []),
    ("find . -name '*.py' | grep -v x | wc -l", ["find", "grep", "wc"]),
    ("find a&&grep b||wc c;tar d&docker e |& cat", ["find", "grep", "wc", "tar", "docker", "cat"]),
    ("echo find; # grep\nls #wc\necho a#b", ["echo", "ls", "echo"]),
    ("FOO=1 BAR+=$(find x) A[2]=3 /usr/bin/tar xf a", ["find", "tar"]),
    ("sudo -u root -n env -i A=b find . ; env", ["find"]),
    ('\\find x; "gr"\'ep\' y; $TOOL wc; "$TOOL" wc', ["find", "grep"]),
    ('echo "$(grep x "$(find y)") wc" \'tar\' `wc z`', ["echo", "grep", "find", "wc"]),
    ("echo ${x:-$(find y)} \\\n grep", ["echo", "find"]),
    ("cat <<'EOF' >f; ls\nfind .\n$(grep)\nEOF\nwc -l f", ["cat", "ls", "wc"]),
    ("a <<A <<-B\nfind\nA\n\tgrep\n\tB\nwc", ["a", "wc"]),
    ("grep x <<< 'find'; wc", ["grep", "wc"]),
    (">out 2>/dev/null find . 2>&1 >/dev/null|wc &>f", ["find", "wc"]),
    ("diff <(find a) >(grep b)", ["diff", "find", "grep"]),
    ("x=(find grep) tar; y=(\nfind\n)", ["tar"]),
    ("for f in find grep; do wc $f; done; select x in tar; do ls; done", ["wc", "ls"]),
    ("if ! grep -q x f; then\n tar x\nelse wc; fi", ["grep", "tar", "wc"]),
    ("while find x; do :; done", ["find", ":"]),
    ("case $x in find|grep) tar x;; (a) wc;; esac; docker ps", ["tar", "wc", "docker"]),
    ("[[ $x =~ (find|grep) && wc ]] && tar", ["tar"]),
    ("((find > (3))) || grep $((wc + 1))", ["grep"]),
    ("find() { grep x; }; find () { wc; }; function tar { ls; }", ["grep", "wc", "ls"]),
    ("(cd a && find .; { grep; }) | wc", ["cd", "find", "grep", "wc"]),
    ("time find; coproc grep", ["find", "grep"]),
    ("ls *.@(find|grep) $'it\\'s find' | wc", ["ls", "wc"]),
    ("echo 'unclosed; find", ["echo"]),
    ('echo "unclosed $(find', ["echo", "find"]),
    (") ;; } find", []),
]


@pytest.mark.parametrize(("script", "words"), CASES)
def test_the_command_words_of_a_script(script: str, words: list[str]) -> None:
    assert sorted(command_words(script)) == sorted(words)


UNITS = ["a;", "$(", "`", "(", ")", "'", '"', "${", "}", "<<a\n", "case a in ", "\\", "$((", "find|", "[[ ", "()",
         "x=(", '"$(', "${a:-", "#", "&>", "\n"]  # fmt: skip


@given(
    st.lists(st.sampled_from([*UNITS, "find", " ", "esac", "function ", "=", "\ud800"]) | st.characters()).map("".join)
)
def test_any_text_has_command_words_without_blanks_in_their_names(script: str) -> None:
    assert all(command_words(script))


@pytest.mark.parametrize("unit", UNITS)
def test_eight_times_the_text_takes_eight_times_the_calls(unit: str) -> None:
    """Counts calls of functions and steps of generators, because timing is unreliable on a busy machine."""

    def calls(length: int) -> int:
        count = 0

        def see(*_: object) -> None:
            nonlocal count
            count += 1

        sys.setprofile(see)
        try:
            command_words(unit * (length // len(unit)))
        finally:
            sys.setprofile(None)
        return count

    assert calls(8_000) < 10 * calls(1_000)


def test_nesting_has_no_limit() -> None:
    assert command_words("$(" * 20_000 + "find") == ["find"]
