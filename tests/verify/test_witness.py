"""What bash told of the reward."""

from __future__ import annotations

import pytest

from tbench.verify.witness import reward_lines, starts_no_subshell, witnessed_reward, writes_alone

AT = "+/tests/test.sh:7 "


@pytest.mark.parametrize(
    "line",
    [
        "echo 1 > /logs/verifier/reward.txt",
        "  echo 1 >/logs/verifier/reward.txt",
        'if [ $? -eq 0 ]; then echo 1 > "$LOGS/reward.txt"; fi',
        "[ $ok ] && echo 1 > /logs/verifier/reward.txt || echo 0 > /logs/verifier/reward.txt",
        "  0) echo 1 > /logs/verifier/reward.txt ;;",
        "printf '%s\\n' \"$score\" > $REWARD_FILE",
        "if [ $? -eq 0 ]; then echo 1; else echo 0; fi > /logs/verifier/reward.txt",
        "if true; then echo 1; fi > /logs/verifier/reward.txt",
        "{ echo '{\"reward\": 1}' > /logs/verifier/reward.json; }",
    ],
)
def test_lines_that_write_the_reward_are_known(line: str) -> None:
    assert reward_lines(f"#!/bin/bash\n{line}\n".encode()) == (2,)


@pytest.mark.parametrize(
    "script",
    [
        "python3 /tests/score.py > /logs/verifier/reward.txt",
        "if true; then score; fi > /logs/verifier/reward.txt",
        "cat > x <<END\necho 1 > /logs/verifier/reward.txt\nEND",
        "echo 1 >> /logs/verifier/reward.txt",
        "set +x\necho 1 > /logs/verifier/reward.txt",
        "# echo 1 > /logs/verifier/reward.txt",
    ],
)
def test_other_ways_to_write_it_have_no_witness(script: str) -> None:
    assert reward_lines(script.encode()) == ()


@pytest.mark.parametrize(
    ("command", "reward"),
    [
        ("echo 1", 1.0),
        ("echo -n 0.5", 0.5),
        ("echo '{\"reward\": 0.25}'", 0.25),
        ("printf '%s\\n' 0.75", 0.75),
        ("printf '1\\n'", 1.0),
        ("echo nothing", None),
        ("'[' 0 -eq 0 ']'", None),
        ("echo 'unfinished", None),
    ],
)
def test_the_value_is_read_from_the_traced_command(command: str, reward: float | None) -> None:
    assert witnessed_reward([AT + command]) == reward


def test_the_last_write_counts() -> None:
    assert witnessed_reward([f"{AT}echo 0", f"{AT}'[' 0 -eq 0 ']'", f"{AT}echo 1", f"{AT}'[' x ']'"]) == 1.0
    # What else stands on the line, and the end that the verifier's own trap tells.
    assert witnessed_reward([f"{AT}echo 0", f"{AT}echo done", f"{AT}echo ended"]) == 0.0
    assert witnessed_reward([]) is None


def test_a_reward_has_a_witness_where_nothing_else_speaks_of_one() -> None:
    script = b"# writes the reward\npytest\necho 1 > /logs/verifier/reward.txt\n"
    assert writes_alone(script, [b"def test(): pass\n"])
    assert not writes_alone(script, [b'open("/logs/verifier/reward.txt", "w")'])
    assert not writes_alone(script + b"python3 score.py > /logs/verifier/reward.txt\n", [])
    assert not writes_alone(b"pytest\n", [])


IF = "if [ $? -eq 0 ]; then\n  echo 1 > $LOGS/reward.txt\nelse\n  echo 0 > $LOGS/reward.txt # (no)\nfi\n"


@pytest.mark.parametrize(
    ("script", "line", "is_plain"),
    [
        (f"pytest\n{IF}exit 0\n", 3, True),
        (f"pytest\n{IF}", 5, True),
        ("pytest && echo 1 > reward.txt || echo 0 > reward.txt; x=$((1 + 1)); exit $x", 1, False),
        ("case $x in\n 0) echo 1 > reward.txt ;;\n *) echo 0 > reward.txt ;;\nesac\ncd /", 2, True),
        ("echo 0 > reward.txt\npython3 score.py\n", 1, True),
        ("echo 0 > reward.txt\n(cd /logs; echo 1 > reward.txt)\n", 1, False),
        ("echo 0 > reward.txt; (echo 1 > reward.json)", 1, False),
        ("echo 0 > reward.txt\nx | exit 0\n", 1, False),
        ("for x in 1 2; do\n  echo 0 > reward.txt\ndone\n", 2, False),
        ("echo done\n", 1, False),
    ],
)
def test_behind_the_last_write_a_script_starts_a_subshell_or_none(script: str, line: int, is_plain: bool) -> None:
    assert (
        starts_no_subshell(script.encode(), [f"+/tests/test.sh:{line} echo 0", f"+/tests/test.sh:{line} '[' ]"])
        is is_plain
    )


def test_without_a_write_nothing_is_known_of_what_came_behind_it() -> None:
    assert not starts_no_subshell(IF.encode(), [])
    assert not starts_no_subshell(IF.encode(), ["+/tests/test.sh:99 echo 1"])
