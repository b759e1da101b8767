"""A real tokenizer of transformers (the extra `tokenizer`), created here without downloading a model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from replay_steps import by_key, invoke, record, write_dataset

from tbench.demo.server import DemoEndpoint
from tbench.proxies.replay.generation.prompts import load_tokenizer

TEMPLATE = "{% for m in messages %}[{{ m['role'] }}] {{ m['content'] }} {% endfor %}[assistant] {{ mood }}"


@pytest.fixture
def tokenizer_path(tmp_path: Path) -> Path:
    """Words for tokens, and a template of its own that takes a variable."""
    pytest.importorskip("transformers")
    words = ["[UNK]", "[user]", "[assistant]", "start", "question"]
    model = {"type": "WordLevel", "vocab": {word: n for n, word in enumerate(words)}, "unk_token": "[UNK]"}
    parts: dict[str, Any] = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None, "decoder": None, "model": model,
    }  # fmt: skip
    path = tmp_path / "tokenizer"
    path.mkdir()
    (path / "tokenizer.json").write_text(json.dumps(parts))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "chat_template": TEMPLATE, "unk_token": "[UNK]"}
    (path / "tokenizer_config.json").write_text(json.dumps(settings))
    return path


def test_its_own_template_renders_and_its_words_are_counted(tokenizer_path: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_path))
    messages = [{"role": "user", "content": "start"}]
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, mood="now")
    assert text == "[user] start [assistant] now"
    assert list(tokenizer.encode(text, add_special_tokens=False)) == [1, 3, 2, 0]


def test_a_replay_is_rendered_counted_and_asked_for_with_it(tokenizer_path: Path, tmp_path: Path) -> None:
    dataset = str(write_dataset(tmp_path / "steps.jsonl", [record(number) for number in range(3)]))
    with DemoEndpoint({}) as demo:
        arguments = ["--base-url", demo.base_url, "--tokenizer-path", str(tokenizer_path)]
        options = ["--chat-template-kwargs", json.dumps({"mood": "now"})]
        done = invoke(dataset, *arguments, *options, "-o", str(tmp_path / "run"))
        assert done.exit_code == 0, (done.output, done.exception)
        short = invoke(dataset, *arguments, "-o", str(tmp_path / "short"), "--max-model-len", "1030")
    assert len(by_key(tmp_path / "run")) == 3
    report = json.loads((tmp_path / "run" / "prompt_template.json").read_text())
    assert report["template_status"] == "chat_template" and report["rank_eligible"] is True
    assert (report["prompt_tokens_by"], report["prompt_tokens_min"]) == ("tokenizer", 10)
    assert "prompt (longest: " in str(short.exception), short.output
