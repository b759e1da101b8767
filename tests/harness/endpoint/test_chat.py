"""ChatModel against an HTTP server that misbehaves like real ones."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import traceback
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from itertools import pairwise
from typing import Any

import pytest
from fault_server import answer, completion
from pydantic import ValidationError

from harness.agent import Agent, Limits
from harness.endpoint.answers import retry_after_sec
from harness.endpoint.chat import ChatModel, OutagePolicy, Rendering, RetryPolicy, Sampling
from harness.errors import ContextLimitReached, EndpointError, EndpointUnavailable, RequestRefused
from harness.fakes import FakeTerminal
from harness.model import Model
from harness.protocols.base import Command, Parsed
from harness.protocols.bash import BashBlock
from harness.trajectory import Message, Outcome, ToolCall
from tbench.demo.server import DemoEndpoint

KEY = "sk-very-secret-0123"
QUICK = RetryPolicy(total_sec=20, initial_sec=0.01, max_sec=0.02, reset_sec=0.01)
NONE = QUICK.model_copy(update={"total_sec": 0})
HELLO = [Message(role="user", content="hello")]
BASH = {"type": "function", "function": {"name": "bash", "parameters": {"type": "object"}}}
LOCAL = ["chatml", "gemma", "gemma4", "contract"]
CARD = {"id": "tiny", "object": "model", "root": "some/repo", "max_model_len": 8192}

Connect = Callable[..., ChatModel]


@pytest.fixture
async def chat(endpoint: Any) -> AsyncIterator[Connect]:
    """Makes ChatModels for the endpoint, and closes them."""
    async with contextlib.AsyncExitStack() as stack:

        def make(base_url: str | None = None, model: str | None = "tiny", **options: Any) -> ChatModel:
            sampling = options.pop("sampling", Sampling())
            defaults: dict[str, Any] = {"api_key": KEY, "retry": QUICK, "request_timeout_sec": 20}
            made = ChatModel(base_url or endpoint.base_url, model, sampling, **(defaults | options))
            stack.push_async_callback(made.close)
            return made

        yield make


async def ask(model: Model, *, seed: int | None = 1, max_tokens: int = 100) -> Any:
    return await model.query(HELLO, seed=seed, max_tokens=max_tokens)


class TestConnecting:
    async def test_the_only_model_listed_is_taken(self, recorded, chat):
        recorded.will_replay("A_models")
        model = chat(model=None)
        served = await model.connect()
        assert (served.id, served.context_tokens, served.root) == ("tiny", 8192, "tiny-qwen3")
        assert (model.model, model.context_tokens) == ("tiny", 8192)
        assert recorded.seen[0].path == "/v1/models"
        assert recorded.seen[0].headers["authorization"] == f"Bearer {KEY}"

    @pytest.mark.parametrize("model", [None, "scripted-demo"])
    @pytest.mark.parametrize(("part", "wrong"), [("/v1", "/v1/chat/completions"), ("/v1", "/v2"), ("http:", "https:")])
    async def test_a_url_without_an_endpoint_is_answered_with_the_right_one_and_at_once(self, chat, part, wrong, model):
        waits: list[str] = []
        with DemoEndpoint({}) as demo:
            right = demo.base_url
            url = right.replace(part, wrong)
            there = chat(url, model, on_wait=lambda reason, _: waits.append(reason))
            with pytest.raises(RequestRefused) as refused:
                await there.connect()
        assert str(refused.value) == f"{url} has no endpoint, but {right} has one: use that URL"
        assert waits == []

    async def test_a_key_is_never_sent_without_tls_to_find_the_right_url(self, endpoint, chat):
        endpoint.answer_by(lambda _: answer(401, {"error": "no key"}))
        with pytest.raises(RequestRefused, match=f"but {endpoint.base_url} has one: use that URL"):
            await chat(endpoint.base_url.replace("http:", "https:"), None).connect()
        assert [each.headers.get("authorization") for each in endpoint.seen] == [None]

    async def test_a_choice_of_models_is_not_made_silently(self, endpoint, chat):
        endpoint.will_list(CARD, CARD | {"id": "large"})
        with pytest.raises(RequestRefused, match=r"http://127\.0\.0\.1:\d+/v1 lists tiny, large"):
            await chat(model=None).connect()

    async def test_a_model_that_is_not_listed_is_refused_with_the_list(self, endpoint, chat):
        endpoint.will_list(CARD)
        with pytest.raises(RequestRefused, match=r"127\.0\.0\.1.* 'nope'.* lists tiny"):
            await chat(model="nope").connect()

    async def test_an_adapter_has_the_context_of_its_base(self, endpoint, chat):
        endpoint.will_list(CARD, {"id": "lora", "parent": "tiny", "max_model_len": None})
        assert (await chat(model="lora").connect()).context_tokens == 8192

    async def test_a_server_may_keep_its_context_to_itself(self, endpoint, chat):
        endpoint.will_list({"id": "tiny"})
        assert (await chat().connect()).context_tokens is None

    async def test_a_base_url_without_a_path_gets_v1(self, endpoint, chat):
        endpoint.will_list(CARD)
        await chat(base_url=endpoint.base_url.removesuffix("v1")).connect()
        await chat(base_url=f" {endpoint.base_url}/ ").connect()
        await chat(base_url=endpoint.base_url.replace("v1", "proxy/v2")).connect()
        assert [seen.path for seen in endpoint.seen] == ["/v1/models", "/v1/models", "/proxy/v2/models"]

    @pytest.mark.parametrize("url", ["localhost:8000", "ftp://h/v1", "http://", "http://h:99999", "http://h/v1?k=v"])
    def test_a_useless_base_url_is_refused_at_once(self, url, chat):
        with pytest.raises(EndpointError, match="the base URL must"):
            chat(base_url=url)

    async def test_no_one_listening_is_reported_in_one_line(self, endpoint, chat):
        url, model = endpoint.base_url, chat()
        endpoint.close()
        with pytest.raises(EndpointUnavailable) as caught:
            await model.connect(budget_sec=0.2)
        assert str(caught.value).startswith(f"{url}/models: cannot connect: Connection refused")
        assert "(gave up after " in str(caught.value)
        assert "\n" not in str(caught.value)

    async def test_a_wrong_host_is_found_out(self, endpoint, chat):
        endpoint.answer_by(lambda _: answer(200, b"<html>welcome</html>", {"content-type": "text/html"}))
        with pytest.raises(EndpointUnavailable, match="/models: HTTP 200 with a page that is not JSON: welcome"):
            await chat().connect(budget_sec=0)

    async def test_a_path_that_is_not_there_is_refused(self, endpoint, chat):
        endpoint.answer_all(404, {"detail": "Not Found"})
        with pytest.raises(RequestRefused, match="/models: HTTP 404: Not Found"):
            await chat().connect()

    async def test_a_loading_server_is_waited_for(self, endpoint, chat):
        endpoint.will_answer(503, {"error": "loading"})
        endpoint.will_list(CARD)
        assert (await chat().connect()).id == "tiny"

    async def test_a_query_needs_a_model(self, chat):
        with pytest.raises(RuntimeError, match="connect"):
            await ask(chat(model=None))


class TestRequest:
    async def test_every_sampling_parameter_is_sent(self, endpoint, chat):
        endpoint.will_reply()
        extra = {"top_k": 20, "chat_template_kwargs": {"enable_thinking": False}}
        sampling = Sampling(temperature=0.3, top_p=0.9, extra_body=extra)
        await ask(chat(sampling=sampling), seed=7, max_tokens=55)
        assert endpoint.seen[0].path == "/v1/chat/completions"
        assert endpoint.seen[0].json == {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0.3,
            "top_p": 0.9,
            "max_tokens": 55,
            "seed": 7,
            "top_k": 20,
            "chat_template_kwargs": {"enable_thinking": False},
        }

    @pytest.mark.parametrize(("own", "asked", "sent"), [(5, None, 5), (5, 0, 0), (None, None, None)])
    async def test_the_seed_of_a_query_goes_before_the_samplings(self, endpoint, chat, own, asked, sent):
        endpoint.will_reply()
        await ask(chat(sampling=Sampling(seed=own)), seed=asked)
        assert endpoint.seen[0].json.get("seed") == sent

    async def test_fields_go_under_other_names_or_not_at_all(self, endpoint, chat):
        endpoint.will_reply()
        endpoint.will_complete("done")
        names = {"max_tokens": "max_completion_tokens", "top_p": None, "stop": None}
        await ask(chat(sampling=Sampling(rename_fields=names, omit_seed=True)), seed=7, max_tokens=55)
        rendering = Rendering(template="chatml")
        await ask(chat(sampling=Sampling(rename_fields=names), rendering=rendering), seed=7, max_tokens=55)
        first, second = (seen.json for seen in endpoint.seen)
        assert first == {
            "model": "tiny",
            "messages": [{"role": "user", "content": "hello"}],
            "temperature": 0.7,
            "max_completion_tokens": 55,
        }
        kept = {"model", "prompt", "temperature", "max_completion_tokens", "seed", "skip_special_tokens"}
        assert second.keys() == kept

    async def test_fields_of_a_completion_are_renamed_too(self, endpoint, chat):
        endpoint.will_reply()
        await chat(sampling=Sampling(rename_fields={"seed": "random_seed"})).complete({"messages": []}, seed=9)
        assert endpoint.seen[0].json["random_seed"] == 9 and "seed" not in endpoint.seen[0].json

    @pytest.mark.parametrize(
        ("names", "words"),
        [
            ({"n": "m"}, "n: unknown field"),
            ({"model": None}, "model: unknown field"),
            ({"max_tokens": "seed"}, "'seed' cannot be used"),
            ({"max_tokens": ""}, "'' cannot be used"),
            ({"max_tokens": "a", "top_p": "a"}, "two fields are renamed"),
        ],
    )
    def test_what_cannot_be_renamed_is_said(self, names, words):
        with pytest.raises(ValidationError, match=words):
            Sampling(rename_fields=names)

    async def test_a_connection_is_kept_for_the_next_request(self, endpoint, chat):
        endpoint.keeps = True
        endpoint.will_send(answer(200, completion("hello"), {"connection": "keep-alive"}))
        asked = chat()
        for _ in range(3):
            await ask(asked)
        assert (endpoint.connections, len(endpoint.seen)) == (1, 3)

    @pytest.mark.slow
    async def test_a_connection_is_not_kept_for_as_long_as_vllm_keeps_it(self, endpoint, chat):
        """vLLM closes idle connections after 5 s: a request sent then would be lost."""
        endpoint.keeps = True
        endpoint.will_send(answer(200, completion("hello"), {"connection": "keep-alive"}))
        asked = chat()
        await ask(asked)
        await asyncio.sleep(4.5)
        await ask(asked)
        assert (endpoint.connections, len(endpoint.seen)) == (2, 2)

    async def test_any_number_of_requests_go_out_at_once(self, endpoint, chat):
        endpoint.answer_by(lambda seen: answer(200, completion("hello")) if len(endpoint.seen) > 250 else None)
        asked = chat(retry=NONE)
        waiting = [asyncio.create_task(ask(asked)) for _ in range(250)]
        for _ in range(2000):
            await asyncio.sleep(0.01)
            if len(endpoint.seen) == 250:
                break
        assert (await ask(asked)).content == "hello"
        for each in waiting:
            each.cancel()
        await asyncio.wait(waiting)

    async def test_a_kept_connection_that_was_closed_meanwhile_costs_no_attempt(self, endpoint, chat):
        """The server receives the second request and closes without a byte, as if its close and the request crossed."""
        endpoint.keeps = True
        endpoint.will_send(answer(200, completion("hello"), {"connection": "keep-alive"}))
        endpoint.will_hang_up()
        endpoint.will_reply("better")
        asked = chat(retry=NONE)
        await ask(asked)
        reply = await ask(asked)
        assert (reply.content, reply.attempts, len(endpoint.seen)) == ("better", 1, 3)

    async def test_what_is_closed_on_a_connection_of_its_own_is_a_failed_attempt(self, endpoint, chat):
        endpoint.will_disconnect()
        with pytest.raises(EndpointUnavailable, match=r"connection broke: .*1 attempt"):
            await ask(chat(retry=NONE))
        assert len(endpoint.seen) == 1

    async def test_the_key_is_sent(self, endpoint, chat):
        endpoint.will_reply()
        await ask(chat())
        assert endpoint.seen[0].headers["authorization"] == f"Bearer {KEY}"

    async def test_a_key_of_the_environment_is_not_sent_unasked(self, endpoint, chat, monkeypatch):
        monkeypatch.setenv("OPENAI_API_KEY", KEY)
        endpoint.will_reply()
        await ask(chat(api_key=None))
        assert "authorization" not in endpoint.seen[0].headers

    async def test_lone_surrogates_are_never_sent(self, endpoint, chat):
        endpoint.will_reply()
        said = Message(role="user", content="a\udcff b\ud83d\ude00 c\ud800")
        await chat().query([said], seed=None, max_tokens=9)
        assert endpoint.seen[0].json["messages"][0]["content"] == "a� b😀 c�"

    async def test_template_settings_are_fields_of_the_request(self, endpoint, chat):
        endpoint.will_reply()
        await ask(chat(rendering=Rendering(chat_template_kwargs={"enable_thinking": False})))
        assert endpoint.seen[0].json["chat_template_kwargs"] == {"enable_thinking": False}

    @pytest.mark.parametrize("template", ["server", *LOCAL])
    def test_template_settings_in_two_places_are_refused(self, chat, template):
        kwargs = {"enable_thinking": False}
        mine = kwargs if template == "server" else {}
        with pytest.raises(EndpointError, match="chat_template_kwargs are"):
            chat(
                sampling=Sampling(extra_body={"chat_template_kwargs": kwargs}),
                rendering=Rendering(template=template, chat_template_kwargs=mine),
            )

    async def test_the_history_is_rendered_as_asked(self, endpoint, chat):
        endpoint.will_reply()
        said = [*HELLO, Message(role="assistant", content="<think>a</think>b", reasoning="c"), *HELLO]
        await chat(rendering=Rendering(send_reasoning="off")).query(said, seed=1, max_tokens=9)
        await chat().query(said, seed=1, max_tokens=9)
        await chat(rendering=Rendering(strip_thinking="on")).query(said, seed=1, max_tokens=9)
        assert [seen.json["messages"][1] for seen in endpoint.seen] == [
            {"role": "assistant", "content": "<think>a</think>b"},
            {"role": "assistant", "content": "<think>a</think>b", "reasoning_content": "c"},
            {"role": "assistant", "content": "b"},
        ]

    @pytest.mark.parametrize(
        "wrong",
        [
            {"extra_body": {"temperature": 1}},
            {"extra_body": {"n": 2}},
            {"extra_body": {"extra_body": {}}},
            {"temperature": -1},
            {"max_tokens": 0},
            {"top_k": 3},
        ],
    )
    def test_sampling_refuses_what_would_not_work(self, wrong):
        with pytest.raises(ValidationError):
            Sampling(**wrong)


class TestReply:
    async def test_a_recorded_reply_is_read(self, recorded, chat):
        recorded.will_replay("A_t0")
        reply = await ask(chat(), max_tokens=400)
        assert reply.content.startswith("<think>\nThe user wants")
        assert (reply.finish_reason, reply.cut, reply.model, reply.reasoning) == ("stop", False, "tiny", None)
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (52, 102)
        assert reply.usage.cached_tokens is None
        assert (reply.attempts, reply.waited_sec) == (1, pytest.approx(0, abs=1))

    async def test_reasoning_is_kept_apart_and_null_content_is_empty(self, recorded, chat):
        recorded.will_replay("B_length_in_think")
        reply = await ask(chat(), max_tokens=8)
        assert (reply.content, reply.reasoning) == ("", "\nThe user wants one file with")
        assert (reply.finish_reason, reply.cut, reply.usage.cached_tokens) == ("length", True, 0)

    async def test_the_older_name_of_reasoning_is_read(self, endpoint, chat):
        endpoint.will_reply("yes", reasoning_content="why")
        assert (await ask(chat())).reasoning == "why"

    async def test_thinking_inside_the_content_is_left_alone(self, endpoint, chat):
        endpoint.will_reply("so be it\n</think>\n\n{}")
        assert (await ask(chat())).content == "so be it\n</think>\n\n{}"

    async def test_a_cut_tool_call_is_found_out(self, recorded, chat):
        recorded.will_replay("C_tools_length_cut")
        reply = await ask(chat(), max_tokens=28)
        assert (reply.finish_reason, reply.cut) == ("tool_calls", True)

    @pytest.mark.parametrize(("total", "cut"), [(8191, False), (8192, True), (None, True)])
    async def test_a_full_context_is_a_cut(self, endpoint, chat, total, cut):
        usage = {"prompt_tokens": 8100, "completion_tokens": (total or 8192) - 8100, "total_tokens": total}
        endpoint.will_list(CARD)
        endpoint.will_reply(usage=usage)
        model = chat()
        await model.connect()
        assert (await ask(model)).cut is cut

    async def test_cached_tokens_are_reported(self, endpoint, chat):
        endpoint.will_reply(usage={"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 8}})
        usage = (await ask(chat())).usage
        assert (usage.prompt_tokens, usage.completion_tokens, usage.cached_tokens) == (9, 0, 8)

    @pytest.mark.parametrize(("name", "cached"), [("B_cache_first", 0), ("B_cache_second", 1920), ("A_t0", None)])
    async def test_recorded_cached_tokens_are_reported(self, recorded, chat, name, cached):
        recorded.will_replay(name)
        assert (await ask(chat())).usage.cached_tokens == cached

    async def test_usage_may_be_null(self, endpoint, chat):
        endpoint.will_reply(usage=None)
        assert (await ask(chat())).usage.prompt_tokens == 0

    async def test_usage_may_be_missing(self, endpoint, chat):
        endpoint.will_answer(200, {"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]})
        assert (await ask(chat())).content == "hi"

    async def test_lone_surrogates_in_a_reply_can_be_stored(self, endpoint, chat):
        endpoint.will_reply("a\ud800", reasoning="\udfff")
        reply = await ask(chat())
        assert (reply.content, reply.reasoning) == ("a�", "�")

    async def test_json_under_another_content_type_is_read(self, endpoint, chat):
        body = json.dumps({"choices": [{"message": {"content": "hi"}, "finish_reason": "stop"}]}).encode()
        endpoint.will_answer(200, body, {"content-type": "text/plain"})
        assert (await ask(chat())).content == "hi"


class CallsBash(BashBlock):
    """Finds a command in every reply."""

    def __init__(self) -> None:
        super().__init__()
        self.parsed = 0

    def parse(self, content: str, tool_calls: Sequence[ToolCall] = ()) -> Parsed:
        self.parsed += 1
        return Parsed(actions=(Command("ls"),))


class TestTools:
    async def test_tools_are_sent_only_when_there_are_any(self, endpoint, chat):
        endpoint.will_reply()
        await chat().query(HELLO, seed=1, max_tokens=9, tools=(BASH,))
        await ask(chat())
        assert endpoint.seen[0].json["tools"] == [BASH]
        assert "tool_choice" not in endpoint.seen[0].json  # the default is auto
        assert "tools" not in endpoint.seen[1].json

    @pytest.mark.parametrize(("name", "said"), [("B_tools_auto", "Hello, world!"), ("B_tools_named", "Goodbye!")])
    async def test_a_recorded_call_is_read(self, recorded, chat, name, said):
        recorded.will_replay(name)
        reply = await ask(chat(), max_tokens=200)
        (call,) = reply.tool_calls
        assert call.id.startswith("chatcmpl-tool-")
        assert call.name == "bash"
        assert json.loads(call.arguments) == {"command": f"echo '{said}' > /app/hello.txt"}
        assert not reply.cut

    async def test_a_reply_without_calls_has_none(self, recorded, chat):
        recorded.will_replay("B_tools_none")
        reply = await ask(chat(), max_tokens=200)
        assert reply.tool_calls == ()
        assert "<tool_call>" in reply.content

    @pytest.mark.parametrize("calls", [None, [], "x", {}])
    async def test_no_list_of_calls_is_no_call(self, endpoint, chat, calls):
        endpoint.will_reply("hi", tool_calls=calls, function_call={"name": "bash", "arguments": "{}"})
        assert (await ask(chat())).tool_calls == ()

    @pytest.mark.parametrize(
        ("arguments", "text"),
        [
            ('{"command": "ls"}', '{"command": "ls"}'),
            ({"command": "ls é"}, '{"command": "ls é"}'),
            (None, "null"),
            (3, "3"),
            ("", ""),
            ("\ud800", "�"),
        ],
    )
    async def test_arguments_of_any_kind_become_text(self, endpoint, chat, arguments, text):
        call = {"id": "call_1", "type": "function", "function": {"name": "bash", "arguments": arguments}}
        endpoint.will_reply(None, tool_calls=[call])
        reply = await ask(chat())
        assert (reply.content, reply.tool_calls) == ("", (ToolCall(id="call_1", name="bash", arguments=text),))

    @pytest.mark.parametrize(
        ("call", "name", "arguments"),
        [
            ("ls", "", "ls"),
            (None, "", "null"),
            ({}, "", "{}"),
            ({"id": "x", "function": None}, "", '{"id": "x", "function": null}'),
            ({"function": {"name": None, "arguments": "{}"}}, "", "{}"),
            ({"function": {"name": "bash"}}, "bash", "null"),
        ],
    )
    async def test_a_malformed_call_is_kept_for_the_protocol_to_refuse(self, endpoint, chat, call, name, arguments):
        endpoint.will_reply("hm", tool_calls=[call])
        (kept,) = (await ask(chat())).tool_calls
        assert (kept.name, kept.arguments, bool(kept.id)) == (name, arguments, True)

    async def test_calls_without_an_id_get_different_ones(self, endpoint, chat):
        call = {"type": "function", "function": {"name": "bash", "arguments": "{}"}}
        endpoint.will_reply(None, tool_calls=[call, call | {"id": ""}, call | {"id": 7}])
        replies = [await ask(chat()) for _ in range(2)]
        assert len({call.id for reply in replies for call in reply.tool_calls}) == 6

    @pytest.mark.parametrize("name", ["C_tools_length_cut", "B_tools_length_cut"])
    async def test_nothing_of_a_recorded_cut_call_is_executed(self, recorded, chat, name):
        """One reply has a seemingly complete call and `finish_reason: tool_calls`, the other only raw text."""
        recorded.will_replay(name)
        protocol, terminal = CallsBash(), FakeTerminal()
        agent = Agent(chat(sampling=Sampling(max_tokens=28)), terminal, protocol, Limits(steps=1))
        trajectory = await agent.run("Write a file.")
        assert trajectory.outcome is Outcome.STEP_LIMIT
        assert trajectory.warnings == {"format_error:reply_cut": 1}
        assert (protocol.parsed, terminal.typed) == (0, [])
        assert all(message.tool_calls == () for message in trajectory.messages)

    async def test_a_server_without_a_tool_parser_is_told_what_it_needs(self, recorded, chat):
        recorded.will_replay("A_tools_auto")
        needs = "--enable-auto-tool-choice --tool-call-parser NAME, or use a protocol without tool calls"
        with pytest.raises(RequestRefused, match=f"tool choice requires .*{needs}"):
            await chat().query(HELLO, seed=1, max_tokens=9, tools=(BASH,))

    async def test_the_other_wording_is_known_too(self, endpoint, chat):
        words = 'tool_choice="required" requires --tool-call-parser to be set'
        endpoint.will_answer(400, {"error": {"message": words}})
        with pytest.raises(RequestRefused, match="start vLLM with --enable-auto-tool-choice"):
            await chat().query(HELLO, seed=1, max_tokens=9, tools=(BASH,))

    @pytest.mark.parametrize("template", LOCAL)
    async def test_tools_in_a_prompt_rendered_here_are_refused_unsent(self, endpoint, chat, template):
        with pytest.raises(RequestRefused, match=f"tool calls need the server's own template.*{template}"):
            await chat(rendering=Rendering(template=template)).query(HELLO, seed=1, max_tokens=9, tools=(BASH,))
        assert endpoint.seen == []


BAD_COMPLETIONS: dict[str, Callable[[Any], None]] = {
    "503": lambda e: e.will_answer(503, {"error": {"message": "busy"}}),
    "abort": lambda e: e.will_complete("half a sen", finish_reason="abort"),
    "a choice without text": lambda e: e.will_answer(200, {"choices": [{"index": 0}]}),
    "text that is none": lambda e: e.will_answer(200, {"choices": [{"text": None}]}),
    "reset": lambda e: e.will_reset(),
}


class TestCompletions:
    async def test_the_prompt_goes_to_its_own_path(self, endpoint, chat):
        endpoint.will_complete("ls")
        model = chat(rendering=Rendering(template="contract"), sampling=Sampling(extra_body={"top_k": 5}))
        reply = await ask(model, seed=7, max_tokens=55)
        assert endpoint.seen[0].path == "/v1/completions"
        assert endpoint.seen[0].json == {
            "model": "tiny",
            "prompt": "### Instruction: hello\n### Output:\n",
            "stop": ["### Instruction:", "### System:"],
            "skip_special_tokens": False,
            "temperature": 0.7,
            "top_p": 0.95,
            "max_tokens": 55,
            "seed": 7,
            "top_k": 5,
        }
        assert (reply.content, reply.reasoning, reply.tool_calls, reply.cut) == ("ls", None, (), False)
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens, reply.model) == (10, 3, "tiny")

    async def test_a_recorded_completion_is_read(self, recorded, chat):
        recorded.will_replay("A_completions")
        reply = await ask(chat(rendering=Rendering(template="chatml")), max_tokens=20)
        assert reply.content.startswith('{\n  "analysis": "The terminal is ready')
        assert (reply.finish_reason, reply.cut) == ("length", True)
        assert (reply.usage.prompt_tokens, reply.usage.completion_tokens) == (41, 20)

    @pytest.mark.parametrize("mine", ["END", ["END"]])
    async def test_stop_strings_of_ones_own_are_added(self, endpoint, chat, mine):
        endpoint.will_complete("ls")
        extra = {"stop": mine, "skip_special_tokens": True}
        await ask(chat(rendering=Rendering(template="chatml"), sampling=Sampling(extra_body=extra)))
        assert endpoint.seen[0].json["stop"] == ["<|im_end|>", "<|im_start|>", "END"]
        assert endpoint.seen[0].json["skip_special_tokens"] is True

    async def test_the_prompts_of_a_conversation_only_grow(self, endpoint, chat):
        endpoint.will_complete("<think>hm</think>ls")
        model, history = chat(rendering=Rendering(template="chatml")), [*HELLO]
        for _ in range(3):
            reply = await model.query(history, seed=1, max_tokens=9)
            history += [Message(role="assistant", content=reply.content), *HELLO]
        prompts = [seen.json["prompt"] for seen in endpoint.seen]
        assert all(longer.startswith(shorter) for shorter, longer in pairwise(prompts))
        assert "hm" not in prompts[-1]

    @pytest.mark.parametrize("day", BAD_COMPLETIONS)
    async def test_a_bad_answer_is_asked_for_again(self, endpoint, chat, day):
        BAD_COMPLETIONS[day](endpoint)
        endpoint.will_complete("better")
        reply = await ask(chat(rendering=Rendering(template="chatml")))
        assert (reply.content, reply.attempts) == ("better", 2)

    @pytest.mark.parametrize("name", ["A_prompt_too_long", "C_prompt_exact_8192"])
    async def test_context_refusals_are_an_outcome(self, recorded, chat, name):
        recorded.will_replay(name)
        with pytest.raises(ContextLimitReached):
            await ask(chat(rendering=Rendering(template="chatml")))

    async def test_a_server_without_the_path_is_named(self, endpoint, chat):
        endpoint.will_answer(404, {"detail": "Not Found"})
        with pytest.raises(RequestRefused, match="/v1/completions: HTTP 404: Not Found"):
            await ask(chat(rendering=Rendering(template="chatml")))


BAD_DAYS: dict[str, Callable[[Any], None]] = {
    "408": lambda e: e.will_answer(408, {}),
    "409": lambda e: e.will_answer(409, {"error": "conflict"}),
    "429": lambda e: e.will_answer(429, {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}),
    "500": lambda e: e.will_answer(500, {"error": {"message": "EngineCore encountered an issue.", "code": 500}}),
    "502 with a page": lambda e: e.will_answer(502, b"<html>bad gateway</html>", {"content-type": "text/html"}),
    "503 without a body": lambda e: e.will_answer(503, b""),
    **{
        f"finish_reason {reason!r}": lambda e, reason=reason: e.will_reply("half a sen", finish_reason=reason)
        for reason in ("abort", "error", "content_filter", "something new", None)
    },
    "an error beside a reply": lambda e: e.will_answer(200, {**completion("half"), "error": {"message": "upstream"}}),
    "an error in a choice": lambda e: e.will_answer(
        200, {"choices": [{"message": {"content": "half"}, "finish_reason": "stop", "error": {"code": 502}}]}
    ),
    "empty choices": lambda e: e.will_answer(200, {"choices": []}),
    "null choices": lambda e: e.will_answer(200, {"choices": None, "error": {"message": "upstream"}}),
    "choices of the wrong kind": lambda e: e.will_answer(200, {"choices": "x"}),
    "a choice of the wrong kind": lambda e: e.will_answer(200, {"choices": [3]}),
    "a list": lambda e: e.will_answer(200, [1]),
    "null": lambda e: e.will_answer(200, None),
    "cut JSON": lambda e: e.will_answer(200, b'{"choices": [{"mess'),
    "not UTF-8": lambda e: e.will_answer(200, b'{"choices": "\xff\xfe'),
    "a page": lambda e: e.will_answer(200, b"<html>", {"content-type": "text/html"}),
    "reset": lambda e: e.will_reset(),
    "disconnect": lambda e: e.will_disconnect(),
    "cut body": lambda e: e.will_send(b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"),
    "not HTTP": lambda e: e.will_send(b"SSH-2.0-OpenSSH_9.6\r\n"),
    "broken gzip": lambda e: e.will_answer(200, b"zzz", {"content-encoding": "gzip"}),
}


class TestRetries:
    @pytest.mark.parametrize("day", BAD_DAYS)
    async def test_a_bad_answer_is_asked_for_again(self, endpoint, chat, day):
        waits: list[str] = []
        BAD_DAYS[day](endpoint)
        endpoint.will_reply("better")
        reply = await ask(chat(on_wait=lambda reason, seconds: waits.append(reason)))
        assert (reply.content, reply.attempts, len(endpoint.seen)) == ("better", 2, 2)
        assert reply.waited_sec > 0
        assert len(waits) == 1
        assert waits[0].strip()

    @pytest.mark.parametrize("stuck", [b"", b"HTTP/1.1 200 OK\r\ncontent-length: 99\r\n\r\n{"])
    async def test_an_answer_that_never_ends_has_a_deadline(self, endpoint, chat, stuck):
        endpoint.will_send(stuck, then_wait=True)
        with pytest.raises(EndpointUnavailable, match=r"no answer within 0\.2 s \(gave up after 1 attempt\)"):
            await ask(chat(request_timeout_sec=0.2, retry=NONE))

    async def test_a_trickling_answer_has_a_deadline(self, endpoint, chat):
        """Bytes keep arriving, so no timeout of the client library would ever fire."""
        trickle = b"HTTP/1.1 200 OK\r\ncontent-length: 999\r\n\r\n"
        endpoint.will_trickle(trickle, every_sec=0.05)
        with pytest.raises(EndpointUnavailable, match="no answer within"):
            await ask(chat(request_timeout_sec=0.3, retry=NONE))

    async def test_the_reason_and_length_of_a_pause_are_reported(self, endpoint, chat):
        notices: list[tuple[str, float]] = []
        endpoint.will_answer(503, {"error": {"message": "busy\nbusy"}})
        endpoint.will_reply()
        await ask(chat(on_wait=lambda reason, seconds: notices.append((reason, seconds))))
        assert notices == [("HTTP 503: busy busy", pytest.approx(0.01, abs=0.01))]

    async def test_pauses_grow_up_to_a_bound(self, endpoint, chat):
        pauses: list[float] = []
        for _ in range(8):
            endpoint.will_answer(500, {})
        endpoint.will_reply()
        await ask(chat(on_wait=lambda reason, seconds: pauses.append(seconds)))
        assert len(pauses) == 8
        assert max(pauses) <= QUICK.max_sec

    @pytest.mark.parametrize("day", ["reset", "disconnect"])
    async def test_the_first_retry_of_a_broken_connection_is_quick(self, endpoint, chat, day):
        slow = RetryPolicy(initial_sec=10_000, max_sec=10_000, reset_sec=0.01)
        BAD_DAYS[day](endpoint)
        endpoint.will_reply()
        assert (await ask(chat(retry=slow))).attempts == 2

    async def test_retry_after_is_honoured(self, endpoint, chat):
        """Tested without waiting: the requested pause exceeds the budget."""
        endpoint.will_answer(429, {"error": {"message": "quota"}}, {"retry-after": "30"})
        with pytest.raises(EndpointUnavailable, match=r"HTTP 429: quota \(gave up after 1 attempt\)"):
            await ask(chat())

    async def test_retry_after_as_a_date_is_honoured(self, endpoint, chat):
        later = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
        endpoint.will_answer(503, {}, {"retry-after": later})
        with pytest.raises(EndpointUnavailable, match="1 attempt"):
            await ask(chat())

    async def test_retry_after_is_capped(self, endpoint, chat):
        endpoint.will_answer(429, {}, {"retry-after": "86400"})
        endpoint.will_reply()
        capped = QUICK.model_copy(update={"max_retry_after_sec": 0.01})
        assert (await ask(chat(retry=capped))).attempts == 2

    @pytest.mark.parametrize("header", ["soon", "-3", "Sat, 01 Jan 2000 00:00:00 GMT", "0", ""])
    async def test_a_senseless_retry_after_does_no_harm(self, endpoint, chat, header):
        endpoint.will_answer(429, {}, {"retry-after": header})
        endpoint.will_reply()
        assert (await ask(chat())).attempts == 2

    def test_retry_after_is_read_in_both_forms(self):
        later = datetime.now(UTC) + timedelta(seconds=100)
        assert retry_after_sec("17") == 17
        assert retry_after_sec(format_datetime(later, usegmt=True)) == pytest.approx(100, abs=30)
        assert retry_after_sec(None) is None

    async def test_a_spent_budget_says_where_what_and_how_often(self, endpoint, chat):
        endpoint.will_answer(500, {"error": {"message": "EngineCore died"}})
        with pytest.raises(EndpointUnavailable) as caught:
            await ask(chat(retry=QUICK.model_copy(update={"total_sec": 0.4})))
        tried = len(endpoint.seen)
        assert tried > 1
        what = f"HTTP 500: EngineCore died (gave up after {tried} attempts)"
        assert str(caught.value) == f"{endpoint.base_url}/chat/completions: {what}"

    async def test_cancelling_ends_a_query_at_once(self, endpoint, chat):
        endpoint.will_hang()
        query = asyncio.create_task(ask(chat()))
        await asyncio.to_thread(endpoint.first_request.wait, 10)
        query.cancel()
        with pytest.raises(asyncio.CancelledError):
            await query
        assert len(endpoint.seen) == 1

    async def test_cancelling_ends_a_pause_at_once(self, endpoint, chat):
        pausing = asyncio.Event()
        endpoint.will_answer(500, {})
        slow = RetryPolicy(initial_sec=500, max_sec=500)
        query = asyncio.create_task(ask(chat(retry=slow, on_wait=lambda reason, seconds: pausing.set())))
        await pausing.wait()
        query.cancel()
        with pytest.raises(asyncio.CancelledError):
            await query

    async def test_trials_can_share_a_model(self, endpoint, chat):
        endpoint.will_reply("same")
        model = chat()
        replies = await asyncio.gather(*(ask(model) for _ in range(20)))
        assert {reply.content for reply in replies} == {"same"}


class TestRefusals:
    @pytest.mark.parametrize(
        ("status", "body", "words"),
        [
            (404, {"error": {"message": "The model `x` does not exist.", "code": 404}}, "The model `x` does"),
            (
                400,
                {"error": {"message": "1 validation error:\n  {}", "type": "Bad Request"}},
                "1 validation error: {}",
            ),
            (405, {"detail": "Method Not Allowed"}, "Method Not Allowed"),
            (422, {"detail": [{"msg": "Field required"}]}, "Field required"),
            (401, {"error": "Unauthorized"}, r"Unauthorized \(check OPENAI_API_KEY\)"),
            (403, b"go away", r"go away \(check OPENAI_API_KEY\)"),
            (400, {"object": "error", "message": "older vLLM", "code": 400}, "older vLLM"),
            (418, b"", "HTTP 418: no message"),
        ],
    )
    async def test_the_servers_own_words_are_passed_on(self, endpoint, chat, status, body, words):
        endpoint.will_answer(status, body)
        with pytest.raises(RequestRefused, match=words) as caught:
            await ask(chat())
        assert caught.value.status == status
        assert f"{endpoint.base_url}/chat/completions: HTTP {status}: " in str(caught.value)
        assert "\n" not in str(caught.value)
        assert len(endpoint.seen) == 1

    @pytest.mark.parametrize(
        ("name", "words"),
        [
            ("A_wrong_model", "The model `nope` does not exist. Valid aliases: tiny"),
            ("C_auth_none", "Unauthorized"),
            ("A_invalid_utf8_body", "There was an error parsing the body"),
            ("A_bad_json", "1 validation error: "),
            ("A_empty_messages", "Cannot apply chat template"),
        ],
    )
    async def test_recorded_refusals_are_read(self, recorded, chat, name, words):
        recorded.will_replay(name)
        with pytest.raises(RequestRefused, match=words):
            await ask(chat())

    async def test_a_long_message_is_cut(self, endpoint, chat):
        endpoint.will_answer(400, {"error": {"message": "bad " + "x" * 100_000}})
        with pytest.raises(RequestRefused) as caught:
            await ask(chat())
        assert len(str(caught.value)) < 1000

    @pytest.mark.parametrize(
        "name",
        ["A_prompt_too_long", "A_stream_too_long", "C_prompt_exact_8192", "A_max_tokens_beyond_context"],
    )
    async def test_recorded_context_refusals_are_an_outcome(self, recorded, chat, name):
        recorded.will_replay(name)
        with pytest.raises(ContextLimitReached):
            await ask(chat())

    @pytest.mark.parametrize(
        "error",
        [
            {
                "message": "This model's maximum context length is 8192 tokens. However, you requested "
                "400 output tokens and your prompt contains at least 7793 input tokens, for a total of "
                "at least 8193 tokens."
            },
            {
                "message": "your prompt contains 5100050 characters (more than 262144 characters, which is "
                "the upper bound for 8192 input tokens)"
            },
            {"message": "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)"},
            {"message": "Please shorten it.", "code": "context_length_exceeded"},
        ],
    )
    async def test_other_context_refusals_are_an_outcome(self, endpoint, chat, error):
        endpoint.will_answer(400, {"error": error})
        with pytest.raises(ContextLimitReached):
            await ask(chat())
        assert len(endpoint.seen) == 1

    @pytest.mark.parametrize(
        ("words", "tokens"),
        [
            ("you requested 400 output tokens and your prompt contains 7800 input tokens", 7800),
            ("you requested 400 output tokens and your prompt contains at least 7793 input tokens", None),
            ("and your request has 7800 input tokens (400 > 8192 - 7800)", 7800),
            ("you requested 8200 tokens (7800 in the messages, 400 in the completion)", 7800),
        ],
    )
    async def test_a_context_refusal_tells_the_length_it_knows(self, endpoint, chat, words, tokens):
        message = f"This model's maximum context length is 8192 tokens. However, {words}."
        endpoint.will_answer(400, {"error": {"message": message}})
        with pytest.raises(ContextLimitReached) as caught:
            await ask(chat())
        assert caught.value.prompt_tokens == tokens

    async def test_a_refusal_about_something_else_is_not_an_outcome(self, endpoint, chat):
        endpoint.will_answer(400, {"error": {"message": "n must be 1 when using greedy sampling, got 2."}})
        with pytest.raises(RequestRefused):
            await ask(chat())


class TestSecrets:
    @pytest.mark.parametrize("status", [400, 401, 500])
    async def test_a_key_repeated_by_the_server_is_not_passed_on(self, endpoint, chat, status):
        notices: list[str] = []
        endpoint.will_answer(status, {"error": {"message": f"Incorrect API key provided: {KEY}"}})
        policy = QUICK.model_copy(update={"total_sec": 0.05})
        model = chat(retry=policy, on_wait=lambda reason, seconds: notices.append(reason))
        with pytest.raises(EndpointError, match=r"provided: \[key\]") as caught:
            await ask(model)
        shown = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + repr(model)
        assert KEY not in shown + "".join(notices)
        assert caught.value.__context__ is None

    async def test_a_key_in_a_context_refusal_is_not_passed_on(self, endpoint, chat):
        endpoint.will_answer(400, {"error": {"message": f"{KEY}: maximum context length"}})
        with pytest.raises(ContextLimitReached) as caught:
            await ask(chat())
        assert KEY not in "".join(traceback.format_exception(caught.value))

    @pytest.mark.parametrize("key", [f"{KEY}\nX-Header: 1", f"{KEY}é"])
    def test_a_key_that_cannot_be_sent_is_refused_without_showing_it(self, chat, key):
        with pytest.raises(EndpointError, match="OPENAI_API_KEY") as caught:
            chat(api_key=key)
        assert KEY not in str(caught.value)

    def test_a_password_in_the_url_is_not_shown(self, chat):
        model = chat(base_url="http://user:word@host:1/v1")
        assert model.url == "http://host:1/v1"
        assert "word" not in repr(model)


class TestRawRequests:
    async def test_fields_go_out_as_they_are_and_the_text_comes_back_verbatim(self, endpoint, chat):
        endpoint.will_reply("\n\n {\u2028} ", finish_reason="length", reasoning="hm", usage={"prompt_tokens": 5})
        fields = {"messages": [{"role": "user", "content": "hi", "name": "me"}], "temperature": 2}
        reply = await chat().complete(fields)
        assert (reply.content, reply.reasoning, reply.finish_reason) == ("\n\n {\u2028} ", "hm", "length")
        assert (reply.prompt_tokens, reply.completion_tokens, reply.attempts) == (5, None, 1)
        sent = endpoint.seen[0]
        assert sent.path == "/v1/chat/completions" and sent.json["messages"] == fields["messages"]
        assert (sent.json["temperature"], sent.json["max_tokens"]) == (0.7, 16384)

    async def test_a_prompt_goes_to_completions_with_its_stop_reason_kept(self, endpoint, chat):
        endpoint.will_answer(200, {"choices": [{"text": "x", "finish_reason": "stop", "stop_reason": "END"}]})
        reply = await chat().complete({"prompt": "p"})
        assert (reply.content, reply.stop_reason, endpoint.seen[0].path) == ("x", "END", "/v1/completions")

    async def test_a_caller_with_another_endpoint_does_not_wait_for_this_one(self, endpoint, chat):
        endpoint.go_away()
        model = chat(max_outage=OutagePolicy(max_sec=60), retry=RetryPolicy(total_sec=60))
        async with asyncio.timeout(5):
            with pytest.raises(EndpointUnavailable, match="the endpoint is away"):
                await model.complete({"prompt": "p"}, has_alternative=True)
        assert model.outage.is_away

    async def test_tokens_are_counted_beside_v1_and_only_where_the_server_can(self, endpoint, chat):
        endpoint.will_answer(200, {"count": 20001, "max_model_len": 8192, "tokens": [1]})
        endpoint.will_answer(404, {"detail": "Not Found"})
        model = chat()
        counted = await model.count_tokens({"prompt": "p"})
        assert counted is not None and (counted.count, counted.max_model_len) == (20001, 8192)
        assert (endpoint.seen[0].path, endpoint.seen[0].json) == ("/tokenize", {"model": "tiny", "prompt": "p"})
        assert await model.count_tokens({"prompt": "p"}) is None
        assert await model.count_tokens({"prompt": "p"}) is None
        assert len(endpoint.seen) == 2

    async def test_a_password_does_not_show_in_what_is_said_of_counting(self, endpoint, chat):
        endpoint.will_answer(500, {"error": "s3cret"})
        url = endpoint.base_url.replace("http://", "http://me:s3cret@")
        with pytest.raises(EndpointUnavailable, match=r"^http://127\.0\.0\.1:\d+/tokenize: HTTP 500: \[password\]"):
            await chat(base_url=url, retry=RetryPolicy(total_sec=0)).count_tokens({"prompt": "p"})


def test_importing_chat_does_not_import_openai():
    code = "import harness.endpoint.chat, sys; sys.exit('openai' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
