"""address: which requests use the environment's proxy, and how it is reported."""

from __future__ import annotations

import os

import pytest

from harness.endpoint.address import bypasses_proxies, is_loopback, likely_urls, proxy_for, without_password
from harness.endpoint.chat import ChatModel, RetryPolicy
from harness.errors import EndpointError
from harness.model import Sampling

ELSEWHERE = "http://10.1.2.3:8000/v1"


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.lower().endswith("_proxy")]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("variables", "url", "said"),
    [
        ({}, ELSEWHERE, None),
        ({"HTTP_PROXY": "http://u:p@px:3128"}, ELSEWHERE, "the proxy http://px:3128 (HTTP_PROXY)"),
        ({"http_proxy": "http://px:1"}, ELSEWHERE, "the proxy http://px:1 (http_proxy)"),
        ({"ALL_PROXY": "socks5://px:1"}, ELSEWHERE, "the proxy socks5://px:1 (ALL_PROXY)"),
        ({"HTTPS_PROXY": "http://px:1"}, ELSEWHERE, None),
        ({"HTTPS_PROXY": "http://px:1"}, "https://api.host/v1", "the proxy http://px:1 (HTTPS_PROXY)"),
        ({"HTTP_PROXY": "http://px:1", "NO_PROXY": "10.1.2.3"}, ELSEWHERE, None),
        ({"HTTP_PROXY": "http://px:1"}, "http://127.0.0.1:8000/v1", None),
        ({"HTTP_PROXY": "http://px:1"}, "http://[::1]:8000/v1", None),
        ({"HTTP_PROXY": "http://px:1"}, "http://localhost/v1", None),
    ],
)
def test_the_environments_proxy_is_named(
    variables: dict[str, str], url: str, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    found = proxy_for(url)
    assert (None if found is None else str(found)) == said


def test_other_machines_are_not_this_one() -> None:
    assert [is_loopback(host) for host in ("127.8.8.8", "::1", "localhost")] == [True] * 3
    assert [is_loopback(host) for host in ("10.0.0.1", "localhost.example.org", "")] == [False] * 3


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("http://h:8000/v1/chat/completions", "http://h:8000/v1"),
        ("http://h:8000/v1/models", "http://h:8000/v1"),
        ("http://h:8000/v2", "http://h:8000/v1"),
        ("http://h:8000/openai", "http://h:8000/openai/v1"),
        ("https://h:8000/v1", "http://h:8000/v1"),
        ("http://me:pw@h/v1", "https://me:pw@h/v1"),
    ],
)
def test_the_url_that_was_meant_is_among_the_likely_ones(given: str, meant: str) -> None:
    found = likely_urls(given)
    assert meant in found
    assert given not in found and len(found) == len(set(found)) <= 12
    assert found.index(meant) < len(found) / 2 or given.partition(":")[0] != meant.partition(":")[0]


async def test_an_error_says_through_which_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")
    policy = RetryPolicy(total_sec=0)
    async with ChatModel(ELSEWHERE, "m", Sampling(), api_key=None, retry=policy) as chat:
        with pytest.raises(
            EndpointError, match=r"/v1/models through the proxy http://127.0.0.1:9 \(HTTP_PROXY\): cannot"
        ):
            await chat.connect()


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        ("socks5://px:1", r"the proxy socks5://px:1 \(ALL_PROXY\): a SOCKS proxy needs another package: pip install"),
        ("ftp://px:1", r"the proxy ftp://px:1 \(ALL_PROXY\): Unknown scheme .*; correct or unset the variable"),
    ],
)
async def test_a_proxy_that_cannot_be_used_is_one_line_and_no_matter_for_this_machine(
    proxy: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALL_PROXY", proxy)
    with pytest.raises(EndpointError, match=words):
        ChatModel(ELSEWHERE, "m", Sampling(), api_key=None)
    await ChatModel("http://127.0.0.1:8000/v1", "m", Sampling(), api_key=None).close()


def test_only_this_machine_is_asked_past_proxies_and_only_where_there_are_some(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = "https://localhost:8000/v1"
    assert not bypasses_proxies(mine)  # settings of TLS in the environment hold as ever
    monkeypatch.setenv("HTTPS_PROXY", "http://px:1")
    assert bypasses_proxies(mine) and not bypasses_proxies(ELSEWHERE)


@pytest.mark.parametrize("scheme", ["http://", "https://", "//", ""])
@pytest.mark.parametrize("user", ["me:s3cret@", "me@", "me:a@b@", ""])
@pytest.mark.parametrize("rest", ["px:3128", "px", "px:3128/path?x=@y", "[::1]:80/@z"])
def test_no_password_is_shown_be_there_a_scheme_or_not(scheme: str, user: str, rest: str) -> None:
    assert without_password(f"{scheme}{user}{rest}") == f"{scheme}{rest}"
