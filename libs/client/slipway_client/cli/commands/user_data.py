"""`slipway user-data`: user data of a pool's machines."""

import sys
from typing import Annotated

import typer

from slipway_api.http.provisioner.pools import UserDataPreview
from slipway_client.cli import options
from slipway_client.cli.options import AsOutput, PoolId, api_of
from slipway_client.cli.tables import Output, as_json
from slipway_client.transport.http import path
from slipway_common.base.sanitize import printable

Config = Annotated[
    str | None,
    typer.Option(metavar="NAME", autocompletion=options.configs, help="Launch config [default: the first of the pool]"),
]


def user_data(context: typer.Context, pool: PoolId, config: Config = None, output: AsOutput = Output.TABLE) -> None:
    """Print the user data of a pool's machines

    Rendered from the pool's template for the next launch of a launch config, with a batch id of zeros. Secrets are
    masked. The size on standard error is the maximum for any launch.

    \b
    Examples:
      slipway user-data linux
      slipway user-data linux --config linux-zone-a
    """
    read = api_of(context).read(UserDataPreview, "provisioner", path("pools", pool, "user-data"), config=config)
    if output is Output.JSON:
        as_json(read.sent)
        return
    shown = read.value
    for line in shown.user_data.split("\n"):
        print("\t".join(map(printable, line.split("\t"))))
    size = f"at most {shown.bytes:,} of {shown.bytes_max:,} bytes"
    print(f"user data of {printable(shown.config)}: {size}", file=sys.stderr)
