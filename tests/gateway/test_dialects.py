"""The three dialects, against requests that real agents have sent (tests/data/agents, with shortened texts)."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.trajectory import Reply, ToolCall, Usage
from tbench.gateway.chat import ChatDialect
from tbench.gateway.dialect import LEFT_OUT, Answer, BadRequest, Body, Dialect, ModelRequest
from tbench.gateway.messages import MessagesDialect
from tbench.gateway.responses import ResponsesDialect

RECORDED = Path(__file__).parents[1] / "data" / "agents"
DIALECTS: dict[str, Dialect] = {
    "mini-swe-agent": ChatDialect(),
    "codex": ResponsesDialect(),
    "claude-code": MessagesDialect(),
}
CALL = ToolCall(id="call_7", name="bash", arguments='{"command": "ls"}')
USAGE = Usage(prompt_tokens=100, completion_tokens=9, cached_tokens=64)
REPLY = Reply(content="I look.", reasoning="What is there?", tool_calls=(CALL,), usage=USAGE)


def recorded(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDED / f"{name}.json").read_text(encoding="utf-8"))
    return found


def answered(request: ModelRequest, reply: Reply = REPLY) -> Answer:
    return Answer(request, reply, "abc", 1_700_000_000)


def data_of(events: list[bytes]) -> list[dict[str, Any]]:
    lines = b"".join(events).decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: {")]


@pytest.mark.parametrize("agent", DIALECTS)
def test_the_second_request_of_each_agent_has_the_first_reply_and_the_output_of_its_command(agent: str) -> None:
    request = DIALECTS[agent].read(recorded(f"{agent}-2"))
    system, user, reply, output = request.messages
    assert [system.role, user.role, reply.role, output.role] == ["system", "user", "assistant", "tool"]
    assert (reply.content, reply.reasoning, len(reply.tool_calls)) == ("I write.", "think é", 1)
    assert "echo hello > /app/" in reply.tool_calls[0].arguments
    assert output.tool_call_id == reply.tool_calls[0].id == "call_1"
    assert output.content


@pytest.mark.parametrize(
    ("agent", "tools", "is_streamed", "max_tokens"),
    [
        ("mini-swe-agent", ["bash"], False, None),
        ("codex", ["exec_command", "view_image"], True, None),
        ("claude-code", ["Bash", "Read"], True, 32000),
    ],
)
def test_the_first_request_of_each_agent_is_read(
    agent: str, tools: list[str], is_streamed: bool, max_tokens: int | None
) -> None:
    request = DIALECTS[agent].read(recorded(f"{agent}-1"))
    assert [tool["function"]["name"] for tool in request.tools] == tools
    assert all(tool["function"]["parameters"]["type"] == "object" for tool in request.tools)
    assert (request.is_streamed, request.max_tokens, request.model) == (is_streamed, max_tokens, request.model)
    assert [message.role for message in request.messages] == ["system", "user"]


def test_texts_of_developers_in_mid_conversation_become_the_users() -> None:
    request = MessagesDialect().read(recorded("claude-code-1"))
    assert request.messages[-1].role == "user"
    assert "Available agent types" in request.messages[-1].content
    assert "Write hello" in request.messages[-1].content


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
def test_whole_and_streamed_answers_say_the_same(dialect: Dialect) -> None:
    agent = next(name for name, each in DIALECTS.items() if each is dialect)
    request = dialect.read(recorded(f"{agent}-1") | {"stream_options": {"include_usage": True}})
    whole, events = dialect.answer(answered(request)), data_of(list(dialect.events(answered(request))))
    if agent == "mini-swe-agent":
        message = whole["choices"][0]["message"]
        deltas = [choice["delta"] for each in events for choice in each["choices"]]
        assert "".join(delta.get("content", "") for delta in deltas) == message["content"] == "I look."
        assert [delta["reasoning_content"] for delta in deltas if "reasoning_content" in delta] == ["What is there?"]
        (called,) = [delta["tool_calls"] for delta in deltas if "tool_calls" in delta]
        assert [{"index": 0} | message["tool_calls"][0]] == called
        assert events[-1]["usage"] == whole["usage"]
        assert whole["choices"][0]["finish_reason"] == "tool_calls"
    elif agent == "codex":
        assert events[-1]["type"] == "response.completed"
        assert events[-1]["response"] == whole
        assert [each["item"] for each in events if each["type"] == "response.output_item.done"] == whole["output"]
        assert [each["sequence_number"] for each in events] == list(range(len(events)))
        assert [item["type"] for item in whole["output"]] == ["reasoning", "message", "function_call"]
    else:
        assert [block["type"] for block in whole["content"]] == ["thinking", "text", "tool_use"]
        deltas = [each["delta"] for each in events if each["type"] == "content_block_delta"]
        assert json.loads("".join(delta.get("partial_json", "") for delta in deltas)) == whole["content"][2]["input"]
        assert [delta["text"] for delta in deltas if "text" in delta] == ["I look."]
        assert (whole["stop_reason"], events[-2]["delta"]["stop_reason"]) == ("tool_use", "tool_use")
        assert whole["usage"]["input_tokens"] + whole["usage"]["cache_read_input_tokens"] == 100


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
@given(content=st.text(), reasoning=st.text(min_size=1), command=st.text())
def test_a_reply_comes_back_as_it_went_out(dialect: Dialect, content: str, reasoning: str, command: str) -> None:
    content, reasoning = content.strip() or "so", reasoning.strip() or "well"
    call = ToolCall(id="call_7", name="bash", arguments=json.dumps({"command": command}))
    reply = Reply(content=content, reasoning=reasoning, tool_calls=(call,))
    agent = next(name for name, each in DIALECTS.items() if each is dialect)
    body = recorded(f"{agent}-1")
    whole = json.loads(json.dumps(dialect.answer(answered(dialect.read(body), reply))))
    if agent == "codex":
        body["input"] += whole["output"]
    elif agent == "claude-code":
        body["messages"].append({"role": "assistant", "content": whole["content"]})
    else:
        body["messages"].append(whole["choices"][0]["message"])
    back = dialect.read(body).messages[-1]
    assert (back.role, back.content, back.reasoning) == ("assistant", content, reasoning)
    assert json.loads(back.tool_calls[0].arguments) == {"command": command}


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
def test_a_reply_that_was_cut_is_said_to_be(dialect: Dialect) -> None:
    agent = next(name for name, each in DIALECTS.items() if each is dialect)
    request = dialect.read(recorded(f"{agent}-1"))
    whole = json.dumps(dialect.answer(answered(request, Reply(content="half", cut=True))))
    events = b"".join(dialect.events(answered(request, Reply(content="half", cut=True)))).decode()
    words = {"mini-swe-agent": '"length"', "codex": '"max_output_tokens"', "claude-code": '"max_tokens"'}
    assert words[agent] in whole
    assert words[agent] in events


def test_images_become_words() -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
    body = {"messages": [{"role": "user", "content": [{"type": "text", "text": "See:"}, image]}]}
    (message,) = ChatDialect().read(body).messages
    assert message.content == "See:\n" + LEFT_OUT.format(kind="image_url")


def test_a_tool_with_free_text_is_a_function_here_and_a_text_there() -> None:
    dialect = ResponsesDialect()
    request = dialect.read({"input": "Go", "tools": [{"type": "custom", "name": "apply_patch", "format": {}}]})
    call = ToolCall(id="c", name="apply_patch", arguments='{"input": "*** Begin"}')
    (_, item) = dialect.answer(answered(request, Reply(content="x", tool_calls=(call,))))["output"]
    assert (item["type"], item["input"]) == ("custom_tool_call", "*** Begin")
    output = {"type": "custom_tool_call_output", "call_id": "c", "output": "done"}
    back = dialect.read({"input": [{"role": "user", "content": "Go"}, item, output]})
    assert json.loads(back.messages[1].tool_calls[0].arguments) == {"input": "*** Begin"}
    assert back.messages[2].content == "done"


def test_results_of_tools_follow_their_calls_directly() -> None:
    calls = [{"type": "tool_use", "id": "a", "name": "Bash", "input": {}}]
    results = [{"type": "text", "text": "hurry"}, {"type": "tool_result", "tool_use_id": "a", "content": "ok"}]
    body = {"messages": [{"role": "assistant", "content": calls}, {"role": "user", "content": results}]}
    assert [message.role for message in MessagesDialect().read(body).messages] == ["assistant", "tool", "user"]


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"messages": [], "input": []},
        {"messages": "x", "input": 5},
        {"messages": [5], "input": [5]},
        {"messages": [{"role": "wizard", "content": "x"}], "input": [{"role": "wizard", "content": "x"}]},
        {"messages": [{"role": "user", "content": 5}], "input": [{"role": "user", "content": 5}]},
    ],
)
def test_nonsense_is_refused_in_words(dialect: Dialect, body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest, match=r"\w"):
        dialect.read(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["type", "role", "text"]), inner),
    max_leaves=6,
)
FIELDS = st.sampled_from(
    ["messages", "input", "tools", "system", "tool_choice", "stream", "max_tokens", "stream_options", "instructions"]
)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
@given(body=st.dictionaries(FIELDS, JSON | st.lists(st.fixed_dictionaries({"role": st.just("user"), "content": JSON}))))
def test_no_request_whatever_raises_anything_else(dialect: Dialect, body: dict[str, Any]) -> None:
    try:
        request = dialect.read(body)
    except BadRequest:
        return
    assert request.messages


USER = [{"role": "user", "content": "Go"}]
WEB_SEARCH = {"type": "web_search_20250305", "name": "web_search"}


@pytest.mark.parametrize(
    ("agent", "fields", "words"),
    [
        ("mini-swe-agent", {"tool_choice": "required"}, "tool_choice: 'required'"),
        ("mini-swe-agent", {"tool_choice": {"type": "function", "function": {"name": "x"}}}, "tool_choice: 'function'"),
        ("mini-swe-agent", {"response_format": {"type": "json_object"}}, "response_format"),
        ("mini-swe-agent", {"stop": ["\n"]}, "stop"),
        ("mini-swe-agent", {"functions": [{"name": "f"}]}, "use tools"),
        ("mini-swe-agent", {"messages": [{"role": "assistant", "function_call": {"name": "f"}}]}, "use tool_calls"),
        ("codex", {"tool_choice": "required"}, "tool_choice: 'required'"),
        ("codex", {"previous_response_id": "resp_1"}, "send the whole conversation"),
        ("codex", {"conversation": "conv_1"}, "send the whole conversation"),
        ("codex", {"background": True}, "background"),
        ("codex", {"text": {"format": {"type": "json_schema"}}}, "text.format"),
        ("codex", {"input": [{"type": "item_reference", "id": "x"}]}, "'item_reference' are not supported"),
        ("codex", {"input": [{"type": "web_search_call", "id": "x"}]}, "'web_search_call' are not supported"),
        ("codex", {"input": [{"type": "reasoning", "encrypted_content": "???"}]}, "was not made here"),
        ("claude-code", {"tool_choice": {"type": "any"}}, "tool_choice: 'any'"),
        ("claude-code", {"stop_sequences": ["x"]}, "stop_sequences"),
        (
            "claude-code",
            {"messages": [{"role": "assistant", "content": [{"type": "redacted_thinking", "data": "x"}]}]},
            "was not made here",
        ),
    ],
)
def test_what_would_change_the_question_is_refused_in_words(agent: str, fields: dict[str, Any], words: str) -> None:
    whole = {"messages": USER, "input": USER} | fields
    with pytest.raises(BadRequest) as caught:
        DIALECTS[agent].read(whole)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("agent", "tools", "left_out"),
    [
        ("codex", [{"type": "web_search"}, {"type": "namespace", "name": "n"}], ("web_search", "namespace")),
        ("claude-code", [WEB_SEARCH], ("web_search_20250305",)),
    ],
)
def test_tools_of_the_providers_servers_are_left_out_and_named(
    agent: str, tools: list[dict[str, Any]], left_out: tuple[str, ...]
) -> None:
    body = recorded(f"{agent}-1")
    own = len(DIALECTS[agent].read(body).tools)
    before = DIALECTS[agent].read(body).left_out
    request = DIALECTS[agent].read(body | {"tools": [*body["tools"], *tools]})
    assert len(request.tools) == own
    assert request.left_out == (*before, *left_out)


@pytest.mark.parametrize("dialect", DIALECTS.values(), ids=list(DIALECTS))
def test_parallel_calls_and_their_results_stay_together(dialect: Dialect) -> None:
    agent = next(name for name, each in DIALECTS.items() if each is dialect)
    calls = tuple(ToolCall(id=f"call_{n}", name="bash", arguments=json.dumps({"command": f"ls {n}"})) for n in "ab")
    body = recorded(f"{agent}-1")
    whole = dialect.answer(answered(dialect.read(body), Reply(content="", tool_calls=calls)))
    if agent == "codex":
        outputs = [{"type": "function_call_output", "call_id": call.id, "output": call.id} for call in calls]
        body["input"] += [*whole["output"], *outputs]
    elif agent == "claude-code":
        results = [{"type": "tool_result", "tool_use_id": call.id, "content": call.id} for call in calls]
        body["messages"] += [{"role": "assistant", "content": whole["content"]}, {"role": "user", "content": results}]
    else:
        outputs = [{"role": "tool", "tool_call_id": call.id, "content": call.id} for call in calls]
        body["messages"] += [whole["choices"][0]["message"], *outputs]
    *_, reply, first, second = dialect.read(body).messages
    assert reply.tool_calls == calls
    assert [(each.tool_call_id, each.content) for each in (first, second)] == [(call.id, call.id) for call in calls]


@pytest.mark.parametrize(
    ("agent", "unused"),
    [
        ("mini-swe-agent", set()),
        ("codex", {"parallel_tool_calls", "reasoning", "store", "include", "prompt_cache_key"}),
        ("claude-code", {"metadata", "thinking", "context_management", "output_config"}),
    ],
)
def test_fields_of_real_agents_that_have_no_effect_are_known(agent: str, unused: set[str]) -> None:
    body = Body(recorded(f"{agent}-1"))
    DIALECTS[agent].read(body)
    assert body.unused == unused


@pytest.mark.parametrize("dialect", [MessagesDialect(), ResponsesDialect()])
def test_the_time_to_join_messages_grows_with_their_length_only(dialect: Dialect) -> None:
    said = [{"role": "user", "content": "x" * 1000}] * 19_000
    began = time.thread_time()
    (message,) = dialect.read({"max_tokens": 5, "messages": said, "input": said}).messages
    assert time.thread_time() - began < 1
    assert len(message.content) == 19_000 * 1002 - 2
