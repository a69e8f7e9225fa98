"""Laws of the cut of launches to the headroom of shared windows."""

from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.scopes import capacity_key, image_key, quota_key
from slipway_provisioner.domain import headroom, windows
from slipway_provisioner.domain.headroom import Launch
from slipway_provisioner.domain.pool import Config, Share, Shared, Stage

SHARES: Final[list[Share]] = [
    (image_key("one"), "boot"),
    (image_key("two"), "boot"),
    (quota_key("a", "r", "m5.large"), "launch"),
    (capacity_key("a", "r", "z", "m5.large"), "launch"),
]


def config(name: str, shares: list[Share], **changes: Any) -> Config:
    usual: dict[str, Any] = {
        "id": name,
        "name": name,
        "current_id": name,
        "account_id": "a",
        "lease_pool_id": "a",
        "image_revision": "one",
        "weight": 1.0,
        "prior_weight": 1.0,
        "shares": shares,
        "launch": Stage(window=64),
        "boot": Stage(window=64),
        "claim": Stage(window=64),
    }
    return Config(**(usual | changes))


LAUNCHES: Final = st.lists(
    st.builds(
        lambda name, shares, units, permit: Launch(
            config=config(f"c{name}", shares), units=1 if permit else units, permit=permit
        ),
        st.integers(0, 5),
        st.lists(st.sampled_from(SHARES), unique=True),
        st.integers(1, 40),
        st.one_of(st.none(), st.none(), st.integers(1, 9)),
    ),
    max_size=6,
)
WINDOWS: Final = st.fixed_dictionaries(
    {},
    optional={
        share: st.builds(
            lambda window, in_flight, unfolded, tripped, share=share: Shared(
                key=share[0], stage=share[1], window=window, in_flight=in_flight, unfolded=unfolded, tripped=tripped
            ),
            st.one_of(st.none(), st.integers(0, 64)),
            st.integers(0, 40),
            st.integers(0, 10),
            st.booleans(),
        )
        for share in SHARES
    },
)


def cut(launches: list[Launch], shared: dict[Share, Shared]) -> list[Launch]:
    return headroom.cut(launches, shared, calculator_unavailable=False)


def used(launches: list[Launch], share: Share) -> int:
    return sum(launch.units for launch in launches if share in launch.config.shares and launch.permit is None)


@given(LAUNCHES, WINDOWS)
def test_no_window_is_exceeded(launches: list[Launch], shared: dict[Share, Shared]) -> None:
    """But by probes, which start however full a window is. A tripped key lets nothing else through."""
    kept = cut(launches, shared)
    for share, room in windows.shared_rooms(shared, calculator_unavailable=False).items():
        assert used(kept, share) <= room
    for share, known in shared.items():
        assert not (known.tripped and used(kept, share))


@given(LAUNCHES, WINDOWS)
def test_launches_are_only_cut(launches: list[Launch], shared: dict[Share, Shared]) -> None:
    """None is added or moved to another config, probes stay, and cutting again changes nothing."""
    kept = cut(launches, shared)
    left = iter(launches)
    assert all(any(each.config == one.config and one.units <= each.units for each in left) for one in kept)
    assert [each for each in kept if each.permit] == [each for each in launches if each.permit]
    assert cut(kept, shared) == kept


@given(LAUNCHES, WINDOWS)
def test_nothing_is_cut_for_nothing(launches: list[Launch], shared: dict[Share, Shared]) -> None:
    """If all launches fit, all are made, and one that is cut has used up a window or has met a tripped key."""
    kept = cut(launches, shared)
    rooms = windows.shared_rooms(shared, calculator_unavailable=False)
    every = [share for launch in launches for share in launch.config.shares]
    if all(
        sum(each.units for each in launches if share in each.config.shares) <= rooms.get(share, 999) for share in every
    ):
        assert kept == launches or any(known.tripped for known in shared.values())
    for launch in launches:
        if used([launch], SHARES[0]) and launch not in kept:
            full = [share for share in launch.config.shares if share in rooms]
            spent = {share: sum(each.units for each in kept if share in each.config.shares) for share in full}
            tripped = windows.tripped_share(launch.config.shares, shared) is not None
            assert tripped or any(spent[share] >= rooms[share] for share in full)


def test_an_attempt_counts_starts_only() -> None:
    """While the calculator is unavailable, failures that it cannot fold stop no attempt; starts in flight do."""
    share = SHARES[0]
    attempt = [Launch(config=config("c", [share]), units=1, attempt=True)]
    for in_flight, made in ((3, attempt), (4, [])):
        known = Shared(key=share[0], stage=share[1], window=18, in_flight=in_flight, unfolded=18)
        assert headroom.cut(attempt, {share: known}, calculator_unavailable=True) == made


def test_keys_are_those_with_a_window() -> None:
    shared = {
        SHARES[0]: Shared(key=SHARES[0][0], stage="boot", window=3),
        SHARES[2]: Shared(key=SHARES[2][0], stage="launch"),
    }
    launches = [Launch(config=config("c", SHARES), units=1), Launch(config=config("d", SHARES[:1]), units=1)]
    assert headroom.keys(launches, shared) == [image_key("one").text]
