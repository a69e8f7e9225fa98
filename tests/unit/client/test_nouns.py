"""Commands of `slipway` are imported when they run."""

import subprocess
import sys

import pytest

from slipway_client.cli.nouns import COMMANDS, Commands


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_each_help(name: str) -> None:
    assert Commands()[name].get_short_help_str(limit=200) == COMMANDS[name].help


SLOW = ("httpx2", "rich", "ssl", "asyncio", "msgspec", "h11")


@pytest.mark.parametrize(
    ("arguments", "commands", "slow"),
    [
        (["--help"], [], []),
        (["pool", "ls", "--help"], ["configs", "pools"], ["msgspec"]),
        (["lease", "run", "--help"], ["lease_acquire", "leases"], ["msgspec"]),
    ],
)
def test_a_command_loads_what_it_uses(arguments: list[str], commands: list[str], slow: list[str]) -> None:
    """Not the other commands of its group, and a library for requests only with a request."""
    script = (
        "import sys; from slipway_client.cli.main import app; app(standalone_mode=False);"
        f"print(sorted(name.rpartition('.')[2] for name in sys.modules if '.cli.commands.' in name),"
        f"[name for name in {SLOW} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script, *arguments], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1] == f"{commands} {slow}"
