"""Whom an outcome says something about (the table of error scopes). Pure.

A throttle says something about our call rate, an outcome of our own doing nothing at all, an unknown word nothing that
we can read: they move no row.
"""

from collections.abc import Mapping
from typing import Final

from slipway_common.events.worker import Outcome, Result, Scope, Stage
from slipway_common.scopes import credential_key, image_key

CONFIG: Final = "config"
OWN: Final = frozenset({Scope.CONFIG, Scope.CAPACITY})
DEFINITE: Final = frozenset({Scope.CAPACITY, Scope.QUOTA, Scope.CREDENTIAL})
"""What a provider means when it says so: no third opinion is needed."""
PLACE: Final = frozenset({Scope.CAPACITY, Scope.IMAGE})
"""Failures that speak of more than one config's own request: siblings' priors hear of them."""


def charged(outcome: Outcome, config_id: str, shared: Mapping[str, str]) -> tuple[str, ...]:
    """Keys of the rows that a failed outcome is charged to; empty when it says nothing.

    `shared` maps image, quota and credential to the config's own keys. A scope key that names another of the kind is
    believed: the provider knows better which family it has counted.
    """
    if outcome.result is not Result.FAILED or outcome.stage is Stage.UNKNOWN:
        return ()
    scope = outcome.scope
    if scope in OWN:
        return (config_id,)
    if scope is Scope.QUOTA:
        return (f"quota/{outcome.scope_key}" if outcome.scope_key else shared["quota"],)
    if scope is Scope.CREDENTIAL:
        return (credential_key(outcome.scope_key) if outcome.scope_key else shared["credential"],)
    if scope is Scope.IMAGE:
        image = image_key(outcome.scope_key) if outcome.scope_key else shared["image"]
        # A boot or a claim that came to nothing may be the place's fault as well as the image's.
        return (image,) if outcome.stage is Stage.LAUNCH else (image, config_id)
    return ()


def praised(stage: Stage, shared: Mapping[str, str]) -> tuple[str, ...]:
    """Keys of the shared rows that a success of the stage speaks for."""
    return (shared["quota"], shared["credential"], shared["image"]) if stage is Stage.LAUNCH else (shared["image"],)
