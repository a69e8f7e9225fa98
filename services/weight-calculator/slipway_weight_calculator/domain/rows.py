"""Stored state of health: a row per launch config, image revision, quota, credential and capacity, and the boots in
progress.

Every kind of row has the same three stages, each with its evidence, window and trip. The kinds differ in the outcomes
that are charged or credited to them (blame.py).
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from slipway_api.events.launch_config import LaunchConfigState
from slipway_api.events.scopes import (
    Key,
    capacity_of,
    config_key,
    credential_key,
    image_key,
    image_of,
    quota_of,
    subnet_of,
)
from slipway_api.events.worker import WorkerEvent
from slipway_api.percent import encoded
from slipway_common.base.revisions import name_of
from slipway_weight_calculator.domain.blame import CREDITED
from slipway_weight_calculator.domain.evidence import Stage
from slipway_weight_calculator.domain.policy import Policy

STAGES: Final = ("launch", "boot", "claim")
CONFIG: Final = "config"
UNDECLARED: Final = "undeclared"
"""State of a config that is known from outcomes only."""

Location = str
"""Key of a sum of evidence: profile, kind and id of a place, and stage, `encoded`; as a text, since it is used most."""


class Row(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Health of a launch config or of a shared key.

    `permit` is the newest probe permit issued to a config, for its own and for shared trips: `ready` while its outcome
    is unresolved, `spent` once a worker holds it; at `lost_at` it counts as lost unless an event about it arrives
    first. `unanswered_at` is when a permit last ended without an answer, 0 once one was answered. Configs and images
    have `boots`, the durations of their newest boots in seconds, `slowest_seconds`, the longest of them,
    `usual_seconds`, a moving mean of them, and `newest_at`, the newest launch of a worker that has registered. Images
    have `overdue`, the launches after that which take longer than usual. `version` grows with each change.
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
    slowest_seconds: float = 0.0
    newest_at: float = 0.0
    lost_at: float = 0.0
    usual_seconds: float = 0.0
    overdue: tuple[float, ...] = ()


class Boot(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """A start that the provider accepted and that has not registered.

    `judged_at` is when it is judged next: first whether it is slow, then whether it is late; 0 if it is late, or if
    too few boots of its image are known. `slow` has the numbers of outages of the image and of the config as it became
    slow, None: it is not slow. `late_at` is the time since when it counts as failed, 0: it does not. At `overdue_at` it
    becomes overdue unless a later one has registered; 0 once it is, or if too few boots of its image were known.
    `registered`: it registered before the provider's reply arrived.
    """

    config_id: str
    image: Key
    at: float
    judged_at: float = 0.0
    instance_id: str = ""
    permit: int | None = None
    slow: tuple[int, int] | None = None
    late_at: float = 0.0
    console: str = ""
    registered: bool = False
    overdue_at: float = 0.0

    @property
    def late(self) -> bool:
        return self.late_at > 0


class Config(msgspec.Struct, frozen=True, gc=False):
    """A launch config's revision as declared, with the values that `config_of` derives from it.

    `archived_at` is 0 unless the config is archived; a config that is known from outcomes only (revision 0) counts as
    archived until it is declared. `key` is that of its own row. `shared` are the keys that the config shares with
    others, by their kind, and that of its subnet, a second quota, by "subnet"; `keys` are all rows whose trips apply to
    it, its own first; `groups` are the keys that list it as a member: its pool, its name and the shared ones. `stages`
    are the stages that are evaluated. `credited` maps a stage to the shared rows that its successes are credited to,
    `parents` to the sums that its prior is computed from: pool, account, zone.
    """

    declared: LaunchConfigState
    archived_at: float
    id: str
    key: Key
    active: bool
    profile: str
    pool: Key
    name: Key
    shared: dict[str, Key]
    keys: tuple[Key, ...]
    groups: tuple[Key, ...]
    stages: tuple[str, ...]
    credited: dict[str, tuple[Key, ...]]
    parents: dict[str, tuple[Location, ...]]


def named_by(event: WorkerEvent, config: Config) -> Config:
    """The config as an event names it: with the event's image instead of the declared one.

    A start belongs to the image that it was launched with, whatever has been declared since.
    """
    declared = config.declared
    prefix = declared.image_key.removesuffix(declared.image_revision)
    image = image_key((prefix if prefix != declared.image_key else "") + event.image_revision)
    shared = config.shared | {"image": image}
    credited = _credited(shared)
    return msgspec.structs.replace(config, shared=shared, keys=(config.key, *shared.values()), credited=credited)


def pool_key(pool_id: str) -> Key:
    return Key("pool", pool_id)


def name_key(name: str) -> Key:
    """Key of a launch config's name, which groups its revisions."""
    return Key("name", name)


def config_of(declared: LaunchConfigState, archived_at: float = 0.0) -> Config:
    # Drops the event type, so that the value equals the one read back from the database.
    state = LaunchConfigState(**{name: getattr(declared, name) for name in LaunchConfigState.__struct_fields__})
    own, pool, name = config_key(state.launch_config_id), pool_key(state.pool_id), name_key(state.name)
    places = (pool, ("account", state.account_id), ("zone", state.region, state.zone))
    parents = [encoded(state.profile, *place) for place in places]
    shared = {
        "image": image_of(state),
        "quota": quota_of(state),
        "credential": credential_key(state.account_id),
        "capacity": capacity_of(state),
    }
    if (subnet := subnet_of(state)) is not None:
        shared["subnet"] = subnet
    return Config(
        declared=state,
        archived_at=archived_at,
        id=state.launch_config_id,
        key=own,
        active=state.state == "active",
        profile=state.profile,
        pool=pool,
        name=name,
        shared=shared,
        keys=(own, *shared.values()),
        groups=(pool, name, *shared.values()),
        stages=tuple(name for name in STAGES if name != "claim" or state.claim_evidence != "none"),
        credited=_credited(shared),
        parents={stage: tuple(f"{parent}/{stage}" for parent in parents) for stage in STAGES},
    )


def _credited(shared: Mapping[str, Key]) -> dict[str, tuple[Key, ...]]:
    """Shared rows that successes are credited to, by stage."""
    return {stage: tuple(shared[role] for role in roles if role in shared) for stage, roles in CREDITED.items()}


def undeclared(event: WorkerEvent, at: float) -> Config:
    """Config of an outcome that arrives before the config's declaration, since order is only guaranteed per topic.

    It may also have been archived so long ago that no other record of it is left.
    """
    return config_of(
        LaunchConfigState(
            launch_config_id=event.launch_config_id,
            name=name_of(event.launch_config_id),
            pool_id=event.pool_id,
            account_id=event.account_id,
            region="",
            zone="",
            instance_type="",
            image_revision=event.image_revision,
            base_weight=1.0,
            price_factor=1.0,
            state=UNDECLARED,
            revision=0,
        ),
        archived_at=at,
    )


def new_row(policy: Policy, revision: int = 1, at: float = 0.0) -> Row:
    """Row of a config before any outcome: small windows until the first start is confirmed.

    A config that is not at its first revision, or that is known from outcomes only, was forgotten and comes back;
    consumers may remember its permits. Its permit numbers continue above those, at the milliseconds of `at`.
    """
    return Row(
        launch=Stage(window=policy.new_launch_window),
        boot=Stage(window=policy.new_config_boot_window),
        claim=Stage(window=policy.new_claim_window),
        permit=0 if revision == 1 else int(at * 1000),
    )


def new_shared_row(policy: Policy, at: float) -> Row:
    """Row of an image revision, a quota, a credential or a capacity at its first outcome.

    Its launch window starts full, because only launch failures create such a row. Versions of a row that was forgotten
    and comes back continue above those that consumers may remember, at the milliseconds of `at`.
    """
    return Row(
        launch=Stage(window=policy.launch_window),
        boot=Stage(window=policy.new_boot_window),
        claim=Stage(window=policy.new_claim_window),
        version=int(at * 1000),
    )
