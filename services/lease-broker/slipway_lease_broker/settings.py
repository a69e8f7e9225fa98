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
    boskos_port: int | None = None
    """Where slots are served over the API of Boskos; unset: nowhere. 0 lets the system choose."""
    boskos_host: str = "127.0.0.1"
    boskos_open: bool = False
    """Whether callers without credentials are let in, as Boskos does. Off, each names a token by HTTP Basic."""
    boskos_expired_state: str = "dirty"
    """State of a slot whose lease the broker ended: what cleaners look for."""
    boskos_request_ttl_seconds: float = 30.0
    """How long a request keeps its place in the queue for slots without being sent again. Clients ask every 3 s;
    shorter loses places to slow clients, longer keeps a free slot from the next after a client died."""
    boskos_proxy_wait_seconds: float = 7200.0
    """How long a call to /lease/acquire waits on the line, at most."""
