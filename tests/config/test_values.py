"""Capabilities: which names there are, and what is said of one that is none."""

from __future__ import annotations

import pytest

from tbench.config.layers import Layers
from tbench.config.settings import RunConfig
from tbench.config.values import validate_capabilities
from tbench.errors import UsageError

LAYERS = Layers(RunConfig)


def test_a_name_may_have_its_prefix_and_counts_once() -> None:
    assert validate_capabilities(("SYS_PTRACE", "CAP_NET_RAW", "NET_RAW")) == ("NET_RAW", "SYS_PTRACE")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("net_raw", "'net_raw' is not a Linux capability; did you mean NET_RAW?"),
        ("cap_net_raw", "did you mean NET_RAW?"),
        ("CAP_NET_ROW", "'NET_ROW' is not a Linux capability; did you mean NET_RAW?"),
        ("NET-RAW", "did you mean NET_RAW?"),
        ("ALL", "'ALL' is not a Linux capability"),
        ("", "'' is not a Linux capability; see capabilities(7)"),
    ],
)
def test_what_is_none_is_refused_with_the_nearest(given: str, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        LAYERS.option("sandbox.cap_add", [given], "--cap-add")
    assert str(caught.value).startswith("--cap-add: ") and words in str(caught.value)


@pytest.mark.parametrize("name", ["NET_RAW", "CAP_NET_ADMIN"])
def test_what_goes_past_closed_addresses_is_refused_beside_block_host(name: str) -> None:
    capability = LAYERS.option("sandbox.cap_add", [name], "--cap-add")
    closed = LAYERS.option("sandbox.block_host", True, "--block-host")
    with pytest.raises(UsageError) as caught:
        LAYERS.resolve([capability, closed])
    words = f"cap_add {name.removeprefix('CAP_')} would bypass block_host; leave one of them out"
    assert words in str(caught.value)
    assert "sandbox.cap_add from --cap-add, sandbox.block_host from --block-host" in str(caught.value)
    assert LAYERS.resolve([LAYERS.option("sandbox.cap_add", ["SYS_PTRACE"], "--cap-add"), closed])
