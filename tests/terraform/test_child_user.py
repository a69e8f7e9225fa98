"""Modules run as another user read nothing that the service alone may read."""

import os
import shutil
from pathlib import Path
from typing import Final

import pytest

from slipway_common.base.process.users import ChildUser
from slipway_terraform.domain.results import Command
from tests.support.terraform_runs import Place, driver, soon

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")

MODULE: Final = """
variable "path" {{ type = string }}
output "id" {{ value = {value} }}
"""


@pytest.mark.parametrize("user", [None, "daemon"])
async def test_a_module_reads_no_secret_of_the_service(place: Place, user: str | None) -> None:
    """It runs, and its state comes back; only as the user of the service it reads what that may read."""
    place.folder.chmod(0o755)
    secret = place.folder / "keys"
    secret.touch(mode=0o600)
    secret.write_text("the-key")
    settings = place.settings()
    tool = Path(shutil.copy(settings.tool, place.folder))
    child_user = ChildUser.named(user) if user else None
    plain = place.module(MODULE.format(value="var.path"), "plain")
    curious = place.module(MODULE.format(value="file(var.path)"), "curious")
    async with driver(place, tool=tool, user=child_user) as runs:
        found = {}
        for module in (plain, curious):
            job = place.job(module, variables={"path": str(secret)}, providers=(), outputs=("id",))
            found[module] = await runs.run(Command.APPLY, module.name, job, state=None, deadline=soon())
            assert place.secrets_on_disk() == []
    assert found[plain].failure is None
    assert found[plain].outputs == {"id": str(secret)}
    assert found[curious].outputs.get("id") == (None if user else "the-key")
    assert (found[curious].failure is None) == (user is None)
