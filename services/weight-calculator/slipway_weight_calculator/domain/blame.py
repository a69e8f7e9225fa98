"""Attribution of outcomes to rows, by error scope. Pure.

A throttle reflects our own call rate, an outcome of scope `nothing` our own doing, and an unknown scope
cannot be interpreted: these move no row.
"""

from collections.abc import Callable, Mapping
from typing import Final

from slipway_common.events.worker import Outcome, Result, Scope, Stage

OWN: Final = frozenset({Scope.CONFIG, Scope.CAPACITY})
KINDS: Final = {Scope.QUOTA: "quota", Scope.CREDENTIAL: "credential", Scope.IMAGE: "image"}
"""Kind of the shared row that a scope names; keys are "kind/scope_key"."""
DEFINITE: Final = frozenset({Scope.CAPACITY, Scope.QUOTA, Scope.CREDENTIAL})
"""Scopes of definite refusals: `trip_capacity` of them in a row trip a row."""
PLACE: Final = frozenset({Scope.CAPACITY, Scope.IMAGE})
"""Scopes of failures that concern more than the config's own request: they also lower the siblings' priors."""
CREDITED: Final[Mapping[str, tuple[str, ...]]] = {
    "launch": ("quota", "credential", "image"),
    "boot": ("image",),
    "claim": ("image",),
}
"""Kinds of the shared rows that a success of a stage is credited to."""


def charged(
    outcome: Outcome, config_id: str, shared: Mapping[str, str], is_shared: Callable[[str], object]
) -> tuple[str, ...]:
    """Keys of the rows that a failed outcome is charged to; empty if it moves no row.

    `shared` maps image, quota and credential to the config's own keys. A scope key that names another key of the kind
    is trusted if any config shares it (`is_shared`), because the provider knows best which instance family it counted.
    The config is then charged too, otherwise nothing would ever stop it.
    """
    if outcome.result is not Result.FAILED or outcome.stage is Stage.UNKNOWN:
        return ()
    kind = KINDS.get(outcome.scope)
    if kind is None:
        return (config_id,) if outcome.scope in OWN else ()
    key = f"{kind}/{outcome.scope_key}" if outcome.scope_key else shared[kind]
    if key != shared[kind]:
        return (key, config_id) if is_shared(key) else (config_id,)
    # A failed boot or claim may be the fault of the location as well as of the image.
    return (key, config_id) if kind == "image" and outcome.stage is not Stage.LAUNCH else (key,)
