"""Refusals as servers word them, in all frames that they come in, each with what it is about: to try a judge on."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

from harness.endpoint.refusals import Reason

PROMPT = (
    "This model's maximum context length is {c} tokens. However, your prompt contains 5100050 characters (more than "
    "2621440 characters, which is the upper bound for {c} input tokens). (parameter=input_text, value=5100050)",
    "the prompt is longer than the context length currently available to the model; shorten the prompt, or adjust the "
    "context length in settings",
    "This model's maximum context length is {c} tokens. However, your messages resulted in {p} tokens. Please reduce "
    "the length of the messages.",
    "This model's maximum context length is {c} tokens. However, your prompt contains at least {c1} input "
    "tokens, which "
    "exceeds this limit even without any output tokens. (parameter=input_tokens, value={c1})",
    "The input ({p} tokens) is longer than the model's context length ({c} tokens).",
    "Input length ({p} tokens) exceeds the maximum allowed length ({c} tokens). Use a shorter input.",
    "the request exceeds the available context size. try increasing the context size or enable context shift",
    "request ({p} tokens) exceeds the available context size ({c} tokens), try increasing it",
    "prompt is too long: {p} tokens > {c} maximum",
    "Input is too long for requested model.",
    "The input token count ({p}) exceeds the maximum number of tokens allowed ({c}).",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "This model's maximum prompt length is {c} but the request contains {p} tokens.",
    "prompt token count of {p} exceeds the limit of {c}",
    "invalid params, context window exceeds limit (2013)",
    "Trying to keep the first {p} tokens when context the overflows. However, the model is loaded with context "
    "length of "
    "only {c} tokens, which is not enough.",
    "The number of tokens to keep from the initial prompt is greater than the context length.",
    "Input validation error: `inputs` must have less than {c} tokens. Given: {p}",
    "Your input is too long. Max input length is {c} tokens, but you supplied {p} tokens.",
    "max_tokens must be at least 1, got 0. (parameter=max_tokens, value=0)",
    "Exceeded max_seq_len: prompt length {p} is larger than the maximum sequence length {c}",
    "Prompt length ({p}) exceeds maximum input length ({c})",
    "Too many tokens in the prompt: {p}; the model accepts at most {c}.",
    "input prompt of {p} tokens does not fit into the context window ({c})",
    "Requested tokens ({p}) exceed context window of {c}",
    "Prompt contains {p} tokens and {n} draft tokens, too large for a model with {c} context length",
    "context length exceeded",
    "The conversation has grown beyond the model's context window: {p} tokens, limit {c}.",
    "prompt tokens ({p}) must be less than max_model_len ({c})",
    "输入长度超过模型最大上下文长度",
    "Context size has been exceeded.",
    "too many tokens: size limit exceeded by {n} tokens. Try using shorter or fewer inputs",
    "Prompt contains {p} tokens, too large for model with {c} maximum context length",
    "Input tokens exceed the configured limit of {c} tokens. Your messages resulted in {p} tokens. Please reduce "
    "the length of the messages.",
    "the number of input tokens {p} cannot exceed the total tokens limit {c} for this model",
    "The input is too long. The maximum number of tokens is {c}, got {p}",
    "Prompt is too long for the model: {p} > {c}",
    "Input sequence length ({p}) must be smaller than max_input_len ({c})",
    "Your prompt is too long; it has {p} tokens and the window holds {c}.",
    "Inputs tokens must be less than {c}",
    "the input sequence of {p} tokens exceeds session_len {c}",
    "The prompt (total {p}) exceeds the model's context size ({c}).",
    "context_length_exceeded",
    "Please shorten your prompt: only {c} tokens of context are available, {p} were sent",
    "This request has {p} tokens, more than the {c} of the model's window",
    "Prompt tokens: {p}. Context limit: {c}.",
    "The chat history is longer than what the model can hold ({p} of {c} tokens)",
    "token limit exceeded: {p}/{c}",
    "n_tokens = {p} exceeds n_ctx = {c}",
)
"""The prompt alone, of p tokens, is too long for c."""
REPLY = (
    "max_tokens={m1} cannot be greater than max_model_len={l}. (parameter=max_tokens, value={m1})",
    "max_tokens={m} cannot be greater than max_model_len={l}. Please request fewer output tokens.",
    "max_tokens is too large: {m}. This model supports at most {l} completion tokens, whereas you provided {m}.",
    "max_tokens: {m} > {l}, which is the maximum allowed number of output tokens for the model",
    "The maximum tokens you requested exceeds the model limit of {l}. Try again with a maximum tokens value that "
    "is lower "
    "than {l}.",
    "Invalid max_tokens value, the valid range of max_tokens is [1, {l}]",
    "Range of max_tokens should be [1, {l}]",
    "`max_tokens` must be less than or equal to `{l}`, the maximum value for `max_tokens` is less than the "
    "`context_window` for this model",
    "Input validation error: `max_new_tokens` must be <= {l}. Given: {m}",
    "max_completion_tokens ({m}) exceeds the limit of {l} for this deployment",
    "maxOutputTokens value of {m} but the supported range is from 1 (inclusive) to {l1} (exclusive).",
    "Requested output length {m} is larger than the allowed {l} output tokens",
    "max_tokens is too large",
    "Invalid 'max_output_tokens': integer above maximum value. Expected a value <= {l}, but got {m} instead.",
    "max_completion_tokens is limited to {l}",
    "num_predict {m} is above the maximum of {l}",
    "max_tokens must be between 1 and {l}",
    "The value of max_tokens ({m}) is greater than the model's maximum ({l}).",
    "max new tokens {m} is more than allowed: {l}",
    "You requested {m} completion tokens but the most this model can produce is {l}.",
    "Cannot generate {m} output tokens: output is capped at {l}",
    "max_tokens should be no larger than {l}",
    "max_new_tokens = {m}; must not exceed {l}",
    "max_tokens too high",
    "max_tokens: Input should be less than or equal to {l}",
)
"""max_tokens, asked as m, may be l at most."""
BOTH = (
    "This model's maximum context length is {c} tokens. However, you requested {t} tokens ({q} in the messages, {m} in "
    "the completion). Please reduce the length of the messages or completion.",
    "This model's maximum context length is {c} tokens. However, you requested {m} output tokens and your prompt "
    "contains "
    "{q} input tokens, for a total of {t} tokens. Please reduce the length of the input prompt or the number of "
    "requested output tokens.",
    "'max_tokens' or 'max_completion_tokens' is too large: {m}. This model's maximum context length is {c} tokens and "
    "your request has {q} input tokens ({m} > {c} - {q}).",
    "Input validation error: `inputs` tokens + `max_new_tokens` must be <= {c}. Given: {q} `inputs` tokens and {m} "
    "`max_new_tokens`",
    "input length and `max_tokens` exceed context limit: {q} + {m} > {c}, decrease input length or `max_tokens` "
    "and try "
    "again",
    "This endpoint's maximum context length is {c} tokens. However, you requested about {t} tokens ({q} of text input, "
    "{m} in the output).",
    "Requested token count exceeds the model's maximum context length of {c} tokens. You requested a total of "
    "{t} tokens: "
    "{q} tokens from the input messages and {m} tokens for the completion.",
    "The sum of prompt length ({q}), max_tokens ({m}) should not exceed max_num_tokens ({c})",
    "Prompt of {q} tokens plus max_tokens of {m} does not fit the context of {c} tokens",
    "prompt and max_tokens together are too long for the context window",
    "The estimated number of input and maximum output tokens ({t}) exceeded this model context window limit ({c}).",
    "total_tokens {t} exceeds the maximum of {c} (prompt {q} + output {m})",
    "input {q} + max_new_tokens {m} = {t} > {c}",
    "We have a limit of {c} tokens for prompt plus completion; you asked for {t} ({q} prompt, {m} completion).",
    "Prompt ({q}) and max_tokens ({m}) exceed the context length ({c})",
    "The model's context is {c} tokens: prompt has {q}, max_tokens {m} leaves too little room and exceeds it",
)
"""A prompt of q tokens and max_tokens m together, t, are too long for c."""
BODY = (
    "Request Entity Too Large",
    "http: request body too large",
    "Request body too large. Max size is 1048576 bytes",
    "request_too_large: Request exceeds the maximum allowed number of bytes",
    "Payload too large",
    "request entity too large",
    "Failed to buffer the request body: length limit exceeded",
    "The request body exceeds 1MB",
    "Content Too Large",
    "body exceeded the limit of 1048576 bytes",
    "HTTP content length exceeded 10485760 bytes.",
    "Maximum request length exceeded.",
    "Your client issued a request that was too large.",
    "message length too large: found 5000000 bytes, the limit is: 4194304 bytes",
    "entity.too.large",
    "Request size limit exceeded: 2097152 bytes",
)
RATE = (
    "Rate limit reached for model in organization on tokens per min (TPM): Limit 30000, Used 28000, Requested 16900. "
    "Please try again in 12s.",
    "Request too large for model on tokens per minute (TPM): Limit 6000, Requested {m}, please reduce your "
    "message size "
    "and try again.",
    "You exceeded your current quota, please check your plan and billing details.",
    "Too many requests",
    "This request would exceed your organization's rate limit of 40,000 input tokens per minute.",
    "Too many tokens, please wait before trying again.",
    "Number of request tokens has exceeded your per-minute rate limit",
    "Token rate limit exceeded. Retry after 20 seconds.",
    "slow down",
    "Limit 100000 tokens per day reached",
    "Resource exhausted, please try again later",
    "throughput exceeded",
    "Key over limit for TPM",
    "You have sent too many tokens in the last minute",
)
TROUBLE = (
    "EngineCore encountered an issue. See stack trace (above) for the root cause.",
    "CUDA out of memory. Tried to allocate 2.00 GiB",
    "context deadline exceeded",
    "Internal server error",
    "upstream connect error or disconnect/reset before headers. reset reason: overflow",
    "The engine is currently busy and cannot accept new requests.",
    "Model is loading, estimated time 20 s",
    "prompt processing failed: list index out of range",
    "Request timed out after 600 seconds for a prompt of 4096 tokens",
    "",
    "failed to allocate context",
    "KV cache is full, retry later",
    "Worker died: token stream closed",
    "read timeout after 300 s",
    "request queue is full (max 128)",
    "upstream request timeout",
    "no healthy upstream",
    "The server had an error while processing your request",
    "max retries exceeded with url: /v1/chat/completions",
    "maximum number of running requests exceeded",
    "AssertionError: len(prompt_tokens) > 0",
    "IndexError: index 4096 is out of bounds for dimension 0 with size 4096",
)
OTHER = (
    "Your credit balance is too low to access this API.",
    "Unsupported parameter: 'max_tokens' is not supported with this model. Use 'max_completion_tokens' instead.",
    "n must be 1 when using greedy sampling, got 2.",
    "temperature must be in [0, 2], got 3.0",
    "Invalid 'stop': array too long. Expected an array with maximum length 4, but got an array with length 5 instead.",
    "Invalid 'tools[0].function.name': string too long. Expected a string with maximum length 64, but got 80.",
    '"auto" tool choice requires --enable-auto-tool-choice and --tool-call-parser to be set',
    "The model `tiny` does not exist.",
    "System message must be at the beginning.",
    "`max_tokens` must be greater than `thinking.budget_tokens`",
    "messages.0.content.1.image.source.base64: image exceeds 5 MB maximum: 6316312 bytes > 5242880 bytes",
    "Unexpected fields in request: top_k",
    "logit_bias contains out of vocab token ids: 200000 > 151936",
    "min_tokens must be less than or equal to max_tokens={m}, got 20000",
    "top_logprobs must be between 0 and 20, got 21",
    "reasoning_content is missing in assistant tool call message at index 2",
    "Invalid type for 'messages[1].content': expected a string, but got null instead.",
    "This model does not support image input",
    "Conversation roles must alternate user/assistant/user/assistant",
    "The parameter seed must be less than 9223372036854775807",
    "Expecting value: line 1 column 1 (char 0)",
    "Budget has been exceeded! Current cost: 10.2, Max budget: 10.0",
    "Additional properties are not allowed ('strict' was unexpected)",
    "Field required",
    "tool_call_id has no response",
    "Input tag 'developer' found using 'role' does not match any of the expected tags",
    "Invalid value for 'top_p': must be <= 1",
    "frequency_penalty must be between -2 and 2",
    "response_format is not supported",
    "Too many stop sequences: maximum is 4",
    "Messages with role 'tool' must be a response to a preceding message with 'tool_calls'",
    "best_of must be 1",
    "This model was deprecated; it was available up to June",
    "Invalid message role",
    "max_tokens: Input should be a valid integer",
    "Unrecognized request argument supplied: max_tokens",
    "prompt_logprobs must be at most 20",
    "tools: maximum of 128 tools exceeded",
    "guided decoding schema too large",
    "The input contains invalid characters",
    "Unsupported value: 'temperature' does not support 0.7 with this model. Only the default (1) value is supported.",
)


class Case(NamedTuple):
    """A refusal, and what it is about."""

    status: int
    body: Any
    max_tokens: int
    reason: Reason
    words: str
    numbers: dict[str, int]


STATUSES = {
    Reason.PROMPT: (400, 400, 400, 413, 422, 500, 424),
    Reason.REPLY: (400, 400, 422, 416, 500),
    Reason.BOTH: (400, 400, 422, 413, 500),
    Reason.BODY: (413, 413, 400, 500),
    Reason.RATE: (429,),
    Reason.TROUBLE: (500, 502, 503, 504, 529),
    Reason.OTHER: (400, 400, 422, 404),
}
WORDS = {
    Reason.PROMPT: PROMPT,
    Reason.REPLY: REPLY,
    Reason.BOTH: BOTH,
    Reason.BODY: BODY,
    Reason.RATE: RATE,
    Reason.TROUBLE: TROUBLE,
    Reason.OTHER: OTHER,
}


def framed(words: str, status: int, chance: random.Random) -> Any:
    """The words as a body, in one of the frames of servers and gateways."""
    own = {"error": {"message": words, "type": "BadRequestError", "param": None, "code": status}}
    frames = [
        own,
        own,
        {"error": {"message": words, "type": "invalid_request_error", "param": None, "code": None}},
        {"object": "error", "message": words, "type": "BadRequestError", "param": None, "code": status},
        {"error": words},
        {"error": words, "error_type": "validation"},
        {"detail": words},
        {"message": words},
        {"type": "error", "error": {"type": "invalid_request_error", "message": words}, "request_id": "req_011C9"},
        {"error": {"code": status, "message": words, "status": "INVALID_ARGUMENT"}},
        [{"error": {"code": status, "message": words, "status": "INVALID_ARGUMENT"}}],
        {"code": 20015, "message": words, "data": None},
        words,
        f"<html>\n<head><title>{status} Error</title></head>\n<body><center><h1>{words}</h1></center></body></html>",
        {"error": {"message": f"litellm.BadRequestError: OpenAIException - {words}\n\nLiteLLM: model group 'tiny' "
                   "failed with the error above. No fallback was attempted. context_window_fallbacks=None",
                   "type": None, "param": None, "code": str(status)}},
        {"error": {"message": f"litellm.BadRequestError: Hosted_vllmException - {json.dumps(own)}. Received Model "
                   "Group=tiny\nAvailable Model Group Fallbacks=None", "code": str(status)}},
        {"error": {"message": f"Error code: {status} - {own}", "code": str(status)}},
        {"errors": [{"message": words, "code": "8007"}], "success": False},
    ]  # fmt: skip
    return chance.choice(frames)


def cases(seed: int, number: int) -> Iterator[Case]:
    """So many refusals, all reasons equally often."""
    chance = random.Random(seed)
    for index in range(number):
        reason = list(WORDS)[index % len(WORDS)]
        template = chance.choice(WORDS[reason])
        m = chance.choice([16384, 8000, 4096, 65536])
        c = chance.choice([2048, 8192, 32768, 40960, 131072, 200000])
        limit = chance.choice([each for each in (1024, 2048, 4000, 32768) if each < m])
        q = chance.randrange(max(20, c - m + 1), c - 64)
        numbers = {"c": c, "m": m, "l": limit, "q": q, "p": c + chance.randrange(1, 90_000), "t": q + m, "n": 7}
        words = template.format(**numbers, c1=c + 1, l1=limit + 1, m1=m + 1)
        if chance.random() < 0.15 and reason not in {Reason.OTHER, Reason.TROUBLE}:
            words = words.replace(f"{c} ", f"{c:,} ")
        status = chance.choice(STATUSES[reason])
        yield Case(status, framed(words, status, chance), m, reason, template, numbers)
