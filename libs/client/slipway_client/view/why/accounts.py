"""Problems of provider accounts, found by their last check, that stop launches there."""

from collections.abc import Iterator, Sequence
from typing import Final

from slipway_client.view.phrases import is_tripped
from slipway_client.view.why.causes import tripped_since
from slipway_client.view.why.explanation import RECOVERS, Cause, Facts

CREDENTIAL: Final = "credential"
WHOLE_ACCOUNT: Final = frozenset({"identity", CREDENTIAL, "clock", "permission"})
"""Kinds of findings that concern every launch in an account. Those on one subnet, image, quota or launch config need
not concern the ones explained here."""


def credential_failing(config: Facts) -> bool:
    """True if an active launch config is tripped since its account refuses the credential or what it asks for."""
    return is_tripped(config) and config.get("tripped_by") == CREDENTIAL


def account_problems(configs: Sequence[Facts], accounts: Sequence[Facts]) -> Iterator[Cause]:
    """Problems of the accounts in which active launch configs launch, with the remedies that their alerts name."""
    active = [config for config in configs if config["state"] == "active"]
    used = {config["account_id"] for config in active}
    for account in accounts:
        if account["id"] not in used:
            continue
        users = [config for config in active if config["account_id"] == account["id"] and credential_failing(config)]
        for finding in account["findings"]:
            if finding["state"] == "problem" and finding["kind"] in WHOLE_ACCOUNT:
                about = " ".join(part for part in (finding["kind"], finding["subject"]) if part)
                text = f"account {account['id']}, {about}: {finding['message']}"
                yield Cause(text=text, since=tripped_since(users), remedy=finding["remedy"])


def credential_remedy(config: Facts) -> str:
    """Remedy for a launch config whose credential is tripped: probes alone correct neither it nor its policy."""
    check = f"`slipway account check {config['account_id']}`"
    goes_on = RECOVERS.partition(": ")[2]
    return f"correct what {check} names: the credential, or a permission that it lacks; {goes_on}"
