"""The numbers by which outcomes become weights and gates. Values only; settings supply the product times."""

import msgspec


class Policy(msgspec.Struct, frozen=True, kw_only=True):
    """One set for all launch configs.

    `half_life_seconds` forgets by time, `mass_cap` by count: at any launch rate about mass_cap · ln 2 = 8 outcomes
    outweigh the past, where decay by time alone would be slow on a busy config. `prior_mass` imaginary outcomes of
    probability `prior` stand for what is believed before any. A config keeps at least `floor` of its share, and
    `sharpness` makes it lose the rest faster than its health.
    """

    half_life_seconds: float = 600.0
    mass_cap: float = 12.0
    prior: float = 0.95
    prior_mass: float = 2.0
    floor: float = 0.02
    sharpness: float = 3.0
    window: int = 64  # starts of a config that may be unconfirmed, per stage
    # A definite "no capacity" or "over quota" needs no third opinion; any other failure may be the request's own.
    trip_capacity: int = 2
    trip_any: int = 5
    probe_initial_seconds: float = 15.0
    probe_max_seconds: float = 600.0
    pool_probe_seconds: float = 30.0
    publish_threshold: float = 0.01  # smaller relative changes of a weight are not worth a record
