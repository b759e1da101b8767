"""refusals: the reason for a server's refusal, whatever its wording, and the limits that it states."""

from __future__ import annotations

import json
from typing import Any

import pytest
from refusal_words import cases

from harness.endpoint.refusals import Reason, Refusal, classify_refusal

PAGE = "<html>\r\n<head><title>413 Request Entity Too Large</title></head>\r\n<body>nginx/1.22.1</body>\r\n</html>"
LITELLM = (
    'litellm.BadRequestError: Hosted_vllmException - {"error":{"message":"max_tokens=16384 cannot be greater than '
    'max_model_len=8192.","type":"BadRequestError","param":"max_tokens","code":400}}. No fallback was attempted.'
)


def judged(message: Any, status: int = 400, sent_bytes: int = 60_000, max_tokens: int = 16384) -> Refusal:
    return classify_refusal(status, {"error": {"message": message}}, sent_bytes=sent_bytes, max_tokens=max_tokens)


@pytest.mark.parametrize("seed", [0, *(pytest.param(seed, marks=pytest.mark.slow) for seed in (1, 2))])
def test_of_thousands_of_refusals_nearly_all_are_read_right_and_no_number_wrong(seed: int) -> None:
    wrong, wrong_numbers, total = [], [], 0
    for case in cases(seed, 3500):
        total += 1
        refusal = classify_refusal(case.status, case.body, sent_bytes=300_000, max_tokens=case.max_tokens)
        if refusal.reason is not case.reason:
            wrong.append((case, refusal.reason))
        stated = {
            (refusal.context_tokens, "cl" if case.reason is Reason.REPLY else "c"),
            (refusal.prompt_tokens, "pq"),
            (refusal.most_tokens, "l"),
        }
        wrong_numbers += [
            case for number, names in stated if number not in {None, *(case.numbers[name] for name in names)}
        ]
    assert len(wrong) <= 0.02 * total, wrong[:20]
    assert len(wrong_numbers) <= 0.002 * total, wrong_numbers[:20]


@pytest.mark.parametrize(
    ("message", "reason", "context", "prompt", "most"),
    [
        ("max_tokens=16384 cannot be greater than max_model_len=8192.", Reason.REPLY, 8192, None, 8192),
        (LITELLM, Reason.REPLY, 8192, None, 8192),
        ("max_tokens: 16384 > 8192, which is the maximum allowed", Reason.REPLY, None, None, 8192),
        ("`inputs` tokens + `max_new_tokens` must be <= 17000. Given: 3000 `inputs` tokens and 16384 `max_new_tokens`",
         Reason.BOTH, 17000, 3000, None),
        ("maximum context length is 8192 tokens. You requested 16384 output tokens and your prompt contains 2000",
         Reason.BOTH, 8192, 2000, None),
        ("maximum context length is 16500 tokens. You requested 16384 output tokens and your prompt contains at least "
         "117 input tokens, for a total of at least 16501 tokens", Reason.BOTH, 16500, None, None),
        ("You passed 7001 input tokens and requested 16384 output tokens. However, the model's context length is only "
         "20000 tokens, resulting in a maximum input length of 3616 tokens.", Reason.BOTH, 20000, 7001, None),
        ("Input sequence length 9000 + requested output length 16384 exceeds the engine's max sequence length 20480",
         Reason.BOTH, 20480, 9000, None),
        ("max_tokens 16384 exceeds the 1192 tokens that are left after the prompt (7000 of 8192)",
         Reason.BOTH, 8192, 7000, None),
        ("The prompt is too long. Consider splitting it into chunks of at most 2000 tokens.",
         Reason.PROMPT, None, None, None),
        ("Prompt exceeds the context window by 211 tokens.", Reason.PROMPT, None, None, None),
        ("sequence length 16906 > max_seq_len 16384 (prompt 522 + generation 16384)", Reason.BOTH, 16384, 522, None),
        ("Generation length 16384 is above this deployment's cap (2048)", Reason.REPLY, None, None, 2048),
        ("n must be at most 10 when max_tokens is 16384", Reason.OTHER, None, None, None),
        ("The number of messages (4900) exceeds the maximum of 4096", Reason.OTHER, None, None, None),
        ("messages[3].content: string too long: at most 10485760, got 11000000", Reason.BODY, None, None, None),
        ("A history of 51,200 tokens cannot be served: window 40,960", Reason.PROMPT, 40960, 51200, None),
        ("prompt is too long: 212345 tokens > 200000 maximum", Reason.PROMPT, 200000, 212345, None),
        ("prompt contains at least 8193 tokens, more than the context of 8192 tokens", Reason.PROMPT, 8192, None, None),
        ("max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)", Reason.PROMPT, None, None, None),
    ],
)  # fmt: skip
def test_limits_are_learned_from_words(
    message: str, reason: Reason, context: int | None, prompt: int | None, most: int | None
) -> None:
    refusal = judged(message)
    assert (refusal.reason, refusal.context_tokens, refusal.prompt_tokens, refusal.most_tokens) == (
        *(reason, context, prompt, most),
    )


def test_fields_beside_the_message_tell_too() -> None:
    error = {"code": 400, "message": "the request is refused", "type": "exceed_context_size_error"}
    refusal = classify_refusal(400, {"error": {**error, "n_prompt_tokens": 9000, "n_ctx": 8192}}, max_tokens=64)
    assert (refusal.reason, refusal.context_tokens, refusal.prompt_tokens) == (Reason.PROMPT, 8192, 9000)
    detail = {
        "type": "less_than_equal",
        "loc": ["body", "max_tokens"],
        "msg": "Input should be less than or equal to 4096",
    }
    refusal = classify_refusal(422, {"detail": [{**detail, "input": 16384, "ctx": {"le": 4096}}]}, max_tokens=16384)
    assert (refusal.reason, refusal.most_tokens) == (Reason.REPLY, 4096)


QUOTED = "ValueError: prompt is too long: 9000 tokens > 8192 maximum"


@pytest.mark.parametrize(
    ("message", "reason", "numbers"),
    [
        (f"Failed to parse the arguments in messages[2]: near '{QUOTED}'", Reason.OTHER, (None, None)),
        (f"Unsupported role 'tool' in message: \"{QUOTED}\"", Reason.OTHER, (None, None)),
        ("The server does not take roles: line 9: rate limit reached for tokens per min", Reason.OTHER, (None, None)),
        (QUOTED, Reason.PROMPT, (8192, 9000)),
        ("prompt is too long: 9120 tokens > 8192 maximum", Reason.PROMPT, (8192, 9120)),
        ("OpenAIException - prompt is too long: 9120 tokens > 8192 maximum. No fallback.", Reason.PROMPT, (8192, 9120)),
    ],
)
def test_a_quotation_of_the_request_is_no_statement_of_the_server(
    message: str, reason: Reason, numbers: tuple[int | None, int | None]
) -> None:
    seen = f'Traceback:\n  File "x.py"\n{QUOTED}\nline 9: rate limit reached for tokens per min\n'
    sent = json.dumps({"messages": [{"role": "user", "content": seen}], "max_tokens": 16384}).encode()
    refusal = classify_refusal(400, {"error": {"message": message}}, sent=sent, max_tokens=16384)
    assert (refusal.reason, (refusal.context_tokens, refusal.prompt_tokens)) == (reason, numbers)
    of_pydantic = {
        "type": "missing",
        "loc": ["body", "messages", 0],
        "msg": "Field required",
        "input": {"content": seen},
    }
    assert classify_refusal(422, {"detail": [of_pydantic]}, max_tokens=16384).reason is Reason.OTHER


def test_a_short_prompt_cannot_be_what_is_too_long() -> None:
    assert judged("Input is too long for requested model.", sent_bytes=2_000).reason is Reason.BOTH
    assert judged("Input is too long for requested model.", sent_bytes=200_000).reason is Reason.PROMPT


@pytest.mark.parametrize("status", [500, 502, 503])
@pytest.mark.parametrize(
    "words",
    ["context deadline exceeded", "CUDA out of memory: prompt of 9000 tokens exceeds it", "timeout exceeded", ""],
)
def test_trouble_that_passes_is_no_refusal(words: str, status: int) -> None:
    assert judged(words, status).reason is Reason.TROUBLE


def test_a_page_about_the_size_is_about_the_body() -> None:
    refusal = classify_refusal(413, PAGE, sent_bytes=1_500_000, max_tokens=16384)
    assert (refusal.reason, refusal.words) == (Reason.BODY, "413 Request Entity Too Large nginx/1.22.1")


def test_unknown_words_about_a_large_body_are_probably_about_its_size() -> None:
    assert not judged("Nope.", sent_bytes=150_000).is_sure
    assert judged("Nope.", sent_bytes=50_000).is_sure
    assert judged("Incorrect API key provided", 401, sent_bytes=150_000).is_sure


def test_what_the_model_has_generated_is_no_statement_of_the_server() -> None:
    error = {"message": "Failed to call a function.", "failed_generation": "grep 'prompt is too long: 9000 > 8192' x"}
    assert classify_refusal(400, {"error": error}, max_tokens=16384).reason is Reason.OTHER


@pytest.mark.parametrize(
    "words",
    ["0" * 5000, "slow down " + "7" * 5000, "1.000 + 00 > 8192", "1.000 + 1 >= -1", f"must be in [0, {'7' * 5000}]",
     f"max_tokens must be greater than 0, got {'7' * 5000}", f"{'1 ' * 900}{'000 ' * 1500}tokens > 8192"],
)  # fmt: skip
@pytest.mark.parametrize("status", [400, 429, 500])
def test_any_number_is_read(words: str, status: int) -> None:
    assert classify_refusal(status, words, sent=b"{}", max_tokens=8192).words == words


@pytest.mark.parametrize("body", [None, "", [], {}, {"error": None}, {"error": {"message": None}}, [1], 7, "{" * 9000])
def test_any_body_is_judged(body: object) -> None:
    assert classify_refusal(400, body).reason is Reason.OTHER
