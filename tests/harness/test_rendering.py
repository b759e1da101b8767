"""Histories as messages and as prompts: exact texts, what is stripped, and that they only ever grow at the end."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from harness.model import Rendering, Template
from harness.rendering import ReasoningFormat, render_prompt, stop_strings, wire_messages, without_thinking
from harness.trajectory import Message, ToolCall

LOCAL = [template for template in get_args(Template) if template != "server"]
SERVER = Rendering()
SYSTEM = Message(role="system", content="Be brief.")
TASK = Message(role="user", content="List the files.")
REPLY = Message(role="assistant", content="<think>\nls will do\n</think>\n\nls", reasoning="apart")
SEEN = Message(role="user", content="a b")
HISTORY = [SYSTEM, TASK, REPLY, SEEN]
CALL = ToolCall(id="call_1", name="bash", arguments='{"command": "ls"}')


def prompt(template: str, messages: list[Message], **more: Any) -> str:
    return render_prompt(messages, Rendering.model_validate({"template": template, **more}))


def one_wire(message: Message, rendering: Rendering = SERVER) -> dict[str, Any]:
    (wire,) = wire_messages([message], rendering)
    return wire


class TestMessages:
    def test_a_text_message_is_its_role_and_content(self):
        assert [one_wire(message) for message in HISTORY] == [
            {"role": "system", "content": "Be brief."},
            {"role": "user", "content": "List the files."},
            {"role": "assistant", "content": REPLY.content, "reasoning_content": "apart"},
            {"role": "user", "content": "a b"},
        ]

    def test_a_tool_call_and_its_answer(self):
        called = Message(role="assistant", content="", tool_calls=(CALL,))
        answered = Message(role="tool", content="a b", tool_call_id="call_1")
        function = {"name": "bash", "arguments": '{"command": "ls"}'}
        assert wire_messages([called, answered], SERVER) == [
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "call_1", "type": "function", "function": function}],
            },
            {"role": "tool", "content": "a b", "tool_call_id": "call_1"},
        ]

    @pytest.mark.parametrize(
        ("rendering", "sent"),
        [
            (Rendering(), "apart"),
            (Rendering(send_reasoning="on"), "apart"),
            (Rendering.model_validate({"send_reasoning": True}), "apart"),
            (Rendering(send_reasoning="off"), None),
            (Rendering.model_validate({"send_reasoning": False}), None),
            (Rendering(strip_thinking="on"), None),
        ],
    )
    def test_the_template_is_given_earlier_reasoning_unless_it_is_not_to_be_sent(self, rendering, sent):
        assert one_wire(REPLY, rendering).get("reasoning_content") == sent

    def test_reasoning_goes_back_under_the_name_in_which_it_came(self):
        silent = REPLY.model_copy(update={"reasoning": None})
        assert wire_messages([REPLY], Rendering(), ReasoningFormat("reasoning"))[0]["reasoning"] == "apart"
        assert "reasoning" not in wire_messages([silent], Rendering(), ReasoningFormat("reasoning"))[0]
        assert wire_messages([silent], Rendering(), ReasoningFormat(always=True))[0]["reasoning_content"]
        parts = wire_messages([REPLY], Rendering(), ReasoningFormat("content"))[0]["content"]
        assert [part["type"] for part in parts] == ["thinking", "text"]

    @pytest.mark.parametrize(("strip", "sent"), [("auto", REPLY.content), ("off", REPLY.content), ("on", "ls")])
    def test_thinking_stays_unless_it_is_to_go(self, strip, sent):
        assert one_wire(REPLY, Rendering(strip_thinking=strip))["content"] == sent

    @pytest.mark.parametrize("strip", ["on", "off"])
    def test_a_history_only_grows_at_its_end(self, strip):
        rendering = Rendering(strip_thinking=strip)
        whole = wire_messages(HISTORY, rendering)
        assert all(wire_messages(HISTORY[:length], rendering) == whole[:length] for length in range(len(HISTORY)))

    def test_only_replies_lose_thinking(self):
        quoted = Message(role="user", content="<think>not mine</think> rest")
        assert one_wire(quoted, Rendering(strip_thinking="on"))["content"] == quoted.content

    def test_lone_surrogates_are_replaced_everywhere(self):
        bad = "\ud800"
        call = ToolCall(id=bad, name=bad, arguments=bad)
        said = Message(role="assistant", content=bad, reasoning=bad, tool_calls=(call,))
        answered = Message(role="tool", content=bad, tool_call_id=bad)
        sent = wire_messages([said, answered], Rendering(send_reasoning="on"))
        assert json.dumps(sent, ensure_ascii=False).encode().count("�".encode()) == 7

    @pytest.mark.parametrize(
        ("arguments", "sent"),
        [
            (r'{"command": "\ud800"}', r'{"command": "\ufffd"}'),
            (r'{"command": "\uDFFF\ud83d\ude00"}', r'{"command": "\ufffd\ud83d\ude00"}'),
            (r'{"command": "printf \\ud800 \\\\n"}', r'{"command": "printf \\ud800 \\\\n"}'),
            (r'{"command": "\\\ud800"}', r'{"command": "\\\ufffd"}'),
        ],
    )
    def test_escapes_in_arguments_decode_to_no_lone_surrogate(self, arguments, sent):
        call = CALL.model_copy(update={"arguments": arguments})
        wire = one_wire(Message(role="assistant", content="", tool_calls=(call,)))
        assert wire["tool_calls"][0]["function"]["arguments"] == sent


class TestThinking:
    @pytest.mark.parametrize(
        ("reply", "left"),
        [
            ("<think>\na\n</think>\n\nls", "ls"),
            ("  <think></think>ls", "ls"),
            ("in mid thought\n</think>\n\nls", "ls"),  # the template had opened it
            ("all of it</think>", ""),
            ("<think>cut in mid", ""),
            ("<|channel>thought\nhm\n<channel|>ls", "ls"),
            ("<|channel>thought\ncut", ""),
            (" ls\n", " ls\n"),
            ("grep '</think>' a.txt\nls", "grep '</think>' a.txt\nls"),
            ("<think>a</think>cat <<E\n</think>\nE", "cat <<E\n</think>\nE"),
            ("<thinking>part of the format</thinking>\nls", "<thinking>part of the format</thinking>\nls"),
        ],
    )
    def test_what_is_left_of_a_reply(self, reply, left):
        assert without_thinking(reply) == left


class TestPrompts:
    def test_chatml(self):
        assert prompt("chatml", HISTORY) == (
            "<|im_start|>system\nBe brief.<|im_end|>\n"
            "<|im_start|>user\nList the files.<|im_end|>\n"
            "<|im_start|>assistant\nls<|im_end|>\n"
            "<|im_start|>user\na b<|im_end|>\n"
            "<|im_start|>assistant\n"
        )

    def test_gemma_has_no_system_turn(self):
        assert prompt("gemma", HISTORY) == (
            "<start_of_turn>user\nBe brief.\n\nList the files.<end_of_turn>\n"
            "<start_of_turn>model\nls<end_of_turn>\n"
            "<start_of_turn>user\na b<end_of_turn>\n"
            "<start_of_turn>model\n"
        )

    def test_gemma4(self):
        assert prompt("gemma4", HISTORY) == (
            "<|turn>system\nBe brief.<turn|>\n"
            "<|turn>user\nList the files.<turn|>\n"
            "<|turn>model\nls<turn|>\n"
            "<|turn>user\na b<turn|>\n"
            "<|turn>model\n"
        )

    def test_contract(self):
        opening = "### System: Be brief.\n### Instruction: List the files.\n### Output:\n"
        assert prompt("contract", [SYSTEM, TASK]) == opening
        assert prompt("contract", HISTORY) == opening + "ls\n### Instruction: a b\n### Output:\n"

    @pytest.mark.parametrize("template", LOCAL)
    def test_thinking_can_stay(self, template):
        assert "ls will do" in prompt(template, HISTORY, strip_thinking="off")

    @pytest.mark.parametrize("template", LOCAL)
    def test_the_answer_of_a_tool_reads_as_the_users(self, template):
        as_tool = Message(role="tool", content="a b", tool_call_id="1")
        assert prompt(template, [*HISTORY[:3], as_tool]) == prompt(template, HISTORY)

    @pytest.mark.parametrize("template", LOCAL)
    def test_lone_surrogates_are_replaced(self, template):
        assert "x�y" in prompt(template, [Message(role="user", content="x\udcffy")])

    @pytest.mark.parametrize("template", LOCAL)
    def test_a_reply_ends_where_the_next_turn_would_begin(self, template):
        rendering = Rendering(template=template)
        after_reply = render_prompt(HISTORY, rendering).partition("\nls")[2]
        assert any(stop in after_reply for stop in stop_strings(rendering))
        assert len(stop_strings(rendering)) <= 4  # vLLM takes no more

    @pytest.mark.parametrize("template", LOCAL)
    @given(data=st.data())
    def test_a_prompt_only_grows_at_its_end(self, template, data):
        turns = data.draw(st.lists(st.text() | st.just("<think>a</think>b"), max_size=7))
        history = [Message(role=role, content=text) for role, text in zip(ROLES, turns, strict=False)]
        for strip in ("on", "off"):
            rendering = Rendering(template=template, strip_thinking=strip)
            opened = render_prompt([], rendering)
            prompts = [render_prompt(history[:length], rendering) for length in range(2, len(history) + 1)]
            for shorter, longer in pairwise(prompts):
                assert longer.startswith(shorter.removesuffix(opened))

    @given(reply=st.text())
    def test_a_chatml_reply_goes_on_where_its_prompt_ended(self, reply):
        rendering = Rendering(template="chatml", strip_thinking="off")
        longer = [SYSTEM, TASK, Message(role="assistant", content=reply), SEEN]
        assert render_prompt(longer, rendering).startswith(render_prompt([SYSTEM, TASK], rendering) + reply)


ROLES = ("system", "user", "assistant", "user", "assistant", "user", "assistant")


class TestSettings:
    @pytest.mark.parametrize("template", LOCAL)
    @pytest.mark.parametrize(
        "setting", [{"chat_template_kwargs": {"enable_thinking": False}}, {"send_reasoning": "on"}]
    )
    def test_what_only_a_servers_template_can_do_is_refused_elsewhere(self, template, setting):
        with pytest.raises(ValidationError, match="for the server's template"):
            Rendering(template=template, **setting)

    def test_contradictions_are_refused(self):
        with pytest.raises(ValidationError, match="contradict"):
            Rendering(send_reasoning="on", strip_thinking="on")

    def test_only_the_servers_template_takes_tools(self):
        assert [template for template in get_args(Template) if Rendering(template=template).takes_tools] == ["server"]
