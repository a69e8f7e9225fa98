"""Operator's settings of providers, as SLIPWAY_PROVIDERS has them. Pure."""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

ENTRY: Final = "entry"
"""Setting by which an account names an entry of the operator."""
DEFAULT_ENTRY: Final = "default"
"""Entry of accounts that name none."""
Prefix = Annotated[str, msgspec.Meta(pattern="^[A-Z][A-Z0-9_]{0,99}$")]
AbsolutePath = Annotated[str, msgspec.Meta(pattern="^/[^\\x00-\\x1f]{0,499}$")]


class WebIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Role that is assumed with the token of a file, which its issuer renews."""

    role: str
    token_file: AbsolutePath


class CredentialOfOperator(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Where a credential is: variables of this service with a prefix, a file, or a role with the token of a file."""

    environment: Prefix | None = None
    file: AbsolutePath | None = None
    web_identity: WebIdentity | None = None

    def __post_init__(self) -> None:
        if [self.environment, self.file, self.web_identity].count(None) != 2:
            raise ValueError("write exactly one of environment, file and web_identity")


class OfProvider(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Names that accounts of a provider may use: entries with settings of the operator, and credentials."""

    entries: dict[str, dict[str, Any]] = {}
    credentials: dict[str, CredentialOfOperator] = {}


OperatorSettings = Mapping[str, OfProvider]


def in_environment(settings: OperatorSettings | None) -> list[str]:
    """Places of the credentials that are variables of this service."""
    return [
        f"{name}.credentials.{credential}"
        for name, own in sorted((settings or {}).items())
        for credential, where in sorted(own.credentials.items())
        if where.environment is not None
    ]


def operator_settings(value: Any) -> OperatorSettings | None:
    """Settings from the value of SLIPWAY_PROVIDERS: names with commas between them, a list of names, or a mapping of
    names to `entries` and `credentials`. None for an empty one, which stands for the default. Raises ValueError with
    the place and the reason."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        value = [name.strip() for name in value.split(",") if name.strip()]
    if isinstance(value, list):
        value = dict.fromkeys(value)
    try:
        named = msgspec.convert(value, dict[str, OfProvider | None])
    except msgspec.ValidationError as error:
        raise ValueError(f"{error}; write names of providers, each with its entries and credentials") from None
    return {name: own or OfProvider() for name, own in named.items()}
