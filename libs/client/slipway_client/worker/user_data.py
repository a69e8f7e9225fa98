"""What a machine is told at its birth. The secret stays in this process: it is in no environment, argument or log."""

import sys
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

REGISTER_PATH: Final = "/workers/register"
Seconds = Annotated[float, msgspec.Meta(gt=0)]


class Unusable(Exception):
    """User data that no worker can start with. The text says what is wrong with them, and never what they hold."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """What of the launch config's settings is for the worker; others are for the provider or the agent."""

    tasks_per_worker: Annotated[int, msgspec.Meta(ge=1)] | None = None
    """Leave after this many tasks; none: any number."""
    heartbeat_seconds: Seconds = 60.0
    """Between two signs of life during a task."""
    poll_seconds: Seconds = 30.0
    """Between two questions whether to leave, while idle."""
    stop_seconds: Seconds = 60.0
    """What a task, or an agent, gets to end once it was asked to."""
    idle_exit_seconds: Seconds | None = None
    """Leave after this long without a task; none: stay until told to leave."""
    give_up_seconds: Seconds = 900.0
    """Leave once the provisioner has been silent for this long."""


class UserData(msgspec.Struct, frozen=True, kw_only=True):
    """`queue_url` may be empty where an agent brings a queue of its own."""

    register_url: str
    batch_id: str
    secret: str
    queue_url: str = ""
    settings: Settings = Settings()

    @property
    def provisioner_url(self) -> str:
        return self.register_url.removesuffix("/").removesuffix(REGISTER_PATH)

    def __repr__(self) -> str:
        return f"UserData(batch_id={self.batch_id!r})"


def read(where: str) -> UserData:
    """From a file, or from standard input to its end if `where` is "-". Raises Unusable."""
    named = "standard input" if where == "-" else where
    try:
        text = sys.stdin.buffer.read() if where == "-" else Path(where).read_bytes()
    except OSError as error:
        raise Unusable(f"user data cannot be read from {named}: {error.strerror}") from error
    try:
        return msgspec.convert(_without_nulls(msgspec.json.decode(text)), UserData)
    except msgspec.MsgspecError as error:
        advice = "write JSON such as the provisioner gives to machines; `slipway-worker run --help` shows it"
        raise Unusable(f"user data from {named}: {error}; {advice}") from error


def _without_nulls(raw: Any) -> Any:
    """Settings that are null are not given."""
    if isinstance(raw, dict) and isinstance(raw.get("settings"), dict):
        return raw | {"settings": {name: value for name, value in raw["settings"].items() if value is not None}}
    return raw
