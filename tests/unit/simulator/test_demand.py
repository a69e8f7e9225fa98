"""Sources of tasks."""

import struct
from itertools import islice, pairwise, takewhile
from pathlib import Path
from random import Random

import msgspec
import pytest

from slipway_simulator import scenario
from slipway_simulator.demand import Arrivals, BadTrace, Bursty, Trace, arrivals


def test_trace_is_read_from_its_start_time(tmp_path: Path) -> None:
    """Big-endian milliseconds become seconds, counted from `from_seconds`."""
    path = tmp_path / "queue.dat"
    path.write_bytes(
        b"".join(struct.pack(">II", at, length) for at, length in [(500, 60_000), (9_000, 1), (4_000, 1_500)])
    )
    assert list(arrivals(Trace(str(path)), Random(1))) == [(0.5, 60.0), (4.0, 1.5), (9.0, 0.001)]
    assert list(arrivals(Trace(str(path), from_seconds=3.0, until_seconds=9.0), Random(1))) == [(1.0, 1.5)]


def test_bad_trace_is_refused(tmp_path: Path) -> None:
    """A missing file and an incomplete record are refused."""
    path = tmp_path / "torn.dat"
    path.write_bytes(b"1234567")
    with pytest.raises(BadTrace, match="7 bytes are not a multiple of the record size"):
        arrivals(Trace(str(path)), Random(1))
    with pytest.raises(BadTrace, match="No such file"):
        arrivals(Trace(str(tmp_path / "absent.dat")), Random(1))


def test_list_is_sorted() -> None:
    """A list may be given in any order."""
    assert list(arrivals(Arrivals(((5.0, 1.0), (2.0, 9.0))), Random(1))) == [(2.0, 9.0), (5.0, 1.0)]


def test_bursty_keeps_its_rate_and_median() -> None:
    """An initial burst, then the average rate including bursts; task lengths around the median."""
    hours = 30
    tasks = list(takewhile(lambda task: task[0] < hours * 3600, arrivals(Bursty(), Random(11))))
    first = sum(1 for at, _ in tasks if at == 0.0)
    lengths = sorted(length for _, length in tasks)
    assert first == 20
    assert (len(tasks) - first) / (hours * 60) == pytest.approx(30.0, rel=0.05)
    assert lengths[len(lengths) // 2] == pytest.approx(120.0, rel=0.05)
    together = [at for at, _ in tasks[20:]]
    assert sum(1 for one, other in pairwise(together) if one == other) > hours * 60


def test_same_seed_same_tasks() -> None:
    """A restart continues at the end of the ledger."""
    again = list(islice(arrivals(Bursty(), Random("7/source-1")), 200))
    assert list(islice(arrivals(Bursty(), Random("7/source-1")), 100, 200)) == again[100:]
    assert list(islice(arrivals(Bursty(), Random("8/source-1")), 200)) != again


def test_scenario_decodes_both_forms_of_demand() -> None:
    """A list needs no `kind`; faults may be text; unknown fields and impossible rates are refused with their path."""
    body = b"""{"pools": {"a": {"arrivals": [[1, 2]]}, "b": {"kind": "bursty", "rate_per_minute": 60}},
        "faults": "zone-b:0%-50%", "duration_seconds": 60}"""
    loaded = scenario.decode(body)
    assert loaded.pools == {"a": Arrivals(((1.0, 2.0),)), "b": Bursty(rate_per_minute=60.0)}
    assert loaded.faults[0].until_seconds == 30.0
    with pytest.raises(msgspec.ValidationError, match="unknown field `sped`"):
        scenario.decode(b'{"sped": 2}')
    with pytest.raises(msgspec.ValidationError, match="bursts alone exceed rate_per_minute"):
        scenario.decode(b'{"pools": {"b": {"kind": "bursty", "rate_per_minute": 1}}}')


def test_speed_divides_every_product_time() -> None:
    """Durations are divided and rates multiplied by `speed`; intervals of polls and reports have a minimum."""
    body = b"""{"speed": 10, "visibility_seconds": 20, "accounts": {"a": {"latency_seconds": 2, "capacity":
        {"z": [[60, 0]]}, "throttle": {"burst": 5, "refill_per_second": 3}}}}"""
    rules = scenario.decode(body).on_the_wall()
    account = rules.accounts["a"]
    assert account.throttle is not None
    assert (account.latency_seconds, account.capacity["z"], account.throttle.refill_per_second) == (
        0.2,
        ((6.0, 0),),
        30.0,
    )
    assert (rules.boot_seconds_median, rules.visibility_seconds, rules.valid_for_seconds) == (9.0, 2.0, 30.0)
    assert (rules.poll_seconds, rules.heartbeat_seconds, rules.report_seconds) == (3.0, 12.0, 1.0)
    assert scenario.decode(b'{"speed": 1000}').on_the_wall().poll_seconds == 1.0
