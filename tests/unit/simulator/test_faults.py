"""Notation of faults, and their effects over time."""

import pytest

from slipway_simulator.faults import Effects, effects, parse, parse_one, parsed
from slipway_simulator.notation import BadFault, Fault

PARSED = [
    ("none", ()),
    ("", ()),
    ("zone-b:4m-14m", (Fault("zone-b", "", 240.0, 840.0),)),
    ("zone-b:25%-50%", (Fault("zone-b", "", 900.0, 1800.0),)),
    ("zone:eu-1b:90s-", (Fault("zone", "eu-1b", 90.0, None),)),
    ("lost-reply,ignore-token", (Fault("lost-reply"), Fault("ignore-token"))),
    ("lost-reply:0.5:1h-2h", (Fault("lost-reply", "0.5", 3600.0, 7200.0),)),
    ("quota:sim-a:10m-20m", (Fault("quota", "sim-a", 600.0, 1200.0),)),
    ("throttle:30s-60s", (Fault("throttle", "", 30.0, 60.0),)),
    ("bad-image:linux-2", (Fault("bad-image", "linux-2"),)),
    ("no-termination:sim-a", (Fault("no-termination", "sim-a"),)),
    ("slow-boot:3", (Fault("slow-boot", "3"),)),
]


@pytest.mark.parametrize(("text", "expected"), PARSED)
def test_parse(text: str, expected: tuple[Fault, ...]) -> None:
    """Name, argument and window are separated; percentages refer to the run."""
    assert parse(text, duration_seconds=3600.0) == expected


REFUSED = [
    ("zone-b:tomorrow", "expected a window"),
    ("quota", "the name is missing"),
    ("lost-reply:2", "between 0 and 1"),
    ("slow-boot", "expected slow-boot:FACTOR"),
    ("slow-boot:0", "greater than 0"),
    ("ignore-token:yes", "unexpected argument"),
    ("zone-b:14m-4m", "ends before it begins"),
]


@pytest.mark.parametrize(("text", "reason"), REFUSED)
def test_refused(text: str, reason: str) -> None:
    """Malformed faults are refused with a reason."""
    with pytest.raises(BadFault, match=reason):
        parse(text, duration_seconds=3600.0)


def test_unknown_name_lists_the_known_ones() -> None:
    """The error for an unknown fault lists the known ones."""
    with pytest.raises(
        BadFault, match=r"unknown fault 'gremlins'; known: none, zone-NAME.*lost-reply.*slow-boot:FACTOR"
    ):
        parse("gremlins:4m-14m")


def test_percentage_needs_a_duration() -> None:
    """Percentages are refused for a run without an end."""
    with pytest.raises(BadFault, match="needs a run of known duration"):
        parse("zone-b:25%-50%")


ACTIVE = [
    ("zone-b:4m-14m", 239.9, Effects()),
    ("zone-b:4m-14m", 240.0, Effects(zones_out=frozenset({"zone-b"}))),
    ("zone-b:4m-14m", 840.0, Effects()),
    ("zone-a,zone:b", 0.0, Effects(zones_out=frozenset({"zone-a", "b"}))),
    ("lost-reply,ignore-token", 0.0, Effects(lost_reply_ratio=0.3, ignore_token=True)),
    ("quota:x,throttle,bad-image:y", 0.0, Effects(frozenset(), frozenset({"x"}), frozenset({"y"}), throttled=True)),
    ("slow-boot:2,slow-boot:3", 0.0, Effects(boot_factor=6.0)),
    ("no-termination:sim-a,no-termination:i-000001", 0.0, Effects(undying=frozenset({"sim-a", "i-000001"}))),
]


@pytest.mark.parametrize(("text", "elapsed_seconds", "expected"), ACTIVE)
def test_effects(text: str, elapsed_seconds: float, expected: Effects) -> None:
    """A fault acts from the start of its window until before its end; effects accumulate."""
    assert effects(parse(text), elapsed_seconds) == expected


def test_fields_take_precedence_over_text() -> None:
    """A window in fields takes precedence over one in the argument."""
    assert parsed([Fault("zone-b", "4m-14m", until_seconds=300.0)]) == (Fault("zone-b", "", 240.0, 300.0),)
    assert parse_one("lost-reply", "1") == Fault("lost-reply", "1")
