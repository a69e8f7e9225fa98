"""Provider accounts, their checks and limits, and installed providers."""

import msgspec

from slipway_api.time import Time


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """A provider account with numbers of its workers and findings.

    `owner` has declared it; it is `removed` once it does not, and listed while something is left in it. `unreachable`:
    it has not answered since `unanswered_since`. `retired`: no call is made in it. `throttled_calls` were throttled
    since `throttled_since`. `mass_unresponsive`: its unresponsive workers are kept until a person confirms.
    `listing_problem`: why its instances could not be listed; they were at `passed_at`. Its check at `checked_at` has
    found `problems`, the first one in `problem`, and `warnings`. `unknown_calls` have an unknown outcome, and
    `may_still_run` machines may run there since it was retired.
    """

    id: str
    owner: str
    provider: str
    region: str
    identity: str
    lease_pool_id: str
    removed: bool
    unreachable: bool
    retired: bool
    unanswered_since: Time | None
    throttled: bool
    throttled_since: Time | None
    throttled_calls: int
    mass_unresponsive: bool
    listing_problem: str
    passed_at: Time
    checked_at: Time | None
    problems: int
    warnings: int
    problem: str
    serving: int
    leaving: int
    unknown_calls: int
    may_still_run: int


class AccountFinding(msgspec.Struct, frozen=True, kw_only=True):
    """Result of one part of a check: its kind (identity, credential, clock, permission, quota, subnet, image, setting
    or launch-config), its state (ok, warning, problem or unknown), and for people a message and a remedy."""

    kind: str
    state: str
    message: str
    subject: str
    remedy: str


class UnreachableMachine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that may still run in a retired account; without an instance id, an intent of an unknown call."""

    worker_id: str
    account_id: str
    pool_id: str
    launch_config_id: str
    batch_id: str | None
    instance_id: str | None
    since: Time


class AccountDetails(Account, frozen=True, kw_only=True):
    """An account with the findings of its newest check, and up to 1,000 machines that may still run in it."""

    findings: list[AccountFinding]
    machines: list[UnreachableMachine]


class RetiredAccount(Account, frozen=True, kw_only=True):
    """An account after it was retired. `was_retired`: it was before."""

    was_retired: bool


class ConfirmedUnresponsive(msgspec.Struct, frozen=True, kw_only=True):
    """Number of unresponsive workers of the account `id` that were stopped."""

    id: str
    stopped: int


class LaunchLimit(msgspec.Struct, frozen=True, kw_only=True):
    """Safety limits of an account or a pool. Amounts of money are exact, as text; null where there is no limit.

    `launches` of the last hour count towards `launches_per_hour`, and `launches_left` are left beside the `waiting`
    ones. `spend` is the estimate for the last day. `launches_free_at` and `spend_free_at` are the next times at which
    some of each no longer counts. `unpriced` machines of the day have no price, and `default_price` is that of a
    machine per hour. `lifetime_seconds` is how long a machine counts to run. `reached` is the limit that stops
    launches: launches, spend or price, empty if none does.
    """

    scope: str
    scope_id: str
    launches_per_hour: int | None
    launches: int
    launches_left: int | None
    launches_free_at: Time | None
    spend_per_day: str | None
    spend: str | None
    spend_left: str | None
    spend_free_at: Time | None
    unpriced: int
    lifetime_seconds: float
    default_price: str | None
    waiting: int
    reached: str


class InstalledProvider(msgspec.Struct, frozen=True, kw_only=True):
    """An installed provider, with the machines a second that the API of an account launches in the long run; null if
    that is unknown."""

    id: str
    launches_per_second: float | None


class CodeMeaning(msgspec.Struct, frozen=True, kw_only=True):
    """Meaning of an error code. `scope` is what a failed launch is charged to, `resource` the part of the account that
    is concerned, if not all of it. `launched`: whether machines may run: no, maybe or yes."""

    code: str
    stage: str
    scope: str
    resource: str
    launched: str
    advice: str
