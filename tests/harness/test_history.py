"""history: the messages as they are sent, and how long they are as far as the server has told."""

from __future__ import annotations

import math

from harness.history import IMPOSSIBLE_USAGE, PROMPT_TRUNCATED, History
from harness.trajectory import Message, Reply, ToolCall, Usage


def history(*contents: str) -> History:
    made = History()
    made.open([Message(role="user", content=content) for content in contents])
    return made


def test_text_that_nobody_counted_is_estimated_on_the_high_side() -> None:
    assert history("a" * 100).tokens == 40


def test_what_the_server_counted_is_taken_over() -> None:
    made = history("a" * 100)
    made.count(Usage(prompt_tokens=25))
    assert made.tokens == 25
    made.add_reply(Reply(content="b" * 40, usage=Usage(prompt_tokens=25, completion_tokens=10)))
    assert made.tokens == 35
    made.tell("c" * 10)
    assert made.tokens == 39


def test_a_reply_with_reasoning_is_estimated_without_it() -> None:
    made = history("a" * 100)
    made.count(Usage(prompt_tokens=25))
    made.add_reply(Reply(content="b" * 10, reasoning="hm " * 999, usage=Usage(prompt_tokens=25, completion_tokens=900)))
    assert made.tokens == 29


def test_thinking_within_a_reply_is_not_expected_in_the_next_prompt() -> None:
    made = history("a" * 100)
    made.count(Usage(prompt_tokens=25))
    thought = f"<think>{'hm ' * 999}</think>\n"
    made.add_reply(Reply(content=f"{thought}{'b' * 10}", usage=Usage(prompt_tokens=25, completion_tokens=900)))
    assert made.tokens == 29


def test_a_server_that_does_not_count_leaves_the_estimate() -> None:
    made = history("a" * 100)
    made.count(Usage())
    made.add_reply(Reply(content="b" * 100))
    assert made.tokens == 80


def test_other_versions_are_measured_at_the_servers_rate() -> None:
    made = history("a" * 100)
    made.count(Usage(prompt_tokens=50))
    assert made.estimate([Message(role="user", content="b" * 10)]) == 5
    assert made.bytes_of(5) == 10
    made.replace([Message(role="user", content="b" * 10)])
    assert (made.tokens, len(made.messages)) == (5, 1)


def test_a_refusal_says_that_the_history_is_longer_than_it_seemed() -> None:
    made = history("a" * 100)
    made.is_at_least(200)
    assert made.tokens == 200
    made.is_at_least(50)
    assert made.tokens == 200


def test_arguments_of_a_call_take_room() -> None:
    made = history("a")
    call = ToolCall(id="1", name="bash", arguments="x" * 96)
    made.add_reply(Reply(content="", tool_calls=(call,)), call)
    assert made.messages[-1].tool_calls == (call,)
    assert made.tokens > 30


def test_what_is_added_to_the_last_message_is_no_message_of_its_own() -> None:
    history = History()
    history.open([Message(role="user", content="task")])
    history.add_to_last("Look first.")
    assert history.messages == [Message(role="user", content="task\n\nLook first.")]
    assert history.opening == tuple(history.messages)
    assert history.tokens == math.ceil(len("task\n\nLook first.") * 0.4)


def test_what_is_added_to_a_reply_is_a_message_of_its_own() -> None:
    history = History()
    history.open([Message(role="user", content="task")])
    history.add_reply(Reply(content="done"))
    history.add_to_last("Go on.")
    assert [message.role for message in history.messages] == ["user", "assistant", "user"]


# -- counts that contradict the history --------------------------------------------------------------


def counted(made: History, tokens: int) -> str | None:
    return made.count(Usage(prompt_tokens=tokens))


def turn(made: History, output: str, **reply: str) -> None:
    made.add_reply(Reply(content="ls", **reply) if "content" not in reply else Reply(**reply))
    made.tell(output)


def test_a_count_that_stops_growing_while_the_history_grows_is_a_truncated_prompt() -> None:
    made = history("words " * 500)
    assert counted(made, 1000) is None
    for _ in range(3):
        turn(made, "more words " * 50)
        assert counted(made, 1000) == PROMPT_TRUNCATED
    assert made.tokens > 1600, "what was truncated is no measure"


def test_a_long_prompt_of_few_tokens_is_truncated_from_the_first() -> None:
    assert counted(history("some words of text " * 5000), 4096) == PROMPT_TRUNCATED


def test_text_that_makes_few_tokens_is_no_truncation() -> None:
    made = history("Do it.")
    assert counted(made, 20) is None
    turn(made, "=" * 50_000 + "\n" + " " * 50_000)
    assert counted(made, 700) is None


def test_thinking_that_a_template_leaves_out_later_is_no_truncation() -> None:
    made = history("words " * 100)
    assert counted(made, 200) is None
    turn(made, "out " * 20, content=f"<think>{'hm ' * 3000}</think>ls")
    assert counted(made, 3300) is None
    turn(made, "out " * 20)
    assert counted(made, 300) is None
    made = history("words " * 100)
    turn(made, "out " * 20, reasoning="hm " * 3000)
    assert counted(made, 3300) is None
    turn(made, "out " * 20)
    assert counted(made, 300) is None


def test_counts_that_stand_still_over_many_thoughtful_turns_are_a_truncated_prompt() -> None:
    made = history("words " * 500)
    for tokens in (1000, 1200, 1400):
        assert counted(made, tokens) is None
        turn(made, "out " * 20, content=f"<think>{'hm ' * 200}</think>ls")
    signs = []
    for _ in range(8):
        signs.append(counted(made, 1400))
        turn(made, "out " * 20, content=f"<think>{'hm ' * 200}</think>ls")
    assert signs == [*[None] * 5, *[PROMPT_TRUNCATED] * 3]


def test_a_shorter_version_of_the_history_is_no_truncation() -> None:
    made = history("words " * 5000)
    assert counted(made, 5000) is None
    made.replace([Message(role="user", content="words " * 500)])
    turn(made, "more")
    assert counted(made, 520) is None


def test_counts_of_what_no_cache_had_are_no_truncation_and_not_believed() -> None:
    made = history("words " * 2000)
    assert counted(made, 2100) is None
    for _ in range(2):
        turn(made, "more words " * 50)
        assert counted(made, 300) == IMPOSSIBLE_USAGE
    assert made.tokens > 2100


def test_more_tokens_than_bytes_can_make_are_not_believed() -> None:
    made = history("a" * 1000)
    assert counted(made, 10**9) == IMPOSSIBLE_USAGE
    assert made.tokens == 400
