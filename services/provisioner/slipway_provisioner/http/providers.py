"""Routes for installed providers: their launch rates, and the meaning of their error codes."""

from collections.abc import Mapping
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request

from slipway_api.http.pages import Items
from slipway_api.http.provisioner.accounts import CodeMeaning, InstalledProvider
from slipway_common.database.postgres import Database
from slipway_common.web.access import READ
from slipway_common.web.answers import Answer
from slipway_common.web.problem import Problem
from slipway_common.web.router import Router
from slipway_common.web.runtime import database
from slipway_common.web.text import Name, Note
from slipway_provisioner.providers.port import Provider
from slipway_provisioner.store import accounts, reachability

router = Router(prefix="/providers", tags=["accounts"])
DatabaseDep = Annotated[Database, Depends(database)]


@router.get("", dependencies=[READ])
async def list_providers(request: Request) -> Answer[Items[InstalledProvider]]:
    """List the installed providers, with the machines a second that the API of an account launches in the long run
    (null: unknown)."""
    providers: Mapping[str, Provider] = request.app.state.providers
    items = [
        InstalledProvider(id=name, launches_per_second=provider.launches_per_second)
        for name, provider in sorted(providers.items())
    ]
    return Answer(Items(items=items))


@router.get("/{provider:id}/classify", dependencies=[READ])
async def classify(
    provider: Name, request: Request, db: DatabaseDep, code: Name, message: Note = "", account: Name | None = None
) -> Answer[CodeMeaning]:
    """Classify an error code of a provider in the same way as that of a failed launch call. With an account, the codes
    that its settings add count too."""
    providers: Mapping[str, Provider] = request.app.state.providers
    found = providers.get(provider)
    if found is None:
        raise Problem(
            404, "unknown-provider", "No such provider", f"no provider {provider!r}; installed: {_names(providers)}"
        )
    settings: Mapping[str, Any] = {}
    if account is not None:
        async with db.acquire() as connection:
            if not await reachability.accounts(connection, account):
                raise Problem(
                    404, "unknown-account", "No such account", f"no account {account!r}; see `slipway account ls`"
                )
            settings = (await accounts.get(connection, account)).settings
    meaning = found.meaning(settings, code, message)
    if meaning is None:
        raise Problem(404, "no-error-table", "No error table", f"provider {provider} has no table of error codes")
    return Answer(CodeMeaning(code=code, **msgspec.structs.asdict(meaning)))


def _names(providers: Mapping[str, Provider]) -> str:
    return ", ".join(sorted(providers))
