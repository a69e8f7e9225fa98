"""Bodies of the weight-calculator: signals."""

import msgspec

from slipway_api.time import Time


class AcceptedSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal that is published."""

    source: str
    configs: list[str]
    """Ids of the launch configs that it is about."""


class LiveSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal in effect."""

    source: str
    kind: str
    target_kind: str
    target_id: str
    value: float | None
    reason: str
    configs: tuple[str, ...]
    """Ids of the launch configs that it is about."""
    since: Time
    until: Time


class RefusedSignal(msgspec.Struct, frozen=True, kw_only=True):
    """A signal from Kafka without effect, and the reason: its category, a colon, and a text."""

    at: Time
    source: str
    kind: str
    target_kind: str
    target_id: str
    reason: str


class Signals(msgspec.Struct, frozen=True, kw_only=True):
    """The live signals, and the newest ones from Kafka that were refused."""

    items: list[LiveSignal]
    refused: list[RefusedSignal]
    """The newest first."""
