"""Explanations and their causes, as values and as sentences."""

from collections.abc import Sequence
from datetime import datetime
from typing import Final

import msgspec

from slipway_api.http.provisioner.workers import ConsoleOutput
from slipway_client.view.phrases import since

NAMED: Final = 5  # launch configs in one sentence
NAMES: Final = {
    "pool": "Pool",
    "config": "Launch config",
    "image": "Image",
    "lease-pool": "Lease pool",
    "lease": "Lease",
    "worker": "Worker",
}
NOTHING: Final = "none needed"
PROBES: Final = "Slipway probes by itself and launches again after the first success"
RECOVERS: Final = f"{NOTHING}: {PROBES}"


def printed(consoles: Sequence[ConsoleOutput]) -> list[str]:
    """Console output of a machine that never registered; why there is none; nothing if none was asked for."""
    lines = []
    for console in consoles:
        machine = f"instance {console.instance_id} of {console.account_id}"
        if console.lines:
            lines += [f"Console of {machine}, which {console.reason}:", *(f"  {line}" for line in console.lines)]
        elif console.settled_at:
            lines.append(f"Console of {machine}: {console.problem}.")
        else:
            lines.append(f"Console of {machine}: not posted by its provider yet; it is asked for again.")
    return lines


class Cause(msgspec.Struct, frozen=True, kw_only=True):
    """One cause of a state, with its start, if known, and its remedy."""

    text: str
    since: datetime | None = None
    remedy: str = NOTHING


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """Explanation of a resource's state. `since` is None where no service stores the time. `details` are further
    sentences; one that begins with a space or an arrow belongs to the one before it."""

    kind: str
    id: str
    cause: str
    since: datetime | None
    effect: str
    remedy: str
    details: Sequence[str] = ()

    def sentences(self, now: datetime) -> list[str]:
        """Cause, since when, effect, remedy, then the details."""
        lines = [f"{NAMES[self.kind]} {self.id}: {self.cause}."]
        lines += [f"Since {since(self.since, now)}."] if self.since else []
        return [*lines, f"Effect: {self.effect}.", f"Remedy: {self.remedy}.", *self.details]


def explained(kind: str, id_: str, causes: Sequence[Cause], effect: str, details: Sequence[str]) -> Explanation:
    """Explanation by the first cause; the other causes become details."""
    first = causes[0]
    also = [f"Also: {cause.text}." + _further(cause) for cause in causes[1:]]
    return Explanation(
        kind=kind,
        id=id_,
        cause=first.text,
        since=first.since,
        effect=effect,
        remedy=first.remedy,
        details=[*also, *details],
    )


def _further(cause: Cause) -> str:
    return "" if cause.remedy.startswith(NOTHING) else f" Remedy: {cause.remedy}."
