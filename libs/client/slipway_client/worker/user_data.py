"""User data of a machine. The secret stays in this process: it is in no environment, argument or log."""

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from slipway_api.limits import Name
from slipway_client.worker.settings import Settings

REGISTER_PATH: Final = "/workers/register"
DEFAULT_SOURCE: Final = "agent"
# The path of the user data is not handed on to commands.
OWN_VARIABLES: Final = frozenset({"SLIPWAY_USER_DATA"})


class InvalidUserData(Exception):
    """Invalid user data. The text describes the problem and never quotes the data."""


class UserData(msgspec.Struct, frozen=True, kw_only=True):
    """User data as the provisioner writes them. `queue_url` may be empty if an agent has a queue of its own. `source`
    is the only source of demand of the pool, or empty; `ca` are authorities that the machine has to trust, in PEM."""

    register_url: str
    batch_id: str
    secret: str
    queue_url: str = ""
    source: Name = ""
    ca: str = ""
    settings: Settings = Settings()

    @property
    def task_source(self) -> str:
        """Source of the demand reports that count the agent's jobs."""
        return self.settings.source or self.source or DEFAULT_SOURCE

    @property
    def provisioner_url(self) -> str:
        return self.register_url.removesuffix("/").removesuffix(REGISTER_PATH)

    def __repr__(self) -> str:
        return f"UserData(batch_id={self.batch_id!r})"


def read(where: str) -> UserData:
    """Read user data from a file, or from standard input if `where` is "-". Raises InvalidUserData."""
    named = "standard input" if where == "-" else where
    try:
        text = sys.stdin.buffer.read() if where == "-" else Path(where).read_bytes()
    except OSError as error:
        raise InvalidUserData(f"user data cannot be read from {named}: {error.strerror}") from error
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(text)), UserData)
    except msgspec.MsgspecError as error:
        advice = "expected the JSON that the provisioner gives to machines; see `slipway-worker run --help`"
        raise InvalidUserData(f"user data from {named}: {error}; {advice}") from error


def handed_on(variables: Mapping[str, str]) -> dict[str, str]:
    """Environment of a command: ours without what is for this process alone, and `variables`."""
    return {name: value for name, value in os.environ.items() if name not in OWN_VARIABLES} | dict(variables)


def _without_nulls(raw: object) -> object:
    """Drop settings that are null, so that defaults apply."""
    if isinstance(raw, dict) and isinstance(raw.get("settings"), dict):
        return raw | {"settings": {name: value for name, value in raw["settings"].items() if value is not None}}
    return raw
