"""Refused terminations: workers that are stuck, and accounts that refuse to terminate their instances. Pure.

A stuck worker holds the place of one that would work, so a few of them may be replaced. If an account refuses many
terminations, the cause is the account: machines that are launched there would have to stay as well.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved, alert_identity
from slipway_api.limits import NOTE
from slipway_common.base.text import listed
from slipway_provisioner.domain.cloud import Protected

STUCK_REFUSALS_MIN: Final = 5
REFUSED_SHARE_MAX: Final = 0.2
REFUSED_WORKERS_MAX: Final = 3
EVIDENCE_MAX: Final = 10  # instances named in an alert
NAMED_MAX: Final = 3  # of them in its summary


def is_stuck(refusals: int, seconds: float, *, stuck_after_seconds: float) -> bool:
    """True if so many definite refusals in so many seconds show that a machine cannot be terminated."""
    return refusals >= STUCK_REFUSALS_MIN and seconds >= stuck_after_seconds


class Terminations(msgspec.Struct, frozen=True, kw_only=True):
    """Workers of an account whose termination was asked for in the last hour, or is refused, and how many are refused.
    `refusing`: the account counts as one that refuses."""

    account_id: str
    asked: int
    refused: int
    refusing: bool

    @property
    def refuses(self) -> bool:
        """True if so many terminations are refused that it is the account."""
        return self.refused > max(REFUSED_WORKERS_MAX, REFUSED_SHARE_MAX * self.asked)


class Stuck(msgspec.Struct, frozen=True):
    """A stuck worker with its instance."""

    worker_id: str
    instance_id: str


def alert(
    account_id: str, instances: Mapping[str, Protected], stuck: Sequence[Stuck] = (), *, refusing: bool = False
) -> Alert:
    """Alert on the instances that an account refuses to terminate; resolved if there are none."""
    ids = sorted(instances)
    first = instances[ids[0]] if ids else Protected("")
    named = listed(ids[:NAMED_MAX]) + (f" and {len(ids) - NAMED_MAX} more" if len(ids) > NAMED_MAX else "")
    effect, doing = _consequences(stuck, refusing=refusing)
    return (AlertRaised if ids else AlertResolved)(
        **alert_identity("provisioner", "termination-refused", "account", account_id),
        summary=f"{account_id} refuses to terminate {named}" if ids else "",
        effect=effect,
        doing=doing,
        command=first.remedy,
        cause=NOTE.cut(first.reason),
        evidence=tuple(ids[:EVIDENCE_MAX]),
    )


def _consequences(stuck: Sequence[Stuck], *, refusing: bool) -> tuple[str, str]:
    """Effect of refused terminations, and what Slipway does."""
    effect = "they run and cost money, and count towards quotas and maxima"
    retries = "retries, at most once per pass of the instance reaper"
    if refusing:
        return effect, f"{retries}; launches nothing in this account, whose new machines would have to stay as well"
    if stuck:
        workers = "1 worker is stuck" if len(stuck) == 1 else f"{len(stuck)} workers are stuck"
        return f"{effect}; {workers}", f"{retries}; replaces stuck workers, up to a tenth of the maximum of their pool"
    return effect, retries
