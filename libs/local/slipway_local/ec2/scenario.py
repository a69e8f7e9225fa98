"""Scenario of a run against the stand-in: capacity, quotas, rate limits, delays and faults. Values only.

Durations are in product seconds, as in the simulator's scenario; `on_the_wall` converts them to real seconds.
"""

from typing import Any, Final, Literal

import msgspec
from msgspec.structs import replace

from slipway_local.ec2.faults import NOTATION
from slipway_simulator.demand import NotNegative, Positive
from slipway_simulator.limits import Capacity, Throttle, sooner
from slipway_simulator.notation import Fault

ImageFault = Literal["never_registers", "not_found"]
# Token buckets per API group, account and region, with the sizes that EC2 documents.
RUN: Final = "RunInstances"
RUN_INSTANCES: Final = "RunInstances/instances"
TERMINATE: Final = "TerminateInstances"
TERMINATE_INSTANCES: Final = "TerminateInstances/instances"
DESCRIBE_INSTANCES: Final = "DescribeInstances"
DESCRIBE_ALL_INSTANCES: Final = "DescribeInstances/unfiltered"
DESCRIBE: Final = "Describe"
CREATE_TAGS: Final = "CreateTags"
MUTATE: Final = "Mutate"
THROTTLES: Final[dict[str, Throttle]] = {
    RUN: Throttle(5, 2),
    RUN_INSTANCES: Throttle(1000, 2),
    TERMINATE: Throttle(100, 5),
    TERMINATE_INSTANCES: Throttle(1000, 20),
    DESCRIBE_INSTANCES: Throttle(100, 20),
    DESCRIBE_ALL_INSTANCES: Throttle(50, 10),
    DESCRIBE: Throttle(100, 20),
    CREATE_TAGS: Throttle(100, 10),
    MUTATE: Throttle(50, 5),
}


class CloudAccount(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One account. `quota`: vCPUs of live instances per family, such as `standard` or `standard/spot`; what is absent
    is unlimited."""

    quota: dict[str, int] = {}


class Image(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    bad: ImageFault | None = None


class Scenario(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A whole scenario. CloudAccount `*` applies to all accounts that are not named."""

    seed: int = 0
    speed: Positive = 1.0
    # Live instances that fit, by ZONE, ZONE/TYPE or ZONE/TYPE/LIFECYCLE, shared by all accounts. All keys that match a
    # launch limit it.
    capacity: dict[str, Capacity] = {}
    accounts: dict[str, CloudAccount] = {}
    images: dict[str, Image] = {}
    faults: tuple[Fault, ...] = ()
    # Replaces token buckets of THROTTLES by name.
    throttles: dict[str, Throttle] = {}
    throttle_fault: Throttle = Throttle(burst=1.0, refill_per_second=0.1)
    # False: launched instances are like seeded ones, without machines and without moto, which takes 20 ms for each.
    has_machines: bool = True
    honours_tokens: bool = True
    # False: image, quota and capacity are checked before the token, so that a refused repeat proves nothing about the
    # first call. EC2's order is not documented.
    tokens_first: bool = True
    latency_seconds: NotNegative = 2.0
    latency_sigma: NotNegative = 0.4
    # Time until an instance is listed or found by its id.
    visibility_seconds: NotNegative = 0.0
    # Time during which a terminated instance is still shown.
    expiry_seconds: NotNegative = 3600.0
    pending_seconds: NotNegative = 10.0
    boot_seconds_median: NotNegative = 90.0
    boot_sigma: NotNegative = 0.35
    # Time from the boot of a machine until its console output is posted.
    console_seconds: NotNegative = 0.0
    # Time between an interruption notice and the end of its machine.
    notice_seconds: NotNegative = 120.0
    # Graceful shutdown of a machine in real seconds, because its process runs in real time.
    stop_seconds: NotNegative = 5.0
    # Validity of the credentials of an assumed role in real seconds; None: as requested.
    session_seconds: Positive | None = None

    def account(self, number: str) -> CloudAccount:
        return self.accounts.get(number) or self.accounts.get("*") or CloudAccount()

    def throttle(self, group: str) -> Throttle:
        return self.throttles.get(group) or THROTTLES[group].faster(self.speed)

    def on_the_wall(self) -> "Scenario":
        """The scenario with durations in real seconds. Faults stay in product time."""
        speed = self.speed
        return replace(
            self,
            capacity={key: sooner(capacity, speed) for key, capacity in self.capacity.items()},
            throttles={name: throttle.faster(speed) for name, throttle in self.throttles.items()},
            throttle_fault=self.throttle_fault.faster(speed),
            latency_seconds=self.latency_seconds / speed,
            visibility_seconds=self.visibility_seconds / speed,
            expiry_seconds=self.expiry_seconds / speed,
            pending_seconds=self.pending_seconds / speed,
            boot_seconds_median=self.boot_seconds_median / speed,
            notice_seconds=self.notice_seconds / speed,
            console_seconds=self.console_seconds / speed,
        )


def decode(body: bytes) -> Scenario:
    """Decode a scenario from JSON. `faults` may be text, whose percentages refer to `duration_seconds`."""
    raw = msgspec.json.decode(body, type=dict[str, Any])
    duration_seconds = msgspec.convert(raw.pop("duration_seconds", None), float | None)
    faults = msgspec.convert(raw.get("faults", ""), str | tuple[Fault, ...])
    raw["faults"] = msgspec.to_builtins(NOTATION.parsed(faults, duration_seconds=duration_seconds))
    return msgspec.convert(raw, Scenario)
