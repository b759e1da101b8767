"""The address of a viewer, and access to it."""

from __future__ import annotations

import pytest

from tbench.view.address import ViewAddress, token_in


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "127.8.9.10"])
def test_this_machine_needs_no_token(host: str) -> None:
    address = ViewAddress.for_host(host, 1)
    assert address.token is None and address.knows(None) and "token" not in address.url(1)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.7", "", "some.host"])
def test_other_machines_need_a_token(host: str) -> None:
    address = ViewAddress.for_host(host, 1)
    assert address.token is not None and address.token in address.url(1)
    assert address.knows(address.token)
    assert not any(map(address.knows, (None, "", "x", address.token[:-1], f"{address.token}x", "é")))
    assert ViewAddress.for_host(host, 1).token != address.token


@pytest.mark.parametrize("header", ["127.0.0.1:8712", "localhost:80", "localhost", "[::1]:9"])
def test_loopback_names_are_answered(header: str) -> None:
    assert ViewAddress.for_host("127.0.0.1", 8712).answers_to(header)


@pytest.mark.parametrize("header", [None, "", "evil.example", "evil.example:8712", "127.0.0.1.evil.example:8712", "[x"])
def test_other_names_are_not_answered(header: str | None) -> None:
    assert not ViewAddress.for_host("127.0.0.1", 8712).answers_to(header)


def test_with_a_token_any_name_is_answered() -> None:
    assert ViewAddress.for_host("0.0.0.0", 8712).answers_to("box.lan:8712")


def test_a_token_is_found_among_cookies() -> None:
    assert token_in("a=b; tbench-view-7=secret; c=d", 7) == "secret"
    for cookies in (None, "", "tbench-view-8=secret", ";;;", "=\x00"):
        assert token_in(cookies, 7) is None
