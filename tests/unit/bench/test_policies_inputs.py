"""Scenarios and traces from files: valid ones are read, invalid ones rejected with the name of the field."""

import struct
from pathlib import Path

import msgspec
import pytest

from bench.policies import synthetic, traces
from bench.policies.__main__ import main
from bench.policies.conditions import conditions
from bench.policies.scenario import BUILT_IN, BadScenario, Scenario, checked, read
from bench.policies.traces import BadTrace, Traces, Zone

LONG_ENOUGH = 2000  # samples of 195 s: more than 96 h
CAP = {"kind": "capped", "configs": [0], "workers": 10}
CHANGE = {"minute": 60, "configs": [0]}
MINUTE = {"begin_minute": 1, "end_minute": 2}


def written(path: Path, content: object) -> Path:
    path.write_bytes(msgspec.json.encode(content))
    return path


def test_built_in_scenarios_can_be_run_and_written_down_as_they_are(tmp_path: Path) -> None:
    for name, scenario in BUILT_IN.items():
        assert checked(scenario).name == name
        assert read(written(tmp_path / "scenario.json", scenario)) == scenario


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ({"name": "x", "hourz": 3}, "unknown field `hourz`"),
        ({"name": "x", "hours": "3"}, "Expected `float`, got `str` - at `$.hours`"),
        ({"hours": 3}, "required field `name`"),
        ({"name": "a/b"}, "name: must be a word without a slash"),
        ({"name": "x", "hours": 0}, "hours: must be from 0.01 to 1000, not 0"),
        ({"name": "x", "hours": 0.001}, "hours: must be from 0.01 to 1000, not 0.001"),
        ({"name": "x", "hours": 97, "availability": "trace"}, "hours: must be from 0.01 to 96, not 97"),
        ({"name": "x", "hours": 97, "demand": "trace"}, "hours: must be from 0.01 to 96, not 97"),
        ({"name": "x", "background": 1}, "background: must be from 0 to below 1, not 1"),
        ({"name": "x", "replicas": 11}, "replicas: must be from 1 to 10, not 11"),
        ({"name": "x", "reordered_seconds": 1e9}, "reordered_seconds: must be from 0 to 3600, not 1000000000.0"),
        ({"name": "x", "record_lag_seconds": 3601}, "record_lag_seconds: must be from 0 to 3600"),
        ({"name": "x", "replica_lag_seconds": 3601}, "replica_lag_seconds: must be from 0 to 3600"),
        ({"name": "x", "registration_timeout_seconds": 1}, "registration_timeout_seconds: must be from 10 to"),
        ({"name": "x", "configs": 2, "price_factors": [1e300, 1e-300]}, "price_factors[0]: must be from 0.001 to 1000"),
        ({"name": "x", "configs": 2, "price_factors": [1, 1e-300]}, "price_factors[1]: must be from 0.001 to 1000"),
        ({"name": "x", "configs": 2, "price_factors": [1]}, "price_factors: 1 given for 2 configs"),
        ({"name": "x", "faults": [{"kind": "burnt", "configs": [0]}]}, "enum value 'burnt' - at `$.faults[0].kind`"),
        ({"name": "x", "faults": [{"kind": "refused", "configs": [4]}]}, "faults[0].configs: no config 4"),
        (
            {"name": "x", "faults": [{"kind": "refused", "configs": []}]},
            "faults[0].configs: must name at least one config",
        ),
        ({"name": "x", "faults": [{"kind": "refused", "configs": [0], "probability": 2}]}, "must be from 0 to 1"),
        (
            {"name": "x", "faults": [{"kind": "refused", "configs": [0], "begin_minute": 9, "end_minute": 8}]},
            "faults[0]: must start at 0 or later and end after its start",
        ),
        (
            {"name": "x", "faults": [{"kind": "refused", "configs": [0], "period_minutes": 5}]},
            "faults[0].active_minutes: must be above 0",
        ),
        ({"name": "x", "faults": [CAP | {"begin_minute": 360}]}, "faults[0].begin_minute: must be below 360"),
        ({"name": "x", "faults": [CAP | {"begin_minute": 1.01, "end_minute": 1.02}]}, "faults[0]: contains no tick"),
        (
            {"name": "x", "faults": [CAP | {"period_minutes": 10, "active_minutes": 5}]},
            "faults[0].period_minutes: a cap has no periods; use begin_minute and end_minute",
        ),
        (
            {"name": "x", "faults": [CAP | {"configs": [1, 2]}, CAP | {"configs": [0, 2]}]},
            "faults[1].configs: config 2 already has a cap",
        ),
        (
            {"name": "x", "faults": [CAP | {"configs": [1], "scope": "quota"}, {"kind": "refused", "configs": [0, 1]}]},
            "faults[1].scope: config 1 already has a fault of scope quota; use the same scope",
        ),
        ({"name": "x", "faults": [CAP | {"configs": [3, 3]}]}, "faults[0].configs: names config 3 twice"),
        ({"name": "x", "bursts": [MINUTE | {"launches_per_minute": -5}]}, "bursts[0].launches_per_minute: must be"),
        ({"name": "x", "bursts": [MINUTE | {"launches_per_minute": 1e7}]}, "must be from 0 to 10000, not 10000000.0"),
        ({"name": "x", "bursts": [MINUTE, {"begin_minute": 2, "end_minute": 1}]}, "bursts[1]: must start at 0"),
        (
            {"name": "x", "hours": 1, "calculator_down": [{"begin_minute": 60, "end_minute": 70}]},
            "calculator_down[0].begin_minute: must be below 60, where the run ends, not 60",
        ),
        ({"name": "x", "profile": "cheap"}, "profile: unknown profile cheap"),
        ({"name": "x", "boot_seconds": 0}, "boot_seconds: must be from 1 to 86400, not 0"),
        (
            {"name": "x", "pushes": [{"minute": 360, "tasks": 1}]},
            "pushes[0].minute: must be from 0 to below 360, where",
        ),
        ({"name": "x", "pushes": [{"minute": 1, "tasks": 0}]}, "pushes[0].tasks: must be from 1 to 10000, not 0"),
        (
            {"name": "x", "pushes": [{"minute": 1, "tasks": 1.5}]},
            "Expected `int`, got `float` - at `$.pushes[0].tasks`",
        ),
        ({"name": "x", "image_changes": [CHANGE | {"minute": -1}]}, "image_changes[0].minute: must be from 0 to below"),
        (
            {"name": "x", "image_changes": [CHANGE | {"configs": []}]},
            "image_changes[0].configs: must name at least one",
        ),
        (
            {"name": "x", "image_changes": [CHANGE | {"configs": [0, 0]}]},
            "image_changes[0].configs: names config 0 twice",
        ),
        (
            {"name": "x", "image_changes": [CHANGE | {"configs": [4]}]},
            "image_changes[0].configs: no config 4; configs are",
        ),
        (
            {"name": "x", "image_changes": [CHANGE | {"boot_seconds": 1e9}]},
            "image_changes[0].boot_seconds: must be from",
        ),
        (
            {"name": "x", "image_changes": [CHANGE | {"unregistered": 2}]},
            "image_changes[0].unregistered: must be from 0",
        ),
        ({"name": "x", "tick_seconds": 7}, "tick_seconds: must be one of 10, 6, 5, 4, 3, 2, not 7"),
        ({"name": "x", "tick_seconds": 5, "demand": "trace"}, "tick_seconds: must be one of 10, not 5"),
        (
            {"name": "x", "image_changes": [CHANGE, CHANGE | {"minute": 60.1}]},
            "image_changes[1].minute: config 0 changes at 60; its changes must be in the order of their times and 10 s",
        ),
        ({"name": "x", "image_changes": [CHANGE | {"minutes": 1}]}, "unknown field `minutes`"),
        ([], "Expected `object`, got `array`"),
    ],
)
def test_an_invalid_scenario_is_rejected_by_its_field(tmp_path: Path, content: object, words: str) -> None:
    with pytest.raises(BadScenario) as refused:
        read(written(tmp_path / "scenario.json", content))
    assert words in str(refused.value)
    assert "scenario.json" in str(refused.value)


def test_a_missing_or_invalid_scenario_file_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "empty.json").write_text("\n")
    (tmp_path / "latin.json").write_bytes('{"name": "é"}'.encode("latin-1"))
    for name, words in (
        ("absent.json", "absent.json: no such file, scenario or family; available: new-image, bad-roll-out,"),
        ("broken.json", "truncated"),
        ("empty.json", "is empty"),
        ("latin.json", "can't decode byte"),
    ):
        assert main({"SCENARIO": str(tmp_path / name)}) == 2
        assert words in capsys.readouterr().err


def test_missing_traces_are_reported_before_anything_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Given traces are read even if no scenario needs them."""
    for given, words in (
        ({"DEMAND": str(tmp_path / "nope")}, "nope: No such file"),
        ({"AVAILABILITY": str(tmp_path)}, "contains no *.json"),
    ):
        assert main({"ONLY": "healthy,oracle", "SEEDS": "1"} | given) == 2
        printed = capsys.readouterr()
        assert words in printed.err
        assert "runs" not in printed.out


def test_demand_is_counted_in_ticks_of_the_first_96_hours(tmp_path: Path) -> None:
    path = tmp_path / "tasks.dat"
    arrivals = (0, 9_999, 10_000, 96 * 3_600_000 - 1, 96 * 3_600_000)
    path.write_bytes(b"".join(struct.pack(">II", at, 60_000) for at in arrivals))
    counts = traces.demand(path)
    assert len(counts) == 34_560
    assert (counts[0], counts[1], counts[-1], sum(counts)) == (2, 1, 1, 4)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"", "0 bytes"), (b"1234567", "7 bytes"), (struct.pack(">II", 4_000_000_000, 1), "no task arrives")],
)
def test_invalid_demand_is_rejected(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "tasks.dat"
    path.write_bytes(content)
    with pytest.raises(BadTrace, match=words):
        traces.demand(path)


def zone_file(folder: Path, name: str, **changes: object) -> None:
    written(folder / f"{name}.json", {"metadata": {"gap_seconds": 195}, "data": [1, 0, 2, 0] * 500} | changes)


def test_a_zone_is_up_where_its_sample_is_above_0(tmp_path: Path) -> None:
    zone_file(tmp_path, "us-east-1a_v100_1")
    zone_file(tmp_path, "moon")
    zones, gap_seconds = traces.availability(tmp_path)
    assert gap_seconds == 195
    assert [(zone.name, zone.region) for zone in zones] == [("moon", "moon"), ("us-east-1a_v100_1", "us-east-1")]
    assert zones[0].up[:4] == bytes([1, 0, 1, 0])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"metadata": {}}, "metadata.gap_seconds must be a number above 0 and at most 86400, not None"),
        ({"metadata": {"gap_seconds": True}}, "not True"),
        ({"metadata": {"gap_seconds": -1}}, "not -1"),
        ({"metadata": {"gap_seconds": 86_401}}, "at most 86400, not 86401"),
        ({"metadata": 3}, "not None"),
        ({"data": []}, "data must be a list of samples"),
        ({"data": [1, "up"]}, "data[1] must be a number, not 'up'"),
        ({"data": [1] * 10}, "0.5 hours of samples; a run needs 96"),
    ],
)
def test_invalid_availability_is_rejected(tmp_path: Path, changes: dict[str, object], words: str) -> None:
    zone_file(tmp_path, "zone", **changes)
    with pytest.raises(BadTrace) as refused:
        traces.availability(tmp_path)
    assert words in str(refused.value)
    assert "zone.json" in str(refused.value)


def test_folders_without_traces_or_with_differing_files_are_rejected(tmp_path: Path) -> None:
    with pytest.raises(BadTrace, match="no such folder"):
        traces.availability(tmp_path / "absent")
    with pytest.raises(BadTrace, match="contains no"):
        traces.availability(tmp_path)
    (tmp_path / "bad.json").write_text("[")
    with pytest.raises(BadTrace, match="not JSON"):
        traces.availability(tmp_path)
    (tmp_path / "bad.json").unlink()
    zone_file(tmp_path, "a")
    zone_file(tmp_path, "b", metadata={"gap_seconds": 300})
    with pytest.raises(BadTrace, match="differ in gap_seconds"):
        traces.availability(tmp_path)


def test_bad_arguments_exit_with_2_and_name_the_allowed_values(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for environment, words in (
        ({"SEEDS": "many"}, "SEEDS=many: must be a whole number"),
        ({"ONLY": "all-out,everything"}, "ONLY=everything: no such scenario or policy; available: healthy"),
        ({"CELL": "all-out/slipway"}, "must be scenario/policy/seed"),
        ({"CELL": "all-out/slipway/x"}, "must be scenario/policy/seed"),
        ({"CELL": "all-out/slipway/900"}, "SCENARIO=all-out ONLY=slipway SEED=900 SEEDS=1 computes it"),
        ({"ONLY": "real", "DEMAND": str(tmp_path / "absent.dat")}, "absent.dat: No such file"),
        ({"ONLY": "real", "AVAILABILITY": str(tmp_path)}, "contains no"),
    ):
        assert main(environment) == 2
        assert words in capsys.readouterr().err


def test_offsets_leave_a_whole_run_of_the_trace() -> None:
    def of(days: float) -> Traces:
        zone = Zone("a", bytes(int(days * 86_400 / 195)))
        return Traces(arrivals=(1,), zones=(zone,), gap_seconds=195.0, of="x")

    assert of(45.5).offsets() == [0.0, 15 * 86_400.0, 30 * 86_400.0]
    assert of(20).offsets() == [0.0, 15 * 86_400.0]
    assert of(5).offsets() == [0.0]


def test_conditions_of_a_trace_begin_at_its_offset() -> None:
    up = bytes([0, 1] * LONG_ENOUGH)
    given = Traces(arrivals=(3,) * 34_560, zones=(Zone("a", up),), gap_seconds=195.0, of="x")
    faced = conditions(BUILT_IN["real"], given, offset_seconds=195.0)
    assert [faced.refusal[0][tick] for tick in (0, 19, 20, 39)] == [0.0, 0.0, 1.0, 0.0]
    assert set(faced.rates) == {3.0}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        (
            {"price_factors": [1, 2]},
            "mine: price_factors: 2 given for 3 configs; one per config is needed (configs are",
        ),
        ({"faults": [CAP | {"configs": [2, 50]}]}, "mine: faults[0].configs: no config 50; configs are"),
    ],
)
def test_a_scenario_that_does_not_fit_the_zones_of_the_trace_is_rejected(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], changes: dict[str, object], words: str
) -> None:
    for name in ("a", "b", "c"):
        zone_file(tmp_path, name)
    scenario = {"name": "mine", "hours": 0.1, "availability": "trace"} | changes
    (tmp_path / "mine").mkdir()
    path = written(tmp_path / "mine" / "scenario.json", scenario)
    environment = {"SCENARIO": str(path), "AVAILABILITY": str(tmp_path), "SEEDS": "1", "ONLY": "mine,uniform"}
    assert main(environment) == 2
    assert words in capsys.readouterr().err


def test_zones_of_unequal_length_repeat_together() -> None:
    zones = (Zone("long", bytes([1, 0, 1, 0, 1])), Zone("short", bytes([0, 1, 1])))
    given = Traces(arrivals=(1,), zones=zones, gap_seconds=10.0, of="x")
    faced = conditions(checked(Scenario(name="x", hours=0.02, availability="trace")), given)
    assert faced.refusal == [[0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0]]


def test_the_synthetic_traces_match_published_statistics() -> None:
    zones = synthetic.zones()
    up = [sum(states) for states in zip(*(zone.up for zone in zones), strict=True)]
    assert sum(up) / len(up) == pytest.approx(5.8, abs=0.3)
    assert up.count(0) / len(up) == pytest.approx(0.008, abs=0.003)
    arrivals = synthetic.arrivals()
    assert sum(arrivals) == pytest.approx(106_233 * 96 / 111, rel=0.15)
    peak = max(sum(arrivals[place : place + 6]) for place in range(0, len(arrivals), 6))
    assert peak == pytest.approx(447, rel=0.1)
    assert arrivals == synthetic.arrivals()


def test_an_unseen_scenario_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fault = {"kind": "refused", "configs": [1], "begin_minute": 5, "end_minute": 15}
    path = written(tmp_path / "mine.json", {"name": "mine", "hours": 0.4, "configs": 2, "faults": [fault]})
    assert main({"SCENARIO": str(path), "SEEDS": "2", "ONLY": "rfc191,slipway,oracle"}) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("| mine") for line in lines)
    assert [line.split()[1] for line in lines if line.startswith(("| rfc191 ", "| slipway", "| oracle"))] == [
        "rfc191",
        "slipway",
        "oracle",
    ]
    assert Scenario(name="mine") == Scenario(name="mine", hours=6.0)
