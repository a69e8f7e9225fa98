"""Fetches the console output of machines that never registered, once per image revision, apart from launches.

A provider may have none until long after the end of a machine, so that it is asked several times.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final

from slipway_common.database.postgres import Connection, Database
from slipway_common.observability.telemetry import logger
from slipway_provisioner.apply import consoles as apply
from slipway_provisioner.domain import user_data
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.consoles import ATTEMPTS_MAX, ConsoleOutput, delay_seconds, kept, none_found
from slipway_provisioner.providers.port import OutcomeUnknown, Provider
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import accounts, consoles, demand

LOG = logger(__name__)
LOOP: Final = "console"


async def fetch_next(database: Database, *, settings: Settings, providers: Mapping[str, Provider]) -> bool:
    """Fetch those that are due, and resolve the alerts of images that register by now; False if none is due."""
    longest = delay_seconds(ATTEMPTS_MAX, settings.console_retry_seconds) + settings.call_timeout_seconds
    async with database.acquire() as db:
        await apply.resolve(db)
        taken = await consoles.take(
            db, taken_seconds=settings.call_timeout_seconds + settings.console_retry_seconds, longest_seconds=longest
        )
        by_id = {id_: await accounts.get(db, id_) for id_ in {console.account_id for console in taken}}
    await asyncio.gather(*(_fetch(database, each, by_id[each.account_id], settings, providers) for each in taken))
    return bool(taken)


async def _fetch(
    database: Database, console: ConsoleOutput, account: Account, settings: Settings, providers: Mapping[str, Provider]
) -> None:
    """Fetch one, and store it or the reason why there is none. Never raises: it is due again otherwise."""
    try:
        text, error = "", ""
        try:
            async with asyncio.timeout(account.request_timeout_seconds or settings.call_timeout_seconds):
                provider = providers[account.provider]
                text = await provider.console_output(account, console.batch_id, console.instance_id)
        except (OutcomeUnknown, TimeoutError) as failed:
            error = str(failed) or "no reply in time"
            LOG.info("reading a console output failed", instance=console.instance_id, error=error)
        async with database.acquire() as db:
            echoed = await _user_data(db, console, account, settings) if text else ()
            secret = settings.registration().secret(console.batch_id)
            lines = kept(text, secret=secret, user_data=echoed)
            if not lines and console.attempts < ATTEMPTS_MAX:
                await consoles.later(db, console, delay_seconds(console.attempts, settings.console_retry_seconds))
                return
            async with db.transaction():
                problem = "" if lines else none_found(console.attempts, error)
                await apply.settle(db, console, lines, problem)
    except Exception as error:
        LOG.warning("a console output is not stored yet", instance=console.instance_id, error=repr(error))


async def _user_data(db: Connection, console: ConsoleOutput, account: Account, settings: Settings) -> Sequence[str]:
    """Parts of the user data of the machine, which it may have printed; empty if its launch config was deleted."""
    revision = await consoles.revision(db, console.launch_config_id)
    if revision is None:
        return ()
    source = await demand.only_source(db, revision["pool_id"])
    values = user_data.values_of(
        revision,
        account,
        register_url=settings.url_for_machines,
        batch_id=console.batch_id,
        source=source,
        ca=settings.authorities_for_machines(),
    )
    return user_data.render(revision["user_data"], values)
