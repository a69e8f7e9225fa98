"""Strict parsing of slipway.yaml: every error has a path and a line, and a valid file is parsed as written."""

import json
from fractions import Fraction
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from slipway_common.declaration import fields, strict_yaml
from slipway_common.declaration.fields import Settings
from slipway_common.declaration.identity import Known, canonical_body, config_name
from slipway_common.declaration.models import Credential, Declaration, WorkerPool
from slipway_common.declaration.parsing import json_schema, load, parse
from slipway_common.declaration.scaling import scaled
from slipway_common.declaration.strict_yaml import Invalid, read, write

PARSERS = [strict_yaml.PARSER, strict_yaml.PythonParser]
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
      - {name: zone-a, account: sim-a, zone: zone-a, instance_type: m5, image: linux-1}
      - {account: sim-a, zone: zone-b, instance_type: m5, image: linux-1, settings: {idle_seconds: 60}}
""".lstrip()


def with_credential(depth: int) -> dict[str, Any]:
    """A chain of as many credentials."""
    chain: dict[str, Any] = {"name": "ci"}
    for _ in range(depth - 1):
        chain = {"role": "arn:aws:iam::1:role/x", "source": chain}
    return chain


@pytest.mark.parametrize(
    "credential",
    [
        {"name": "ci"},
        {"role": "r"},
        {"role": "r", "external_id": "ours"},
        {"role": "r", "external_id": "ours", "source": {"name": "ci"}},
        with_credential(5),
    ],
)
def test_a_credential_is_one_reference(credential: dict[str, Any]) -> None:
    assert Credential.model_validate(credential).model_dump(mode="json") == credential


EXACTLY_ONE = "write exactly one of name, role, not"


@pytest.mark.parametrize(
    ("credential", "words"),
    [
        ({}, f"{EXACTLY_ONE} none of them"),
        ({"name": "ci", "role": "r"}, f"{EXACTLY_ONE} name and role"),
        ({"external_id": "ours"}, f"{EXACTLY_ONE} none of them"),
        ({"name": "ci", "external_id": "ours"}, "external_id belongs to role, not to name"),
        ({"name": "ci", "source": {"name": "ci"}}, "source belongs to role, not to name"),
        ({"role": "r", "source": {"name": "ci", "external_id": "x"}}, "external_id belongs to role"),
        (with_credential(6), "has 6 credentials in a row; the maximum is 5"),
        ({"role": "r", "secret_access_key": "x"}, "secret_access_key"),
        *(
            ({kind: stated}, f"{kind} is stated by the operator; write it into credentials of the provider in SLIPWAY_")
            for kind, stated in {
                "environment": "SLIPWAY",
                "file": "/run/secrets/registration_key",
                "web_identity": {"role": "r", "token_file": "/proc/self/environ"},
            }.items()
        ),
        ({"role": "r", "source": {"file": "/proc/self/environ"}}, "file is stated by the operator"),
    ],
)
def test_a_credential_of_another_form_is_refused(credential: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Credential.model_validate(credential)
    assert words in str(refused.value)


def refused(text: str) -> list[tuple[int | None, str, str]]:
    with pytest.raises(Invalid) as caught:
        load(text)
    return [(problem.line, problem.path, problem.reason) for problem in caught.value.problems]


def pool_of(text: str) -> WorkerPool:
    (pool,) = load(text).worker_pools or ()
    return pool


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
    ("id: linux", "id: linux/../x", 7, "worker_pools[0].id", "letters, digits and inner . _ - in parts separated by /"),
    ("id: linux", "id: linux@1", 7, "worker_pools[0].id", "letters, digits and inner . _ - in parts separated by /"),
    ("id: linux", "id: " + "x" * 129, 7, "worker_pools[0].id", "at most 128"),
    ("zone: zone-a", "zone: zone a", 11, f"{CONFIGS}[0].zone", "without spaces"),
    ("provider: simulated", "provider: Simulated", 5, "accounts[0].provider", "is not the name of a provider"),
    *(
        ("credential: none", f"credential: {written}", 5, f"accounts[0].credential.{path}", reason)
        for written, path, reason in (
            ("{role: a b}", "role", '"a b" is not a valid name'),
            ("{name: a b}", "name", '"a b" is not a valid name'),
        )
    ),
    ("lease_pool: sim-a", "lease_pool: sim-b", 5, "accounts[0].lease_pool", "'sim-b' is declared; declared: sim-a"),
    ("{account: sim-a", "{account: sim-c", 12, f"{CONFIGS}[1].account", "no account 'sim-c' is declared"),
    ("{account", "{name: zone-a, account", 12, f"{CONFIGS}[1].name", "already used by worker_pools[0]"),
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
    ("version: 1", "version: 1\n<<: {}", 2, "<<", "merge keys are not YAML 1.2"),
    ("id: linux", "id: 7", 7, "worker_pools[0].id", "7 must be text: put it in quotes"),
    ("id: linux", "id: ~", 7, "worker_pools[0].id", "must be text, not null"),
    ("settings: {idle_seconds: 60}", "settings: []", 12, f"{CONFIGS}[1].settings", "must be a mapping, not a list"),
    ("hold_seconds: 1200", "operations: {a b: {}}", 3, "lease_pools[0].operations.a b", '"a b" is not a valid name'),
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
    ("version: 1\n---\nversion: 1", "has several documents, and may have one"),
    ("[" * 100_000, "nested deeper than"),
    ("a: &a [*a]", "contains itself"),
    ("a: *a", "undefined alias"),
    ("x" * 50_000_001, "characters"),
]


@pytest.mark.parametrize(("text", "reason"), BROKEN_TEXTS)
def test_text_without_a_value_is_rejected(text: str, reason: str) -> None:
    ((_, path, found),) = refused(text)
    assert path == ""
    assert reason in found


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("version: 1\nlease_pools:\n\t- id: a", "is not YAML: indent with spaces, not with tabs"),
        ("version: 1\n# fine\nlease_pools: \x07", "unacceptable character #x0007"),
        ("version: 1\n# fine\nlease_pools:", "lease_pools: is empty: write [] to remove what its owner declared"),
    ],
)
def test_a_slip_has_its_line(parser: Any, text: str, reason: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what to do; a section whose last entry was deleted is not silently left alone."""
    monkeypatch.setattr(strict_yaml, "PARSER", parser)
    ((line, path, found),) = refused(text)
    assert line == 3
    assert reason in ": ".join(filter(None, (path, found)))


@pytest.mark.parametrize("parser", PARSERS)
def test_aliases_cannot_grow_without_bound(parser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twelve lines that expand to 10^12 values are rejected at the limit, not expanded."""
    monkeypatch.setattr(strict_yaml, "PARSER", parser)
    levels = [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]" for n in range(1, 12)]
    ((line, _, reason),) = refused("\n".join(["a0: &a0 [x, x]", *levels]))
    assert (line, reason) == (6, "holds too many values after alias expansion")


def test_aliases_cannot_nest_without_bound() -> None:
    """A value that aliases make deeper than any text may be is refused like that text."""
    deep = "a: &a " + "[" * 20 + "]" * 20
    assert read(f"{deep}\nb: [*a]").value["b"] == [read(deep).value["a"]]
    ((line, _, reason),) = refused(f"{deep}\nb: &b [*a]\nc: {'[' * 20}*b{']' * 20}")
    assert (line, reason) == (3, "is nested deeper than 32")


def test_aliases_repeat_values_and_sections() -> None:
    text = SMALL.replace("settings: {idle_seconds: 60}", "settings: *common").replace(
        "credential: none", "credential: none, settings: &common {disk_gb: 40}"
    )
    assert pool_of(text).launch_configs[1].settings == {"disk_gb": 40}
    lists = "version: 1\nlease_pools: &pools\n  - {id: sim-a, limit: 24}\naccounts: *pools\n"
    assert {path for _, path, _ in refused(lists)} >= {"accounts[0].limit", "accounts[0].provider"}


def test_words_stay_strings() -> None:
    """YAML 1.1 booleans, dates, octals and base-60 numbers are strings, as in YAML 1.2."""
    text = "[no, on, y, 2026-01-05, 012, 12:30:45, 1_000, ~, true, 7, 1.5, 1e3, 0x1f]"
    words = ["no", "on", "y", "2026-01-05", "012", "12:30:45", "1_000"]
    assert read(text).value == [*words, None, True, 7, 1.5, 1000.0, 31]


ODD_TEXTS = [
    "no",
    "null",
    "~",
    "",
    "<<",
    "1e3",
    ".5",
    "0x1",
    "012",
    "2026-01-05",
    "- a",
    "a: b",
    "#",
    "\n",
    "\x85",
    "\ufeff",
]
TEXTS = st.one_of(
    st.sampled_from(ODD_TEXTS),
    st.text(st.characters(exclude_categories=["Cs"])),
    st.from_regex(r"[-+]?[0-9.]{1,4}([eExX][-+]?[0-9a-f]{1,3})?", fullmatch=True),
)
VALUES = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(allow_nan=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(TEXTS, inner, max_size=4)),
    max_leaves=12,
)


@given(VALUES)
def test_what_is_written_is_read_again(value: Any) -> None:
    """Texts that YAML 1.2, or a reader of YAML 1.1, takes for another type are quoted."""
    found = read(write({"a": value})).value["a"]
    assert (found, repr(found)) == (value, repr(value))


def test_all_problems_are_reported_at_once() -> None:
    found = refused((ROOT / "tests/data/broken.yaml").read_text())
    assert len(found) == 12
    assert [line for line, _, _ in found] == sorted(line for line, _, _ in found if line)


@pytest.mark.parametrize("parser", PARSERS)
def test_every_parser_finds_the_same(parser: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """With and without libyaml: the same values, and the same problems on the same lines."""
    expected = load(SMALL), refused((ROOT / "tests/data/broken.yaml").read_text())
    monkeypatch.setattr(strict_yaml, "PARSER", parser)
    assert (load(SMALL), refused((ROOT / "tests/data/broken.yaml").read_text())) == expected
    twice = "version: 1\nworker_pools:\n- id: linux\n  max_capacity: 1\n  max_capacity: 2\n  launch_configs: 7"
    assert refused(twice)[0] == (5, "worker_pools[0].max_capacity", "is given twice, first on line 4")


def test_many_problems_are_counted() -> None:
    """The first hundred problems have their lines; the others are counted."""
    pools = "".join(f"  - {{id: p{n}, limit: -1}}\n" for n in range(1_000))
    with pytest.raises(Invalid) as caught:
        load(f"version: 1\nlease_pools:\n{pools}")
    assert [problem.line for problem in caught.value.problems] == list(range(3, 103))
    assert caught.value.more == 900


def test_json_is_read_like_yaml() -> None:
    """A file in JSON, too, has no duplicate keys, and its problems have lines."""
    body = load(SMALL).model_dump(mode="json")
    text = json.dumps(body, indent=1)
    assert load(text) == load(SMALL)
    assert refused(text.replace('"limit": 24', '"limit": 24,\n"limit": 25')) == [
        (10, "lease_pools[0].limit", "is given twice, first on line 9")
    ]
    ((line, path, _),) = refused(text.replace('"limit": 24', '"limit": -1'))
    assert (line, path) == (9, "lease_pools[0].limit")


def patterns(schema: Any) -> set[str]:
    """Regular expressions of texts anywhere in a JSON Schema."""
    if isinstance(schema, dict):
        own = {value for name, value in schema.items() if name == "pattern" and isinstance(value, str)}
        return own.union(*map(patterns, schema.values()))
    return set().union(*map(patterns, schema)) if isinstance(schema, list) else set()


def test_every_pattern_comes_with_the_words_for_a_mismatch() -> None:
    """A bare `Field(pattern=…)` would answer with its regular expression, which tells nobody what to write."""
    with_words = {each.expression for each in vars(fields).values() if isinstance(each, fields.Pattern)}
    own_validator = {fields.RATIO_PATTERN, fields.MONEY_PATTERN}
    assert patterns(json_schema()) == with_words | own_validator


def test_example_is_sound_and_survives_json() -> None:
    declared = load(EXAMPLE)
    assert [config.name for config in pool_of(EXAMPLE).launch_configs] == [
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
    pool = pool_of(SMALL.replace('"0.07"', written))
    assert pool.scaling_ratio == Fraction(7, 100)
    assert pool.model_dump(mode="json")["scaling_ratio"] == "7/100"


def test_name_of_a_config_without_one_is_its_place() -> None:
    """The image and the settings may change under the same name; another place is another launch config."""
    pool = pool_of(SMALL)
    named, unnamed = pool.launch_configs
    assert config_name(pool, named) == "zone-a"
    assert config_name(pool, unnamed) == "linux/sim-a/zone-b/m5"
    assert config_name(pool, unnamed.model_copy(update={"image": "linux-2"})) == "linux/sim-a/zone-b/m5"
    places = SMALL.replace("zone: zone-b", 'zone: "b:1"')
    assert (
        refused(places)
        == [(12, f"{CONFIGS}[1]", "'linux/sim-a/b:1/m5', made of the config's place, is not a valid name; write one")]
        or refused(places)[0][1] == f"{CONFIGS}[1].name"
    )


def test_body_of_a_config() -> None:
    """Place, image, settings and region are the body, whose hash names the revision; weights and maximum are not."""
    config = pool_of(SMALL).launch_configs[1]
    body = canonical_body(config, "sim-1")
    tuned = {"name": "other", "base_weight": 3.0, "price_factor": 0.5, "max_capacity": 7, "profile": "spot"}
    assert canonical_body(config.model_copy(update=tuned), "sim-1") == body
    changes: list[dict[str, Any]] = [{"image": "linux-2"}, {"zone": "z"}, {"instance_type": "m6"}, {"settings": {}}]
    assert body not in [canonical_body(config.model_copy(update=change), "sim-1") for change in changes]
    assert canonical_body(config, "sim-2") != body


def test_references_are_checked_against_what_others_declared() -> None:
    """References to a section that is absent are checked if it is known what others have declared."""
    text = "version: 1\n" + SMALL[SMALL.index("worker_pools") :]
    assert load(text).accounts is None
    load(text, Known(accounts=frozenset({"sim-a"})))
    with pytest.raises(Invalid, match=r"no account 'sim-a' is declared; declared: other"):
        load(text, Known(accounts=frozenset({"other"})))


def test_profile_of_a_config() -> None:
    """A config's profile is its own or its pool's."""
    text = SMALL.replace("max_capacity: 120", "max_capacity: 120\n    profile: spot\n    evidence: {claim: queue}")
    pool = pool_of(text)
    assert (pool.profile, pool.evidence.boot, pool.evidence.claim) == ("spot", "register", "queue")
    assert (pool.on_bad_image, pool.freeze_after) == ("probe", 10)
    assert pool.launch_configs[1].profile is None


@given(st.floats(0.1, 1000))
def test_scaling_divides_durations_and_nothing_else(speed: float) -> None:
    declared = load(SMALL)
    fast = scaled(declared, speed)
    assert fast.lease_pools
    assert fast.worker_pools
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
    assert len([inner for error in validator.iter_errors(broken) for inner in error.context or ()]) >= 8


def _without_durations(declared: Declaration) -> str:
    seconds = {
        "hold_seconds",
        "ttl_seconds",
        "reserve_seconds",
        "max_interval_seconds",
        "ageing_seconds",
        "retry_after_max_seconds",
        "backoff",
    }
    configs = {"__all__": {"launch_configs": {"__all__": {"settings"}}}}
    return declared.model_dump_json(exclude={"lease_pools": {"__all__": seconds}, "worker_pools": configs})


@pytest.mark.parametrize(("depth", "valid"), [(32, True), (33, False)])
def test_depth_of_settings(depth: int, valid: bool) -> None:
    """Deeper ones could be stored, but not be read by all that show them."""
    settings: Any = 1
    for _ in range(depth):
        settings = {"a": settings}
    adapter: TypeAdapter[Any] = TypeAdapter(Settings)
    if valid:
        assert adapter.validate_python(settings) == settings
    else:
        with pytest.raises(ValidationError, match="is nested deeper than 32"):
            adapter.validate_python(settings)
