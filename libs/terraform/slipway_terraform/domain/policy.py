"""Limits of a scheduler and their defaults. Figures without a source are those of the Terraform provider scheduler of
upjet, or round values around them; decision 0051 has the reasons."""

import msgspec

GIBIBYTE = 1024**3


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """Limits on processes, their use and their life.

    Replacement: a process that has served `ttl_invocations` (None: no limit) is replaced; while its successor starts it
    serves on, up to `margin` beyond. `max_age_seconds` is shortened by a random part of up to `age_jitter`, so that
    processes that began together do not end together. An unused process stops after `idle_seconds`. One with more
    memory than `soft_memory_bytes` is replaced; beyond `hard_memory_bytes` an error is logged too.

    Use: at most `max_processes` exist, starting and stopping ones included; one serves at most `max_concurrency` leases
    at a time; at most `max_waiters` callers wait, each of which costs up to 2 µs of CPU time at each event. At the cap,
    callers of running processes may overtake the first caller that waits for another one `max_overtakes` times before a
    process in use is drained for it.

    Failures: after a failed start a handle waits `backoff_seconds`, doubled each time up to `max_backoff_seconds`. From
    the `trip_failures`th in a row on it is tripped: callers in that time are refused with the last error.

    `compatible` decides about reuse as upjet does (see `compatibility`), without limits on processes and concurrency.
    """

    ttl_invocations: int | None = 100
    margin: float = 0.1
    max_age_seconds: float = 3600.0
    age_jitter: float = 0.1
    idle_seconds: float = 300.0
    soft_memory_bytes: int = GIBIBYTE
    hard_memory_bytes: int = 2 * GIBIBYTE
    max_processes: int = 8
    max_concurrency: int = 4
    max_waiters: int = 1000
    max_overtakes: int = 8
    trip_failures: int = 3
    backoff_seconds: float = 1.0
    max_backoff_seconds: float = 60.0
    sample_seconds: float = 5.0
    health_failures: int = 2
    compatible: bool = False

    def __post_init__(self) -> None:
        """Raises ValueError for a limit that would let nothing run."""
        for name in ("max_processes", "max_concurrency", "max_waiters", "trip_failures", "health_failures"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; set it to at least 1")
        for name in ("max_age_seconds", "sample_seconds", "backoff_seconds"):
            if getattr(self, name) <= 0:
                raise ValueError(f"{name} is {getattr(self, name):g}; set it to more than 0")
        if self.ttl_invocations is not None and self.ttl_invocations < 1:
            raise ValueError(
                f"ttl_invocations is {self.ttl_invocations}; set it to at least 1, or for no limit to None, which the "
                "variable of the daemon writes as null"
            )
        if self.hard_memory_bytes < self.soft_memory_bytes:
            raise ValueError("hard_memory_bytes is less than soft_memory_bytes; raise it")
        if self.compatible and self.ttl_invocations is None:
            raise ValueError("compatible needs ttl_invocations: upjet replaces processes by their invocations only")
        if not 0 <= self.age_jitter < 1 or min(self.margin, self.idle_seconds, self.max_overtakes) < 0:
            raise ValueError(
                "age_jitter must be at least 0 and below 1; margin, idle_seconds and max_overtakes at least 0"
            )
