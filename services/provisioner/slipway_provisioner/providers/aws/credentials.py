"""Credentials of accounts, from their references. They are read or assumed when a call is signed, and renewed before
they expire; nothing of them is logged or part of an error."""

import configparser
import os
import re
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final, Protocol

from aiobotocore.credentials import (
    AioAssumeRoleCredentialFetcher,
    AioAssumeRoleWithWebIdentityCredentialFetcher,
    AioCredentials,
    AioDeferredRefreshableCredentials,
    AioRefreshableCredentials,
)
from botocore.credentials import ReadOnlyCredentials
from botocore.utils import FileWebIdentityTokenLoader

from slipway_provisioner.providers.aws.failures import CallFailed, credential_failed
from slipway_provisioner.providers.aws.findings import Expiry

SESSION_CHARACTERS_MAX: Final = 64
_NOT_IN_SESSION: Final = re.compile(r"[^\w+=,.@-]")
VARIABLES: Final = ("ACCESS_KEY_ID", "SECRET_ACCESS_KEY", "SESSION_TOKEN")
EXPIRATION: Final = "CREDENTIAL_EXPIRATION"
"""Variable that tells the end of temporary credentials, as `aws configure export-credentials` prints it."""
FILE_EXPIRATIONS: Final = ("aws_expiration", "x_security_token_expires")
"""Names under which tools write the end of temporary credentials into a file."""


class CredentialSource(Protocol):
    """Credentials as the SDK reads them when it signs a call."""

    async def get_frozen_credentials(self) -> ReadOnlyCredentials: ...


class Credentials(AioCredentials):
    """Credentials of one account. Raises CallFailed, before anything was sent, if there are none."""

    def __init__(self, make: Callable[[], Awaitable[CredentialSource]]) -> None:
        super().__init__("", "")
        self._make = make
        self._source: CredentialSource | None = None

    async def get_frozen_credentials(self) -> ReadOnlyCredentials:  # type: ignore[override]
        try:
            if self._source is None:
                self._source = await self._make()
            return await self._source.get_frozen_credentials()
        except CallFailed:
            raise
        except Exception as error:
            raise credential_failed(error) from None  # the SDK's text may show more than its message

    async def expiry(self) -> Expiry:
        """End of the credentials with which the next call is signed. Raises CallFailed if there are none."""
        frozen = await self.get_frozen_credentials()
        source = self._source
        if isinstance(source, AioRefreshableCredentials):
            return Expiry(temporary=True, renewed=True, at=source._expiry_time)  # type: ignore[attr-defined] # its stubs lack it
        if not frozen.token:
            return Expiry(temporary=False)
        told = source.expiration() if isinstance(source, Environment | SharedFile) else ""
        return Expiry(temporary=True, at=_moment(told))

    def forget(self) -> None:
        """Obtain new credentials for the next call, since AWS says that these have expired."""
        self._source = None


class Environment:
    """Variables of the provisioner's own environment: PREFIX_ACCESS_KEY_ID and so on."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    async def get_frozen_credentials(self) -> ReadOnlyCredentials:
        key, secret, token = (os.environ.get(f"{self.prefix}_{name}", "") for name in VARIABLES)
        if not key or not secret:
            raise CallFailed(
                "NoCredentialsError",
                f"{self.prefix}_{VARIABLES[0]} and {self.prefix}_{VARIABLES[1]} are not both set in the environment",
                unsent=True,
            )
        return ReadOnlyCredentials(key, secret, token or None)

    def expiration(self) -> str:
        """End of the credentials as it is written there, if it is."""
        return os.environ.get(f"{self.prefix}_{EXPIRATION}", "")


class SharedFile:
    """The profile `default` of a credentials file, which is read again after each change."""

    def __init__(self, path: str) -> None:
        self.path = Path(path)
        self._read_at: tuple[int, int] | None = None
        self._read: ReadOnlyCredentials | None = None
        self._expiration = ""

    async def get_frozen_credentials(self) -> ReadOnlyCredentials:
        about = self.path.stat()
        version = (about.st_mtime_ns, about.st_ino)
        if self._read is None or version != self._read_at:
            self._read, self._read_at = self._parsed(self.path.read_text(encoding="utf-8")), version
        return self._read

    def expiration(self) -> str:
        """End of the credentials that were read last, as it is written there, if it is."""
        return self._expiration

    def _parsed(self, text: str) -> ReadOnlyCredentials:
        file = configparser.ConfigParser(interpolation=None)
        try:
            file.read_string(text)
            section = file["default"]
            self._expiration = next((section[name] for name in FILE_EXPIRATIONS if name in section), "")
            return ReadOnlyCredentials(
                section["aws_access_key_id"], section["aws_secret_access_key"], section.get("aws_session_token")
            )
        except (configparser.Error, KeyError):
            wanted = "a section [default] with aws_access_key_id and aws_secret_access_key"
            raise CallFailed("CredentialRetrievalError", f"{self.path} has no {wanted}", unsent=True) from None


def of(
    reference: Mapping[str, Any], *, session_name: str, default: Callable[[], Awaitable[CredentialSource]], client: Any
) -> Credentials:
    """Credentials of a reference. `default` are those of the provisioner's own machine, `client` makes a client of
    STS."""

    async def make() -> CredentialSource:
        if "environment" in reference:
            return Environment(reference["environment"])
        if "file" in reference:
            return SharedFile(reference["file"])
        if "web_identity" in reference:
            web = reference["web_identity"]
            fetcher = AioAssumeRoleWithWebIdentityCredentialFetcher(
                client,
                FileWebIdentityTokenLoader(web["token_file"]),
                web["role"],
                extra_args={"RoleSessionName": _session(session_name)},
            )
            return AioDeferredRefreshableCredentials(fetcher.fetch_credentials, "web-identity")
        if "role" in reference:
            source = of(reference.get("source", {}), session_name=session_name, default=default, client=client)
            extra = {"RoleSessionName": _session(session_name)}
            if external_id := reference.get("external_id"):
                extra["ExternalId"] = external_id
            role = AioAssumeRoleCredentialFetcher(client, source, reference["role"], extra_args=extra)
            return AioDeferredRefreshableCredentials(role.fetch_credentials, "assume-role")
        return await default()

    return Credentials(make)


def _session(name: str) -> str:
    """Name of a session of a role, which AWS shows in its audit."""
    return _NOT_IN_SESSION.sub("-", f"slipway-{name}")[:SESSION_CHARACTERS_MAX]


def _moment(told: str) -> datetime | None:
    """Time in ISO 8601; None if it is none."""
    try:
        at = datetime.fromisoformat(told)
    except ValueError:
        return None
    return at if at.tzinfo is not None else at.replace(tzinfo=UTC)
