"""Attribution of outcomes to rows, by error scope. Pure.

A throttle reflects our own call rate, an outcome of scope `nothing` our own doing, and an unknown scope
cannot be interpreted: these move no row.
"""

from collections.abc import Callable, Mapping
from typing import Final

from slipway_api.events.scopes import Key
from slipway_api.events.worker import Outcome, Result, Scope, Stage

KINDS: Final = {
    Scope.QUOTA: "quota",
    Scope.CREDENTIAL: "credential",
    Scope.IMAGE: "image",
    Scope.CAPACITY: "capacity",
}
"""Kind of the shared row that a scope names; its id is the scope key."""
DEFINITE: Final = frozenset({Scope.CAPACITY, Scope.QUOTA, Scope.CREDENTIAL})
"""Scopes of definite refusals: `trip_capacity` of them in a row trip a row."""
PLACE: Final = frozenset({Scope.CAPACITY, Scope.IMAGE})
"""Scopes of failures that concern more than the config's own request: they also lower the siblings' priors."""
CREDITED: Final[Mapping[str, tuple[str, ...]]] = {
    "launch": ("quota", "credential", "image", "capacity", "subnet"),
    "boot": ("image",),
    "claim": ("image",),
}
"""Shared rows that a success of a stage is credited to, by their names in the config's `shared`."""
PRICED: Final = "capacity"
"""Kind of the shared rows whose evidence lowers the weights of their configs; the others only limit and trip them."""


def charged(
    outcome: Outcome, own: Key, shared: Mapping[str, Key], is_shared: Callable[[Key], object]
) -> tuple[Key, ...]:
    """Keys of the rows that a failed outcome is charged to; empty if it moves no row.

    `own` is the config's key, `shared` are image, quota, credential, capacity and subnet that it shares. A scope key
    that names none of them is trusted if any config shares it (`is_shared`), because the provider knows best
    which instance family it counted. The config is then charged too, or its own capacity, otherwise nothing would ever
    stop it.
    """
    if outcome.result is not Result.FAILED or outcome.stage is Stage.UNKNOWN:
        return ()
    kind = KINDS.get(outcome.scope)
    if kind is None:
        return (own,) if outcome.scope is Scope.CONFIG else ()
    key = Key(kind, outcome.scope_key) if outcome.scope_key else shared[kind]
    if key not in shared.values():
        itself = shared[kind] if kind == PRICED else own
        return (key, itself) if is_shared(key) else (itself,)
    # A failed boot or claim may be the fault of the location as well as of the image.
    return (key, own) if kind == "image" and outcome.stage is not Stage.LAUNCH else (key,)


def charged_stage(key: Key, name: str) -> str:
    """Stage of a row that a failure at a stage is charged to.

    Capacity is only known by launches: a machine that dies while it boots, for lack of capacity, was not launched.
    """
    return "launch" if key.kind == KINDS[Scope.CAPACITY] else name
