"""Strict parsing of slipway.yaml: every error has a path and a line, and a valid file is parsed as written."""

from fractions import Fraction
from pathlib import Path

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.declaration.identity import config_id
from slipway_common.declaration.models import Declaration
from slipway_common.declaration.parsing import json_schema, load, parse
from slipway_common.declaration.scaling import scaled
from slipway_common.declaration.strict_yaml import VALUES_MAX, Invalid, read

ROOT = Path(__file__).parents[2]
EXAMPLE = (ROOT / "examples/slipway.yaml").read_text()
SMALL = """
version: 1
lease_pools:
  - {id: sim-a, limit: 24, hold_seconds: 1200}
accounts:
  - {id: sim-a, provider: simulated, region: sim-1, credential: none, identity: sim-a, lease_pool: sim-a}
worker_pools:
  - id: linux
    max_capacity: 120
    scaling_ratio: "0.07"
    launch_configs:
      - {id: zone-a, account: sim-a, zone: zone-a, instance_type: m5, image: linux-1}
      - {account: sim-a, zone: zone-b, instance_type: m5, image: linux-1, settings: {idle_seconds: 60}}
""".lstrip()


def refused(text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(Invalid) as caught:
        load(text)
    return [(problem.line, problem.path, problem.reason) for problem in caught.value.problems]


CONFIGS = "worker_pools[0].launch_configs"
CASES = [
    # original text, replacement; line, path and reason of the single problem
    ("limit: 24", "limit: -1", 3, "lease_pools[0].limit", "must be greater than or equal to 0"),
    ("limit: 24", "limit: 1" + "0" * 100, 3, "lease_pools[0].limit", "must be less than or equal to"),
    ("limit: 24", "limit: true", 3, "lease_pools[0].limit", "must be a valid integer"),
    ("limit: 24", "limit: '24'", 3, "lease_pools[0].limit", "must be a valid integer"),
    (", limit: 24", "", 3, "lease_pools[0].limit", "is missing"),
    ("hold_seconds: 1200", "hold_second: 1200", 3, "lease_pools[0].hold_second", "known: id, limit, mode"),
    ("hold_seconds: 1200", "hold_seconds: .nan", 3, "lease_pools[0].hold_seconds", "must be a finite number"),
    *(
        ("hold_seconds: 1200", written, 3, f"lease_pools[0]{path}", reason)
        for written, path, reason in (
            ("pacing: fast", ".pacing", "\"fast\": must be 'off'"),
            ("pacing: {interval_seconds: 1, brust: 3}", ".pacing.brust", "known: interval_seconds, burst"),
            ("operations: {destroy: {weigth: 2}}", ".operations.destroy.weigth", "known: weight, reserved_units"),
            (
                "operations: {weight: {weight: -1}}",
                ".operations.weight.weight",
                "-1: must be greater than or equal to 0",
            ),
            ("tenants: {x: 0}", ".tenants.x", "0: must be greater than 0"),
            ("backoff: {seconds: 9, max_seconds: 3}", ".backoff", "seconds 9 is above max_seconds 3"),
            ("adaptive: {floor: 3, ceiling: 2}", ".adaptive", "floor 3 is above ceiling 2"),
            ("adaptive: {floor: 3, ceiling: 5}, derived: {per_unit: 2}", "", "declare only one"),
            ("operations: {a: {reserved_units: 25}}", "", "25, exceed limit 24"),
        )
    ),
    ("hold_seconds: 1200", "hold_seconds: 60", 3, "lease_pools[0]", "ttl_seconds 300 is above hold_seconds 60"),
    ("id: linux", "id: Linux_1", 7, "worker_pools[0].id", "lower-case letters, digits and inner hyphens"),
    ("id: linux", "id: " + "x" * 64, 7, "worker_pools[0].id", "at most 63"),
    ("zone: zone-a", "zone: zone a", 11, f"{CONFIGS}[0].zone", "without spaces"),
    ("lease_pool: sim-a", "lease_pool: sim-b", 5, "accounts[0].lease_pool", "'sim-b' is declared; declared: sim-a"),
    ("{account: sim-a", "{account: sim-c", 12, f"{CONFIGS}[1].account", "no account 'sim-c' is declared"),
    ("{account", "{id: zone-a, account", 12, f"{CONFIGS}[1].id", "already used by worker_pools[0]"),
    ("max_capacity: 120", "max_capacity: 1\n    min_capacity: 2", 7, "worker_pools[0]", "min_capacity 2 is above"),
    ("max_capacity: 120", "max_capacity: 1\n    max_capacity: 1", 9, "worker_pools[0].max_capacity", "first on line 8"),
    (
        "max_capacity: 120",
        "max_capacity: 120\n    evidence: {boots: register}",
        9,
        "worker_pools[0].evidence.boots",
        "known: boot, claim",
    ),
    ("max_capacity: 120", "max_capacity: 120\n    evidence: hook", 9, "worker_pools[0].evidence", "must be a mapping"),
    (
        "max_capacity: 120",
        "max_capacity: 120\n    evidence: {claim: 1}",
        9,
        "worker_pools[0].evidence.claim",
        "must be 'hook', 'queue' or 'none'",
    ),
    ("max_capacity: 120", "max_capacity: 120\n    freeze_after: 0", 9, "worker_pools[0].freeze_after", "or equal to 1"),
    ("zone: zone-a", "zone: zone-a, profile: fast", 11, f"{CONFIGS}[0].profile", "must be 'on-demand', 'spot' or"),
    ("idle_seconds: 60", "idle_seconds: .inf", 12, f"{CONFIGS}[1].settings", "must be a finite number"),
    ("idle_seconds: 60", 'idle_seconds: "\\0"', 12, f"{CONFIGS}[1].settings", "cannot be stored"),
    ("idle_seconds: 60", f"text: {'x' * 17_000}", 12, f"{CONFIGS}[1].settings", "the maximum is 16,384"),
    ('"0.07"', "1/0", 9, "worker_pools[0].scaling_ratio", "not an exact ratio"),
    ('"0.07"', "1e9999999", 9, "worker_pools[0].scaling_ratio", "not an exact ratio"),
    ('"0.07"', '"-1"', 9, "worker_pools[0].scaling_ratio", "not an exact ratio"),
    ("version: 1", "version: 2", 1, "version", "must be 1"),
    ("version: 1", "version: !!python/name:os.system", 1, "version", "not supported"),
    ("version: 1", "1: 1\nversion: 1", 1, "", "a key must be text"),
]


@pytest.mark.parametrize(("old", "new", "line", "path", "reason"), CASES)
def test_one_mistake_is_one_problem(old: str, new: str, line: int, path: str, reason: str) -> None:
    assert old in SMALL
    ((found_line, found_path, found_reason),) = refused(SMALL.replace(old, new, 1))
    assert (found_line, found_path) == (line, path)
    assert reason in found_reason


BROKEN_TEXTS = [
    ("", "is empty"),
    ("- 1", "must be a mapping with fields"),
    ("[1", "is not YAML"),
    ("a: \x01", "is not YAML"),
    ("version: 1\n---\nversion: 1", "single document"),
    ("[" * 100_000, "nested deeper than"),
    ("a: &a [*a]", "levels after alias expansion"),
    ("x" * 1_000_001, "characters"),
]


@pytest.mark.parametrize(("text", "reason"), BROKEN_TEXTS)
def test_text_without_a_value_is_rejected(text: str, reason: str) -> None:
    ((_, path, found),) = refused(text)
    assert path == ""
    assert reason in found


def test_aliases_cannot_grow_without_bound() -> None:
    """Twelve lines that expand to 10^12 values are rejected at the limit, not expanded."""
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    ((_, _, reason),) = refused("\n".join(["a0: &a0 [x, x]", *levels]))
    assert f"{VALUES_MAX:,} values" in reason


def test_words_stay_strings() -> None:
    """YAML 1.1 booleans, dates, octals and base-60 numbers are strings, as in YAML 1.2."""
    text = "[no, on, y, 2026-01-05, 012, 12:30:45, 1_000, ~, true, 7, 1.5, 1e3, 0x1f]"
    words = ["no", "on", "y", "2026-01-05", "012", "12:30:45", "1_000"]
    assert read(text).value == [*words, None, True, 7, 1.5, 1000.0, 31]


def test_all_problems_are_reported_at_once() -> None:
    found = refused((ROOT / "tests/data/broken.yaml").read_text())
    assert len(found) == 12
    assert [line for line, _, _ in found] == sorted(line for line, _, _ in found if line)


def test_example_is_sound_and_survives_json() -> None:
    declared = load(EXAMPLE)
    assert [config.id for config in declared.worker_pools[0].launch_configs] == [
        "linux-zone-a",
        "linux-zone-b",
        "linux-zone-c",
    ]
    assert parse(declared.model_dump(mode="json")) == declared


def test_json_body_is_checked_like_the_file() -> None:
    body = load(SMALL).model_dump(mode="json")
    body["accounts"][0]["lease_pool"] = "nowhere"
    with pytest.raises(Invalid) as caught:
        parse(body)
    assert [(p.path, p.line) for p in caught.value.problems] == [("accounts[0].lease_pool", None)]


@pytest.mark.parametrize("body", [None, [], 5, "x", {}, {"version": 1, "accounts": {}}])
def test_any_json_body_is_answered(body: object) -> None:
    with pytest.raises(Invalid):
        parse(body)


def test_nesting_of_settings_is_limited() -> None:
    body = load(SMALL).model_dump(mode="json")
    inner = body["accounts"][0]["settings"]
    for _ in range(5_000):
        inner["a"] = {}
        inner = inner["a"]
    with pytest.raises(Invalid) as caught:
        parse(body)
    assert [problem.path for problem in caught.value.problems] == ["accounts[0].settings"]


@pytest.mark.parametrize("written", ["0.07", '"0.07"', '"7/100"', '"0.070"'])
def test_scaling_ratio_is_exact(written: str) -> None:
    pool = load(SMALL.replace('"0.07"', written)).worker_pools[0]
    assert pool.scaling_ratio == Fraction(7, 100)
    assert pool.model_dump(mode="json")["scaling_ratio"] == "7/100"


def test_config_id_depends_on_the_body_alone() -> None:
    """Changing a config's weight keeps its ID, and so its history; another body is another config."""
    pool = load(SMALL).worker_pools[0]
    named, unnamed = pool.launch_configs
    assert config_id(pool, named) == "zone-a"
    made = config_id(pool, unnamed)
    assert made.startswith("linux-")
    assert made == config_id(pool, unnamed.model_copy(update={"base_weight": 3.0, "price_factor": 0.5}))
    assert made != config_id(pool, unnamed.model_copy(update={"image": "linux-2"}))
    assert made != config_id(pool.model_copy(update={"id": "other"}), unnamed)


def test_profile_of_a_config() -> None:
    """A config's profile is its own or its pool's; a change of the profile keeps its ID."""
    text = SMALL.replace("max_capacity: 120", "max_capacity: 120\n    profile: spot\n    evidence: {claim: queue}")
    pool = load(text).worker_pools[0]
    assert (pool.profile, pool.evidence.boot, pool.evidence.claim) == ("spot", "register", "queue")
    assert (pool.on_bad_image, pool.freeze_after) == ("probe", 10)
    unnamed = pool.launch_configs[1]
    assert unnamed.profile is None
    assert config_id(pool, unnamed) == config_id(pool, unnamed.model_copy(update={"profile": "bare-metal"}))


@given(st.floats(0.1, 1000))
def test_scaling_divides_durations_and_nothing_else(speed: float) -> None:
    declared = load(SMALL)
    fast = scaled(declared, speed)
    lease_pool, config = fast.lease_pools[0], fast.worker_pools[0].launch_configs[1]
    assert (lease_pool.hold_seconds, lease_pool.ttl_seconds, lease_pool.reserve_seconds, config.settings) == (
        1200 / speed,
        300 / speed,
        180 / speed,
        {"idle_seconds": 60 / speed},
    )
    assert _without_durations(fast) == _without_durations(declared)


def test_schema_accepts_the_example_and_refuses_the_broken_file() -> None:
    validator = jsonschema.Draft202012Validator(json_schema())
    validator.check_schema(json_schema())
    assert not list(validator.iter_errors(yaml.safe_load(EXAMPLE)))
    broken = yaml.safe_load((ROOT / "tests/data/broken.yaml").read_text())
    assert len(list(validator.iter_errors(broken))) >= 8


def _without_durations(declared: Declaration) -> str:
    seconds = {"hold_seconds", "ttl_seconds", "reserve_seconds", "ageing_seconds", "backoff"}
    configs = {"__all__": {"launch_configs": {"__all__": {"settings"}}}}
    return declared.model_dump_json(exclude={"lease_pools": {"__all__": seconds}, "worker_pools": configs})
