"""The example of libs/terraform/README.md runs as it is written, with the paths and the provider of the tests."""

import asyncio
import re
import sys
from pathlib import Path

from slipway_local.terraform.ledger import SOURCE, VERSION
from tests.support.terraform import installed
from tests.support.terraform_runs import Place

README = Path(__file__).parents[2] / "libs" / "terraform" / "README.md"


async def test_the_example(place: Place) -> None:
    (program,) = re.findall(r"```python\n(.*?)```", README.read_text(), re.DOTALL)
    replaced = {
        '"modules/worker"': repr(str(place.module())),
        '"/opt/terraform/terraform"': repr(str(installed().terraform)),
        '"/opt/terraform/terraform-provider-aws_v3.39.0_x5"': repr(str(place.plugin)),
        '"/run/terraform-runs"': repr(str(place.folder / "runs")),
        '"registry.terraform.io/hashicorp/aws"': repr(SOURCE),
        '"3.39.0"': repr(VERSION),
        '"f4c79fea3b5e079c3b63a12024b7ac3e19978947d0cbf03047c347e8a630eed1"': repr(place.digest),
        'configuration={"region": "eu-west-1"}': f"""configuration={{"folder": {str(place.ledger.folder)!r}}},
            mode=Mode.DEBUG, arguments=("--dev",)""",
        "import ProviderSpec": "import Mode, ProviderSpec",  # the provider of the tests has no cookie mode without TLS
    }
    for written, instead in replaced.items():
        assert written in program, written
        program = program.replace(written, instead)
    example = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", program), stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, errors = await example.communicate()
    (created,) = place.ledger.calls("create")
    lines = printed.decode().splitlines()
    assert lines == [created.id, "Changes(add=0, change=0, remove=1)"], errors.decode()
    assert place.ledger.machines() == []
