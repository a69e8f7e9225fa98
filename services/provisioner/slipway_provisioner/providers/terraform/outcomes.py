"""Results of failed runs of Terraform, with scope and code for the launch. Pure."""

import re
from collections.abc import Mapping
from typing import Final

from slipway_api.events.worker import Outcome, Scope
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.workspace_runs import Result
from slipway_provisioner.providers.aws import errors
from slipway_provisioner.providers.port import Provider
from slipway_terraform.domain import results
from slipway_terraform.domain.results import Failure

_WORD: Final = re.compile(r"[A-Za-z][\w.-]*\w")
# Scopes of the driver that are scopes of events; the others are unknown outcomes, `nothing` and unclassified.
_SCOPES: Final = {
    results.Scope.CONFIG: Scope.CONFIG,
    results.Scope.CAPACITY: Scope.CAPACITY,
    results.Scope.QUOTA: Scope.QUOTA,
    results.Scope.IMAGE: Scope.IMAGE,
    results.Scope.CREDENTIAL: Scope.CREDENTIAL,
    results.Scope.LIMITER: Scope.LIMITER,
}
CODES: Final = {
    code: next(scope for scope, own in _SCOPES.items() if own is cases[0].scope)
    for code, cases in errors.TABLE.items()
    if cases[0].scope in _SCOPES.values()
}
"""Codes of AWS, which its Terraform provider prints as they are, with their scopes."""


def failed(
    provider: Provider, account: Account, config: Mapping[str, object], failure: Failure, extra: Mapping[str, str]
) -> Result:
    """Result of a failed run. `extra` are codes and scopes from the settings of the account."""
    message = f"{failure.code}: {failure.message}"
    if failure.scope is results.Scope.OUTCOME_UNKNOWN:
        return Result(failure=message, unknown=True)
    if failure.scope is results.Scope.NOTHING:
        return Result(failure=message, nothing=True)
    scope, code = _SCOPES.get(failure.scope), failure.code
    for diagnostic in failure.diagnostics:
        named = next(
            (word for word in _WORD.findall(f"{diagnostic.summary}\n{diagnostic.detail}") if word in extra), ""
        )
        if named:
            scope, code = Scope(extra[named]), named
            break
    outcome: Outcome = provider.failure(account, config, code, scope, failure.message)
    return Result(failure=message, outcome=outcome)
