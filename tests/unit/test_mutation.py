"""Mutation of pure rooms: which modules a room has, how a run is judged, and what stands in its table."""

from typing import Final

import msgspec
import pytest

from tests.tools.mutation import (
    HEADER,
    ROOMS,
    ROOT,
    SURVIVORS,
    Ended,
    Listed,
    Tally,
    files_of,
    kept,
    merged,
    parse,
    tally,
)

DIFF: Final = """--- slipway_lease_broker/domain/slots.py
+++ slipway_lease_broker/domain/slots.py
@@ -1,3 +1,3 @@
 def free(slots):
-    return [slot for slot in slots if slot.owner is None]
+    return [slot for slot in slots if slot.owner is not None]"""
CHANGE: Final = (
    "slipway_lease_broker.domain.slots.free",
    "return [slot for slot in slots if slot.owner is None]",
    "return [slot for slot in slots if slot.owner is not None]",
)
LIVED: Final = Ended("slipway_lease_broker.domain.slots.x_free__mutmut_2", "survived", DIFF)


def test_every_module_of_a_domain_is_in_one_room() -> None:
    files = [file for room in ROOMS for file in files_of(room)]
    packages = {package for package, _ in ROOMS.values()}
    paths = [path for package in packages for path in ROOT.glob(f"services/*/{package}/domain/*.py")]
    domains = {f"{path.parts[-3]}/domain/{path.name}" for path in paths}
    assert sorted(files) == sorted(name for name in domains if not name.endswith("__init__.py"))


def test_a_survivor_is_known_by_its_lines_whatever_its_number() -> None:
    assert LIVED.change == CHANGE
    method = Ended("slipway_lease_broker.domain.slots.xǁSlotsǁfree__mutmut_3", "survived", DIFF)
    assert method.change[0] == "slipway_lease_broker.domain.slots.Slots.free"


def test_each_survivor_is_listed_once_with_an_argument() -> None:
    rows = msgspec.toml.decode(SURVIVORS.read_bytes(), type=Listed).survivor
    changes = [(row.function, row.old, new) for row in rows for new in row.new]
    assert len({*changes}) == len(changes)
    assert [row for row in rows if row.reason == "equivalent" and not row.why] == []


def test_a_mutant_that_hangs_is_killed_and_one_that_no_test_runs_is_not() -> None:
    states = ["killed"] * 5 + ["timeout", "segfault", "no tests", "skipped"]
    ended = [LIVED, *(Ended(f"m{number}", state, "") for number, state in enumerate(states))]
    assert tally("slots", ended, {}) == Tally("slots", 9, 7, 1, 1, {})
    assert tally("slots", ended, {CHANGE: "wording"}).listed == {"wording": 1}


def test_a_run_of_survivors_leaves_the_others_as_they_ended() -> None:
    before = [Ended("m1", "killed", ""), LIVED, Ended("m3", "no tests", "")]
    again = [Ended("m1", "not checked", ""), Ended(LIVED.name, "killed", ""), Ended("m3", "survived", DIFF)]
    assert merged(before, again) == [before[0], *again[1:]]
    assert merged([], again) == again
    assert [each.is_open for each in (*before, *again)] == [False, True, True, True, False, True]


#            mutants, killed, untested, holds
BOUNDS: Final = [(100, 85, 3, True), (100, 84, 0, False), (100, 96, 4, False), (0, 0, 0, True)]


@pytest.mark.parametrize(("mutants", "killed", "untested", "holds"), BOUNDS)
def test_a_room_holds_with_enough_killed_and_few_untested(
    mutants: int, killed: int, untested: int, holds: bool
) -> None:
    assert Tally("slots", mutants, killed, mutants - killed - untested, untested, {}).holds is holds


def test_a_run_replaces_the_lines_of_its_rooms() -> None:
    first = kept("", [Tally("slots", 10, 9, 1, 0, {"equivalent": 1}), Tally("limits", 4, 4, 0, 0, {})])
    assert first.splitlines()[-2:] == [
        "| limits | 4 | 4 (100.0%) | 0 | 0 | – |",
        "| slots | 10 | 9 (90.0%) | 1 | 0 | 1 equivalent |",
    ]
    again = kept(first.replace("# Mutation", "# Mutation\n\nA sentence."), [Tally("slots", 10, 10, 0, 0, {})])
    assert again.count("| slots |") == again.count(HEADER) == again.count("A sentence.") == 1
    assert "| limits | 4 |" in again


def test_arguments_name_rooms() -> None:
    assert [*parse({})] == [*ROOMS]
    assert parse({"ONLY": "slots"}) == {"slots": ["slipway_lease_broker/domain/slots.py"]}
    with pytest.raises(ValueError, match="ONLY=rooms: no such room; there are planning, "):
        parse({"ONLY": "rooms"})
