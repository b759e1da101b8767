"""Prompts: templates, thinking and the report."""

from __future__ import annotations

import re
from typing import Any

import pytest
from fake_tokenizer import FakeTokenizer
from hypothesis import given
from hypothesis import strategies as st

from tbench.errors import UsageError
from tbench.proxies.datasets.records import Record
from tbench.proxies.replay.generation.prompts import (
    PromptBuilder,
    PromptOptions,
    load_tokenizer,
    without_thinking_blocks,
)

HISTORY = [
    {"role": "system", "content": "be brief"},
    {"role": "user", "content": " hello "},
    {"role": "assistant", "content": "<think>why\nnot</think>\n\n hi <think>x</think> there"},
    {"role": "tool", "content": "42"},
]
TEMPLATE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}{% if enable_thinking is false %}(no){% endif %}"
)


def a_record(**changes: Any) -> Record:
    return Record.model_validate({"task_id": "t", "step_idx": 0, "messages": HISTORY, "ref_raw": "{}", **changes})


def builder(model: str, tokenizer: FakeTokenizer | None = None, **options: Any) -> PromptBuilder:
    return PromptBuilder(PromptOptions(render="local", **options), model, None, tokenizer)


def test_without_local_rendering_messages_go_to_the_server_as_they_are() -> None:
    prompt = PromptBuilder(PromptOptions(), "m").build(a_record())
    assert prompt.fields == {"messages": HISTORY}
    assert (prompt.status, prompt.stripped_thinking_blocks) == ("server", 0)


def test_a_tokenizers_own_template_is_used_and_its_bos_not_doubled() -> None:
    prompt = builder("m", FakeTokenizer(TEMPLATE)).build(a_record(messages=HISTORY[:2]))
    assert prompt.fields == {"prompt": "[system]be brief[user] hello [assistant]", "add_special_tokens": False}
    assert prompt.status == "chat_template"


@pytest.mark.parametrize(
    ("mode", "end"), [("on", ""), ("off", "(no)"), ("0", "(no)"), ("Disabled", "(no)"), ("yes", ""), ("auto", "")]
)
def test_the_thinking_mode_reaches_the_template(mode: str, end: str) -> None:
    prompt = builder("m", FakeTokenizer(TEMPLATE), thinking_mode=mode).build(a_record(messages=HISTORY[:1]))
    assert prompt.fields["prompt"] == f"[system]be brief[assistant]{end}"


def test_gemma_4_thinks_only_on_request() -> None:
    server = PromptBuilder(PromptOptions(), "google/Gemma-4-E4B")
    assert server.build(a_record()).fields["chat_template_kwargs"] == {"enable_thinking": False}
    told = PromptBuilder(PromptOptions(chat_template_kwargs={"enable_thinking": True}), "google/gemma-4-E4B")
    assert told.build(a_record()).fields["chat_template_kwargs"] == {"enable_thinking": True}


def test_a_fallback_by_the_models_family_stands_in_for_a_missing_template() -> None:
    for model in ("Qwen/Qwen3.5-2B", "LFM2.5-8B", "x/Nemotron-Terminal-8B", "Ouro-1.4B"):
        prompt = builder(model, FakeTokenizer()).build(a_record())
        assert prompt.fields["prompt"] == (
            "<|im_start|>system\nbe brief<|im_end|>\n<|im_start|>user\n hello <|im_end|>\n"
            f"<|im_start|>assistant\n{HISTORY[2]['content']}<|im_end|>\n<|im_start|>user\n42<|im_end|>\n"
            "<|im_start|>assistant\n"
        )
        assert prompt.status == "chatml_fallback"
        assert prompt.error and prompt.error.startswith("ValueError: Cannot use chat template")
        assert "add_special_tokens" not in prompt.fields


def test_gemma_4_takes_the_patched_turns_by_default_and_its_template_only_with_both_switches_off() -> None:
    prompt = builder("google/gemma-4-E4B", FakeTokenizer(TEMPLATE)).build(a_record())
    assert prompt.fields["prompt"] == (
        "<bos><|turn>system\nbe brief<turn|>\n<|turn>user\nhello<turn|>\n<|turn>model\nhi there<turn|>\n"
        "<|turn>user\n42<turn|>\n<|turn>model\n"
    )
    assert (prompt.status, prompt.stripped_thinking_blocks) == ("gemma4_patched", 2)
    plain = builder("google/gemma-4-E4B", FakeTokenizer(TEMPLATE), strip_thinking_history="off").build(a_record())
    assert (plain.status, plain.stripped_thinking_blocks) == ("chat_template", 0)


def test_the_large_gemma_4_end_with_an_empty_thought_channel_unless_they_think() -> None:
    record = a_record(messages=HISTORY[:1])
    large = builder("gemma-4-31B-it").build(record)
    assert large.fields["prompt"].endswith("<|turn>model\n<|channel>thought\n<channel|>")
    thinking = builder("gemma-4-31B-it", thinking_mode="on").build(record)
    assert thinking.fields["prompt"] == (
        "<bos><|turn>system\n<|think|>\n<turn|>\n<|turn>system\nbe brief<turn|>\n<|turn>model\n"
    )
    off = {"strip_thinking_history": "off", "gemma4_empty_thought_channel": "off"}
    assert builder("gemma-4-31B-it", **off).build(record).status == "gemma4_fallback"


def test_deepseek_v4_has_turns_of_its_own() -> None:
    prompt = builder("deepseek-ai/DeepSeek-V4-Flash", thinking_mode="on").build(a_record(messages=HISTORY[:3]))
    assert prompt.fields["prompt"] == (
        "<｜begin▁of▁sentence｜>be brief<｜User｜>hello"
        "<｜Assistant｜><think>why\nnot</think>\n\n hi <think>x</think> there"
        "<｜end▁of▁sentence｜><｜Assistant｜><think>"
    )
    off = builder("deepseek_v4").build(a_record(messages=HISTORY[:2]))
    assert off.fields["prompt"].endswith("<｜User｜>hello<｜Assistant｜></think>")
    assert off.status == "deepseek_v4_fallback"


def test_what_has_no_family_is_a_raw_fallback_and_loses_its_rank() -> None:
    made = builder("mystery", FakeTokenizer("{{ raise_exception('no') }}"))
    legacy, corrected = a_record(messages=None, prompt="just this"), a_record(messages=HISTORY[:2])
    prompts = [made.build(legacy), made.build(corrected)]
    assert [prompt.fields for prompt in prompts] == [
        {"prompt": "just this"},
        {"prompt": "SYSTEM:\nbe brief\n\nUSER:\n hello "},
    ]
    report = made.report(prompts)
    assert (report.template_status, report.rank_eligible) == ("mixed_or_raw", False)
    assert report.raw_fallback_errors == ("UndefinedError: 'raise_exception' is undefined",)
    assert (report.row_count, report.messages_rows) == (2, 1)


def test_the_report_counts_statuses_blocks_and_tokens_as_upstream_does() -> None:
    made = builder("gemma-4-E4B", FakeTokenizer(TEMPLATE))
    report = made.report([made.build(a_record())] * 3, counts=range(1, 101), counted_by="server", max_tokens=8)
    assert report.template_status == "model_specific_or_mixed"
    assert report.template_status_counts == {"gemma4_patched": 3}
    assert (report.rank_eligible, report.stripped_thinking_blocks) == (True, 6)
    tokens = report.model_dump(include={f"prompt_tokens_{name}" for name in ("min", "max", "p50", "p95", "p99")})
    assert list(tokens.values()) == [1, 100, 51, 95, 99]
    own = builder("m", FakeTokenizer(TEMPLATE))
    assert own.report([own.build(a_record())], counts=[7]).template_status == "chat_template"
    server = PromptBuilder(PromptOptions(), "m")
    assert server.report([server.build(a_record())]).template_status == "server"
    one = own.report([own.build(a_record())], counts=[7])
    assert (one.prompt_tokens_p50, one.prompt_tokens_p95, one.prompt_tokens_p99) == (7, 7, 7)


@given(st.lists(st.sampled_from(["<think>", "</think>", "<|channel>thought\n", "<channel|>", " ", "\n", "x"])))
def test_thinking_is_removed_as_by_the_printed_patterns(parts: list[str]) -> None:
    text = "".join(parts)
    expected, first = re.subn(r"<think>.*?</think>\s*", "", text, flags=re.DOTALL)
    expected, second = re.subn(r"<\|channel>thought\n.*?<channel\|>\s*", "", expected, flags=re.DOTALL)
    assert without_thinking_blocks(text) == (expected.lstrip(), first + second)


def test_a_million_openings_without_an_end_take_no_time() -> None:
    text = "<think>" * 1_000_000
    assert without_thinking_blocks(text) == (text, 0)


@pytest.mark.parametrize("render", ["server", "local"])
def test_half_a_surrogate_pair_never_reaches_the_wire(render: Any) -> None:
    history = [{"role": "user", "content": "a\ud800b \ud83d\ude00"}]
    made = PromptBuilder(PromptOptions(render=render), "qwen")
    assert "\ufffd" in str(made.build(a_record(messages=history)).fields).encode().decode()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"thinking_mode": "perhaps"}, "--thinking-mode perhaps"),
        ({"gemma4_empty_thought_channel": "on"}, "--render local"),
        ({"thinking_mode": "on", "chat_template_kwargs": {"enable_thinking": False}}, "contradict"),
    ],
)
def test_settings_that_cannot_be_are_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        PromptBuilder(PromptOptions(**options), "m")


def test_a_tokenizer_that_cannot_be_had_is_one_clear_line() -> None:
    """Whether or not transformers is installed here."""
    with pytest.raises(UsageError, match=r"^--tokenizer-path /nowhere: ") as caught:
        load_tokenizer("/nowhere")
    assert "\n" not in str(caught.value)
