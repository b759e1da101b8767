"""Answers of registries about images over HTTP: sizes, and how long to wait."""

from __future__ import annotations

import json
import re
import time
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
    never,
    own_registry,
)

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.login import Login
from tbench.sandbox.docker.manifest import (
    Forecast,
    SizeUnknown,
    describe_pulls,
    forecast,
    layer_sizes,
    requested_wait_sec,
)
from tbench.sandbox.image import ImageName


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
    assert requested_wait_sec(ImageName.parse(image.at(front)), None) == wait_sec


def test_a_date_to_come_is_some_seconds(front: Front, image: Pushed) -> None:
    soon = format_datetime(datetime.now(UTC) + timedelta(hours=1), usegmt=True)
    front.fault("/manifests/", answering(429, TOO_MANY, Retry_After=soon))
    waits = requested_wait_sec(ImageName.parse(image.at(front)), None)
    assert waits is not None and 3000 < waits <= 3600


def test_the_question_how_long_to_wait_fetches_nothing(front: Front, image: Pushed) -> None:
    assert requested_wait_sec(ImageName.parse(image.at(front)), None) is None
    assert [request.method for request in front.seen] == ["HEAD"]
    assert re.fullmatch(rf"/v2/{image.name}/manifests/1", front.seen[0].path)


# What pulling will cost, told before: bytes over the network and room on the disk.


def a_forecast(**changes: object) -> Forecast:
    usual = {"images": 2, "transfer_bytes": 400_000_000, "unknown": 0, "free_bytes": 50_000_000_000, "root": "/data"}
    return Forecast(**{**usual, **changes})  # type: ignore[arg-type]


def test_one_line_says_how_much_and_what_is_free() -> None:
    assert a_forecast().summary == "2 images to be pulled; 400 MB, about 1.0 GB on the disk; 50.0 GB free in /data"
    assert a_forecast(unknown=1).summary == (
        "2 images to be pulled; 400 MB, about 1.0 GB on the disk; size of 1 more unknown; 50.0 GB free in /data"
    )
    nothing_known = a_forecast(images=1, unknown=1, transfer_bytes=0, free_bytes=None)
    assert nothing_known.summary == "1 image to be pulled; size unknown"


def test_too_little_room_is_a_warning_with_what_to_do() -> None:
    assert a_forecast().warning == ""
    assert a_forecast(free_bytes=None).warning == ""
    warning = a_forecast(free_bytes=999_000_000).warning
    assert "need about 1.0 GB, and /data has 999 MB free" in warning and "--drop-images" in warning


@pytest.mark.engine
async def test_layers_that_images_share_count_once(engine: Engine, registry: OwnRegistry) -> None:
    one, other = registry.push(size=20_000), registry.push(size=20_000)
    names = [ImageName.parse(each.at(registry)) for each in (one, other)]
    same = [*names, ImageName.parse(f"{registry.address}/{one.name}@{one.digest}")]
    expected, again = await forecast(engine, names), await forecast(engine, same)
    assert (expected.images, expected.unknown, again.images) == (2, 0, 3)
    assert 40_000 < expected.transfer_bytes == again.transfer_bytes < one.size + other.size


@pytest.mark.engine
@pytest.mark.slow
async def test_who_does_not_answer_is_unknown_and_not_waited_for(
    engine: Engine, registry: OwnRegistry, front: Front
) -> None:
    front.fault("/manifests/", never)
    names = [ImageName.parse(each) for each in (registry.push().at(front), "127.0.0.1:1/a/b", "a.invalid/b/c:1")]
    names.append(ImageName.parse(registry.push().at(registry)))
    started = time.monotonic()
    expected = await forecast(engine, names)
    assert time.monotonic() - started < 60, "the bound is 10 s; a machine may be busy"
    assert (expected.images, expected.unknown) == (4, 3)


@pytest.mark.engine
async def test_offline_no_registry_is_asked(engine: Engine, registry: OwnRegistry, front: Front) -> None:
    (line,) = await describe_pulls(engine, [ImageName.parse(registry.push().at(front))], ask=False)
    assert line.startswith("1 image to be pulled; size unknown") and front.seen == []


@pytest.mark.engine
async def test_nothing_to_pull_is_nothing_to_say(engine: Engine) -> None:
    assert await describe_pulls(engine, [], ask=True) == []
