"""Accounts that stop launches, by problems that their last check has found, or delay them by throttled calls."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from slipway_api.http.lease_pools import LeasePool
from slipway_api.http.provisioner.accounts import Account
from slipway_api.http.provisioner.launch_configs import LaunchConfig
from slipway_client.view import moments
from slipway_client.view.phrases import is_tripped, limit_in_force
from slipway_client.view.why.explanation import NOTHING, PROBES, Cause, Facts
from slipway_client.view.why.shared import tripped_since

CREDENTIAL: Final = "credential"
WHOLE_ACCOUNT: Final = frozenset({"identity", CREDENTIAL, "clock", "permission"})
"""Kinds of findings that affect every launch in an account. One on a subnet, image, quota or launch config may affect
none of those explained here."""


def tripped_by_credential(config: LaunchConfig) -> bool:
    """True if a launch config is tripped since its account refused the credential or lacks a permission."""
    return is_tripped(config) and config.tripped_by == CREDENTIAL


def account_problems(facts: Facts) -> Iterator[Cause]:
    """Problems of the accounts of active launch configs, with the remedies of their alerts."""
    for account in facts.accounts:
        users = [config for config in facts.active if config.account_id == account.id]
        for finding in account.findings:
            if users and finding.state == "problem" and finding.kind in WHOLE_ACCOUNT:
                about = " ".join(part for part in (finding.kind, finding.subject) if part)
                text = f"account {account.id}, {about}: {finding.message}"
                since = tripped_since(list(filter(tripped_by_credential, users)))
                yield Cause(text=text, since=since, remedy=finding.remedy)


def throttled(facts: Facts) -> Iterator[Cause]:
    """Accounts of active launch configs that throttle calls, with what the limiter does."""
    used = {config.account_id for config in facts.active}
    for account in facts.accounts:
        if account.id in used and account.throttled:
            limiter = next((row for row in facts.lease_pools if row.id == account.lease_pool_id), None)
            yield Cause(
                text=f"account {account.id} throttles calls, {account.throttled_calls} so far: "
                f"each is made again; {_limiter(limiter, facts.now) if limiter else 'the limiter is unavailable'}",
                since=account.throttled_since,
                remedy=f"{NOTHING}; `{lower_limit(account)}` shows if a lower limit would help",
            )


def lower_limit(account: Account) -> str:
    """Command that shows if a lower limit would help against throttled calls."""
    return f"slipway lease report {account.lease_pool_id} --since 1h"


def _limiter(lease_pool: LeasePool, now: datetime) -> str:
    """The response of a lease pool to throttled calls."""
    id_, limit = lease_pool.id, limit_in_force(lease_pool)
    blocked = lease_pool.blocked_until
    parts = [f"lease pool {id_} grants at most {limit} units"]
    if limit < lease_pool.limit:
        parts = [f"lease pool {id_} has lowered its limit from {lease_pool.limit} to {limit} units"]
    if blocked and blocked > now:
        parts.append(f"grants none for another {moments.spelled((blocked - now).total_seconds())}, by its Retry-After")
    return ", and ".join(parts)


def credential_remedy(config: LaunchConfig) -> str:
    """Remedy for a launch config tripped by its credential, since probes correct neither a credential nor a policy."""
    check = f"`slipway account check {config.account_id}`"
    return f"run {check}, and correct the credential or the missing permission that it names; {PROBES}"
