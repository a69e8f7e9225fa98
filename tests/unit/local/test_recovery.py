"""A zone's share before, during and after an outage."""

from random import Random

from slipway_local.demo.recovery import Outage, verdict


def attempts(share_out: float, back_after: float, seed: int = 1) -> list[tuple[float, str]]:
    """Half an hour at 30 attempts a minute, with an outage of zone-b from 4 to 14 minutes."""
    rng = Random(seed)
    rows = []
    for number in range(900):
        at = number * 2.0
        out, returning = 240 <= at < 840, 840 <= at < 840 + back_after
        share = share_out if out and at > 300 else 0.0 if returning else 1 / 3
        rows.append((at, "zone-b" if rng.random() < share else "zone-a"))
    return rows


OUTAGE = Outage("zone-b", 240, 840, 1800)


def test_a_zone_that_is_avoided_and_comes_back_is_ok() -> None:
    seen = verdict(attempts(0.0, 240), OUTAGE)
    assert list(seen.problems) == []
    assert seen.back_after_seconds is not None
    assert 240 < seen.back_after_seconds <= 480


def test_a_zone_that_keeps_its_share_is_found() -> None:
    assert "kept a share" in verdict(attempts(0.2, 240), OUTAGE).problems[0]


def test_a_zone_that_never_comes_back_is_found() -> None:
    assert "did not get" in verdict(attempts(0.0, 2000), OUTAGE).problems[0]


def test_a_short_run_need_not_show_the_recovery() -> None:
    assert list(verdict(attempts(0.0, 2000), Outage("zone-b", 240, 840, 1200)).problems) == []
