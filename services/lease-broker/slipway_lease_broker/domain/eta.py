"""Expected wait of a new request. Pure; an estimate for people that admission does not use."""


def eta_seconds(
    *, limit_units: int, held_units: int, waiting_units: int, granted_per_minute: int, hold_seconds: float
) -> float | None:
    """The expected wait of one unit requested now; None when no unit will ever be free.

        ahead = held + waiting + 1 − limit      units that have to be released first
        rate  = granted in the last minute / 60, else limit / hold seconds
        eta   = max(0, ahead) / rate

    Waiting requests are served first. Units are granted as they are released, so the grants of the last minute give the
    rate. After a minute without a grant only the hold is certain: it releases the whole limit once per hold.
    """
    if limit_units <= 0:
        return None
    ahead = max(0, held_units + waiting_units + 1 - limit_units)
    rate_per_second = granted_per_minute / 60 if granted_per_minute > 0 else limit_units / hold_seconds
    return ahead / rate_per_second
