"""How long somebody who asks now would wait. Pure: an estimate for people; admission does not look at it."""


def eta_seconds(
    *, limit_units: int, held_units: int, waiting_units: int, granted_per_minute: int, hold_seconds: float
) -> float | None:
    """The expected wait of one unit that is asked for now; None when no unit will ever be free.

        ahead = held + waiting + 1 − limit      units that have to come back first
        pace  = granted in the last minute / 60, else limit / hold seconds
        eta   = max(0, ahead) / pace

    Whoever waits is served first. What was granted came back just before, so the last minute tells the pace; after a
    minute without a grant only the hold is sure, which gives the whole limit back once in its time.
    """
    if limit_units <= 0:
        return None
    ahead = max(0, held_units + waiting_units + 1 - limit_units)
    pace_per_second = granted_per_minute / 60 if granted_per_minute > 0 else limit_units / hold_seconds
    return ahead / pace_per_second
