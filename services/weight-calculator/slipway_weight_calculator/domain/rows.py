"""The values that health is made of: a row per launch config, image revision, quota and credential; boots under way.

Every kind of row has the same three stages, each with its evidence, its window and its gate; what differs is whose
outcomes move it (blame.py).
"""

from typing import Final

import msgspec

from slipway_common.events.launch_config import LaunchConfigState
from slipway_common.events.worker import WorkerEvent
from slipway_common.scopes import credential_key, image_key, quota_key
from slipway_weight_calculator.domain.blame import PRAISED
from slipway_weight_calculator.domain.evidence import Stage
from slipway_weight_calculator.domain.policy import Policy

STAGES: Final = ("launch", "boot", "claim")


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """`permit` is the newest probe permit issued to a config (its own gates' and shared ones' alike): `ready` while its
    outcome is awaited, `spent` once a worker holds it; at `lost_at` it is lost, unless more is heard of it until then.
    `unanswered_at` is when one came back without an answer, 0 once one was answered. `boots` are the seconds that the
    newest boots took, `slow_seconds` the policy's quantile of them, 0 while too few are known. `version` grows with
    each change.
    """

    launch: Stage
    boot: Stage
    claim: Stage
    permit: int = 0
    permit_at: float = 0.0
    ready: bool = False
    spent: bool = False
    boots: tuple[float, ...] = ()
    version: int = 0
    unanswered_at: float = 0.0
    slow_seconds: float = 0.0
    lost_at: float = 0.0


class Boot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A start that the provider accepted and that has not registered. It will be, or has been, taken for failed at
    `late_at`.

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


class Config(msgspec.Struct, frozen=True, gc=False):
    """A launch config as declared, and what follows from that: see `config_of`.

    `archived_at` is 0 unless it is over; a config that is known from outcomes only (revision 0) is over until it is
    declared. `shared` maps a kind to the key of what it shares with others; `keys` are all rows whose gates close it,
    its own first; `groups` are the keys under which it is known together with others, `pool` the first of them.
    `stages` are those that are judged. `praised` maps a stage to the shared rows that its successes speak for,
    `parents` to the sums that its prior comes from: pool, account, zone.
    """

    declared: LaunchConfigState
    archived_at: float
    id: str
    active: bool
    profile: str
    pool: str
    shared: dict[str, str]
    keys: tuple[str, ...]
    groups: tuple[str, ...]
    stages: tuple[str, ...]
    praised: dict[str, tuple[str, ...]]
    parents: dict[str, tuple[str, ...]]


def config_of(declared: LaunchConfigState, archived_at: float = 0.0) -> Config:
    # Whichever event told it: stored and read again it is the same.
    state = LaunchConfigState(**{name: getattr(declared, name) for name in LaunchConfigState.__struct_fields__})
    zone = f"zone/{state.region}/{state.zone}"
    pool = f"pool/{state.pool_id}"
    parents = [f"{state.profile}/{place}" for place in (pool, f"account/{state.account_id}", zone)]
    shared = {
        "image": image_key(state.image_revision),
        "quota": quota_key(state.account_id, state.region, state.instance_type),
        "credential": credential_key(state.account_id),
    }
    return Config(
        declared=state,
        archived_at=archived_at,
        id=state.launch_config_id,
        active=state.state == "active",
        profile=state.profile,
        pool=pool,
        shared=shared,
        keys=(state.launch_config_id, *shared.values()),
        groups=(pool, *shared.values()),
        stages=tuple(name for name in STAGES if name != "claim" or state.claim_evidence != "none"),
        praised={stage: tuple(shared[kind] for kind in kinds) for stage, kinds in PRAISED.items()},
        parents={stage: tuple(f"{parent}/{stage}" for parent in parents) for stage in STAGES},
    )


def introduced(event: WorkerEvent, at: float) -> Config:
    """What an outcome tells of a config that was not declared to us yet: order is promised per topic only. It may also
    be one that was archived so long ago that nothing else tells of it."""
    return config_of(
        LaunchConfigState(
            launch_config_id=event.launch_config_id,
            pool_id=event.pool_id,
            account_id=event.account_id,
            region="",
            zone="",
            instance_type="",
            image_revision=event.image_revision,
            base_weight=1.0,
            price_factor=1.0,
            state="undeclared",
            revision=0,
        ),
        archived_at=at,
    )


def new_row(policy: Policy, revision: int = 1, at: float = 0.0) -> Row:
    """What is believed of a config before any outcome: little may be under way until a first one is confirmed.

    Others may remember permits of a config that is not at its first revision, or of which only outcomes are known: it
    was forgotten and comes back. Its numbers go on above those, by the milliseconds of `at`.
    """
    return Row(
        launch=Stage(window=policy.new_launch_window),
        boot=Stage(window=policy.new_boot_window),
        claim=Stage(window=policy.new_claim_window),
        permit=0 if revision == 1 else int(at * 1000),
    )


def new_shared_row(policy: Policy, at: float) -> Row:
    """What is believed of an image revision, a quota or a credential when a first outcome speaks of it.

    Launches have gone well so far: only failures make such a row for them. Versions of a row that was forgotten and
    comes back go on above those that others still have: by the milliseconds of `at`.
    """
    return Row(
        launch=Stage(window=policy.launch_window),
        boot=Stage(window=policy.new_boot_window),
        claim=Stage(window=policy.new_claim_window),
        version=int(at * 1000),
    )
