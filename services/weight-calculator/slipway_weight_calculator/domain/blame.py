"""Whom an outcome says something about (the table of error scopes). Pure.

A throttle says something about our call rate, an outcome of our own doing nothing at all, an unknown word nothing that
we can read: they move no row.
"""

from collections.abc import Callable, Mapping
from typing import Final

from slipway_common.events.worker import Outcome, Result, Scope, Stage

OWN: Final = frozenset({Scope.CONFIG, Scope.CAPACITY})
KINDS: Final = {Scope.QUOTA: "quota", Scope.CREDENTIAL: "credential", Scope.IMAGE: "image"}
"""What a scope names that configs share; keys are "kind/scope_key"."""
DEFINITE: Final = frozenset({Scope.CAPACITY, Scope.QUOTA, Scope.CREDENTIAL})
"""What a provider means when it says so: no third opinion is needed."""
PLACE: Final = frozenset({Scope.CAPACITY, Scope.IMAGE})
"""Failures that speak of more than one config's own request: siblings' priors hear of them."""
PRAISED: Final[Mapping[str, tuple[str, ...]]] = {
    "launch": ("quota", "credential", "image"),
    "boot": ("image",),
    "claim": ("image",),
}
"""Kinds of the shared rows that a success of a stage speaks for."""


def charged(
    outcome: Outcome, config_id: str, shared: Mapping[str, str], is_shared: Callable[[str], object]
) -> tuple[str, ...]:
    """Keys of the rows that a failed outcome is charged to; empty when it says nothing.

    `shared` maps image, quota and credential to the config's own keys. A scope key that names another of the kind is
    believed if anybody shares it (`is_shared`): the provider knows better which family it has counted. The config is
    then charged too, or nothing would ever hold it back.
    """
    if outcome.result is not Result.FAILED or outcome.stage is Stage.UNKNOWN:
        return ()
    kind = KINDS.get(outcome.scope)
    if kind is None:
        return (config_id,) if outcome.scope in OWN else ()
    key = f"{kind}/{outcome.scope_key}" if outcome.scope_key else shared[kind]
    if key != shared[kind]:
        return (key, config_id) if is_shared(key) else (config_id,)
    # A boot or a claim that came to nothing may be the place's fault as well as the image's.
    return (key, config_id) if kind == "image" and outcome.stage is not Stage.LAUNCH else (key,)
