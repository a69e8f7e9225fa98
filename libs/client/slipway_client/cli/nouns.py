"""Commands of `slipway` and their modules, which are imported when a command runs: few commands need more than one."""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

import typer


class Command(NamedTuple):
    """A command or command group: the first line of its help, and where it is, as `module:name`.

    Further groups, of other modules, add their commands to a group.
    """

    help: str
    at: str
    further: str | None = None


COMMANDS: Final = {
    "apply": Command("Apply declarations to the deployment", "declared:apply"),
    "diff": Command("Show the changes that `apply` would make", "declared:diff"),
    "export": Command("Export the deployment as declarations", "export:export"),
    "user-data": Command("Print the user data of a pool's machines", "user_data:user_data"),
    "top": Command("Watch a deployment live; ? shows the keys", "top:top"),
    "stop-launching": Command("Stop all launches, or those of an account or pool", "launch_stops:stop_launching"),
    "start-launching": Command("Lift a launch stop", "launch_stops:start_launching"),
    "audit": Command("List the writes of people and pipelines", "audit:audit"),
    "why": Command("Explain a state: cause, since when, effect, remedy", "why:why"),
    "doctor": Command("Check a deployment and print remedies for its problems", "doctor:doctor"),
    "pool": Command("Manage worker pools", "pools:app", "pool_changes:app"),
    "lc": Command("Manage launch configs", "configs:app"),
    "worker": Command("Manage workers", "workers:app", "states:of_workers"),
    "decision": Command("Show launch decisions", "workers:decision"),
    "error": Command("List errors of workers", "errors:app"),
    "account": Command("Manage provider accounts", "accounts:app", "account_limits:app"),
    "state-key": Command("Manage the keys of Terraform states", "states:app"),
    "provider": Command("Inspect cloud providers", "providers:app"),
    "plugins": Command("Inspect plugin processes of slipway-terraform", "plugins:app"),
    "lease": Command("Acquire, hold and manage leases", "leases:app"),
    "import": Command("Import declarations of other systems", "imports:app"),
    "weights": Command("Show weights", "weights:app"),
    "signal": Command("Manage external health signals", "signals:app"),
    "demand": Command("Manage sources of demand", "demand:app"),
    "events": Command("Show events", "events:app"),
    "alert": Command("List, show and silence alerts", "alerts:app"),
    "dlq": Command("Manage dead letters", "operations:dlq"),
    "topics": Command("Manage consumer positions in topics", "operations:topics"),
    "db": Command("Recover after a restore of the database", "recovery:app"),
    "token": Command("Manage access tokens", "tokens:app"),
}


class Commands(Mapping[str, Any]):
    """Commands by name, in the order of the help."""

    def __getitem__(self, name: str) -> Any:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _load(name: str) -> Any:
    """The command of this name, as typer builds it below a command group. Raises KeyError if there is none."""
    command = COMMANDS[name]
    parent = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    found = _attribute(command.at)
    if isinstance(found, typer.Typer):
        if command.further:
            found.add_typer(_attribute(command.further))
        parent.add_typer(found, name=name)
    else:
        parent.command(name)(found)
        parent.callback()(lambda: None)
    return typer.main.get_group(parent).commands[name]


def _attribute(at: str) -> Any:
    module, name = at.split(":")
    return getattr(import_module(f"slipway_client.cli.commands.{module}"), name)
