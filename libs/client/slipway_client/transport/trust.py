"""TLS of every HTTP client of this package: the authorities that it trusts, and the certificate that it presents."""

import os
from collections.abc import MutableMapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    import ssl  # takes a fifth of the start-up time: imported where a connection is encrypted

CA: Final = "SLIPWAY_CA_FILE"
CERTIFICATE: Final = "SLIPWAY_CLIENT_CERTIFICATE_FILE"
KEY: Final = "SLIPWAY_CLIENT_KEY_FILE"


def context() -> "ssl.SSLContext":
    """Context of a connection. Authorities are those of SLIPWAY_CA_FILE, or else of SSL_CERT_FILE, or of the system.
    The files are read again when they change. Raises slipway_common.base.tls.UnusableFile."""
    ca_file = os.environ.get(CA) or os.environ.get("SSL_CERT_FILE", "")
    return _context(ca_file, os.environ.get(CERTIFICATE, ""), os.environ.get(KEY, ""))


@cache
def _context(*files: str) -> "ssl.SSLContext":
    from slipway_common.base.tls import client_context

    ca_file, certificate_file, key_file = (Path(file) if file else None for file in files)
    return client_context(ca_file=ca_file, certificate_file=certificate_file, key_file=key_file)


def trust(authorities: str, environment: MutableMapping[str, str]) -> None:
    """Trust authorities in PEM, in this process and in those that it starts, unless the environment names a file."""
    if not authorities or environment.get(CA):
        return
    import atexit
    import tempfile

    number, path = tempfile.mkstemp(prefix="slipway-ca-", suffix=".pem")
    with os.fdopen(number, "w", encoding="ascii") as file:
        file.write(authorities)
    environment[CA] = path
    atexit.register(Path(path).unlink, missing_ok=True)
