"""`slipway why`: asks the services for the facts; why.py makes sentences of them."""

import shutil
import sys
import textwrap
from typing import Any, Final

import typer

from slipway_client.commands.workers import DIGITS, found
from slipway_client.foreign import printable
from slipway_client.http import Api, Failed, path
from slipway_client.options import Subject, now

UUID_LENGTH: Final = 36
DECISIONS: Final = 1


def why(context: typer.Context, subject: Subject) -> None:
    """Tell in sentences why a worker is what it is, or why a pool has what it has.

    Of a worker: who decided, what else could have been chosen and why not, admission, call, boot, tasks, end. Of a
    pool: what it wants and has, what the last decision did, and what binds: maximum, windows, circuits, brakes, leases.

    \b
    Examples:
      slipway why linux
      slipway why 3f9a12cd
    """
    for line in map(printable, _lines(context.obj, subject)):
        indent = "    " if line.startswith((" ", "→")) else ""
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else 10_000
        print(textwrap.fill(line, columns, subsequent_indent=indent, break_on_hyphens=False, break_long_words=False))


def _lines(api: Api, subject: str) -> list[str]:
    from slipway_client.why import of_pool, of_worker

    if len(subject) == UUID_LENGTH or _is_short(api, subject):
        worker = found(api, subject)
        return of_worker(worker, _decision(api, worker), _lease_pools(api), now=now())
    try:
        pool = api.get("provisioner", path("pools", subject))
    except Failed as error:
        if error.slug == "unknown-pool":
            raise Failed(
                f"There is no pool and no worker {subject!r}.\n`slipway pool ls` and `slipway worker ls` list them.",
                error.slug,
            ) from error
        raise
    return of_pool(
        pool,
        api.get("provisioner", path("pools", subject, "decisions"), limit=DECISIONS)["items"],
        api.get("provisioner", "/launch-configs", pool=subject)["items"],
        api.get("provisioner", "/brakes")["items"],
        _lease_pools(api),
        calculator=_calculator(api),
        now=now(),
    )


def _is_short(api: Api, subject: str) -> bool:
    """Whether these are the last digits of a worker's id: a pool may be named so as well, and goes first."""
    if not DIGITS.fullmatch(subject):
        return False
    return all(pool["id"] != subject for pool in api.get("provisioner", "/pools")["items"])


def _decision(api: Api, worker: dict[str, Any]) -> dict[str, Any] | None:
    try:
        decision: dict[str, Any] = api.get("provisioner", path("decisions", worker["decision_id"]))
    except Failed as error:
        if error.slug != "unknown-decision":
            raise
        return None
    return decision


def _lease_pools(api: Api) -> list[dict[str, Any]]:
    """None of them when the lease-broker is away: the rest can be told all the same."""
    try:
        rows: list[dict[str, Any]] = api.get("lease-broker", "/lease-pools")["items"]
    except Failed:
        return []
    return rows


def _calculator(api: Api) -> str:
    try:
        status = api.get("weight-calculator", "/status")
    except Failed:
        return f"The weight-calculator at {api.urls['weight-calculator']} does not answer"
    return "" if status["ready"] else f"The weight-calculator is not ready ({'; '.join(status['reasons'])})"
