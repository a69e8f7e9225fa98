"""Launch config events. Each is about one revision of a launch config. Values only."""

from typing import ClassVar

import msgspec

from slipway_api.limits import Key, Name, Note
from slipway_api.time import Time


class LaunchConfigState(msgspec.Struct, frozen=True, kw_only=True):
    """Complete state of one revision of a launch config (its topic is compacted).

    `launch_config_id` is "name@hash": the launch config's `name`, and a hash of the revision's immutable body.
    `current`: the revision that the name stands for; another one that is active only launches what the current one,
    which replaces it, does not. `state` is active, paused, draining or archived; `drain_until` is the deadline of a
    drain. `base_weight` and `price_factor` belong to the name and scale its share at equal health. The rest of the body
    (settings, user data) stays with the provisioner.

    `capacity_key` is the id of the capacity that the revision launches from, by its provider: account, region, zone,
    instance type and lifecycle where it is empty; configs with the same one share its health. `quota_family` is the
    family of its quota: the instance type before the first dot where it is empty. `subnet` is the subnet whose free
    addresses its machines take, which is one more quota; empty if its provider names none.
    `image_key` is the id of the image that its machines boot, by its provider: configs with the same one share its
    health. It is the image revision where it is empty. `owner` is that of its pool, to whose things a
    token may be limited; empty if nobody owns it.

    Health settings: `profile` is on-demand, spot or bare-metal; `boot_evidence` (register or provider_running) and
    `claim_evidence` (hook, queue or none) select the evidence that confirms a start; `on_bad_image` is probe or freeze,
    after `freeze_after` unconfirmed starts.
    """

    launch_config_id: Name
    name: Name
    pool_id: Name
    account_id: Name
    region: Name
    zone: Name
    instance_type: Name
    image_revision: Name
    base_weight: float
    price_factor: float
    state: Name
    revision: int
    current: bool = True
    drain_until: Time | None = None
    profile: Name = "on-demand"
    boot_evidence: Name = "register"
    claim_evidence: Name = "hook"
    on_bad_image: Name = "probe"
    freeze_after: int = 10
    capacity_key: Key = ""
    quota_family: Name = ""
    subnet: Name = ""
    image_key: Key = ""
    owner: Name = ""


class LaunchConfigCreated(LaunchConfigState, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.launch_config.created.v1"


class LaunchConfigUpdated(LaunchConfigState, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.launch_config.updated.v1"


class LaunchConfigArchived(LaunchConfigState, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.launch_config.archived.v1"


class LaunchConfigPaused(LaunchConfigState, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.launch_config.paused.v1"
    reason: Note
    by: Note
    until: Time | None = None


class LaunchConfigResumed(LaunchConfigState, frozen=True, kw_only=True):
    type: ClassVar[str] = "io.slipway.launch_config.resumed.v1"
    reason: Note
    by: Note


class LaunchConfigDraining(LaunchConfigState, frozen=True, kw_only=True):
    """The revision launches nothing more, and its workers leave after their task. `terminate`: workers that are left at
    `drain_until` are terminated."""

    type: ClassVar[str] = "io.slipway.launch_config.draining.v1"
    reason: Note
    by: Note
    terminate: bool = False
