"""Reachability of provider accounts: an account that does not answer launches nothing, and its unknown calls are given
up. Pure."""

from datetime import datetime
from typing import Final

import msgspec

from slipway_api.events.alert import AlertIdentity, AlertRaised, AlertResolved, alert_identity
from slipway_api.events.lifecycle import State
from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_provisioner.domain.workers import Change, Worker, launch_failed, lost, stopping

UNREACHABLE: Final = "unreachable"
ALERT: Final = "account-unreachable"


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that may still run in a retired account; without an `instance_id` it may never have been created."""

    worker_id: str
    account_id: str
    pool_id: str
    launch_config_id: str
    batch_id: str | None
    instance_id: str | None


def machine(worker: Worker) -> Machine:
    """The machine that a worker leaves behind."""
    return Machine(
        worker_id=worker.id,
        account_id=worker.account_id,
        pool_id=worker.pool_id,
        launch_config_id=worker.launch_config_id,
        batch_id=worker.batch_id,
        instance_id=worker.instance_id,
    )


def given_up(worker: Worker, now: datetime) -> Change:
    """Stop waiting for the outcome of a worker's call. The worker is replaced, so a machine that appears later has to
    leave. No stage has ended."""
    return stopping(worker, f"account {worker.account_id} does not answer", now)


def settled(worker: Worker, now: datetime) -> Change:
    """End a worker whose machine cannot be reached. That is no evidence about its start."""
    reason = f"{UNREACHABLE}: account {worker.account_id} is retired"
    if worker.instance_id is None:
        return launch_failed(worker, Outcome(Stage.LAUNCH, Result.FAILED, Scope.NOTHING, "", UNREACHABLE), now)
    return lost(worker, reason, now)


def waits_for_its_call(worker: Worker) -> bool:
    """True if the outcome of the worker's call is unknown and it serves until then."""
    return worker.state is State.LAUNCHING


def raised(account_id: str, *, calls: int, now: datetime) -> AlertRaised:
    """Alert on an account that has become unreachable, with its calls of unknown outcome."""
    return AlertRaised(
        **_identity(account_id),
        summary=f"account {account_id} does not answer",
        effect=f"{calls} {'call has' if calls == 1 else 'calls have'} an unknown outcome; leaving workers still count",
        doing="launches in other accounts, and lists this one again until it answers",
        command=f"slipway account check {account_id}  # says why; if it never answers again: slipway account retire",
        since=now,
    )


def resolved(account_id: str, summary: str) -> AlertResolved:
    """Resolution of the alert on an unreachable account."""
    return AlertResolved(**_identity(account_id), summary=summary)


def _identity(account_id: str) -> AlertIdentity:
    return alert_identity("provisioner", ALERT, "account", account_id)
