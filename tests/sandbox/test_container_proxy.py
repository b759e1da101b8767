"""The proxy that containers get, and what others may see of it."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from run_plans import a_plan

from tbench.config.values import proxy_text, validate_proxy_choice
from tbench.errors import UsageError
from tbench.runs.plan import stored_config
from tbench.runs.redaction import make_redactor
from tbench.sandbox.container_proxy import PROXY_VARIABLES, ContainerProxy, Masks, container_proxy

URL = "http://me:pa%40ss-w0rd@10.1.2.3:3128"
SHOWN = "http://***@10.1.2.3:3128"


def configured(tmp_path: Path, **tables: dict[str, str]) -> dict[str, str]:
    """Variables by which Docker's own configuration is one with these `proxies`."""
    (tmp_path / "config.json").write_text(json.dumps({"proxies": tables}))
    return {"DOCKER_CONFIG": str(tmp_path)}


def test_what_docker_itself_is_configured_for_comes_before_the_environment(tmp_path: Path) -> None:
    named = {"HTTP_PROXY": "http://other:1", "NO_PROXY": "b.example"}
    table = {"httpProxy": URL, "ftpProxy": "http://ftp:1", "noProxy": "a.example"}
    docker = configured(tmp_path, default=table, **{"tcp://far:2375": {"allProxy": "socks5://far:1080"}})
    proxy = container_proxy("inherit", {**named, **docker})
    assert proxy.variables == {"HTTP_PROXY": URL, "FTP_PROXY": "http://ftp:1", "NO_PROXY": "a.example,b.example"}
    far = container_proxy("inherit", {**docker, "DOCKER_HOST": "tcp://far:2375"})
    assert far.variables == {"ALL_PROXY": "socks5://far:1080"}
    nowhere = {"DOCKER_CONFIG": str(tmp_path / "none")}
    assert container_proxy("inherit", {**named, **nowhere}).variables == named
    assert container_proxy("inherit", {**nowhere, "https_proxy": "p:1"}).variables == {"HTTPS_PROXY": "p:1"}
    assert container_proxy("none", {**named, **docker}) == ContainerProxy()
    given = container_proxy("http://p:1", {**named, **docker}).variables
    assert given == {"HTTP_PROXY": "http://p:1", "HTTPS_PROXY": "http://p:1", "NO_PROXY": "a.example,b.example"}


@pytest.mark.parametrize("content", ["", "[]", "{", '{"proxies": []}', '{"proxies": {"default": 3}}'])
def test_a_broken_configuration_names_no_proxy(tmp_path: Path, content: str) -> None:
    (tmp_path / "config.json").write_text(content)
    assert container_proxy("inherit", {"DOCKER_CONFIG": str(tmp_path)}).variables == {}


def test_a_proxy_on_localhost_is_left_out_and_said(tmp_path: Path) -> None:
    docker = configured(tmp_path)
    proxy = container_proxy("inherit", {**docker, "http_proxy": "127.0.0.1:3128", "NO_PROXY": "x"})
    assert proxy.variables == {}
    assert "HTTP_PROXY" in proxy.notice
    kept = container_proxy("inherit", {**docker, "http_proxy": "http://[::1]:1", "https_proxy": "http://p:1"})
    assert kept.variables == {"HTTPS_PROXY": "http://p:1"}


def test_both_spellings_are_told_and_own_services_are_reached_straight() -> None:
    given = ContainerProxy({"HTTP_PROXY": URL, "NO_PROXY": ".corp"}).variables_for(
        own={"no_proxy": "own"}, direct=("db", None)
    )
    assert given["HTTP_PROXY"] == given["http_proxy"] == URL
    assert given["NO_PROXY"] == given["no_proxy"] == "own,.corp,localhost,127.0.0.1,::1,db"
    assert set(given) <= set(PROXY_VARIABLES)
    assert ContainerProxy({"HTTP_PROXY": URL, "NO_PROXY": "*"}).variables_for(own={})["NO_PROXY"] == "*"


@pytest.mark.parametrize(
    "own", [{"http_proxy": "http://proxy-of-the-task:1"}, {"ALL_PROXY": "socks5://x:1"}, {"HTTPS_PROXY": ""}]
)
def test_who_has_a_proxy_of_its_own_is_told_of_no_other(own: dict[str, str]) -> None:
    assert ContainerProxy({"HTTP_PROXY": URL, "HTTPS_PROXY": URL}).variables_for(own=own) == {}


def test_a_password_is_in_nothing_that_is_stored_and_found_again_where_it_is_known(tmp_path: Path) -> None:
    config = a_plan().config.with_values(sandbox={"container_proxy": URL})
    stored = stored_config(config)
    assert stored.sandbox.container_proxy == URL  # for the run that is under way
    assert "w0rd" not in stored.model_dump_json()
    assert stored.model_dump()["sandbox"]["container_proxy"] == SHOWN == validate_proxy_choice(SHOWN)
    docker = configured(tmp_path)
    for known in ({"TBENCH_SANDBOX_CONTAINER_PROXY": URL}, {"https_proxy": URL}):
        assert container_proxy(SHOWN, {**docker, **known}).variables["HTTP_PROXY"] == URL
    with pytest.raises(UsageError, match="TBENCH_SANDBOX_CONTAINER_PROXY"):
        container_proxy(SHOWN, docker)


@pytest.mark.parametrize(
    "form",
    [URL, "me:pa%40ss-w0rd", "pa%40ss-w0rd", "pa@ss-w0rd", "me:pa@ss-w0rd", b64encode(b"me:pa@ss-w0rd").decode()],
)
def test_every_form_of_a_password_is_hidden_also_in_messages(form: str) -> None:
    proxy = container_proxy(URL, {})
    for hide in (proxy.masks.mask_text, make_redactor([], host={}, proxy=proxy)):
        said = hide(f"cannot reach {form} today")
        assert "w0rd" not in said
        assert said.startswith("cannot reach ") and said.endswith(" today")


def test_a_short_password_is_hidden_where_it_is_one_and_stays_where_it_is_a_word() -> None:
    masks = container_proxy("http://u:cat@p:1", {}).masks
    assert masks.mask_text("http://u:cat@p:1 cat file") == "http://******p:1 cat file"
    assert container_proxy("http://tokentoken@p:1", {}).masks.mask_text("tokentoken") == "*" * 10
    assert container_proxy("http://p:1", {}).masks.mask_text("http://p:1") == "http://p:1"


@pytest.mark.parametrize(
    "text",
    ["", "yes", "proxy:3128", "u:p@proxy:3128", "http://", "http://u:p@", "http://p:0", "http://p:99999", "ftp://p:1",
     "http://p:1/path", "http://p:1?q", "http://u:p/w@p:1", "http://u p@p:1", "http://u:p\n@p:1",
     "http://localhost:1", "http://127.0.0.1:1", "http://u:p@[::1]:1"],
)  # fmt: skip
def test_a_proxy_that_no_container_can_use_is_refused_without_a_word_of_it(text: str) -> None:
    with pytest.raises(ValueError) as refused:
        validate_proxy_choice(text)
    assert "u:p" not in str(refused.value)


def test_what_is_shown_of_a_proxy() -> None:
    assert [proxy_text(each) for each in ("http://p:1", "u:p@p:1", "socks5h://u:a@b@p:1", "inherit")] == [
        "http://p:1", "***@p:1", "socks5h://***@p:1", "inherit",
    ]  # fmt: skip


# Secrets are hidden in all that comes in pieces, wherever it is cut, and nothing else changes.

SECRETS = ("pa%40ss-w0rd", "pa@ss-w0rd", "me:pa%40ss-w0rd", "aab")
pieces = st.lists(st.sampled_from([*SECRETS, "p", "aa", "a", "me:", "ss-w0rd", "x", "\n", " ", "\0"]), max_size=12)


@given(pieces.map("".join), st.lists(st.integers(0, 80), max_size=6))
def test_it_does_not_matter_where_output_is_cut(text: str, cuts: list[int]) -> None:
    data, masks = text.encode(), Masks(SECRETS)
    stream, told, at = masks.stream(), b"", 0
    for cut in [*sorted(each for each in cuts if each < len(data)), len(data)]:
        told += stream.take(data[at:cut])
        at = cut
    told += stream.flush()
    assert len(told) == len(data)
    assert not any(secret.encode() in told for secret in SECRETS)
    assert all(new in (old, ord("*")) for old, new in zip(data, told, strict=True))


@given(st.text())
def test_other_text_is_left_alone(text: str) -> None:
    assert Masks(("a-long-secret",)).mask_text(text) == text
    assert Masks(()).mask_text(text) == text


@pytest.mark.parametrize(
    "between", ["\n", "\r\n", "\n%output %0 ", "\n%extended-output %3 12 : "], ids=lambda each: json.dumps(each)
)
def test_a_secret_is_found_across_lines_of_a_screen_and_of_tmux(between: str) -> None:
    masked = Masks(SECRETS).mask(f"at pa%40{between}ss-w0rd.".encode())
    assert masked == f"at *****{between}*******.".encode()


@pytest.mark.parametrize("between", ["", "\n", "\r\n", "\n%output %0 ", "\n%extended-output %3 12 : "], ids=json.dumps)
def test_a_secret_across_lines_is_found_wherever_it_is_cut(between: str) -> None:
    data = f"\nat pa%40{between}ss-w0rd.\n".encode()
    for cut in range(len(data) + 1):
        stream = Masks(SECRETS).stream()
        assert stream.take(data[:cut]) + stream.take(data[cut:]) + stream.flush() == (
            f"\nat *****{between}*******.\n".encode()
        )


def test_a_line_is_held_back_only_behind_the_beginning_of_a_secret_and_no_longer_than_until_the_next() -> None:
    stream = Masks(SECRETS).stream()
    assert stream.take(b"%end 12 34 p\n") == b"%end 12 34 p\n"
    assert stream.take(b"%output %0 px\n") == b"%output %0 px\n"
    assert stream.take(b"%output %0 p\n") == b"%output %0 "
    assert stream.take(b"%begin 1 2 3\n") == b"p\n%begin 1 2 3\n"
