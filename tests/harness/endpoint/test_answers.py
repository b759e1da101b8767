"""answers: replies are parsed in all formats of servers and gateways."""

from __future__ import annotations

from typing import Any

import pytest

from harness.endpoint.answers import read_completion
from harness.endpoint.completion import classify_finish_reason, parse_message
from harness.endpoint.retry import TransientError
from harness.trajectory import Reply

WHOLE = """stop STOP eos eos_token FinishReason.STOP FINISH_REASON_STOP COMPLETE completed end_turn endTurn tool_use
tool_calls function_call stop_sequence eosFound stopStringFound <|im_end|> <|eot_id|> normal_stop finished"""
CUT = """length max_tokens MAX_TOKENS max_output_tokens model_length FinishReason.MAX_TOKENS repetition token_limit
maxPredictedTokensReached contextLengthReached model_context_window_exceeded FINISH_REASON_MAX_TOKENS"""
FAILED = """abort error content_filter content_filtered SAFETY userStopped modelUnloaded rate_limit time_limit timeout
MALFORMED_FUNCTION_CALL UNEXPECTED_TOOL_CALL MAX_TOOL_CALLS pause_turn refusal guardrail_intervened cancelled unknown
FINISH_REASON_UNSPECIFIED incomplete insufficient_system_resource something_new unfinished stop_on_error"""
USAGE = {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12}


def read(said: dict[str, Any], /, *, usage: Any = USAGE, tools: bool = False, **choice: Any) -> Reply:
    body = {"choices": [{"finish_reason": "stop", "message": {"role": "assistant", **said}, **choice}]}
    return read_completion({**body, "usage": usage}, max_tokens=100, context_tokens=None, takes_calls=tools)


def test_of_several_choices_the_one_with_the_index_0_counts() -> None:
    choices = [{"index": at, "message": {"content": str(at)}, "finish_reason": "stop"} for at in (1, 0)]
    assert read_completion({"choices": choices}, max_tokens=100, context_tokens=None).content == "0"


class TestEnding:
    @pytest.mark.parametrize(
        ("reason", "how"),
        [(word, how) for how, words in (("whole", WHOLE), ("cut", CUT), ("failed", FAILED)) for word in words.split()],
    )
    def test_a_reason_is_judged_by_its_words(self, reason, how):
        assert classify_finish_reason(reason) == how

    def test_what_is_no_word_is_no_end(self):
        assert [classify_finish_reason(reason) for reason in (None, "", 1, [], {"type": "abort"})] == ["failed"] * 5
        assert classify_finish_reason({"type": "length", "length": 64}) == "cut"

    @pytest.mark.parametrize(
        "beside",
        [
            {"native_finish_reason": "abort"},
            {"provider_specific_fields": {"native_finish_reason": "abort"}},
            {"message": {"content": "x", "provider_specific_fields": {"native_finish_reason": "something_new"}}},
            {"finish_reason": None},
            {"finish_reason": "content_filter"},
        ],
    )
    def test_a_reply_that_broke_off_behind_a_gateway_is_not_whole(self, beside):
        with pytest.raises(TransientError, match=r"finish_reason (abort|something_new|None|content_filter)"):
            read({"content": "x"}, **beside)

    @pytest.mark.parametrize(
        ("said", "choice", "cut"),
        [
            ({"content": "x"}, {}, False),
            ({"content": "x"}, {"finish_reason": "end_turn"}, False),
            ({"content": "x"}, {"finish_reason": "length"}, True),
            ({"content": "x"}, {"native_finish_reason": "MAX_TOKENS"}, True),
            ({"content": "x"}, {"finish_reason": "tool_calls"}, True),
            ({"content": "x", "tool_calls": [{"function": {"name": "bash", "arguments": "{}"}}]}, {}, True),
            ({"content": "", "reasoning": "hm"}, {}, True),
        ],
    )
    def test_of_replies_with_just_max_tokens_only_a_text_that_the_model_ended_is_whole(self, said, choice, cut):
        usage = {"prompt_tokens": 10, "completion_tokens": 100, "total_tokens": 110}
        assert read(said, usage=usage, **choice).cut is cut

    def test_a_native_reason_may_say_that_a_reply_was_cut_or_the_same_in_other_words(self):
        assert read({"content": "x"}, native_finish_reason="MAX_TOKENS").cut
        assert not read({"content": "x"}, provider_specific_fields={"native_finish_reason": "eos_token"}).cut
        assert not read({"content": "x"}, stop_reason="error</s>", native_finish_reason=None).cut


class TestShapes:
    @pytest.mark.parametrize(
        ("message", "field"),
        [
            ({"reasoning": "why"}, "reasoning"),
            ({"reasoning_content": "why", "reasoning": None}, "reasoning_content"),
            ({"thinking": "why"}, "thinking"),
            ({"provider_specific_fields": {"reasoning": "why", "refusal": None}}, "reasoning_content"),
            ({"reasoning_details": [{"type": "reasoning.text", "text": "why"}]}, "reasoning_content"),
            ({"thinking_blocks": [{"type": "thinking", "thinking": "why", "signature": "s"}]}, "reasoning_content"),
            ({"content": [{"type": "thinking", "thinking": [{"type": "text", "text": "why"}]}, "ls"]}, "content"),
            ({"content": [{"type": "reasoning", "text": "why"}, {"type": "text", "text": "ls"}]}, "content"),
        ],
    )
    def test_thinking_is_found_wherever_it_stands(self, message, field):
        reply, said = read({"content": "ls", **message}), parse_message({"content": "ls", **message})
        assert (reply.content, reply.reasoning, reply.signs) == ("ls", "why", ())
        assert said is not None and said.reasoning_field == field

    def test_parts_of_text_are_joined_and_calls_among_them_read(self):
        call = {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}}
        reply = read({"content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}, call, {"type": "x"}]})
        assert reply.content == "ab"
        assert [(each.id, each.name, each.arguments) for each in reply.tool_calls] == [
            ("t1", "bash", '{"command": "ls"}')
        ]

    def test_content_of_no_readable_shape_is_asked_for_again(self):
        with pytest.raises(TransientError, match="not text"):
            read({"content": 3})

    def test_a_reply_of_thinking_alone_has_the_sign(self):
        assert read({"content": None, "reasoning": "why"}).signs == ("reasoning_only",)
        assert read({"content": None, "reasoning": "why"}, finish_reason="length").signs == ()

    @pytest.mark.parametrize("place", ["content", "reasoning"])
    def test_a_call_that_was_left_in_the_text_has_the_sign_where_calls_were_asked_for(self, place):
        raw = {"content": "", place: '<tool_call>{"name": "bash", "arguments": {"command": "ls"}}</tool_call>'}
        assert "raw_tool_call" in read(raw, tools=True).signs
        assert "raw_tool_call" not in read(raw).signs


ANALYSIS = "<|channel|>analysis<|message|>Need ls.<|end|>"
CALL = '<|start|>assistant<|channel|>commentary to=functions.bash <|constrain|>json<|message|>{"command":"ls"}<|call|>'


class TestChannels:
    @pytest.mark.parametrize(
        "text",
        [
            f"{ANALYSIS}<|start|>assistant<|channel|>final<|message|>ls -l<|return|>",
            f"<|start|>assistant{ANALYSIS}<|start|>assistant<|channel|>final<|message|>ls -l",
            "analysisNeed ls.assistantfinalls -l",
        ],
    )
    def test_the_final_channel_is_the_reply_and_analysis_the_thinking(self, text):
        reply = read({"content": text})
        assert (reply.content, reply.reasoning, reply.signs) == ("ls -l", "Need ls.", ("channel_tokens",))

    @pytest.mark.parametrize(
        "text",
        [
            ANALYSIS + CALL,
            CALL.removeprefix("<|start|>assistant"),
            '<|start|>assistant to=functions.bash<|channel|>commentary<|message|>{"command":"ls"}<|call|>',
            'analysisNeed ls.assistantcommentary to=functions.bash json{"command":"ls"}',
        ],
    )
    def test_commentary_to_a_function_is_a_call(self, text):
        reply = read({"content": text}, tools=True)
        assert [(call.name, call.arguments) for call in reply.tool_calls] == [("bash", '{"command":"ls"}')]
        assert (reply.content, reply.signs) == ("", ("channel_tokens",))

    @pytest.mark.parametrize(
        ("text", "signs"),
        [
            ("analysis of the problem, then assistance", ()),
            ("analysisNeed ls.assistantcommentary to=functions.bash json{half", ()),
            ("It says <|channel|>final<|message|>x", ("channel_tokens",)),
            ("<|channel>thought\nhm<channel|>ls", ()),
        ],
    )
    def test_what_is_ambiguous_stays_as_it_came(self, text, signs):
        assert (read({"content": text}).content, read({"content": text}).signs) == (text, signs)


class TestUsage:
    @pytest.mark.parametrize(
        "usage",
        [
            *(None, {}, "x", {"prompt_tokens": 5}),
            {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
            {"prompt_tokens": "many", "completion_tokens": -1},
            {"prompt_tokens": True, "completion_tokens": False},
            {"prompt_tokens": 5, "completion_tokens": 0},
        ],
    )
    def test_what_the_server_does_not_count_is_unknown(self, usage):
        reply = read({"content": "x"}, usage=usage)
        assert (reply.usage.uncounted, reply.usage.completion_tokens) == (1, 0)
        assert "no_usage" in reply.signs

    def test_what_it_counts_is_known_under_either_name(self):
        assert read({"content": "x"}).usage.uncounted == 0
        assert read({"content": "x"}, usage={"input_tokens": 5, "output_tokens": 1}).usage.prompt_tokens == 5
        assert read({"content": ""}, usage={"prompt_tokens": 5, "completion_tokens": 0}).usage.uncounted == 0
