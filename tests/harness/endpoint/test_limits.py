"""limits: a request with a refused max_tokens is repeated with less, and the next request uses that at once."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, ClassVar

import pytest
import pytest_asyncio
from fault_server import FaultServer, Seen, answer, completion
from refusal_words import BOTH, REPLY
from small_context import SmallContext, Style

from harness.endpoint.chat import ChatModel, RetryPolicy, Sampling
from harness.endpoint.refusals import Reason, classify_refusal
from harness.errors import ContextLimitReached, EndpointUnavailable, RequestRefused, RequestTooLarge
from harness.trajectory import Message


def conversation(text: str) -> list[Message]:
    return [Message(role="user", content=text)]


BRIEF = RetryPolicy(total_sec=0.5, initial_sec=0.01, max_sec=0.02)
SHORT, LONG, TOO_LONG = conversation("Hello."), conversation("word " * 4000), conversation("word " * 9000)


class Asked:
    """A ChatModel, and its messages about limits."""

    def __init__(self, url: str) -> None:
        self.said: list[str] = []
        self.chat = ChatModel(url, "tiny", Sampling(), api_key=None, retry=BRIEF, on_outage=self.said.append)

    async def __call__(self, messages: list[Message], max_tokens: int = 16384) -> Any:
        return await self.chat.query(messages, seed=1, max_tokens=max_tokens)


@pytest_asyncio.fixture
async def ask(endpoint: FaultServer) -> AsyncIterator[Asked]:
    made = Asked(endpoint.base_url)
    async with made.chat:
        yield made


def small(endpoint: FaultServer, style: Style, **more: Any) -> SmallContext:
    server = SmallContext(style, "hello", **more)
    endpoint.answer_by(server)
    return server


class TestLearning:
    @pytest.mark.parametrize("style", ["vllm", "vllm-old", "litellm", "500"])
    async def test_the_first_request_pays_and_the_next_knows(self, endpoint, ask, style):
        server = small(endpoint, style)
        assert (await ask(SHORT)).content == "hello"
        assert ask.chat.context_tokens == 8192
        assert len(server.asked) == 2
        (line,) = ask.said
        assert "8,192" in line
        assert "--context-tokens" in line
        at_other_temperature = ask.chat.at_temperature(0.0)
        assert at_other_temperature.context_tokens == 8192

    @pytest.mark.parametrize("words", [*REPLY, *BOTH])
    async def test_whatever_the_words_a_short_prompt_gets_its_reply(self, endpoint, ask, words):
        context, limit, prompt = 8192, 8192 if words in BOTH else 4096, 1000 if words in BOTH else 0

        def answered(seen: Seen) -> bytes:
            m = seen.json["max_tokens"]
            if prompt + m <= min(context, limit):
                return answer(200, completion("hello"))
            numbers = {"c": context, "m": m, "l": limit, "q": prompt, "t": prompt + m, "l1": limit + 1, "m1": m}
            return answer(400, {"error": {"message": words.format(**numbers), "code": 400}})

        endpoint.answer_by(answered)
        reply = await ask(SHORT)
        assert (reply.content, reply.attempts <= 5) == ("hello", True)
        assert reply.max_tokens >= 2048, "no more is given up than by halving"
        assert (await ask(SHORT)).attempts <= (5 if words in BOTH else 1)

    async def test_without_a_number_it_is_halved_until_it_is_taken(self, endpoint, ask):
        server = small(endpoint, "halving")
        reply = await ask(SHORT)
        assert (reply.content, reply.max_tokens, reply.attempts) == ("hello", 4096, 3)
        await ask(SHORT)
        assert server.asked == [16384, 8192, 4096, 4096]
        assert ask.said == ["refuses max_tokens 16,384, so 4,096 is used from now on (set it with --max-tokens)"]

    @pytest.mark.parametrize("takes", [4096, 300])
    async def test_words_that_promise_too_much_are_not_the_last_word(self, endpoint, ask, takes):
        words = "The maximum tokens you requested exceeds the model limit of 8192."
        endpoint.answer_by(
            lambda seen: (
                answer(200, completion("hello"))
                if seen.json["max_tokens"] <= takes
                else answer(400, {"error": {"message": words}})
            )
        )
        assert (await ask(SHORT)).max_tokens == (4096 if takes == 4096 else 256)

    async def test_a_prompt_of_which_only_the_least_is_told_is_asked_for_again(self, endpoint, ask):
        def answered(seen: Seen) -> bytes:
            asked, prompt, context = seen.json["max_tokens"], 900, 16500
            if prompt + asked <= context:
                return answer(200, completion("hello"))
            least = context - asked + 1
            words = (
                f"This model's maximum context length is {context} tokens. However, you requested {asked} output "
                f"tokens and your prompt contains at least {least} input tokens, for a total of at least "
                f"{context + 1} tokens."
            )
            return answer(400, {"error": {"message": words, "code": 400}})

        endpoint.answer_by(answered)
        reply = await ask(conversation("word " * 700))
        assert (reply.content, reply.attempts, ask.chat.context_tokens) == ("hello", 2, 16500)

    async def test_a_prompt_and_a_reply_that_do_not_fit_get_what_the_prompt_leaves(self, endpoint, ask):
        server = small(endpoint, "vllm-old")
        reply = await ask(LONG)
        assert server.asked == [16384, 8192 - 5010]
        assert reply.max_tokens == 8192 - 5010

    @pytest.mark.parametrize("style", ["vllm", "vllm-old", "litellm", "halving", "500", "empty"])
    async def test_a_prompt_that_is_too_long_is_not_asked_for_again_and_again(self, endpoint, ask, style):
        server = small(endpoint, style)
        with pytest.raises(ContextLimitReached):
            await ask(TOO_LONG)
        assert len(server.asked) == 1

    async def test_one_that_is_refused_whatever_is_asked_ends_soon(self, endpoint, ask):
        endpoint.will_answer(400, {"error": {"message": "max_tokens is too large"}})
        with pytest.raises(RequestRefused):
            await ask(SHORT)
        wanted = [seen.json["max_tokens"] for seen in endpoint.seen]
        assert wanted == sorted(set(wanted), reverse=True)
        assert min(wanted) >= 64

    async def test_the_same_numbers_for_less_are_those_of_the_prompt(self, endpoint, ask):
        words = "Current length is 42328 while limit is 40000 (requested: 42328)"
        endpoint.will_answer(400, {"error": {"message": words, "code": "context_length_exceeded"}})
        with pytest.raises(ContextLimitReached):
            await ask(LONG)
        assert len(endpoint.seen) <= 2

    async def test_a_context_that_is_shorter_than_what_was_answered_is_not_believed(self, endpoint, ask):
        endpoint.will_reply(usage={"prompt_tokens": 20_000, "completion_tokens": 5})
        endpoint.will_answer(400, {"error": {"message": "prompt is too long: 9000 tokens > 8192 maximum"}})
        await ask(SHORT)
        with pytest.raises(RequestRefused, match="has answered longer prompts"):
            await ask(LONG)
        assert (ask.chat.context_tokens, ask.said) == (None, [])


class TestDoubt:
    """Refusals that do not say what is too long are tested."""

    @pytest.mark.parametrize("words", [
        "El mensaje supera la longitud: {p} tokens (máximo 8192).", "Die Eingabe umfasst {p} Token, erlaubt sind 8192.",
        "ctx_overflow: limit 8192, actual {p}", "入力が長すぎます: {p} > 8192", "token overflow", "", "Bad Request",
        "Превышена максимальная длина контекста модели",
    ])  # fmt: skip
    async def test_a_prompt_is_too_long_where_another_of_its_length_is_refused_and_a_short_one_taken(
        self, endpoint, ask, words
    ):
        def answered(seen: Seen) -> bytes:
            prompt = len(seen.body) // 4
            if prompt <= 8192:
                return answer(200, completion("hello"))
            return answer(400, {"error": {"message": words.format(p=prompt)}})

        endpoint.answer_by(answered)
        await ask(LONG)
        with pytest.raises(ContextLimitReached):
            await ask(TOO_LONG)

    @pytest.mark.parametrize("words", [
        "The prompt was flagged: maximum toxicity 0.91 exceeds limit 0.8", "token expired: maximum age exceeded",
        "Session token limit exceeded, sign in again", "CSRF token missing or too long", "line 1 column 9000 (char 8)",
    ])  # fmt: skip
    @pytest.mark.parametrize("refuses_all", [True, False])
    async def test_what_is_refused_whatever_its_length_or_only_for_its_content_is_no_full_context(
        self, endpoint, ask, words, refuses_all
    ):
        def answered(seen: Seen) -> bytes:
            is_refused = refuses_all or seen.json["messages"] == [{"role": "user", "content": TOO_LONG[0].content}]
            return answer(400, {"error": {"message": words}}) if is_refused else answer(200, completion("hello"))

        endpoint.answer_by(answered)
        with pytest.raises(RequestRefused, match=r"HTTP 400"):
            await ask(TOO_LONG)

    @pytest.mark.parametrize(
        "words",
        [
            "max_tokens は 4096 以下で指定してください",
            "body/max_tokens must be <= 4096",
            {"max_tokens": ["at most 4096"]},
        ],
    )
    async def test_a_limit_of_max_tokens_in_unknown_words_is_tried(self, endpoint, ask, words):
        endpoint.answer_by(
            lambda seen: (
                answer(200, completion("hello")) if seen.json["max_tokens"] <= 4096 else answer(400, {"error": words})
            )
        )
        assert ((await ask(SHORT)).max_tokens, ask.chat.most_tokens) == (4096, 4096)

    async def test_what_was_taken_beside_a_shorter_prompt_is_no_limit_of_max_tokens(self, endpoint, ask):
        def answered(seen: Seen) -> bytes:
            fits = len(seen.body) // 4 + seen.json["max_tokens"] <= 12_000
            return answer(200, completion("hello")) if fits else answer(400, {"error": "max_tokens is too large"})

        endpoint.answer_by(answered)
        assert (await ask(SHORT)).max_tokens == 8192
        assert (await ask(LONG)).max_tokens == 4096
        assert ask.chat.most_tokens == 8192
        with pytest.raises(ContextLimitReached):
            await ask(conversation("word " * 12_000))

    async def test_a_context_that_was_learned_is_forgotten_when_the_server_answers_what_is_longer(self, endpoint, ask):
        def answered(seen: Seen) -> bytes:
            prompt = len(seen.body) // 4
            words = f"max_tokens ({seen.json['max_tokens']}) exceeds the remaining context ({6000 - prompt} tokens)"
            usage = {"prompt_tokens": prompt, "completion_tokens": 20}
            is_taken = prompt + seen.json["max_tokens"] <= 6000
            return answer(200, completion("hello", usage=usage)) if is_taken else answer(400, {"error": words})

        endpoint.answer_by(answered)
        await ask(LONG)
        assert ask.chat.context_tokens is None

    async def test_the_room_that_a_prompt_leaves_is_no_limit_of_max_tokens_from_the_first_request_on(
        self, endpoint, ask
    ):
        def answered(seen: Seen) -> bytes:
            left = 6000 - len(seen.body) // 4
            words = f"max_tokens {seen.json['max_tokens']} is too large: only {left} tokens are left"
            is_taken = seen.json["max_tokens"] <= left
            return answer(200, completion("hello")) if is_taken else answer(400, {"error": words})

        endpoint.answer_by(answered)
        assert (await ask(LONG)).max_tokens < 1000
        assert (await ask(SHORT)).max_tokens > 5000
        assert ask.chat.most_tokens is None


class TestWay:
    async def test_a_proxy_that_takes_no_more_is_named_with_the_size_and_the_remedy(self, endpoint, ask):
        small(endpoint, "proxy")
        with pytest.raises(RequestTooLarge, match=r"413.*\d\d kB.*client_max_body_size") as caught:
            await ask(TOO_LONG)
        assert "<" not in str(caught.value)

    async def test_unknown_words_about_a_large_body_are_called_its_size_with_a_probably(self, endpoint, ask):
        endpoint.will_answer(400, {"error": {"message": "Nope."}})
        with pytest.raises(RequestRefused, match=r"Nope\. \(probably its size, 2\d\d kB: .*client_max_body_size"):
            await ask(conversation("word " * 50_000))

    async def test_a_limit_of_tokens_per_minute_is_waited_for(self, endpoint, ask):
        words = "Rate limit reached on tokens per min (TPM): Limit 30000, Requested 16400. Please try again in 0s."
        endpoint.will_answer(413, {"error": {"message": words, "type": "tokens", "code": "rate_limit_exceeded"}})
        endpoint.will_reply()
        assert (await ask(SHORT)).attempts == 2

    async def test_trouble_is_not_taken_for_a_full_context(self, endpoint, ask):
        endpoint.will_answer(500, {"error": {"message": "context deadline exceeded"}})
        with pytest.raises(EndpointUnavailable):
            await ask(SHORT)

    async def test_a_refusal_with_the_status_200_is_one(self, endpoint, ask):
        endpoint.will_answer(
            200, {"error": {"message": "request (14429 tokens) exceeds the context size (8192 tokens)"}}
        )
        with pytest.raises(ContextLimitReached) as caught:
            await ask(SHORT)
        assert caught.value.prompt_tokens == 14429


class TestUsage:
    IMPOSSIBLE: ClassVar[dict[str, Any]] = {
        "more than the context": {"prompt_tokens": 140_000, "completion_tokens": 10},
        "negative": {"prompt_tokens": -5, "completion_tokens": 10},
        "more than was asked for": {"prompt_tokens": 100, "completion_tokens": 99_999},
        "more cached than there is": {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 900}},
        "a sum that is less than its parts": {"prompt_tokens": 100, "completion_tokens": 10, "total_tokens": 50},
        "huge": {"prompt_tokens": 10**15, "completion_tokens": 10**15, "total_tokens": 2 * 10**15},
    }

    @pytest.mark.parametrize("usage", IMPOSSIBLE)
    async def test_counts_that_cannot_be_are_not_believed_against_a_whole_reply(self, endpoint, ask, usage):
        ask.chat.limits.listed_tokens = 131_072
        endpoint.will_reply("hello", usage=self.IMPOSSIBLE[usage])
        reply = await ask(SHORT)
        assert (reply.content, reply.cut) == ("hello", False)
        assert "impossible_usage" in reply.signs
        assert 0 <= reply.usage.prompt_tokens <= 131_072
        assert 0 <= reply.usage.completion_tokens <= 16_384

    async def test_a_cut_that_hides_behind_its_finish_reason_is_found(self, endpoint, ask):
        endpoint.will_reply("half", finish_reason="tool_calls", usage={"prompt_tokens": 9, "completion_tokens": 100})
        assert (await ask(SHORT, max_tokens=100)).cut

    async def test_nothing_at_all_is_a_full_context(self, endpoint, ask):
        endpoint.will_reply(None, finish_reason="length", usage={"prompt_tokens": 8192, "completion_tokens": 0})
        with pytest.raises(ContextLimitReached) as caught:
            await ask(SHORT)
        assert caught.value.prompt_tokens == 8192
        assert classify_refusal(400, {"error": {"message": str(caught.value)}}).reason is Reason.PROMPT, (
            "as cassettes keep it"
        )
