"""Certificates of https: those of the environment, checked before they are used, and why a server's is not trusted."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

from harness.errors import EndpointError

_FILE, _DIR = "SSL_CERT_FILE", "SSL_CERT_DIR"
_UNKNOWN = f"it is signed by nobody who is known here: set {_FILE} to a file with the certificate of who signed it"
_CLOCK = "renew it, or look at the clock of this machine"
_WHY = {
    **dict.fromkeys((2, 18, 19, 20, 21, 24, 27), _UNKNOWN),
    9: f"it is not valid yet: {_CLOCK}",
    10: f"it has expired: {_CLOCK}",
    **dict.fromkeys((62, 64), "it is for another host: write the base URL with a name that the certificate has"),
}
"""By OpenSSL's number of what is wrong with a certificate."""


def check_certificates() -> None:
    """Raise EndpointError where the certificates that the environment names cannot be used."""
    file, directory = os.environ.get(_FILE), os.environ.get(_DIR)
    if file:
        try:
            ssl.create_default_context(cafile=file)
        except OSError as error:
            words = "no certificates in it" if isinstance(error, ssl.SSLError) else error.strerror or str(error)
            raise EndpointError(f"{_FILE}={file}: {words}; mend or unset the variable") from None
    elif directory and not Path(directory).is_dir():
        raise EndpointError(f"{_DIR}={directory}: no such directory; mend or unset the variable")


def certificate_words(error: ssl.SSLError) -> str:
    """Why TLS failed, and what to do."""
    if isinstance(error, ssl.SSLCertVerificationError):
        why = _WHY.get(error.verify_code, "look at it with openssl s_client")
        return f"the server's certificate is not trusted ({error.verify_message}): {why}"
    if error.reason == "WRONG_VERSION_NUMBER":
        return "what listens there does not speak TLS: write the base URL with http://"
    return f"TLS failed ({error.reason or error}): look at the server's TLS with openssl s_client"
