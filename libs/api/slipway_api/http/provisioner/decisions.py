"""Planning decisions with their reasons."""

import msgspec
from msgspec import UNSET, UnsetType

from slipway_api.time import Time


class SourceCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Demand of a source as a decision has counted it, in tasks. `gone`: claimed tasks whose workers have gone.
    A `stale` source launches nothing."""

    pending: int
    claimed: int
    gone: int
    stale: bool


class ConfigNote(msgspec.Struct, frozen=True, kw_only=True):
    """Part of a launch config in a decision: `launched` workers of the `room` that its windows leave, of which the
    narrowest is `limited_by`. `would_launch`: those that it would launch if its pool could. `probe`: the permit of a
    probe. `reason`: why it launches none."""

    weight: float
    room: int
    limited_by: str
    launched: int
    would_launch: int | UnsetType = UNSET
    probe: int | UnsetType | None = UNSET
    reason: str | UnsetType = UNSET


class ReachedLimit(msgspec.Struct, frozen=True, kw_only=True):
    """A safety limit that stops launches which are needed: launches, spend or price."""

    kind: str
    text: str


class DecisionDetails(msgspec.Struct, frozen=True, kw_only=True):
    """Facts and outcome of a decision, in workers but for `tasks`, with its code and reason. A decision
    of a person has a reason alone.

    `wanted` workers serve the tasks within minimum and maximum, `missing` ones do not serve, and `needed` ones have to
    be launched. Of `surplus` ones the `lasting_surplus` leaves now. `alerted`: other alerts say why none is launched.
    `sources` are by name, `configs` by the id of their revisions. `limits` are the safety limits that stop launches;
    absent without any.
    """

    reason: str
    code: str | UnsetType = UNSET
    tasks: int | UnsetType = UNSET
    sources: dict[str, SourceCounts] | UnsetType = UNSET
    wanted: int | UnsetType = UNSET
    serving: int | UnsetType = UNSET
    leaving: int | UnsetType = UNSET
    stuck: int | UnsetType = UNSET
    missing: int | UnsetType = UNSET
    needed: int | UnsetType = UNSET
    launched: int | UnsetType = UNSET
    surplus: int | UnsetType = UNSET
    lasting_surplus: int | UnsetType = UNSET
    alerted: bool | UnsetType = UNSET
    configs: dict[str, ConfigNote] | UnsetType = UNSET
    limits: list[ReachedLimit] | UnsetType = UNSET


class DecisionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A decision of the worker whose launch it is: the number of launches and the reason."""

    id: str
    at: Time
    reason: str
    launched: int


class Decision(msgspec.Struct, frozen=True, kw_only=True):
    """A planning decision of a pool, made `at` a time. One to launch nothing that equals the decision before is counted
    in `times`, the last one made at `last_at`."""

    id: str
    pool_id: str
    at: Time
    last_at: Time
    times: int
    launched: int
    reason: str
    details: DecisionDetails
