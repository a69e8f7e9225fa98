"""Versions of Terraform states: which may be saved over which."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_provisioner.domain.workspaces import (
    ABANDONED,
    LINEAGE_CHARACTERS_MAX,
    NEXT,
    SERIAL_MAX,
    NotAState,
    Operation,
    Phase,
    Version,
    addresses_of,
    empty_state,
    rejection,
    version_of,
)
from tests.support.workspaces import SECRET, state

versions = st.builds(Version, st.sampled_from(["ours", "foreign"]), st.integers(0, 4))


def test_the_version_of_a_state() -> None:
    assert version_of(empty_state("ours")) == Version("ours", 0)
    assert version_of(state(7, "ours", machine="i-1")) == Version("ours", 7)
    for largest in (Version("x", 0), Version("x" * LINEAGE_CHARACTERS_MAX, SERIAL_MAX)):
        content = {"version": 4, "serial": largest.serial, "lineage": largest.lineage}
        assert version_of(msgspec.json.encode(content)) == largest


def test_addresses_of_resources() -> None:
    """Those in the user's module, which is one of the root, without data."""

    def resource(module: str, instances: int, mode: str = "managed") -> dict[str, object]:
        return {"module": module, "mode": mode, "type": "thing", "name": "one", "instances": [{}] * instances}

    listed = [resource("module.worker", 1), resource("module.worker.module.inner", 2), resource("", 1, "data")]
    content = msgspec.json.encode(msgspec.json.decode(empty_state("ours")) | {"resources": listed})
    assert addresses_of(content) == ["thing.one", "module.inner.thing.one (2)"]
    bare = msgspec.json.encode({"version": 4, "serial": 0, "lineage": "ours"})
    assert addresses_of(bare) == addresses_of(empty_state("ours")) == []
    planned = {"resources": [{"mode": "managed", "type": "thing", "name": "one"}]}
    assert addresses_of(msgspec.json.encode(msgspec.json.decode(bare) | planned)) == ["thing.one"]


JSON, FORMAT, SERIAL = "it is not JSON", "its format is not 4", "it has no serial number"
LINEAGE = "it has no lineage of 1 to 100 printable characters"
BAD = {
    "text": (b"no json " + SECRET.encode(), JSON),
    "bytes": (b"\xff\xfe", JSON),
    "list": (b"[]", FORMAT),
    "format": (b'{"version": 3, "serial": 1, "lineage": "x"}', FORMAT),
    "lineage": (b'{"version": 4, "serial": 1, "lineage": ""}', LINEAGE),
    "unstorable": (b'{"version": 4, "serial": 1, "lineage": "a\\u0000"}', LINEAGE),
    "long": (msgspec.json.encode({"version": 4, "serial": 1, "lineage": "x" * 101}), LINEAGE),
    "serial": (b'{"version": 4, "serial": true, "lineage": "x"}', SERIAL),
    "negative": (b'{"version": 4, "serial": -1, "lineage": "x"}', SERIAL),
    "large": (b'{"version": 4, "serial": 9223372036854775808, "lineage": "x"}', SERIAL),
}


@pytest.mark.parametrize(("text", "problem"), BAD.values(), ids=BAD)
def test_what_is_no_state(text: bytes, problem: str) -> None:
    """The message contains nothing of it, since a state has secrets."""
    with pytest.raises(NotAState) as refused:
        version_of(text)
    assert str(refused.value) == problem


@given(versions, versions, versions)
def test_a_state_is_saved_over_the_one_that_its_run_began_with(stored: Version, base: Version, new: Version) -> None:
    """And over no other, of another lineage, or newer."""
    allowed = new.lineage == stored.lineage and stored == base and new.serial >= stored.serial
    assert (rejection(stored, base, new) == "") is allowed


@pytest.mark.parametrize(
    ("stored", "new", "reason"),
    [
        (None, Version("a", 3), "the workspace no longer has a state"),
        (Version("b", 2), Version("a", 3), "its lineage is a, that of the workspace is b"),
        (Version("a", 4), Version("a", 5), "the stored state has serial 4, and the run began with 2"),
        (Version("a", 2), Version("a", 1), "its serial is 1, and the stored state has 2"),
    ],
)
def test_a_rejection_says_what_differs(stored: Version | None, new: Version, reason: str) -> None:
    assert rejection(stored, Version("a", 2), new) == reason


def test_every_phase_but_the_last_has_a_next_run() -> None:
    assert NEXT.keys() == {*Phase} - {Phase.GONE}
    assert {*NEXT.values()} == {*Operation}


def test_an_abandoned_apply_is_never_repeated_at_once() -> None:
    assert ABANDONED.keys() == {*Phase}
    assert Operation.APPLY not in {NEXT[phase] for phase in ABANDONED.values() if phase in NEXT}
