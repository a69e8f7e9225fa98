"""Routes for people: accounts, those that do not answer, and mass unresponsiveness."""

from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Final, TypeVar

import msgspec
from fastapi import Depends, Request

from slipway_api.http.pages import Items
from slipway_api.http.provisioner.accounts import (
    Account,
    AccountDetails,
    AccountFinding,
    ConfirmedUnresponsive,
    RetiredAccount,
)
from slipway_api.http.provisioner.pools import ReasonGiven
from slipway_common.base.audited import AuditedKind
from slipway_common.database import audit
from slipway_common.database.postgres import Connection, Database
from slipway_common.web.access import READ, NeedsOwner
from slipway_common.web.answers import Answer
from slipway_common.web.bodies import Body
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database, wake
from slipway_common.web.text import Name
from slipway_provisioner.apply import account_checks as apply
from slipway_provisioner.apply import expiry, reachability, reaping
from slipway_provisioner.providers.port import OutcomeUnknown, Provider
from slipway_provisioner.store import account_checks
from slipway_provisioner.store import reachability as store

T = TypeVar("T")

router = Router(prefix="/accounts", tags=["accounts"])
DatabaseDep = Annotated[Database, Depends(database)]
Caller = Annotated[str, Depends(NeedsOwner("accounts:write", "account", "account_id"))]
# Status, slug and title of each refusal, and its detail for an account id.
REFUSALS: Final[dict[type[Exception], tuple[int, str, str, str]]] = {
    reachability.UnknownAccount: (
        404,
        "unknown-account",
        "No such account",
        "no account {!r}; see `slipway account ls`",
    ),
    reachability.StillReachable: (
        409,
        "account-reachable",
        "The account answers",
        "account {} answers, or has done so recently: terminate its workers instead, or retry once "
        "`slipway account ls` shows it as unreachable. Nothing was changed",
    ),
    reachability.NotRetired: (
        409,
        "account-not-retired",
        "The account is not retired",
        "account {} is not retired. Nothing was changed",
    ),
}


@router.get("", dependencies=[READ])
async def list_accounts(db: DatabaseDep) -> Answer[Items[Account]]:
    """List accounts with their workers, calls of unknown outcome, machines that may still run there, and the time and
    problems of their last check."""
    return Answer(Items(items=await store.accounts(db)))


@router.get("/{account_id:id}", dependencies=[READ])
async def get_account(account_id: Name, db: DatabaseDep) -> Answer[AccountDetails]:
    """Show one account, with the findings of its last check, and the machines that may still run in it since it was
    retired."""
    async with db.acquire() as connection:
        account = await _account(connection, account_id)
        found = await account_checks.findings(connection, account_id)
        details = AccountDetails(
            **msgspec.structs.asdict(account),
            findings=[AccountFinding(**msgspec.structs.asdict(finding)) for finding in found],
            machines=await store.machines(connection, account_id),
        )
    return Answer(details)


@router.post("/{account_id:id}/check")
async def check_account(account_id: Name, request: Request, _: Caller, db: DatabaseDep) -> Answer[AccountDetails]:
    """Check an account now: its identity, credential, clock, permissions, quotas, subnets, images and launch configs.

    Changes nothing in the account, and takes up to 90 s while launches need its API. Answers the account with
    `findings` (kind, subject, state, message, remedy; state is ok, warning, problem or unknown), which are stored and
    raise or resolve alerts. What could not be checked leaves a problem as it was. Refused with 503 if the account does
    not answer, and with 409 if it is retired.
    """
    providers: Mapping[str, Provider] = request.app.state.providers
    async with db.acquire() as connection:
        account = await _account(connection, account_id)
        begun = await account_checks.begin(connection, account_id)
    if begun is None:
        detail = f"account {account_id} is retired, and no call is made in it until `slipway account reinstate`"
        raise Problem(409, "account-retired", "The account is retired", detail)
    try:
        await apply.check(db, providers[begun.account.provider], begun)
    except OutcomeUnknown as error:
        detail = (
            f"account {account_id} ({account.provider}, {account.region}) could not be checked: {error}. Its "
            "findings are those of the check before. Check the network of the provisioner, and the settings of the "
            "account"
        )
        raise Problem(503, "account-unanswered", "The account does not answer", detail) from error
    return await get_account(account_id, db)


@router.post("/{account_id:id}/retire")
async def retire_account(
    account_id: Name, body: Body[ReasonGiven], request: Request, by: Caller, db: DatabaseDep
) -> Answer[RetiredAccount]:
    """Retire an account that does not answer. Its unknown calls and stopping workers are settled as unreachable, so
    that other accounts launch in their place. No call is made in it until it is reinstated. `was_retired` is true if it
    was retired already."""
    settings = request.app.state.settings
    async with db.acquire() as connection:
        was_retired = await _change(
            connection, lambda: reachability.retire(connection, account_id, reason=body.reason, by=by)
        )
        await _until_done(connection, lambda: reaping.forget_unlisted(connection))
        await _until_done(connection, lambda: reachability.settle_calls(connection))
        await _until_done(connection, lambda: reachability.settle_workers(connection, settings.stop_grace_seconds))
        (account,) = await store.accounts(connection, account_id)
    wake(request)
    return Answer(RetiredAccount(**msgspec.structs.asdict(account), was_retired=was_retired))


@router.post("/{account_id:id}/reinstate")
async def reinstate_account(
    account_id: Name, body: Body[ReasonGiven], request: Request, by: Caller, db: DatabaseDep
) -> Answer[Account]:
    """Resume calls to a retired account. Once it answers, it launches again, and what was left there is terminated."""
    async with db.acquire() as connection:
        await _change(connection, lambda: reachability.reinstate(connection, account_id, reason=body.reason, by=by))
        (account,) = await store.accounts(connection, account_id)
    wake(request)
    return Answer(account)


@router.post("/{account_id:id}/confirm-unresponsive")
async def confirm_unresponsive(
    account_id: Name, body: Body[ReasonGiven], request: Request, by: Caller, db: DatabaseDep
) -> Answer[ConfirmedUnresponsive]:
    """Stop all unresponsive workers of an account, however many are without contact. They are replaced, and their
    instances are terminated after the grace period."""
    defaults = request.app.state.settings.deadlines()
    reason = f"unresponsive, confirmed by {by}: {body.reason}"
    stopped = 0
    async with db.acquire() as connection:
        await _account(connection, account_id)
        while True:
            async with connection.transaction():
                count = await expiry.stop_confirmed(connection, account_id, defaults, reason)
            if not count:
                break
            stopped += count
        await audit.record_command(
            connection,
            AuditedKind.ACCOUNT,
            account_id,
            "confirm unresponsive",
            by=by,
            reason=body.reason,
            stopped_workers=stopped,
        )
    wake(request)
    return Answer(ConfirmedUnresponsive(id=account_id, stopped=stopped))


async def _account(db: Connection, account_id: str) -> Account:
    """An account as shown to people. Raises Problem."""
    found = await store.accounts(db, account_id)
    if not found:
        raise _refused(reachability.UnknownAccount(account_id))
    return found[0]


async def _change(db: Connection, act: Callable[[], Awaitable[T]]) -> T:
    try:
        async with db.transaction():
            return await act()
    except tuple(REFUSALS) as error:
        raise _refused(error) from error


async def _until_done(db: Connection, settle: Callable[[], Awaitable[bool]]) -> None:
    """Settle in transactions of their own until nothing is left."""
    while True:
        async with db.transaction():
            more = await settle()
        if not more:
            return


def _refused(error: Exception) -> Problem:
    status, slug, title, detail = REFUSALS[type(error)]
    return Problem(status, slug, title, detail.format(str(error)))
