"""Scenario of a run: accounts, zones, images, demand, faults, and durations. Values only.

Durations are in product seconds; `on_the_wall` converts them to real seconds, in which the pure modules count. Decoding
fills in defaults and raises msgspec.ValidationError or BadFault with the path or reason.
"""

from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from slipway_simulator.demand import Demand, NotNegative, Positive
from slipway_simulator.faults import parsed
from slipway_simulator.limits import Capacity, Throttle, sooner
from slipway_simulator.notation import Fault

# Minimum intervals of polls and reports in real seconds, which limit the load at high speeds.
LEAST_POLL_SECONDS = 1.0
LEAST_REPORT_SECONDS = 0.2
# Minimum validity of a report in real seconds, so that a slow broker does not make a live queue stale at high speeds.
LEAST_VALID_SECONDS = 15.0

ImageFault = Literal["never_registers", "never_claims", "not_found"]


class Account(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One account. `capacity` is per zone, `quota` live instances per instance family; what is absent is unlimited."""

    capacity: dict[str, Capacity] = {}
    quota: dict[str, int] = {}
    throttle: Throttle | None = None
    latency_seconds: NotNegative = 2.0
    latency_sigma: NotNegative = 0.4


class Zone(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A zone's capacity, shared by all accounts."""

    capacity: Capacity = None


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An image. `boot_seconds_median` of its machines is that of the scenario unless it is given."""

    bad: ImageFault | None = None
    boot_seconds_median: NotNegative | None = None


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole scenario. Without zones, every zone exists. Account `*` applies to all accounts that are not named."""

    seed: int = 0
    speed: Positive = 1.0
    pools: dict[str, Demand] = {}
    accounts: dict[str, Account] = msgspec.field(default_factory=lambda: {"*": Account()})
    zones: dict[str, Zone] = {}
    images: dict[str, Image] = {}
    faults: tuple[Fault, ...] = ()
    honours_tokens: bool = True
    visibility_seconds: NotNegative = 0.0
    boot_seconds_median: NotNegative = 90.0
    boot_sigma: NotNegative = 0.35
    poll_seconds: Positive = 30.0
    heartbeat_seconds: Positive = 120.0
    report_seconds: Positive = 10.0
    report_on_change: bool = True
    reports: bool = True  # false: another monitor reports the queue
    valid_for_seconds: Positive = 300.0
    # Time after which the claim of an external worker expires without renewal, long enough for a few lost renewals. In
    # real seconds, because external workers run in real time.
    claim_seconds: Positive = 20.0
    # Token bucket of every account under the throttle fault, small enough to be reached at any rate of launches.
    throttle_fault: Throttle = Throttle(burst=1.0, refill_per_second=0.1)

    def account(self, name: str) -> Account | None:
        return self.accounts.get(name) or self.accounts.get("*")

    def on_the_wall(self) -> "Scenario":
        """The scenario with durations in real seconds. Demand and faults stay in product time."""
        speed = self.speed
        return replace(
            self,
            accounts={name: _account_on_the_wall(account, speed) for name, account in self.accounts.items()},
            images={name: _image_on_the_wall(image, speed) for name, image in self.images.items()},
            zones={name: Zone(sooner(zone.capacity, speed)) for name, zone in self.zones.items()},
            throttle_fault=self.throttle_fault.faster(speed),
            visibility_seconds=self.visibility_seconds / speed,
            boot_seconds_median=self.boot_seconds_median / speed,
            poll_seconds=max(LEAST_POLL_SECONDS, self.poll_seconds / speed),
            heartbeat_seconds=max(LEAST_POLL_SECONDS, self.heartbeat_seconds / speed),
            report_seconds=max(LEAST_REPORT_SECONDS, self.report_seconds / speed),
            valid_for_seconds=max(LEAST_VALID_SECONDS, self.valid_for_seconds / speed),
        )


def decode(body: bytes) -> Scenario:
    """Decode a scenario from JSON. A list of arrivals needs no `kind`; `faults` may be text as in FAULTS, whose
    percentages refer to `duration_seconds`."""
    raw = msgspec.json.decode(body, type=dict[str, Any])
    duration_seconds = msgspec.convert(raw.pop("duration_seconds", None), float | None)
    pools = msgspec.convert(raw.get("pools", {}), dict[str, dict[str, Any]])
    raw["pools"] = {name: {"kind": "arrivals", **demand} for name, demand in pools.items()}
    faults = msgspec.convert(raw.get("faults", ""), str | tuple[Fault, ...])
    raw["faults"] = msgspec.to_builtins(parsed(faults, duration_seconds=duration_seconds))
    return msgspec.convert(raw, Scenario)


def _account_on_the_wall(account: Account, speed: float) -> Account:
    return replace(
        account,
        capacity={zone: sooner(capacity, speed) for zone, capacity in account.capacity.items()},
        throttle=account.throttle.faster(speed) if account.throttle else None,
        latency_seconds=account.latency_seconds / speed,
    )


def _image_on_the_wall(image: Image, speed: float) -> Image:
    median = image.boot_seconds_median
    return image if median is None else replace(image, boot_seconds_median=median / speed)
