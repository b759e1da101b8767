"""The full-screen debugger on a real terminal, connected to a fake run."""

from __future__ import annotations

import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from debug_server import TRIAL, FakeRun
from debugging_users import BOUND_SEC, User


@pytest.fixture
def run(tmp_path: Path) -> Iterator[FakeRun]:
    with FakeRun(tmp_path / "run") as run:
        yield run


def until(condition: Callable[[], Any]) -> None:
    ends_at = time.monotonic() + BOUND_SEC
    while not condition():
        assert time.monotonic() < ends_at
        time.sleep(0.01)


def test_each_key_is_a_command_of_the_socket(run: FakeRun) -> None:
    with User(f"{run.directory}/{TRIAL}") as user:
        user.sees("do .*reply 1")
        lines = user.sees("line 3 of the screen")  # it is painted in pieces
        assert lines[0].startswith(f" {TRIAL}  |  step 1  |  waiting for you")
        assert "line 3 of the screen" in lines[4]
        assert lines[22].startswith("s step  n to step")
        assert "\\u001b[31mreply 1" in "\n".join(lines)
        user.press("s", "do .*reply 2")
        user.press(" ", "do .*reply 3")
        user.press("n5\r", "do .*reply 4")
        user.press("uready>\r", "do .*reply 5")
        user.press("e\x15other\nlines\r", "^> do other")
        user.press("dnot now\r", "done")
        user.press("k\r", r"^1 seed 0 \*")
        user.press("3", "done")
        user.press("r", r"sample \[1\]")
        user.press("2 seed=9 temperature=0.5\r", "done")
        user.press("mLook at the log.\r", "done")
        user.press("v", "verify at 4: reward 0.5")
        user.press("S", "done")
        user.press("p", r"\|  held")
        user.press("p", "waiting for you")
        user.press(":steps\r", "because it is so")
        user.press("C", "done")
        user.press("b2\r", r"step 2  \|  waiting for you  \|  differs at step 1")
        assert [line for line in user.lines if "done 2" in line] == []
        user.press("?", "run the verifier now, in a copy")
        user.press("x", "because it is so")
        user.press("z", "no such key")
        user.press("\x1b[200~s\x1b[201~", "pasted text only goes")
        user.press("d", "reason for discarding")
        user.press("\x1b", "^s step  n to step")
        user.press("q")
        assert user.ends() == 0
    assert run.asks("step") == [{"count": 1}] * 2
    assert [(each["to_step"], each["until_text"]) for each in run.asks("run")] == [(5, None), (None, "ready>")]
    assert run.asks("edit") == [{"text": "other\nlines"}]
    assert run.asks("drop") == [{"why": "not now"}]
    assert [each["number"] for each in run.asks("sample")] == [3, 2]
    assert run.asks("sample")[1] == {"number": 2, "seed": 9, "temperature": 0.5}
    assert run.asks("choose") == [{"sample": 3}]
    assert run.asks("say") == [{"text": "Look at the log."}]
    assert (len(run.asks("verify")), len(run.asks("snapshot")), len(run.asks("cassette"))) == (1, 1, 1)
    assert run.asks("rewind") == [{"step": 2}]
    assert (len(run.asks("pause")), len(run.asks("continue"))) == (1, 1)
    assert run.asks("stepping") == [{"on": True}, {"on": False}]


def test_a_user_types_into_the_terminal_and_gives_it_back(run: FakeRun) -> None:
    with User(f"{run.directory}/{TRIAL}") as user:
        user.sees("do .*reply 1")
        user.press("t", "YOU TYPE")
        user.press("ls\x03q\x1b[A\r", re.escape(repr(b"ls\x03q\x1b[A\r")))
        user.press("\x1d", "s step  n to step")
        user.press("\x03")
        assert user.ends() == 130
    assert run.typed == b"ls\x03q\x1b[A\r"


def test_the_screen_follows_its_window(run: FakeRun) -> None:
    with User(f"{run.directory}/{TRIAL}") as user:
        user.sees("do .*reply 1")
        user.press("s", "do .*reply 2")
        assert not any("because it is so" in line for line in user.lines)
        user.resize(140, 30)
        user.sees("│because it is so")
        user.sees("^s step .* q quit  \\? help")
        assert user.lines[28].startswith("s step")
        user.resize(30, 8)
        user.sees("this window is too small")
        user.resize(80, 24)
        user.press("\t", "odd: step 1 is odd")
        user.child.kill(signal.SIGTERM)
        assert user.ends() == 130


def test_the_reply_is_edited_in_the_user_s_editor(run: FakeRun, tmp_path: Path) -> None:
    editor = tmp_path / "editor"
    editor.write_text("#!/bin/sh\nstty -a | grep -q ' icanon' && printf 'edited here' > $1\n")
    editor.chmod(0o755)
    with User(f"{run.directory}/{TRIAL}", EDITOR=str(editor)) as user:
        user.sees("do .*reply 1")
        user.press("e", "^> do edited here")
        user.press("q")
        assert user.ends() == 0


def test_the_end_of_the_run_gives_the_terminal_back(run: FakeRun) -> None:
    with User(f"{run.directory}/{TRIAL}") as user:
        user.sees("do .*reply 1")
        run.hang_up()
        assert user.ends() == 0
        assert "the run has ended" in user.printed
