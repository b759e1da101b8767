"""replies: metadata of replies is counted, and oddities are reported."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from harness.reply_stats import ReplyStats, equal_replies_note, reply_notes
from harness.trajectory import Compaction, Reply, Step, Trajectory

LONG = "a reply that is long enough to be telling, " * 10


def seen(*replies: Reply) -> ReplyStats:
    return ReplyStats.from_replies(replies)


def test_all_replies_of_a_conversation_are_counted_by_what_they_say():
    steps = [
        Step(index=1, reply=Reply(content=LONG, model="a", fingerprint="f1", cut=True, signs=("odd", "odd"))),
        Step(index=2, reply=Reply(content="b", model="a", weights="w1")),
    ]
    summary = Compaction(
        step=2, policy="summarize", messages_before=5, messages_after=2, tokens_before=9, tokens_after=3,
        summary=Reply(content="c", model="b"),
    )  # fmt: skip
    counted = ReplyStats.from_trajectory(Trajectory(protocol="p", steps=tuple(steps), compactions=(summary,)))
    assert counted.model_dump(exclude={"first"}) == {
        "total": 3,
        "models": {"a": 2, "b": 1},
        "fingerprints": {"f1": 1},
        "weights": {"w1": 1},
        "signs": {"cut": 1, "odd": 1},
    }
    assert counted.first == seen(Reply(content=LONG)).first
    twice = ReplyStats.sum([counted, counted])
    assert (twice.total, twice.models, twice.first) == (6, {"a": 4, "b": 2}, counted.first)


def test_nothing_is_said_of_ordinary_replies():
    trials = [seen(*[Reply(content="x", model="m", fingerprint="f")] * 20, Reply(content="", model="m", cut=True))] * 4
    assert reply_notes(trials) == ()
    assert reply_notes([]) == ()


@pytest.mark.parametrize("sign", ["cut", "reasoning_only", "prompt_truncated", "near_time_limit", "not_known_yet"])
def test_a_sign_of_many_replies_is_said_with_its_share_also_one_that_no_one_knows(sign: str):
    odd = Reply(content="x", signs=() if sign == "cut" else (sign,), cut=sign == "cut")
    (note,) = reply_notes([seen(odd, Reply(content="y")), seen(Reply(content="z"), Reply(content="z"))])
    assert note.startswith("1 of 4 replies (25 %), in 1 trial, ")
    assert sign != "not_known_yet" or sign in note


def test_several_models_under_one_name_are_said_with_the_trials_that_had_them():
    a, b = Reply(content="x", model="a"), Reply(content="x", model="fallback")
    (note,) = reply_notes([seen(a, a), seen(a, b), seen(a)])
    assert "2 models: a (4), fallback (1); 1 trial had several" in note


@pytest.mark.parametrize(
    ("said", "is_other"),
    [
        ("tiny", False), ("tiny-2024-08-06", False), ("org/Tiny", False), ("alias", False),
        ("tiny-large", True), ("fallback", True),
    ],
)  # fmt: skip
def test_replies_that_all_name_another_model_than_was_asked_for_are_said(said: str, is_other: bool):
    assert bool(reply_notes([seen(Reply(content="x", model=said))], ["provider/tiny", "alias"])) is is_other


@pytest.mark.parametrize(
    ("firsts", "is_said"),
    [
        ({"t": ["1", "1", "1"]}, True),
        ({"t": ["1", "1"], "u": ["2", "2"]}, True),
        ({"t": ["1", "1"]}, False),
        ({"t": ["1", "1", "1", "1", "1", "2"]}, False),
        ({"t": ["1"] * 19 + ["2"]}, True),
        ({"t": ["1", "2", "3"], "u": ["4", "4", "5"]}, False),
        ({"t": [None, None, None]}, False),
        ({"t": ["1"], "u": ["1"], "v": ["1"]}, False),
    ],
)
def test_equal_first_replies_at_several_seeds_are_said(firsts: dict[str, Sequence[str | None]], is_said: bool):
    assert (equal_replies_note(firsts) is not None) is is_said


def test_only_a_reply_long_enough_to_differ_has_a_digest():
    assert seen(Reply(content="ls")).first is None
    assert seen(Reply(content=LONG)).first == seen(Reply(content=LONG)).first
    assert seen(Reply(content="", reasoning=LONG)).first not in (None, seen(Reply(content=LONG)).first)
