"""transport: endpoints over https; each certificate problem leads to one line with the remedy."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable
from pathlib import Path

import pytest
from fault_server import FaultServer
from own_tls import make_certificate

from harness.endpoint.chat import ChatModel
from harness.endpoint.transport import explain_tls_failure
from harness.errors import EndpointError
from harness.model import Sampling


async def connect(url: str) -> str:
    async with ChatModel(url, None, Sampling(), api_key=None) as chat:
        return (await chat.connect(budget_sec=0)).id


@pytest.fixture
def secure(endpoint: FaultServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Give the endpoint its own certificate in the working directory, and return its base URL."""

    def make(user: str, **certificate: str) -> str:
        monkeypatch.chdir(make_certificate(tmp_path / "tls", **certificate))
        endpoint.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        endpoint.tls.load_cert_chain("cert.pem", "key.pem")
        endpoint.will_list({"id": "tiny"})
        return endpoint.base_url.replace("://", f"://{user}")

    return make


@pytest.mark.parametrize("user", ["", "user:password@"])
class TestServers:
    """With both HTTP clients."""

    async def test_one_signed_by_no_one_known(self, secure, user):
        with pytest.raises(EndpointError, match=r"certificate is not trusted \(self.signed.*set SSL_CERT_FILE"):
            await connect(secure(user))

    async def test_one_that_is_known(self, secure, user, monkeypatch):
        url = secure(user)
        monkeypatch.setenv("SSL_CERT_FILE", "cert.pem")
        assert await connect(url) == "tiny"

    async def test_one_of_another_host(self, secure, user, monkeypatch):
        url = secure(user, hosts="DNS:elsewhere.example")
        monkeypatch.setenv("SSL_CERT_FILE", "cert.pem")
        with pytest.raises(EndpointError, match="it is for another host"):
            await connect(url)

    async def test_none(self, user):
        async def refuse(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            writer.close()

        async with await asyncio.start_server(refuse, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            with pytest.raises(EndpointError, match="does not use TLS: write the base URL with http://"):
                await connect(f"https://{user}127.0.0.1:{port}/v1")


@pytest.mark.parametrize(
    ("variable", "value", "words"),
    [
        ("SSL_CERT_FILE", "/nowhere", "SSL_CERT_FILE=/nowhere: No such file"),
        ("SSL_CERT_FILE", "/dev/null", "SSL_CERT_FILE=/dev/null: no certificates in it"),
        ("SSL_CERT_DIR", "/nowhere", "SSL_CERT_DIR=/nowhere: no such directory"),
    ],
)
def test_certificates_that_are_not_there_are_reported_at_once(
    monkeypatch: pytest.MonkeyPatch, variable: str, value: str, words: str
) -> None:
    monkeypatch.delenv("SSL_CERT_FILE", raising=False)
    monkeypatch.setenv(variable, value)
    with pytest.raises(EndpointError, match=words):
        ChatModel("https://localhost/v1", None, Sampling(), api_key=None)


def test_one_that_has_expired_is_reported_with_the_clock() -> None:
    error = ssl.SSLCertVerificationError()
    error.verify_code, error.verify_message = 10, "certificate has expired"
    assert "(certificate has expired): it has expired: renew it" in explain_tls_failure(error)
