"""Accounts of declarations for deployments in tests."""

from typing import Any


def simulated_account() -> dict[str, Any]:
    """Account of a simulator, with a lease pool of the same name."""
    return {
        "id": "acc",
        "provider": "simulated",
        "region": "r",
        "credential": "none",
        "identity": "acc",
        "lease_pool": "acc",
    }
