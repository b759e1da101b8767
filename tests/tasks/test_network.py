"""Hosts of `allowed_hosts` as they are compared, and which network a container has while who works in it."""

from __future__ import annotations

from ipaddress import IPv4Network
from typing import Any

import pytest

from tbench.tasks.environment import Environment, agent_environment
from tbench.tasks.network import NetworkPolicy, Networks, normalise_host
from tbench.tasks.task import Task

PUBLIC, CLOSED = NetworkPolicy(), NetworkPolicy("no-network")


@pytest.mark.parametrize(
    ("written", "host"),
    [
        ("example.com", "example.com"),
        (" Example.COM. ", "example.com"),
        ("*.Example.com", "*.example.com"),
        ("localhost", "localhost"),
        ("xn--bcher-kva.example", "xn--bcher-kva.example"),
        ("192.0.2.7", "192.0.2.7"),
        ("192.0.2.0/24", "192.0.2.0/24"),
        ("2001:DB8::1", "2001:db8::1"),
        ("2001:db8:0::/32", "2001:db8::/32"),
    ],
)
def test_a_host_is_read_as_it_is_compared(written: str, host: str) -> None:
    assert normalise_host(written) == host


@pytest.mark.parametrize(
    "written",
    [
        *("", ".", "*", "*.", "a*.example", "*.*.example", "a..b", "-a.example", "a-.example", "a_b.example"),
        *("https://a.example", "a.example/path", "a.example:443", "[2001:db8::1]", "fe80::1%eth0", "192.0.2.1/24"),
        *("*.192.0.2.7", "bücher.example", "a b", "a\nb", "a.example\0", f"{'a' * 64}.example", ".".join(["a"] * 128)),
    ],
)
def test_what_is_no_host_is_refused(written: str) -> None:
    with pytest.raises(ValueError, match=r"must be a host such as|must have a name after"):
        normalise_host(written)


def test_names_and_addresses_are_distinguished_and_addresses_do_not_overlap() -> None:
    hosts = ("a.example", "10.0.0.0/8", "10.1.2.3", "*.b.example", "2001:db8::1", "192.0.2.0/25", "192.0.2.128/25")
    policy = NetworkPolicy("allowlist", hosts)
    assert policy.names == ("a.example", "*.b.example")
    assert policy.networks == (IPv4Network("10.0.0.0/8"), IPv4Network("192.0.2.0/24"))


ONE_HOST = NetworkPolicy("allowlist", ("h",))


@pytest.mark.parametrize(
    ("toml", "networks", "is_plain"),
    [
        ("", (PUBLIC, PUBLIC, PUBLIC), True),
        ("[environment]\nallow_internet = false", (CLOSED, CLOSED, CLOSED), True),
        ("[agent]\nnetwork_mode = 'public'", (PUBLIC, PUBLIC, PUBLIC), True),
        ("[agent]\nnetwork_mode = 'no-network'", (PUBLIC, CLOSED, PUBLIC), False),
        ("[verifier]\nnetwork_mode = 'no-network'", (PUBLIC, PUBLIC, CLOSED), False),
        (
            "[environment]\nallow_internet = false\n[verifier]\nnetwork_mode = 'public'",
            (CLOSED, CLOSED, PUBLIC),
            False,
        ),
        (
            "[environment]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['H']\n[agent]\nnetwork_mode = 'no-network'",
            (ONE_HOST, CLOSED, ONE_HOST),
            False,
        ),
        ("[environment]\nnetwork_mode = 'allowlist'", (NetworkPolicy("allowlist"),) * 3, False),
    ],
)
def test_a_phase_has_the_network_of_the_environment_unless_it_names_its_own(
    make_task: Any, toml: str, networks: tuple[NetworkPolicy, ...], is_plain: bool
) -> None:
    found = agent_environment(Task.read(make_task(toml=toml))).networks
    assert (found, found.is_plain) == (Networks(*networks), is_plain)


def test_in_a_container_of_the_verifiers_own_the_network_of_the_agent_is_of_no_effect(make_task: Any) -> None:
    toml = "[agent]\nnetwork_mode = 'no-network'\n[verifier]\nnetwork_mode = 'allowlist'\nallowed_hosts = ['h']\n"
    task = Task.read(make_task(toml=toml + "[verifier.environment]\nnetwork_mode = 'public'"))
    settings = task.file.verifier.environment
    assert settings is not None
    networks = Environment(task, settings, role="verifier", folder="tests").networks
    assert networks == Networks(PUBLIC, PUBLIC, ONE_HOST)
