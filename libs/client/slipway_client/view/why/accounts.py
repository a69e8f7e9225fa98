"""Problems of accounts that stop launches there, as found by their last check."""

from collections.abc import Iterator, Sequence
from typing import Final

from slipway_client.view.phrases import is_tripped
from slipway_client.view.why.causes import tripped_since
from slipway_client.view.why.explanation import PROBES, Cause, Facts

CREDENTIAL: Final = "credential"
WHOLE_ACCOUNT: Final = frozenset({"identity", CREDENTIAL, "clock", "permission"})
"""Kinds of findings that affect every launch in an account. One on a subnet, image, quota or launch config may affect
none of those explained here."""


def tripped_by_credential(config: Facts) -> bool:
    """True if a launch config is tripped since its account refused the credential or lacks a permission."""
    return is_tripped(config) and config.get("tripped_by") == CREDENTIAL


def account_problems(configs: Sequence[Facts], accounts: Sequence[Facts]) -> Iterator[Cause]:
    """Problems of the accounts of active launch configs, with the remedies of their alerts."""
    active = [config for config in configs if config["state"] == "active"]
    used = {config["account_id"] for config in active}
    for account in accounts:
        if account["id"] not in used:
            continue
        users = [config for config in active if config["account_id"] == account["id"] and tripped_by_credential(config)]
        for finding in account["findings"]:
            if finding["state"] == "problem" and finding["kind"] in WHOLE_ACCOUNT:
                about = " ".join(part for part in (finding["kind"], finding["subject"]) if part)
                text = f"account {account['id']}, {about}: {finding['message']}"
                yield Cause(text=text, since=tripped_since(users), remedy=finding["remedy"])


def credential_remedy(config: Facts) -> str:
    """Remedy for a launch config tripped by its credential, since probes correct neither a credential nor a policy."""
    check = f"`slipway account check {config['account_id']}`"
    return f"run {check}, and correct the credential or the missing permission that it names; {PROBES}"
