"""Check 17: equal specifications share, different ones never."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_terraform.domain.errors import SpecInvalid
from slipway_terraform.domain.handle import handle_of
from slipway_terraform.domain.specs import Mode
from slipway_terraform.scheduler.shared import SharedScheduler
from tests.support import virtual_time
from tests.support.plugin_world import World, spec

KEY = b"key"
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=2), inner, max_size=3),
    max_leaves=6,
)


def handle(**fields: Any) -> str:
    return handle_of(spec("a", **fields), key=KEY)


@pytest.mark.parametrize(
    "fields",
    [
        {"source": "registry.example/y/a"},
        {"version": "2"},
        {"digest": "e"},
        {"arguments": ("x",)},
        {"mode": Mode.DEBUG},
        {"environment": {"A": "1"}},
        {"tenant": "other"},
        {"configuration": {"name": "b"}},
    ],
)
def test_each_field_separates(fields: dict[str, Any]) -> None:
    assert handle(**fields) != handle()


def test_order_and_path_do_not() -> None:
    assert handle(configuration={"a": 1, "b": {"c": 2, "d": 3}}) == handle(
        configuration={"b": {"d": 3, "c": 2}, "a": 1}
    )
    assert handle(binary="/elsewhere") == handle()


@given(VALUES, VALUES)
def test_configurations_share_only_if_equal(one: Any, other: Any) -> None:
    """Equal as JSON: true is not 1."""
    same = repr(_ordered(one)) == repr(_ordered(other))
    assert (handle(configuration={"x": one}) == handle(configuration={"x": other})) is same


def test_known_collisions() -> None:
    assert handle(configuration={"x": ["a,b"]}) != handle(configuration={"x": ["a", "b"]})
    assert handle(configuration={"x": {"y": 1}}) != handle(configuration={"x.y": 1})
    assert handle(configuration={"x": None}) != handle(configuration={})
    assert handle_of(spec("a"), key=b"other") != handle()


def test_no_json() -> None:
    with pytest.raises(SpecInvalid, match=r"the configuration of registry.example/x/a is not JSON"):
        handle(configuration={"x": object()})
    with pytest.raises(SpecInvalid, match="is not JSON"):
        handle(configuration={"x": float("nan")})


def test_processes_share_so() -> None:
    async def processes() -> None:
        import random

        world = World(random.Random(1))
        scheduler = SharedScheduler(world)
        leases = [
            await scheduler.acquire([spec("a", configuration=configuration)], owner=f"{number}", deadline=100.0)
            for number, configuration in enumerate(
                [{"name": "a", "x": ["a,b"]}, {"x": ["a,b"], "name": "a"}, {"name": "a", "x": ["a", "b"]}]
            )
        ]
        first, same, other = (lease.env["TF_REATTACH_PROVIDERS"] for lease in leases)
        assert first == same != other
        for lease in leases:
            lease.release()
        await scheduler.aclose(0)
        assert world.broken == []

    virtual_time.run(processes())


def _ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _ordered(value[key]) for key in sorted(value)}
    return [_ordered(each) for each in value] if isinstance(value, list) else value
