"""What pulling will cost, told before: bytes over the network and room on the disk."""

from __future__ import annotations

import time

import pytest
from own_registry import Front, OwnRegistry, never

from tbench.sandbox.docker.engine import Engine
from tbench.sandbox.docker.pulling.forecast import Forecast, about_pulls, forecast
from tbench.sandbox.docker.pulling.name import ImageName


def a_forecast(**changes: object) -> Forecast:
    usual = {"images": 2, "transfer_bytes": 400_000_000, "unknown": 0, "free_bytes": 50_000_000_000, "root": "/data"}
    return Forecast(**{**usual, **changes})  # type: ignore[arg-type]


def test_one_line_says_how_much_and_what_is_free() -> None:
    assert a_forecast().words == "2 images to be pulled; 400 MB, about 1.0 GB on the disk; 50.0 GB free in /data"
    assert a_forecast(unknown=1).words == (
        "2 images to be pulled; 400 MB, about 1.0 GB on the disk; size of 1 more unknown; 50.0 GB free in /data"
    )
    nothing_known = a_forecast(images=1, unknown=1, transfer_bytes=0, free_bytes=None)
    assert nothing_known.words == "1 image to be pulled; size unknown"


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
    (line,) = await about_pulls(engine, [ImageName.parse(registry.push().at(front))], ask=False)
    assert line.startswith("1 image to be pulled; size unknown") and front.seen == []


@pytest.mark.engine
async def test_nothing_to_pull_is_nothing_to_say(engine: Engine) -> None:
    assert await about_pulls(engine, [], ask=True) == []
