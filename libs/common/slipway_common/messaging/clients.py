"""Options of every Kafka client, made from settings: bootstrap servers, TLS and SASL.

Passwords, keys and certificates are files. The client opens a new connection for each broker, after each failure, and
whenever the broker ends the session of an authentication (`connections.max.reauth.ms`; it does not authenticate again
on an open one); each connection uses the files as they are then.
"""

import asyncio
import json
import ssl
import urllib.request
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, Self, TypeAlias
from urllib.parse import urlencode

from aiokafka.abc import AbstractTokenProvider
from aiokafka.conn import AIOKafkaConnection
from aiokafka.errors import KafkaConnectionError
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator

from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.settings import EnvironmentSettings
from slipway_common.base.tls import client_context

TOKEN_SECONDS: Final = 10.0
TOKEN_LIFE: Final = 0.8
"""Part of a token's lifetime in which new connections use it."""
TOKEN_BYTES_MAX: Final = 1 << 16
PASSWORDS: Final = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


class KafkaSecurity(BaseModel):
    """How a client is known to brokers, and they to it."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"] = "SCRAM-SHA-512"
    username: str = ""
    password_file: Path | None = None
    ca_file: Path | None = None
    certificate_file: Path | None = None
    key_file: Path | None = None
    oauth_token_url: str = ""
    oauth_client_id: str = ""
    oauth_client_secret_file: Path | None = None
    oauth_scope: str = ""

    @model_validator(mode="after")
    def _is_complete(self) -> Self:
        """Refuse settings that lack something, and settings without effect, which a typing error in another makes."""
        protocol, mechanism = self.security_protocol, self.sasl_mechanism
        uses_sasl = protocol == "SASL_SSL"
        groups = (
            (protocol != "PLAINTEXT", (), ("ca_file", "certificate_file", "key_file")),
            (uses_sasl and mechanism in PASSWORDS, ("username", "password_file"), ("username", "password_file")),
            (
                uses_sasl and mechanism == "OAUTHBEARER",
                ("oauth_token_url", "oauth_client_id", "oauth_client_secret_file"),
                ("oauth_token_url", "oauth_client_id", "oauth_client_secret_file", "oauth_scope"),
            ),
        )
        kind = f"{protocol} with {mechanism}" if uses_sasl else protocol
        for used, needed, known in groups:
            if used and (missing := [name for name in needed if not getattr(self, name)]):
                raise ValueError(f"{kind} needs {' and '.join(missing)}")
            if not used and (given := [name for name in known if getattr(self, name)]):
                raise ValueError(
                    f"{' and '.join(given)} has no effect with {kind}; "
                    f"set security_protocol and sasl_mechanism, or remove it"
                )
        if self.key_file and not self.certificate_file:
            raise ValueError("key_file needs certificate_file")
        if self.oauth_token_url and not self.oauth_token_url.startswith("https://"):
            raise ValueError("oauth_token_url must begin with https://, since it is sent a secret")
        return self


class KafkaAccess(KafkaSecurity):
    """Bootstrap servers, and how a client is known to them. Its text is the servers, for messages."""

    bootstrap_servers: str

    def __str__(self) -> str:
        return self.bootstrap_servers


Kafka: TypeAlias = KafkaAccess | str
"""How to reach Kafka. A text is the bootstrap servers of a broker without TLS and authentication."""


class KafkaSettings(EnvironmentSettings):
    """Settings of a process that uses Kafka: SLIPWAY_KAFKA and SLIPWAY_KAFKA_*. Secrets are in files, which are read
    again at each connection."""

    kafka: str
    """Bootstrap servers, host:port,…"""
    kafka_security_protocol: Literal["PLAINTEXT", "SSL", "SASL_SSL"] = "PLAINTEXT"
    """`SSL` encrypts, and authenticates by a client certificate if one is set; `SASL_SSL` encrypts and authenticates by
    SASL; `PLAINTEXT` is for networks that nobody else reaches."""
    kafka_sasl_mechanism: Literal["SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER"] = "SCRAM-SHA-512"
    kafka_username: str = ""
    kafka_password_file: Path | None = None
    """File with the password of SCRAM and PLAIN."""
    kafka_ca_file: Path | None = None
    """Authorities of the brokers' certificates, in PEM [default: those of the system]."""
    kafka_certificate_file: Path | None = None
    """Client certificate, in PEM, with the authorities between it and one that the brokers trust."""
    kafka_key_file: Path | None = None
    """Key of the client certificate [default: in the same file]."""
    kafka_oauth_token_url: str = ""
    """Token endpoint for the grant `client_credentials` of OAUTHBEARER."""
    kafka_oauth_client_id: str = ""
    kafka_oauth_client_secret_file: Path | None = None
    kafka_oauth_scope: str = ""

    @model_validator(mode="after")
    def _has_usable_access(self) -> Self:
        """Report at start-up what no client could use."""
        try:
            options = client_options(self.kafka_access)
            if isinstance(password := options.get("sasl_plain_password"), FilePassword):
                password.read()
        except ValidationError as error:
            problems = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
            raise ValueError(f"SLIPWAY_KAFKA_…: {problems}") from None
        except KafkaConnectionError as error:
            raise ValueError(str(error)) from None
        return self

    @property
    def kafka_access(self) -> KafkaAccess:
        """How clients of this process reach Kafka."""
        given = {name: getattr(self, f"kafka_{name}") for name in KafkaSecurity.model_fields}
        return KafkaAccess(bootstrap_servers=self.kafka, **given)


def client_options(kafka: Kafka) -> dict[str, Any]:
    """Arguments of any client of aiokafka: consumer, producer, admin. Raises UnusableFile for files of TLS."""
    if isinstance(kafka, str):
        return {"bootstrap_servers": kafka}
    options: dict[str, Any] = {
        "bootstrap_servers": kafka.bootstrap_servers,
        "security_protocol": kafka.security_protocol,
    }
    if kafka.security_protocol != "PLAINTEXT":
        options["ssl_context"] = client_context(
            ca_file=kafka.ca_file, certificate_file=kafka.certificate_file, key_file=kafka.key_file
        )
    if kafka.security_protocol == "SASL_SSL":
        options["sasl_mechanism"] = kafka.sasl_mechanism
        if kafka.password_file is not None:
            _install()
            options["sasl_plain_username"] = kafka.username
            options["sasl_plain_password"] = FilePassword(kafka.password_file)
        else:
            options["sasl_oauth_token_provider"] = ClientCredentials(kafka)
    return options


class FilePassword(str):
    """Password in a file, which each connection reads; as a text it is the path, so that no log shows the password."""

    __slots__ = ("path",)
    path: Path

    def __new__(cls, path: Path) -> Self:
        made = super().__new__(cls, path)
        made.path = path
        return made

    def read(self) -> str:
        """The password as the file has it now. Raises KafkaConnectionError, upon which clients retry."""
        try:
            password = self.path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise KafkaConnectionError(f"the password of Kafka cannot be read: {self.path}: {reason}") from None
        if not password:
            raise KafkaConnectionError(f"the password of Kafka cannot be read: {self.path} is empty")
        return password


@cache
def _install() -> None:
    """Let connections of this process read their passwords; the client takes a text and keeps it for ever."""
    for name in ("authenticator_plain", "authenticator_scram"):
        make = getattr(AIOKafkaConnection, name)

        def authenticator(self: Any, make: Any = make) -> Any:
            if isinstance(self._sasl_plain_password, FilePassword):
                self._sasl_plain_password = self._sasl_plain_password.read()
            return make(self)

        setattr(AIOKafkaConnection, name, authenticator)


class ClientCredentials(AbstractTokenProvider):  # type: ignore[misc] # the client has no types
    """Tokens of OAuth's grant `client_credentials`, each used by new connections for most of its lifetime."""

    def __init__(self, kafka: KafkaAccess) -> None:
        self._kafka = kafka
        self._token = ""
        self._fresh_until = 0.0
        self._asking = asyncio.Lock()

    async def token(self) -> str:
        """Token for a new connection. Raises KafkaConnectionError, upon which clients retry."""
        async with self._asking:
            if monotonic_seconds() >= self._fresh_until:
                asked_at = monotonic_seconds()
                try:
                    self._token, lifetime_seconds = await asyncio.to_thread(self._ask)
                except (OSError, ValueError, KeyError, TypeError) as error:
                    raise KafkaConnectionError(
                        f"no token of {self._kafka.oauth_token_url}: {_described(error)}"
                    ) from None
                self._fresh_until = asked_at + TOKEN_LIFE * lifetime_seconds
            return self._token

    def _ask(self) -> tuple[str, float]:
        assert self._kafka.oauth_client_secret_file is not None
        form = {
            "grant_type": "client_credentials",
            "client_id": self._kafka.oauth_client_id,
            "client_secret": self._kafka.oauth_client_secret_file.read_text(encoding="utf-8").strip(),
        } | ({"scope": self._kafka.oauth_scope} if self._kafka.oauth_scope else {})
        request = urllib.request.Request(  # noqa: S310 # an https address, as checked
            self._kafka.oauth_token_url, urlencode(form).encode(), {"Accept": "application/json"}
        )
        context = ssl.create_default_context()
        with urllib.request.urlopen(request, timeout=TOKEN_SECONDS, context=context) as answer:  # noqa: S310
            given = json.loads(answer.read(TOKEN_BYTES_MAX))
        return str(given["access_token"]), float(given.get("expires_in", 60))


def _described(error: Exception) -> str:
    """Reason without what was sent or answered."""
    return str(error) if isinstance(error, OSError) else f"the answer has no token ({type(error).__name__})"
