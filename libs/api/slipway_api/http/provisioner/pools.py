"""Worker pools and launch stops."""

from typing import Any, Literal

import msgspec

from slipway_api.limits import Name, RequiredReason
from slipway_api.time import Time


class Pool(msgspec.Struct, frozen=True, kw_only=True):
    """A worker pool with its demand in tasks and its workers in task slots.

    `mode` is observe, canary or enforce. `profile`, `boot_evidence`, `claim_evidence`, `on_bad_image` and
    `freeze_after`, a number of failed starts, are its health settings. `pending` and `claimed` are the tasks of all its
    sources, of which `stale_sources` are stale. `backlog_seconds` is for how long a fresh source has had pending tasks
    without a break; null if none has. `serving` workers count towards the target, `running` ones of them have
    registered, and `leaving` ones were asked to stop. `wanted` and `needed` are numbers of workers by the newest
    decision; null before the first one. `throttled` are the accounts of active launch configs that throttle calls.
    """

    id: str
    min_capacity: int
    max_capacity: int
    scaling_ratio: str
    mode: str
    profile: str
    boot_evidence: str
    claim_evidence: str
    on_bad_image: str
    freeze_after: int
    paused: bool
    paused_reason: str
    paused_by: str
    paused_until: Time | None
    frozen: bool
    frozen_reason: str
    frozen_by: str
    pending: int
    claimed: int
    stale_sources: int
    backlog_seconds: float | None
    serving: int
    running: int
    leaving: int
    wanted: int | None
    needed: int | None
    throttled: list[str]


class PoolDetails(Pool, frozen=True, kw_only=True):
    """A worker pool with its owner and what was `declared`; null unless the token has the scope read:settings."""

    declared: dict[str, Any] | None
    owner: str


class ReasonGiven(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reason for a command."""

    reason: RequiredReason


class Pause(ReasonGiven, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Reason for a pause, and its end; null: until it is resumed."""

    until: Time | None = None


class LaunchStopRequest(Pause, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A launch stop of everything, of an account or of a pool, named by `scope_id`; empty for everything."""

    scope: Literal["all", "account", "pool"]
    scope_id: Name = ""


class PoolPauseResult(msgspec.Struct, frozen=True, kw_only=True):
    """State of a pool after a pause or a resume. `until`: end of the pause, null: until it is resumed; absent after a
    resume."""

    id: str
    paused: bool
    until: Time | msgspec.UnsetType | None = msgspec.UNSET


class PoolFreezeResult(msgspec.Struct, frozen=True, kw_only=True):
    """State of a pool after a freeze or an unfreeze."""

    id: str
    frozen: bool


class LaunchStop(msgspec.Struct, frozen=True, kw_only=True):
    """A launch stop in force: set `by` somebody `at` a time; `until` null: until it is lifted. `scope` is all, account,
    pool, or restore until the state of a restored database is confirmed."""

    scope: str
    scope_id: str
    reason: str
    by: str
    until: Time | None
    at: Time


class LaunchStopResult(msgspec.Struct, frozen=True, kw_only=True):
    """State after a launch stop was set or lifted. `was_stopped`: there was one to lift; absent after one was set."""

    scope: str
    scope_id: str
    stopped: bool
    was_stopped: bool | msgspec.UnsetType = msgspec.UNSET


class UserDataPreview(msgspec.Struct, frozen=True, kw_only=True):
    """User data of the next machines of the revision `config`, with secrets masked, its maximum size once filled in,
    and the size that is allowed; both in bytes."""

    config: str
    user_data: str
    bytes: int
    bytes_max: int
