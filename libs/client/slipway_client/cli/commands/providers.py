"""`slipway provider` commands."""

from typing import Annotated

import typer

from slipway_api.http.provisioner.accounts import CodeMeaning
from slipway_client.cli.options import AsOutput, accounts, api_of, noun
from slipway_client.cli.tables import Output, details
from slipway_client.transport.http import path

app = noun("Inspect cloud providers")

ProviderName = Annotated[str, typer.Argument(metavar="PROVIDER", help="Name of the provider, such as aws")]
Code = Annotated[str, typer.Option("--code", metavar="CODE", help="Error code, exactly as the provider wrote it")]
Message = Annotated[str, typer.Option("--message", metavar="TEXT", help="Message that came with the code")]
OfAccount = Annotated[
    str | None,
    typer.Option("--account", metavar="ACCOUNT", help="Account whose settings add codes", autocompletion=accounts),
]


@app.command("classify")
def classify(
    context: typer.Context,
    provider: ProviderName,
    code: Code,
    message: Message = "",
    account: OfAccount = None,
    output: AsOutput = Output.TABLE,
) -> None:
    """Classify an error code of a provider

    Prints what a launch that fails with it is charged to, whether machines may have been launched, and what to do.
    The meaning of some codes depends on the message.

    \b
    Example:
      slipway provider classify aws --code InsufficientInstanceCapacity
    """
    given = {name: value for name, value in {"message": message, "account": account}.items() if value}
    meaning = api_of(context).read(
        CodeMeaning, "provisioner", f"{path('providers', provider)}/classify", code=code, **given
    )
    details(meaning, output, hidden=[""])
