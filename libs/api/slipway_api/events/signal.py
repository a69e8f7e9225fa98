"""Signals from external sources: health signals and pause requests. Values only."""

from collections.abc import Iterable
from textwrap import fill
from typing import ClassVar, Final

import msgspec

from slipway_api.events.signal_kinds import KINDS, TARGETS, TTL_SECONDS
from slipway_api.limits import Name, Note
from slipway_api.time import Time


def _listed(words: Iterable[str]) -> str:
    *first, last = words
    return f"{', '.join(first)} or {last}"


WORDS: Final = f"`target_kind` is {_listed(TARGETS)}; `kind` is {_listed(KINDS)}."


class SignalRaised(msgspec.Struct, frozen=True, kw_only=True):
    # Becomes the description in the JSON Schema, so it lists the accepted values.
    __doc__ = f"A signal about a target; it expires after `ttl_seconds`.\n\n{fill(WORDS, 116)}"

    type: ClassVar[str] = "io.slipway.signal.raised.v1"
    source: Name
    target_kind: Name
    target_id: Name
    kind: Name
    reason: Note
    observed_at: Time
    ttl_seconds: float = TTL_SECONDS
    value: float | None = None
