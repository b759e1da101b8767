"""breakpoints: when a debugged trial stops, and what it says then."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import pytest

from harness.trajectory import Reply, Step
from tbench.errors import UsageError
from tbench.runs.live.breakpoints import REWARD, OnChange, OnExit, OnScreen, OnTest
from tbench.runs.live.changed_files import ChangedFiles
from tbench.sandbox.backend import ExecResult
from tbench.sandbox.fake import FakeSandbox


def returning(*values: Mapping[str, str]) -> Callable[[], Awaitable[Mapping[str, str]]]:
    left = list(values)

    async def judge() -> Mapping[str, str]:
        return left.pop(0)

    return judge


async def stops(before: Mapping[str, str], after: Mapping[str, str], name: str = "") -> str:
    point = OnTest(name, returning(before, after))
    await point.begin()
    return await point.reached()


async def test_a_test_stops_the_trial_in_either_direction_or_when_it_no_longer_runs() -> None:
    assert await stops({"t::a": "failed"}, {"t::a": "failed"}) == ""
    assert await stops({"t::a": "failed"}, {"t::a": "passed"}) == "t::a: failed, now passed"
    assert await stops({"t::a": "passed"}, {}) == "t::a: passed, now not run"
    assert await stops({REWARD: "0"}, {REWARD: "0.5"}) == f"{REWARD}: 0, now 0.5"


async def test_other_tests_do_not_stop_a_trial_that_waits_for_one() -> None:
    assert await stops({"t::a": "failed", "t::b": "failed"}, {"t::a": "passed", "t::b": "failed"}, "b") == ""
    with pytest.raises(UsageError, match="c: no test has this in its name; tests that ran now: a"):
        await stops({"t::a": "failed", REWARD: "0"}, {}, "c")


async def test_only_the_last_finished_step_s_exit_code_stops() -> None:
    reply, codes = Reply(content=""), (1, 0, None, 2)
    steps = [Step(index=index, reply=reply, exit_code=code) for index, code in enumerate(codes, 1)]
    found = [await OnExit(lambda done=steps[:number]: done).reached() for number in range(5)]
    assert found == ["", "exit code 1 at step 1", "", "", "exit code 2 at step 4"]


async def test_a_text_on_the_screen_stops() -> None:
    async def screen() -> str:
        return "$ make\nready>"

    assert [await OnScreen(text, screen).reached() for text in ("ready>", "steady")] == ["the screen shows ready>", ""]


@pytest.mark.parametrize(
    ("path", "kind", "stops"),
    [
        ("/srv/x", "changed", True),
        ("/srv/x/y", "added", True),
        ("/data/x/y", "removed", True),
        ("/srv", "removed", True),
        ("/srv", "changed", False),
        ("/srv/xy", "added", False),
        ("/", "changed", False),
    ],
)
async def test_a_path_has_changed_with_what_is_below_it_and_with_the_coming_and_going_above(
    path: str, kind: str, stops: bool
) -> None:
    sandbox = FakeSandbox()
    sandbox.answers += [a_look("/srv"), ExecResult(0, b"/data/x\n"), ExecResult(0, b"/data/x\n")]
    point = OnChange("/srv/x", ChangedFiles(sandbox), lambda: {path: kind})  # type: ignore[dict-item]
    await point.begin()
    assert bool(await point.reached()) is stops


async def test_a_path_is_not_watched_where_files_cannot_be_listed() -> None:
    sandbox = FakeSandbox()
    sandbox.answers.append(ExecResult(None, timed_out=True))
    with pytest.raises(UsageError, match=r"/srv: cannot be watched: .* too many files"):
        await OnChange("/srv", ChangedFiles(sandbox), dict).begin()


def a_look(*paths: str, at: int = 1) -> ExecResult:
    """Return the output of a look; paths without a flag have not changed."""
    lines = [path if path[0] in "12m" else f"0{path}" for path in ("/", *paths)]
    return ExecResult(0, "\n".join([f"{at} 2026-01-01 00:00:0{at}.500000000 +0000", *lines, ""]).encode())


async def test_changes_between_looks_are_what_was_added_changed_and_removed() -> None:
    sandbox = FakeSandbox()
    files = ChangedFiles(sandbox)
    sandbox.answers += [
        a_look("/a", "/a/b", "/a/b/c", "/d"),
        a_look("1/a", "1/a/new", "1/d", at=2),
        a_look("1/a", "1/a/b", at=3),
    ]
    assert await files.look() == {}
    assert await files.look() == {"/a": "changed", "/a/b": "removed", "/a/new": "added", "/d": "changed"}
    assert files.is_directory("/a") and not files.is_directory("/d")
    assert await files.look() == {"/a": "changed", "/a/b": "added", "/a/new": "removed"}
    assert not files.is_directory("/a/b")


@pytest.mark.parametrize("answer", [ExecResult(None, timed_out=True), ExecResult(1, b""), ExecResult(0, b"0/\n")])
async def test_after_a_look_that_fails_nothing_is_looked_at_any_more(answer: ExecResult) -> None:
    sandbox = FakeSandbox()
    files = ChangedFiles(sandbox)
    sandbox.answers += [answer, a_look("1/x")]
    assert await files.look() == {} and files.problem
    assert await files.look() == {} and len(sandbox.answers) == 1
