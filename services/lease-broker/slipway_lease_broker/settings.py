"""Settings of the lease-broker; read once, in main.py."""

from slipway_common.service import ServiceSettings


class Settings(ServiceSettings):
    """Durations are in seconds. Limits, holds and ttls belong to each lease pool, not here."""

    port: int = 7303
    lost_linger_seconds: float = 70.0
    """How long a lost lease stays counted: the holder's call time-out (60) and the look-up that follows it (10).
    Shorter risks more operations under way than the limit; longer leaves units idle after a holder died."""
    waiter_ttl_seconds: float = 120.0
    """A request that nobody repeats or polls for during so long is passed over until somebody does: four re-sends of
    the provisioner. Shorter passes over askers that are merely slow; longer grants units to those that are gone."""
    ended_kept_days: float = 8.0
    """How long ended leases and requests are kept. Longer than their topics' retention (3 and 7 days), so that a
    repeated request is still recognised."""
