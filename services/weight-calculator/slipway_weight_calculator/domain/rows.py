"""The values that health is made of: a row per launch config, image revision, quota and credential; boots under way.

Every kind of row has the same three stages, each with its evidence, its window and its gate; what differs is whose
outcomes move it (blame.py).
"""

from typing import Any, Final

import msgspec

from slipway_common.events.launch_config import LaunchConfigCreated, LaunchConfigState
from slipway_common.events.worker import WorkerEvent
from slipway_common.scopes import credential_key, image_key, quota_key
from slipway_weight_calculator.domain.evidence import Stage
from slipway_weight_calculator.domain.policy import Policy

STAGES: Final = ("launch", "boot", "claim")


class Row(msgspec.Struct, frozen=True, array_like=True):
    """`permit` is the newest probe permit issued to a config (its own gates' and shared ones' alike): `ready` while it
    may be spent, `spent` once a worker holds it. `boots` are the seconds that the newest boots took. `version` grows
    with each change."""

    launch: Stage
    boot: Stage
    claim: Stage
    permit: int = 0
    permit_at: float = 0.0
    ready: bool = False
    spent: bool = False
    boots: tuple[float, ...] = ()
    version: int = 0


class Boot(msgspec.Struct, frozen=True, array_like=True):
    """A start that the provider accepted and that has not registered. It is late from `late_at` on.

    `late_at` 0: it has registered before the provider's reply came.
    """

    config_id: str
    image: str
    at: float
    late_at: float
    instance_id: str = ""
    permit: int | None = None
    late: bool = False
    console: str = ""


class Config(msgspec.Struct, frozen=True):
    """A launch config as declared, with the keys of what it shares. Revision 0: known from outcomes only.

    `parents` maps a stage to the sums that its prior comes from: pool, account, zone.
    """

    declared: LaunchConfigState
    shared: dict[str, str]
    parents: dict[str, tuple[str, ...]]
    archived_at: float = 0.0

    @property
    def id(self) -> str:
        return self.declared.launch_config_id

    @property
    def active(self) -> bool:
        return self.declared.state == "active"

    @property
    def keys(self) -> tuple[str, ...]:
        """Every row whose gates close this config; its own first."""
        return (self.id, self.shared["image"], self.shared["quota"], self.shared["credential"])


def config_of(declared: LaunchConfigState, archived_at: float = 0.0) -> Config:
    zone = f"zone/{declared.region}/{declared.zone}"
    places = (f"pool/{declared.pool_id}", f"account/{declared.account_id}", zone)
    parents = [f"{declared.profile}/{place}" for place in places]
    return Config(
        declared,
        shared={
            "image": image_key(declared.image_revision),
            "quota": quota_key(declared.account_id, declared.region, declared.instance_type),
            "credential": credential_key(declared.account_id),
        },
        parents={stage: tuple(f"{parent}/{stage}" for parent in parents) for stage in STAGES},
        archived_at=archived_at,
    )


def introduced(event: WorkerEvent) -> Config:
    """What an outcome tells of a config that was not declared to us yet: order is promised per topic only."""
    return config_of(
        LaunchConfigCreated(
            launch_config_id=event.launch_config_id, pool_id=event.pool_id, account_id=event.account_id, region="",
            zone="", instance_type="", image_revision=event.image_revision, base_weight=1.0, price_factor=1.0,
            state="active", revision=0,
        )
    )  # fmt: skip


def new_row(policy: Policy, at: float = 0.0) -> Row:
    """What is believed before any outcome: little may be under way until a first one is confirmed.

    Versions of a row that was forgotten and comes back go on above those that others still have: by the milliseconds of
    `at`.
    """
    return Row(
        launch=Stage(window=policy.new_launch_window),
        boot=Stage(window=policy.new_boot_window),
        claim=Stage(window=policy.new_claim_window),
        version=int(at * 1000),
    )


def with_stage(row: Row, name: str, stage: Stage) -> Row:
    version = row.version + 1
    if name == "launch":
        return Row(
            stage, row.boot, row.claim, row.permit, row.permit_at, row.ready, row.spent, row.boots, version
        )  # fmt: skip
    changed: dict[str, Any] = {name: stage, "version": version}
    return msgspec.structs.replace(row, **changed)
