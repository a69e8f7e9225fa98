"""How a service listens: addresses, TLS by certificate files, proxies before it, and the names that it answers to."""

import ipaddress
import ssl
from pathlib import Path
from typing import Any, Final, Self

from pydantic import model_validator
from starlette.datastructures import Headers

from slipway_common.base.settings import EnvironmentSettings
from slipway_common.base.tls import server_context
from slipway_common.web import connections
from slipway_common.web.problem import Problem, answer

HEADERS: Final = (
    ("X-Content-Type-Options", "nosniff"),
    ("X-Frame-Options", "DENY"),
    ("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'"),
    ("Referrer-Policy", "no-referrer"),
)
"""Headers of every answer: it is data, and no page."""
OVER_TLS: Final = (("Strict-Transport-Security", "max-age=31536000"),)
PROBES: Final = frozenset({"/livez", "/readyz"})
"""Paths that are asked for by address, whatever the names of the service are."""


class ListenerSettings(EnvironmentSettings):
    """Settings of a process that serves HTTP."""

    host: str = "127.0.0.1"
    port: int = 0
    tls_certificate_file: Path | None = None
    """Certificate of the service, in PEM, with the authorities between it and one that clients trust [default: no TLS].
    It may be replaced while the service runs: new connections get the new one."""
    tls_key_file: Path | None = None
    """Key of the certificate [default: in the same file]."""
    tls_client_ca_file: Path | None = None
    """Authorities of client certificates; with them, every client has to present one."""
    trusted_proxies: str = ""
    """Addresses and networks, divided by commas, of proxies whose X-Forwarded-For and X-Forwarded-Proto are believed
    [default: of none]."""
    allowed_hosts: str = ""
    """Names, divided by commas, that a request's Host may have; *.example.com is any one below it [default: any]."""

    connections_max: int = 4_096
    """Connections of clients at a time. Above it, the one that has waited longest for a request is closed."""

    @model_validator(mode="after")
    def _is_usable(self) -> Self:
        """Report at start-up what no connection could use."""
        if self.tls_certificate_file is None and (self.tls_key_file or self.tls_client_ca_file):
            raise ValueError("SLIPWAY_TLS_CERTIFICATE_FILE is not set, without which there is no TLS")
        self.tls_context()
        for network in divided(self.trusted_proxies):
            ipaddress.ip_network(network, strict=False)  # its message names the address
        return self

    def tls_context(self) -> ssl.SSLContext | None:
        """Context of the listening socket; None without TLS. Raises UnusableFile."""
        if self.tls_certificate_file is None:
            return None
        return server_context(
            certificate_file=self.tls_certificate_file,
            key_file=self.tls_key_file,
            client_ca_file=self.tls_client_ca_file,
        )


def server_options(settings: ListenerSettings) -> dict[str, Any]:
    """Arguments of uvicorn's configuration."""
    context = settings.tls_context()
    return {
        "forwarded_allow_ips": list(divided(settings.trusted_proxies)),
        "proxy_headers": bool(settings.trusted_proxies),
        "server_header": False,
        "ws": "none",  # no route has one, and its protocol has neither time limits nor a maximum of connections
        "headers": [*HEADERS, *(OVER_TLS if context is not None else ())],
        **connections.timed_protocol(settings.connections_max, context),
    }


def divided(text: str) -> tuple[str, ...]:
    """Entries of a setting that are divided by commas."""
    return tuple(entry.strip() for entry in text.split(",") if entry.strip())


class ForHost:
    """Middleware that refuses requests for other names than those of the service, as by DNS rebinding."""

    def __init__(self, app: Any, allowed: tuple[str, ...]) -> None:
        self.app = app
        self.exact = frozenset(name.lower() for name in allowed if not name.startswith("*."))
        self.below = tuple(name[1:].lower() for name in allowed if name.startswith("*."))

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http" and scope["path"] not in PROBES and not self._allows(Headers(scope=scope)):
            detail = "its names are in SLIPWAY_ALLOWED_HOSTS"
            refusal = answer(Problem(421, "unknown-host", "The service has another name", detail))
            await refusal(scope, receive, send)
            return
        await self.app(scope, receive, send)

    def _allows(self, headers: Headers) -> bool:
        host = headers.get("host", "").lower()
        name = host.partition("]")[0] + "]" if host.startswith("[") else host.partition(":")[0]
        return name in self.exact or name.endswith(self.below)
