"""Messages of engines about failed pulls. The words are Docker 20.10's and Podman 4.3's, as they came."""

from __future__ import annotations

import pytest

from tbench.sandbox.docker.pulls import PullFailureKind, failure_kind
from tbench.sandbox.image import ImageName

NAME = ImageName.parse("127.0.0.1:5000/lab/a:1")
HEAD = 'Head "http://127.0.0.1:5000/v2/lab/a/manifests/1"'


@pytest.mark.parametrize(
    ("words", "kind"),
    [
        ("toomanyrequests: You have reached your pull rate limit.", "rate-limited"),
        ('error parsing HTTP 429 response body: unexpected end of JSON input: ""', "rate-limited"),
        ("error pulling image configuration: download failed after attempts=1: toomanyrequests: slow", "rate-limited"),
        ("unauthorized: authentication required", "denied"),
        (f"{HEAD}: no basic auth credentials", "denied"),
        ("denied", "denied"),
        ('error parsing HTTP 403 response body: unexpected end of JSON input: ""', "denied"),
        ("manifest for 127.0.0.1:5000/lab/a:1 not found: manifest unknown: manifest unknown", "missing"),
        (
            "pull access denied for lab/a, repository does not exist or may require 'docker login': denied: requested "
            "access to the resource is denied",
            "missing",
        ),
        ("download failed after attempts=1: unknown blob", "missing"),
        ("received unexpected HTTP status: 503 Service Unavailable", "passing"),
        ("download failed after attempts=6: received unexpected HTTP status: 502 Bad Gateway", "passing"),
        ("unexpected EOF", "passing"),
        ('Get "http://127.0.0.1:5000/v2/": EOF', "passing"),
        (f'{HEAD}: net/http: HTTP/1.x transport connection broken: malformed HTTP status code "2"', "passing"),
        ("read tcp 127.0.0.1:4000->127.0.0.1:5000: read: connection reset by peer", "passing"),
        ('Get "https://registry-1.docker.io/v2/": dial tcp: lookup registry-1.docker.io: no such host', "away"),
        ('Get "http://127.0.0.1:1/v2/": dial tcp 127.0.0.1:1: connect: connection refused', "away"),
        ('Get "https://registry-1.docker.io/v2/": dial tcp 1.2.3.4:443: i/o timeout', "silent"),
        (
            'Get "https://registry-1.docker.io/v2/": net/http: request canceled while waiting for connection '
            "(Client.Timeout exceeded while awaiting headers)",
            "silent",
        ),
        ('Get "https://127.0.0.1:5000/v2/": net/http: TLS handshake timeout', "silent"),
        ("write /var/lib/docker/tmp/GetImageBlob1: no space left on device", "no-space"),
        ("error unmarshalling content: invalid character '<' looking for beginning of value", "unreadable"),
        ("mediaType in manifest should be 'application/vnd.docker' not ''", "unreadable"),
        ("image config verification failed for digest sha256:fe92", "unreadable"),
    ],
)
def test_the_engines_words_come_to_a_kind_of_trouble(words: str, kind: PullFailureKind) -> None:
    assert failure_kind(words, NAME) == kind


def test_what_an_image_is_called_says_nothing_about_the_trouble() -> None:
    name = ImageName.parse("lab/denied-timeout:500")
    words = 'Head "https://registry-1.docker.io/v2/lab/denied-timeout/manifests/500": unexpected EOF'
    assert failure_kind(words, name) == "passing"
    assert failure_kind("manifest for lab/denied-timeout:500 is a riddle", name) == "unreadable"
