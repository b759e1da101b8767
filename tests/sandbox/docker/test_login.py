"""Logins out of Docker's own configuration: tables, helper programs, and whatever can be broken about them."""

from __future__ import annotations

import json
import os
from base64 import b64encode, urlsafe_b64decode
from pathlib import Path
from typing import Any

import pytest

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.login import Login, LoginUnreadable, config_file, find_login
from tbench.sandbox.image import ImageName

HOST, HUB_KEY = "127.0.0.1:5000", "https://index.docker.io/v1/"
PACKED = b64encode(b"lab:not:a secret").decode()


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes config.json and makes it the one that counts."""
    monkeypatch.setenv("DOCKER_CONFIG", str(tmp_path))

    def write(content: Any) -> Path:
        path = tmp_path / "config.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write


@pytest.fixture
def helper(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Puts a program docker-credential-NAME on PATH, a shell script."""
    programs = tmp_path / "bin"
    programs.mkdir()
    monkeypatch.setenv("PATH", f"{programs}{os.pathsep}{os.environ['PATH']}")

    def write(name: str, script: str) -> None:
        path = programs / f"docker-credential-{name}"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    return write


def test_a_login_is_the_one_of_its_registry(config: Any) -> None:
    config({"auths": {"other:5000": {"auth": b64encode(b"a:b").decode()}, HOST: {"auth": PACKED}}})
    assert find_login(HOST) == Login(HOST, "lab", "not:a secret")
    assert find_login("elsewhere:5000") is None


@pytest.mark.parametrize("key", [HUB_KEY, "docker.io", "index.docker.io", "https://registry-1.docker.io"])
def test_docker_hub_has_several_names(config: Any, key: str) -> None:
    config({"auths": {key: {"auth": PACKED}}})
    login = find_login("docker.io")
    assert login is not None and login.user == "lab"
    assert json.loads(urlsafe_b64decode(login.header))["serveraddress"] == HUB_KEY


def test_a_whole_url_is_its_host(config: Any) -> None:
    config({"auths": {f"http://{HOST}/v1/": {"auth": PACKED}}})
    assert find_login(HOST) == Login(HOST, "lab", "not:a secret")


def test_an_identity_token_is_sent_as_one(config: Any) -> None:
    config({"auths": {HOST: {"auth": PACKED, "identitytoken": "t0ken"}}})
    login = find_login(HOST)
    assert login is not None
    assert json.loads(urlsafe_b64decode(login.header)) == {"identitytoken": "t0ken", "serveraddress": HOST}


def test_without_a_file_or_a_table_there_is_no_login(config: Any) -> None:
    assert find_login(HOST) is None
    config({})
    assert find_login(HOST) is None
    config({"auths": {HOST: {}}})
    assert find_login(HOST) is None


def test_a_helper_is_asked_for_its_registry_alone(config: Any, helper: Any, tmp_path: Path) -> None:
    config({"credHelpers": {HOST: "test"}, "auths": {"b:1": {"auth": PACKED}}})
    helper("test", f'cat > {tmp_path}/asked; echo \'{{"ServerURL":"x","Username":"lab","Secret":"s3cret"}}\'')
    assert find_login(HOST) == Login(HOST, "lab", "s3cret")
    assert (tmp_path / "asked").read_text() == HOST
    assert find_login("b:1") == Login("b:1", "lab", "not:a secret")


def test_a_store_is_asked_for_all_and_docker_hub_by_its_url(config: Any, helper: Any, tmp_path: Path) -> None:
    config({"credsStore": "test"})
    helper("test", f'cat > {tmp_path}/asked; echo \'{{"Username":"<token>","Secret":"t0ken"}}\'')
    assert find_login("docker.io") == Login("docker.io", "<token>", "t0ken", is_token=True)
    assert (tmp_path / "asked").read_text() == HUB_KEY


@pytest.mark.engine
@pytest.mark.parametrize(
    "content",
    [
        {"auths": {HOST: {"auth": PACKED}, "b:1": {}, "c:1": {"identitytoken": "t"}}},
        {"auths": None, "credsStore": "not-here", "credHelpers": {HOST: "not-here"}},
        {"HttpHeaders": {"X-Meta": "1"}, "proxies": {"default": {"httpProxy": "http://HOST"}}},
        {},
    ],
)
def test_what_is_sound_connects(config: Any, content: Any) -> None:
    config(content)
    Engine.connect(1).close()


def test_where_a_store_knows_none_the_table_does(config: Any, helper: Any) -> None:
    config({"credsStore": "test", "auths": {HOST: {"auth": PACKED}}})
    helper("test", "echo credentials not found in native keychain; exit 1")
    assert find_login(HOST) == Login(HOST, "lab", "not:a secret")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"auths": ', "not valid JSON"),
        ("[]", "not a JSON object"),
        ({"auths": []}, "'auths'"),
        ({"auths": {HOST: "lab"}}, "'auths'"),
        ({"auths": {HOST: {"auth": "%%%"}}}, "'auths'"),
        ({"auths": {HOST: {"auth": ""}}}, "'auths'"),
        ({"auths": {HOST: {"auth": b64encode(b"no colon").decode()}}}, "'auths'"),
        ({"auths": {HOST: {"auth": b64encode(b"\xff:\xff").decode()}}}, "'auths'"),
        ({"credHelpers": {HOST: 7}}, "'credHelpers'"),
        ({"proxies": "http://proxy"}, "'proxies'"),
    ],
)
def test_a_broken_file_is_one_line_also_where_the_engine_is_connected(config: Any, content: Any, words: str) -> None:
    path = config(content)
    for use in (lambda: find_login(HOST), lambda: Engine.connect(1, host="unix:///nowhere.sock")):
        with pytest.raises(LoginUnreadable) as caught:
            use()
        message = str(caught.value)
        assert message.startswith(f"{path}: ") and words in message
        assert "\n" not in message and "DOCKER_CONFIG" in message


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (None, "is not on PATH"),
        ("echo s3cret; echo s3cret >&2; exit 1", "failed with exit code 1"),
        ("echo s3cret", "did not print a login"),
        ('echo \'{"Secret": "s3cret"}\'', "did not print a login"),
        ("echo '[\"s3cret\"]'", "did not print a login"),
    ],
)
def test_a_helper_that_fails_is_one_line_without_its_words(
    config: Any, helper: Any, script: str | None, words: str
) -> None:
    path = config({"credsStore": "test"})
    if script is not None:
        helper("test", script)
    with pytest.raises(LoginUnreadable) as caught:
        find_login(HOST)
    assert str(caught.value).startswith(f"{path}: docker-credential-test, the credential helper for {HOST}, {words}")
    assert "s3cret" not in repr(caught.value) and "\n" not in str(caught.value)


def test_a_login_does_not_show_its_secret() -> None:
    assert "s3cret" not in repr(Login(HOST, "lab", "s3cret"))


def test_the_file_is_below_docker_config_or_else_below_home() -> None:
    assert config_file({"DOCKER_CONFIG": "/etc/mine"}) == Path("/etc/mine/config.json")
    assert config_file({}) == Path.home() / ".docker" / "config.json"


# Names of published images, taken apart.

DIGEST = f"sha256:{'ab' * 32}"


@pytest.mark.parametrize(
    ("text", "repository", "version", "registry", "path"),
    [
        ("debian", "debian", "latest", "docker.io", "library/debian"),
        ("debian:12", "debian", "12", "docker.io", "library/debian"),
        ("org/image:1.0", "org/image", "1.0", "docker.io", "org/image"),
        ("docker.io/org/image", "docker.io/org/image", "latest", "docker.io", "org/image"),
        ("localhost/image", "localhost/image", "latest", "localhost", "image"),
        ("localhost:5000/image", "localhost:5000/image", "latest", "localhost:5000", "image"),
        ("localhost:5000/a/image:1", "localhost:5000/a/image", "1", "localhost:5000", "a/image"),
        ("quay.io/a/b@sha256:00ff", "quay.io/a/b", "sha256:00ff", "quay.io", "a/b"),
        ("quay.io/a/b:v1@sha256:00ff", "quay.io/a/b", "sha256:00ff", "quay.io", "a/b"),
        ("localhost:5000/b@sha256:00ff", "localhost:5000/b", "sha256:00ff", "localhost:5000", "b"),
    ],
)
def test_a_name_has_a_registry_a_repository_and_a_version(
    text: str, repository: str, version: str, registry: str, path: str
) -> None:
    name = ImageName.parse(text)
    assert (name.repository, name.version, name.registry, name.path) == (repository, version, registry, path)
    assert name.text == text


def test_a_pinned_image_is_asked_for_by_its_digest_and_shown_with_its_tag() -> None:
    name = ImageName.parse(f"harbor/tasks:regex-v4@{DIGEST}")
    assert (name.tag, name.digest) == ("regex-v4", DIGEST)
    assert name.reference == f"harbor/tasks@{DIGEST}"
    assert name.display_name == "harbor/tasks:regex-v4@sha256:abababababab"


def test_a_name_without_a_tag_is_asked_for_as_latest_and_shown_as_it_is() -> None:
    name = ImageName.parse("localhost:5000/image")
    assert (name.reference, name.display_name) == ("localhost:5000/image:latest", "localhost:5000/image")
