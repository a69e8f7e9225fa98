"""Settings of the provisioner; durations in seconds. Read once, in main.py."""

from typing import Literal

from slipway_common.signal_settings import SignalSettings


class Settings(SignalSettings):
    """Product times first: a demo divides these, and no others, by its speed."""

    port: int = 7301
    deployment: str = "slipway"
    """Tag on every instance; a reaper touches no other's."""
    register_url: str = ""
    """Where machines find this service; default: its own host and port."""
    registration_key: str
    """Secret from which each batch's registration secret is derived. Changing it strands machines that boot now."""

    call_timeout_seconds: float = 60.0
    """After this a provider call's outcome is unknown. Longer: slower recovery from a lost reply."""
    visibility_seconds: float = 10.0
    """A provider lists an instance at most this long after the call; before it, "not found" proves nothing."""
    boot_timeout_seconds: float = 900.0
    """Registration slower than this is a boot failure."""
    idle_timeout_seconds: float = 120.0
    """A worker that is idle for this long, and more than wanted, is told to leave."""
    give_up_idle_seconds: float = 300.0
    """Idle this long while tasks are pending: the worker is given up and replaced."""
    heard_timeout_seconds: float = 900.0
    """A registered worker that was not heard from for this long is told to leave, and ended after the grace."""
    stop_grace_seconds: float = 120.0
    """A worker told to leave may end by itself for this long; then its instance is ended."""
    clock_skew_seconds: float = 5.0
    """Subtracted from every lease deadline."""
    resend_seconds: float = 30.0
    """A lease request without an answer is repeated after this."""
    reap_seconds: float = 60.0
    """Between two passes of the reaper over an account."""
    sweep_seconds: float = 600.0
    """Every pool is planned for, and its counters proven, at least this often."""
    silent_attempt_seconds: float = 30.0
    """Without a calculator each pool makes one attempt per this."""
    silent_half_life_seconds: float = 600.0
    """Without a calculator its last weights lose half their say in this time: as fast as its evidence ages."""

    silent_after_seconds: float = 30.0
    """No heartbeat for this long: the service counts as away. Not a product time: heartbeats are real seconds."""
    broker_silent_mode: Literal["wait", "safe"] = "wait"
    """What launches do while the lease-broker is silent: wait for it, or (safe) start without leases at the pace that
    it last kept, each told and charged afterwards."""
    calls_in_flight_max: int = 64
    send_within_seconds: float = 2.0
    """A committed call that is not on the wire after this (monotonic) is put back instead."""
    launching: bool = True
    """False: decide and record, but start nothing (a restored database, a drill)."""
