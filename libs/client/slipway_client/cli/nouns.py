"""Commands of `slipway` and their modules, which are imported when a command runs: few commands need more than one."""

from collections.abc import Iterator, Mapping, Sequence
from copy import copy
from functools import cache
from importlib import import_module
from typing import Any, Final, NamedTuple

import typer
from typer.main import get_command_from_info, get_command_name, get_group
from typer.models import CommandInfo


class Command(NamedTuple):
    """A command or command group: the first line of its help, and where it is, as `module:name`.

    Further groups, of other modules, add their commands to a group.
    """

    help: str
    at: str
    further: Sequence[str] = ()


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
    "pool": Command("Manage worker pools", "pools:app", ["pool_changes:app"]),
    "lc": Command("Manage launch configs", "configs:app"),
    "worker": Command("Manage workers", "workers:app", ["states:of_workers"]),
    "decision": Command("Show launch decisions", "workers:decision"),
    "error": Command("List errors of workers", "errors:app"),
    "account": Command("Manage provider accounts", "accounts:app"),
    "state-key": Command("Manage the keys of Terraform states", "states:app"),
    "provider": Command("Inspect cloud providers", "providers:app"),
    "plugins": Command("Inspect plugin processes of slipway-terraform", "plugins:app"),
    "lease": Command(
        "Acquire, hold and manage leases", "leases:app", ["lease_acquire:app", "lease_held:app", "lease_pools:app"]
    ),
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


class _Parts(Mapping[str, object]):
    """Commands of a group by name, in the order of the help. One is built when it is asked for, and a module imported
    when those before it have no such command."""

    def __init__(self, at: Sequence[str]) -> None:
        self._at = at

    def __getitem__(self, name: str) -> object:
        for known, info in self._infos():
            if known == name:
                return get_command_from_info(info, pretty_exceptions_short=True, rich_markup_mode=None)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return (name for name, _ in self._infos())

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _infos(self) -> Iterator[tuple[str, CommandInfo]]:
        for at in self._at:
            for info in _attribute(at).registered_commands:
                yield info.name or get_command_name(info.callback.__name__), info


@cache
def _load(name: str) -> Any:
    """The command of this name, as typer builds it below a command group. Raises KeyError if there is none."""
    command = COMMANDS[name]
    parent = typer.Typer(rich_markup_mode=None, pretty_exceptions_enable=False)
    found = _attribute(command.at)
    if not isinstance(found, typer.Typer):
        parent.command(name)(found)
        parent.callback()(lambda: None)
        return get_group(parent).commands[name]
    bare = copy(found)
    bare.registered_commands = []
    parent.add_typer(bare, name=name)
    group = get_group(parent).commands[name]
    group.commands = _Parts([command.at, *command.further])  # type: ignore[attr-defined]
    return group


def _attribute(at: str) -> Any:
    module, name = at.split(":")
    return getattr(import_module(f"slipway_client.cli.commands.{module}"), name)
