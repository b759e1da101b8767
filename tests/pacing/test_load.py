"""What vLLM says of its load: real answers, several engines, and what lies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tbench.pacing.load import NoMetrics, ServerLoad, of_all

RECORDED = Path(__file__).parents[3] / "shared" / "data" / "vllm-wire" / "A_metrics.json"
TEXT = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 3.0
vllm:num_requests_running{engine="1",model_name="tiny"} 1.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 2.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5
vllm:kv_cache_usage_perc{engine="1",model_name="tiny"} 0.25
vllm:num_preemptions_total{engine="0",model_name="tiny"} 7.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.79e+09
vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="1000",note="a \\"quoted\\" word"} 1.0
"""


def test_a_server_s_engines_are_taken_together() -> None:
    assert ServerLoad.read(TEXT, "tiny") == ServerLoad(0.375, 4, 2, 7, 16000)


def test_the_cache_s_size_is_taken_as_it_is_told() -> None:
    told = TEXT.replace('block_size="16"', 'block_size="16",kv_cache_size_tokens="12345"')
    assert ServerLoad.read(told, "tiny").cache_tokens == 12345


def test_other_models_of_a_server_are_left_out() -> None:
    both = TEXT + 'vllm:kv_cache_usage_perc{engine="0",model_name="large"} 0.9\n'
    assert ServerLoad.read(both, "large").usage == 0.9
    assert ServerLoad.read(TEXT, "an adapter").usage == 0.375


def test_a_recorded_answer_is_read() -> None:
    if not RECORDED.exists():
        pytest.skip(f"no recorded answers at {RECORDED.parent}")
    recorded = json.loads(RECORDED.read_text())
    text = recorded["response"]["text"]
    load = ServerLoad.read(text, "tiny")
    assert 0.0 <= load.usage <= 1.0 and load.running >= 0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (None, "no text"), ({"error": "x"}, "no text"),
        ("<html>nginx</html>", "no vllm:kv_cache_usage_perc"),
        ("vllm:kv_cache_usage_perc 37", "a KV usage of 37 cannot be"),
        ("vllm:kv_cache_usage_perc NaN", "nan cannot be"),
        ("vllm:kv_cache_usage_perc -0.1", "-0.1 cannot be"), ("vllm:kv_cache_usage_perc abc", "nan cannot be"),
        ("vllm:kv_cache_usage_perc 0.1\nvllm:num_requests_waiting +Inf", "inf cannot be"),
        ("x" * 5_000_000, "no text"),
    ],
)  # fmt: skip
def test_metrics_that_are_missing_or_lie_are_none(text: object, said: str) -> None:
    with pytest.raises(NoMetrics, match=said):
        ServerLoad.read(text)


@given(st.text())
def test_no_text_breaks_the_reader(text: str) -> None:
    for each in (text, TEXT + text, f"vllm:kv_cache_usage_perc{{{text}}} {text}"):
        try:
            load = ServerLoad.read(each)
        except NoMetrics:
            continue
        assert 0.0 <= load.usage <= 1.0 and min(load.running, load.waiting, load.preemptions) >= 0


def test_servers_are_taken_together() -> None:
    one, other = ServerLoad(0.2, 1, 2, 3, 100), ServerLoad(0.6, 10, 20, 30, 200)
    assert of_all([one, other]) == ServerLoad(0.4, 11, 22, 33, 300)
    assert of_all([one, ServerLoad(0.6, 0, 0, 0)]).cache_tokens is None
