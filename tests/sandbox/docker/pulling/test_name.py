"""Names of published images, taken apart."""

from __future__ import annotations

import pytest

from tbench.sandbox.docker.pulling.name import ImageName

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
    assert name.wanted == f"harbor/tasks@{DIGEST}"
    assert name.shown == "harbor/tasks:regex-v4@sha256:abababababab"


def test_a_name_without_a_tag_is_asked_for_as_latest_and_shown_as_it_is() -> None:
    name = ImageName.parse("localhost:5000/image")
    assert (name.wanted, name.shown) == ("localhost:5000/image:latest", "localhost:5000/image")
