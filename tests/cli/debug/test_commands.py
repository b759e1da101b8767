"""Parsing of debugger commands."""

from __future__ import annotations

from typing import Any

import pytest

from tbench.cli.debug.commands import parse_command
from tbench.errors import UsageError


@pytest.mark.parametrize(
    ("words", "asked"),
    [
        ("step", {"do": "step", "count": 1}),
        ("  step 3 ", {"do": "step", "count": 3}),
        ("run", {"do": "run", "to_step": None, "until_text": None}),
        ("run to 5", {"do": "run", "to_step": 5, "until_text": None}),
        ("run until 3 failed", {"do": "run", "to_step": None, "until_text": "3 failed"}),
        ("run until changed /srv/x y", {"do": "run", "until_changed": "/srv/x y", "until_text": None}),
        ("run until test", {"do": "run", "until_test": "", "until_text": None}),
        ("run until test test_sum", {"do": "run", "until_test": "test_sum"}),
        ("run until exit", {"do": "run", "until_exit": True, "until_text": None}),
        ("run until text exit", {"do": "run", "until_exit": False, "until_text": "exit"}),
        ("run until exit 1", {"do": "run", "until_exit": False, "until_text": "exit 1"}),
        ("edit  two\nlines ", {"do": "edit", "text": " two\nlines "}),
        ("drop not now", {"do": "drop", "why": "not now"}),
        ("sample", {"do": "sample", "number": 1, "seed": None, "temperature": None}),
        ("sample 3", {"do": "sample", "number": 3, "seed": None, "temperature": None}),
        ("sample seed=7 temperature=1.5", {"do": "sample", "number": 1, "seed": 7, "temperature": 1.5}),
        ("choose 2", {"do": "choose", "sample": 2}),
        (r"type ls\n\x03\e[A\\n", {"do": "type", "keys": "ls\n\x03\x1b[A\\n"}),
        ("say Look again.", {"do": "say", "text": "Look again."}),
        ("verify", {"do": "verify"}),
        ("rewind 3", {"do": "rewind", "step": 3}),
        ("cassette", {"do": "cassette"}),
        ("quit", {"do": "quit", "keep": False}),
        ("quit keep", {"do": "quit", "keep": True}),
        ('{"do": "say", "text": "x"}', {"do": "say", "text": "x"}),
        ("screen", None),
        ("steps", None),
    ],
)
def test_words_are_requests(words: str, asked: dict[str, Any] | None) -> None:
    request = parse_command(words, "t/0").request
    if asked is None:
        assert request is None
    else:
        assert request is not None
        found = request.model_dump()
        assert found["trial"] == "t/0"
        assert asked.items() <= found.items()


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("stp", "stp: no such command; did you mean step?"),
        ("xyzzy", "xyzzy: no such command; commands: step, run, edit"),
        ("step two", "step two: not understood; usage: step [N]"),
        ("run to", "run to: not understood; usage: run, run to N, run until TEXT"),
        ("run until changed srv", "run until changed srv: not understood; usage: run, run to N, run until TEXT"),
        ("edit", "edit: not understood; usage: edit TEXT"),
        ("verify now", "verify now: not understood; usage: verify"),
        ("sample colour=red", "sample colour=red: not understood; usage: sample"),
        ("quit now", "quit now: not understood; usage: quit, or quit keep"),
        ("{not json", "{not json: invalid JSON: "),
        ("rewind", "rewind: not understood; usage: rewind N"),
        ("rewind 0", "rewind 0: step: Input should be greater than or equal to 1; usage: rewind N"),
        ('{"do": "fly"}', '{"do": "fly"}: Input tag'),
        ("[1]", "[1]: no such command; "),
    ],
)
def test_what_cannot_be_understood_is_one_line(words: str, problem: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_command(words, "t/0")
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)
