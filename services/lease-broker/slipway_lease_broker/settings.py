"""Settings of the lease-broker; read once, in main.py."""

from typing import Annotated

from pydantic import Field

from slipway_common.service import ServiceSettings


class Settings(ServiceSettings):
    """Settings of the lease-broker. Durations are in seconds. Limits, holds and ttls belong to each lease pool."""

    port: int = 7303
    lost_linger_seconds: float = 70.0
    """Time that a lost lease stays counted: the holder's call time-out (60) and the lookup that follows it (10).
    Shorter risks more operations in flight than the limit; longer leaves units idle after a holder died."""
    waiter_ttl_seconds: float = 120.0
    """Time after which a request that is neither repeated nor polled lapses: it is skipped until it is repeated. The
    default is four re-sends of the provisioner. Shorter skips slow clients; longer grants units to clients that are
    gone."""
    waiting_requests_max: Annotated[int, Field(gt=0)] = 5_000
    """Requests of one token that may wait in one lease pool at a time, gangs included. Further ones are answered 429,
    until some have been granted, cancelled or have lapsed. Lower refuses bursts of honest callers; higher lets one
    token slow down all decisions of a pool."""
    ended_kept_days: float = 8.0
    """Retention of ended leases and requests, in days. It exceeds the retention of their topics (3 and 7 days), so that
    a repeated request is still recognised."""
    boskos_port: int | None = None
    """Port of the Boskos API for slots; unset: not served. 0 lets the system choose."""
    boskos_host: str = "127.0.0.1"
    boskos_open: bool = False
    """Accept callers without credentials, as Boskos does. Otherwise each call needs a token by HTTP Basic."""
    boskos_expired_state: str = "dirty"
    """State of a slot after the broker ended its lease; cleaners acquire slots in this state."""
    boskos_request_ttl_seconds: float = 30.0
    """Time that a request keeps its place in the queue for slots without being repeated. Clients poll every 3 s;
    shorter drops slow clients from the queue, longer delays the next client after one died."""
    boskos_proxy_wait_seconds: float = 7200.0
    """Maximum time that a call to /lease/acquire waits."""
