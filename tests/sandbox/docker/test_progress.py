"""Layers' bytes, added up from what an engine says while it pulls."""

from __future__ import annotations

from typing import Any

import pytest

from tbench.sandbox.docker.pulls import PullProgress


def says(status: str, layer: str = "one", current: int = 0, total: int = 0) -> dict[str, Any]:
    detail = {"current": current, "total": total} if total else {}
    return {"status": status, "id": layer, "progressDetail": detail}


def after(*messages: dict[str, Any]) -> PullProgress:
    progress = PullProgress()
    for message in messages:
        progress.take(message)
    return progress


def test_the_bytes_of_all_layers_are_one_number() -> None:
    progress = after(
        says("Pulling from lab/a", "1"),
        says("Pulling fs layer", "one"),
        says("Pulling fs layer", "two"),
        says("Downloading", "one", 100_000_000, 300_000_000),
        says("Downloading", "two", 20_000_000, 110_000_000),
    )
    assert progress.status == "120 of 410 MB"


def test_a_layer_that_has_not_reported_its_size_is_a_plus() -> None:
    first = says("Pulling fs layer", "one"), says("Pulling fs layer", "two"), says("Waiting", "two")
    progress = after(*first, says("Downloading", "one", 1_500_000, 3_000_000))
    assert progress.status == "1.5 of 3.0 MB+"


@pytest.mark.parametrize("status", ["Verifying Checksum", "Download complete", "Extracting", "Pull complete"])
def test_a_layer_that_is_there_counts_as_a_whole(status: str) -> None:
    progress = after(says("Downloading", "one", 1, 3_000_000), says(status, "one", 5, 3_000_000))
    assert progress.status == "3.0 of 3.0 MB"
    assert progress.summary == "3.0 MB in 0 s"


def test_a_layer_that_goes_on_after_a_cut_keeps_its_size() -> None:
    cut = says("Downloading", "one", 2_000_000, 3_000_000), says("Retrying in 5 seconds", "one")
    assert after(*cut, says("Downloading", "one", 500_000, 1_000_000)).status == "2.5 of 3.0 MB"


def test_what_was_there_before_is_nothing_to_load() -> None:
    progress = after(says("Already exists", "one"), says("Pulling fs layer", "two"), says("Pull complete", "two"))
    assert (progress.status, progress.summary) == ("", "0 s")


def test_an_engine_that_tells_no_bytes_or_nonsense_has_no_numbers() -> None:
    podman = {"status": "Pulling fs layer", "progressDetail": {}, "id": "one"}
    odd: list[dict[str, Any]] = [{}, {"status": 3}, {"id": 7}, {"id": "x", "status": "Downloading"}, {"stream": "hm"}]
    odd += [{"id": "x", "status": "Downloading", "progressDetail": {"current": "a", "total": None}}]
    assert after(podman, *odd).status == ""
