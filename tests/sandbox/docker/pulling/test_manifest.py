"""What registries say of images, asked over HTTP: sizes, and how long to wait."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest
from fault_server import FaultServer, Seen, answer
from own_registry import (
    HTML,
    INDEX,
    MANIFEST,
    PASSWORD,
    TOO_MANY,
    USER,
    Front,
    OwnRegistry,
    Pushed,
    answering,
    own_registry,
)

from tbench.sandbox.docker.pulling.login import Login
from tbench.sandbox.docker.pulling.manifest import SizeUnknown, asked_to_wait_sec, layer_sizes
from tbench.sandbox.docker.pulling.name import ImageName


@pytest.fixture(scope="module")
def image(registry: OwnRegistry) -> Pushed:
    return registry.push(size=5000, layers=2)


@pytest.mark.parametrize("pinned", [False, True], ids=["tag", "digest"])
def test_the_layers_of_an_image_have_sizes(registry: OwnRegistry, image: Pushed, pinned: bool) -> None:
    sizes = layer_sizes(ImageName.parse(image.at(registry, pinned=pinned)), None, "amd64")
    assert tuple(sizes) == image.layers
    assert 10_000 < sum(sizes.values()) < image.size


def test_of_an_index_the_image_for_this_engine_counts(registry: OwnRegistry) -> None:
    image = registry.push(size=7000)
    entries = [
        {"mediaType": MANIFEST, "size": 1, "digest": image.digest, "platform": {"os": "linux", "architecture": "arm64"}}
    ]
    registry.push_manifest(image.name, "all", INDEX, {"schemaVersion": 2, "mediaType": INDEX, "manifests": entries})
    name = ImageName.parse(f"{registry.address}/{image.name}:all")
    assert tuple(layer_sizes(name, None, "arm64")) == image.layers
    with pytest.raises(SizeUnknown):
        layer_sizes(name, None, "amd64")


def test_a_login_is_given_where_it_is_asked_for() -> None:
    with own_registry(login=True) as registry:
        image = registry.push()
        name = ImageName.parse(image.at(registry))
        assert tuple(layer_sizes(name, Login(registry.address, USER, PASSWORD), "amd64")) == image.layers
        for login in (None, Login(registry.address, USER, "wr0ng")):
            with pytest.raises(SizeUnknown) as caught:
                layer_sizes(name, login, "amd64")
            assert "wr0ng" not in str(caught.value)


def test_a_token_of_the_server_that_the_registry_names_is_used(endpoint: FaultServer) -> None:
    host = endpoint.base_url.removeprefix("http://").removesuffix("/v1")
    challenge = f'Bearer realm="http://{host}/token",service="lab",scope="repository:lab/a:pull"'
    manifest = {"layers": [{"digest": "sha256:1", "size": 42}]}

    def choose(seen: Seen) -> bytes:
        if seen.path.startswith("/token"):
            return answer(200, {"token": "t0ken"})
        if seen.headers.get("authorization") == "Bearer t0ken":
            return answer(200, manifest)
        return answer(401, {}, {"www-authenticate": challenge})

    endpoint.answer_by(choose)
    assert layer_sizes(ImageName.parse(f"{host}/lab/a"), Login(host, "lab", "pw"), "amd64") == {"sha256:1": 42}
    (asked,) = [seen for seen in endpoint.seen if seen.path.startswith("/token")]
    assert asked.path == "/token?service=lab&scope=repository%3Alab%2Fa%3Apull"
    assert asked.headers["authorization"] == f"Basic {b64encode(b'lab:pw').decode()}"


@pytest.mark.parametrize(
    "fault",
    [
        HTML,
        answering(500),
        answering(404),
        answering(429, TOO_MANY),
        answering(200, b"[]"),
        answering(200, b'{"layers": 7}'),
        answering(200, b'{"layers": [{"size": 1}]}'),
        answering(200, json.dumps({"manifests": [7]}).encode()),
        answering(401, WWW_Authenticate="Odd"),
        answering(401, WWW_Authenticate='Bearer realm="ftp://x"'),
    ],
)
def test_whatever_else_comes_is_an_unknown_size(front: Front, image: Pushed, fault: object) -> None:
    front.fault("/manifests/", fault)  # type: ignore[arg-type]
    with pytest.raises(SizeUnknown):
        layer_sizes(ImageName.parse(image.at(front)), None, "amd64")


@pytest.mark.parametrize(
    ("status", "headers", "wait_sec"),
    [
        (429, {"Retry_After": "30"}, 30.0),
        (503, {"Retry_After": "5"}, 5.0),
        (429, {}, None),
        (429, {"Retry_After": "soon"}, None),
        (404, {"Retry_After": "30"}, None),
        (429, {"Retry_After": "Wed, 21 Oct 2015 07:28:00 GMT"}, 0.0),
    ],
)
def test_a_registry_may_ask_to_wait(
    front: Front, image: Pushed, status: int, headers: dict[str, str], wait_sec: float | None
) -> None:
    front.fault("/manifests/", answering(status, TOO_MANY, **headers))
    assert asked_to_wait_sec(ImageName.parse(image.at(front)), None) == wait_sec


def test_a_date_to_come_is_some_seconds(front: Front, image: Pushed) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    front.fault("/manifests/", answering(429, TOO_MANY, Retry_After=soon))
    waits = asked_to_wait_sec(ImageName.parse(image.at(front)), None)
    assert waits is not None and 3000 < waits <= 3600


def test_the_question_how_long_to_wait_fetches_nothing(front: Front, image: Pushed) -> None:
    assert asked_to_wait_sec(ImageName.parse(image.at(front)), None) is None
    assert [request.method for request in front.seen] == ["HEAD"]
    assert re.fullmatch(rf"/v2/{image.name}/manifests/1", front.seen[0].path)
