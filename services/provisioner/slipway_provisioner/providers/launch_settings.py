"""Settings of launch configs: those of a provider beside those that only the agent reads."""

from collections.abc import Iterable
from difflib import get_close_matches
from typing import Final

OF_WORKER: Final = frozenset(
    {
        "tasks_per_worker",
        "heartbeat_seconds",
        "poll_seconds",
        "stop_seconds",
        "idle_exit_seconds",
        "give_up_seconds",
        "source",
    }
)
"""Settings that slipway-worker reads, whatever they resemble."""
SIMILARITY_MIN: Final = 0.8
"""Similarity from which a name counts as misspelt."""


def misspelt_setting(names: Iterable[str], known: Iterable[str]) -> str:
    """Problem with the first name that resembles a known setting, and its remedy; empty if there is none. Other unknown
    names are for the agent."""
    settings = list(known)
    for name in names:
        if name not in {*settings, *OF_WORKER} and (meant := get_close_matches(name, settings, 1, SIMILARITY_MIN)):
            return f"unknown setting {name}; write {meant[0]}, or a name that is less similar if it is for the agent"
    return ""
