"""`slipway diff` and `apply`: the estimates that they print, against a stub of the provisioner."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
from fastapi import FastAPI
from typer.testing import CliRunner

from slipway_client.cli.main import app as commands
from tests.support.recorded import environment, serving

COST: Final[dict[str, Any]] = {"mode": "enforce", "cost": "2", "unknown": []}
ANSWER: Final[dict[str, Any]] = {
    "items": [{"kind": "worker pool", "id": "linux", "result": "created", "detail": ""}],
    "more": 0,
    "unchanged": 0,
    "digest": "d1gest",
    "dangers": [],
    "costs": [COST | {"pool": id_, "text": f"pool {id_} may cost up to 2 an hour"} for id_ in ("linux", "other")],
    "unpriced": [{"pool": "linux", "kinds": ["m9.huge"], "text": "pool linux: launches of m9.huge would be refused"}],
    "applied": False,
}
FILE: Final = """
version: 1
worker_pools:
  - id: linux
    max_capacity: 1
    launch_configs: [{name: linux-a, account: sim-a, zone: a, instance_type: m9.huge, image: linux-1}]
"""


@pytest.fixture
def url() -> Iterator[str]:
    app = FastAPI()

    @app.put("/provisioner/declaration")
    async def declare() -> dict[str, Any]:
        return ANSWER

    @app.get("/provisioner/declaration")
    async def accounts() -> dict[str, Any]:
        return {"accounts": [{"owner": "", "spec": {"id": "sim-a"}}]}

    with serving(app) as url:
        yield url


@pytest.mark.parametrize("command", ["diff", "apply"])
def test_estimates_are_printed(url: str, tmp_path: Path, command: str) -> None:
    """Launches that would be refused are printed on standard error, so that they are seen with JSON output too."""
    file = tmp_path / "slipway.yaml"
    file.write_text(FILE)
    answer = CliRunner().invoke(commands, [command, "-f", str(file)], env=environment(url), catch_exceptions=False)
    assert "pool linux may cost up to 2 an hour\npool other may cost up to 2 an hour\n" in answer.stdout
    assert answer.stderr == "pool linux: launches of m9.huge would be refused\n"
