"""Commands of `slipway` are imported when they run."""

import subprocess
import sys

import pytest

from slipway_client.cli.nouns import COMMANDS, Commands


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_first_line_of_each_help(name: str) -> None:
    assert Commands()[name].get_short_help_str(limit=200) == COMMANDS[name].help


def test_the_list_of_commands_loads_none_of_them() -> None:
    script = (
        "import sys; from slipway_client.cli.main import app; app(standalone_mode=False);"
        "print([name for name in sys.modules if '.cli.commands.' in name or name.startswith('httpx')])"
    )
    done = subprocess.run([sys.executable, "-c", script, "--help"], check=True, capture_output=True, text=True)
    assert done.stdout.endswith("\n[]\n")
