"""Shares of sources in the pauses of a pool."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from slipway_api.events.alert import AlertRaised, AlertResolved
from slipway_common.base.signal_rules import Rules, Source, over_share, share_holder
from slipway_provisioner.domain.pauses import Pausable, RefusedPause, by_signal, raised, resolved, share_problem

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LATER = NOW + timedelta(seconds=60)
RULES = Rules(sources={"named": Source(max_share=0.5)}, unnamed=Source(max_share=0.5))


def config(name: str, **fields: Any) -> Pausable:
    usual: dict[str, Any] = {"pool_id": "p", "declared": True, "paused": False, "paused_by": "", "paused_until": None}
    return Pausable(name=name, **usual | fields)


def pool(*others: Pausable) -> dict[str, Pausable]:
    """Launch configs a, b, c and d of one pool, with some of them replaced and others added."""
    return {one.name: one for one in (*map(config, "abcd"), *others)}


def paused(name: str, by: str, until: datetime | None = LATER) -> Pausable:
    return config(name, paused=True, paused_by=by, paused_until=until)


@pytest.mark.parametrize(
    ("source", "others", "count"),
    [
        ("one", [], 0),
        ("one", [paused("b", "signal:one")], 0),
        ("one", [paused("a", "signal:one"), paused("b", "signal:one")], 0),
        ("one", [paused("b", "signal:one"), paused("c", "signal:one")], 3),
        ("one", [paused("b", "signal:two"), paused("c", "signal:three")], 3),
        ("one", [paused("b", "signal:two"), paused("c", "signal:named")], 0),
        ("named", [paused("b", "signal:two"), paused("c", "signal:three")], 0),
        ("named", [paused("b", "signal:named"), paused("c", "signal:named")], 3),
        ("one", [paused("b", "one", None), paused("c", "one"), paused("d", "signal:one")], 0),
        ("one", [paused("b", "signal:one"), paused("c", "signal:one", NOW)], 0),
        ("one", [paused("b", "signal:one"), config("c", paused_by="signal:one", paused_until=LATER)], 0),
    ],
)
def test_pauses_that_count_against_a_source(source: str, others: list[Pausable], count: int) -> None:
    """Half of a pool of four may be paused. Config a, which is requested, counts once."""
    expected = f"{source!r} would pause {count} of 4 launch configs of pool 'p'; at most 50%" if count else ""
    assert share_problem(source, "a", pool(*others), NOW, RULES) == expected


def test_a_named_source_has_its_own_share() -> None:
    rules = Rules(sources={"named": Source(max_share=0.75)}, unnamed=Source(max_share=0.25))
    configs = pool(paused("b", "signal:named"), paused("c", "signal:named"))
    assert share_problem("named", "a", configs, NOW, rules) == ""
    assert "at most 25%" in share_problem("one", "a", pool(paused("b", "signal:one")), NOW, rules)


def test_only_declared_launch_configs_of_the_pool_count() -> None:
    """Neither those of another pool, nor those that were removed."""
    elsewhere = [config(name, pool_id="q") for name in "efgh"]
    removed = [config(name, declared=False) for name in "ijkl"]
    configs = pool(paused("b", "signal:one"), paused("c", "signal:one"), *elsewhere, *removed)
    assert share_problem("one", "a", configs, NOW, RULES) == (
        "'one' would pause 3 of 4 launch configs of pool 'p'; at most 50%"
    )
    assert share_problem("one", "e", configs, NOW, RULES) == ""


@pytest.mark.parametrize(
    ("max_share", "count", "total", "allowed"),
    [
        (0.5, 1, 1, False),
        (0.5, 1, 2, True),
        (0.5, 2, 3, False),
        (1, 7, 7, True),
        (0, 0, 5, True),
        (0, 0, 0, True),
        (0, 1, 100, False),
        (0.29, 29, 100, True),  # 0.29 * 100 is less than 29 in binary
        (0.29, 30, 100, False),
    ],
)
def test_a_share_is_exact(max_share: float, count: int, total: int, allowed: bool) -> None:
    rules = Rules(sources={"named": Source(max_share=max_share)}, unnamed=None)
    assert (over_share("named", rules, count=count, total=total, of="x") == "") is allowed
    assert (over_share("other", rules, count=count, total=total, of="x") == "") is (count == 0)


def test_holders_of_shares() -> None:
    assert [share_holder(name, RULES) for name in ("named", "other", "")] == ["named", "", ""]


def test_the_alert_of_a_holder_has_one_key() -> None:
    """All unnamed sources have one together. Names that a shell would take apart are quoted in the command."""
    keys = []
    for holder in ("named", ""):
        refused = RefusedPause(pool_id="p", holder=holder, name="a b", reason="why", until=LATER)
        assert raised(refused).dedup_key == resolved("p", holder).dedup_key
        assert raised(refused).command.startswith("slipway lc pause 'a b' ")
        keys.append(raised(refused).dedup_key)
    assert keys == ["provisioner/pause-refused/p/named", "provisioner/pause-refused/p"]
    assert by_signal("named") == "signal:named"


@pytest.mark.parametrize(("holder", "who"), [("named", "of source named"), ("", "of unnamed sources")])
def test_the_alert_says_what_was_refused_and_until_when(holder: str, who: str) -> None:
    refused = RefusedPause(pool_id="p", holder=holder, name="a", reason="'one' would pause 3 of 4", until=LATER)
    alert, ended = raised(refused), resolved("p", holder)
    assert alert == AlertRaised(
        dedup_key=alert.dedup_key,
        subject_kind="pool",
        subject_id="p",
        kind="pause-refused",
        summary="pause of launch config a was refused: source 'one' would pause 3 of 4",
        effect="the request has changed nothing; earlier pauses of the source last until their end",
        doing="refuses its requests beyond the share; resolves this alert when the refused pauses would have ended",
        command="slipway lc pause a --reason …  # if it must be paused",
        cause="the source is wrong, or its max_share in SLIPWAY_SIGNAL_SOURCES_FILE is too low for this pool",
        severity="notice",
    )
    assert ended == AlertResolved(
        **alert.identity,
        summary=f"the pauses of pool p that were refused, {who}, would have ended",
        severity="notice",
    )
