"""Check 6: a plugin gets the arguments of its specification, and an environment of that and the handshake only."""

import os
from pathlib import Path

import psutil
import pytest

from tests.support.plugins import plugin, plugins_in, shared, soon


async def test_arguments_and_environment(sockets: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OF_OURS", "secret")
    given = dict(plugin().environment) | {"REGION": "east", "PLUGIN_CLIENT_CERT": "x", "TMPDIR": "/tmp"}
    wanted = plugin("protocol=6", environment=given)
    async with shared(sockets) as scheduler, await scheduler.acquire([wanted], owner="one", deadline=soon()):
        (pid,) = plugins_in(sockets)
        process = psutil.Process(pid)
        assert process.cmdline()[1:] == list(plugin("protocol=6").arguments)
        environment = process.environ()
        folder = environment.pop("TMPDIR")
        assert environment.pop("PLUGIN_UNIX_SOCKET_DIR") == folder
        assert folder.startswith(f"{sockets}/")
        assert environment == {
            "PATH": os.defpath,
            "PYTHONPATH": given["PYTHONPATH"],
            "REGION": "east",
            "TF_PLUGIN_MAGIC_COOKIE": "d602bf8f470bc67ca7faa0386276bbdd4330efaf76d1a219cb4d6991ca9872b2",
            "PLUGIN_PROTOCOL_VERSIONS": "5,6",
        }
        assert os.getpgid(pid) == os.getsid(pid) == pid
        limits = Path(f"/proc/{pid}/limits").read_text()
        assert "Max core file size        0" in limits  # a core dump holds the credentials
