"""Alerts: each raised once and resolved once, one page per cause, and no secrets."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_api.events.alert import Alert, AlertRaised, AlertResolved
from slipway_api.events.scopes import Key, config_key
from slipway_api.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerClaimed,
    WorkerRegistered,
)
from slipway_common.base.text import duration_text
from slipway_weight_calculator.domain import alerts
from slipway_weight_calculator.domain.alerts import NOTICE, PAGE
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.world import World
from tests.support.alerted import CONFIGS, Alerted
from tests.support.worlds import capacity, known_boots

PAGES = ("image-tripped", "quota-exhausted", "credential-failing")


@pytest.fixture
def alerted() -> Alerted:
    alerted = Alerted()
    alerted.declare()
    return alerted


def test_a_config_that_trips_and_recovers(alerted: Alerted) -> None:
    """A notice with all its fields; then its resolution, and a notice of the recovery, which ends by time."""
    assert alerted.commit(*(alerted.refused(Scope.CONFIG) for _ in range(4))) == []
    (raised,) = alerted.commit(alerted.refused(Scope.CONFIG))
    assert isinstance(raised, AlertRaised)
    assert raised == AlertRaised(
        dedup_key="weight-calculator/config-tripped/config/zone-a",
        subject_kind="config",
        subject_id="zone-a",
        kind="config-tripped",
        summary="zone-a tripped at launch: 5 config errors (config-code)",
        effect="pending tasks of linux get workers from 2 of 3 launch configs",
        doing="launches from the pool's other configs; probes with one start at a time at growing intervals, and "
        "resumes launches after the first success",
        command="slipway lc show zone-a",
        since=datetime.fromtimestamp(alerted.now, UTC),
        cause="launch: 5 config errors (config-code)",
        severity=NOTICE,
        evidence=("worker w-1", "worker w-2", "worker w-3", "worker w-4", "worker w-5"),
    )
    assert alerted.commit(alerted.refused(Scope.CONFIG)) == []
    permit = alerted.permit("zone-a")
    resolved, recovered = alerted.commit(alerted.launched(probe_permit=permit))
    assert isinstance(resolved, AlertResolved)
    assert (resolved.dedup_key, resolved.summary) == (raised.dedup_key, "zone-a recovered")
    assert (resolved.since, resolved.cause, resolved.severity) == (raised.since, raised.cause, NOTICE)
    assert raised.since is not None
    down_seconds = round(alerted.now - raised.since.timestamp())
    assert recovered == AlertRaised(
        dedup_key="weight-calculator/recovered/config/zone-a",
        subject_kind="config",
        subject_id="zone-a",
        kind="recovered",
        summary=f"zone-a recovered after {duration_text(down_seconds)}",
        effect="pending tasks of linux get workers from 3 of 3 launch configs",
        doing="allows more starts with each success, and probes configs that tripped at the same time",
        command="slipway lc show zone-a",
        since=datetime.fromtimestamp(alerted.now, UTC),
        cause="launch: a start succeeded after 5 config errors (config-code)",
        severity=NOTICE,
    )
    assert alerted.commit(seconds=1790) == []
    (over,) = alerted.commit(seconds=10)
    assert (type(over), over.summary) == (AlertResolved, "zone-a has stayed healthy")
    assert alerted.open == {}


@pytest.mark.parametrize("seconds", [1, 1800])
def test_a_recovery_that_does_not_last(alerted: Alerted, seconds: float) -> None:
    alerted.commit(alerted.refused(), alerted.refused())
    alerted.commit(alerted.launched(probe_permit=alerted.permit("zone-a")))
    assert alerted.kinds() == [f"recovered/{capacity('zone-a').text}"]
    alerted.commit(alerted.refused(), alerted.refused(), seconds=seconds)
    assert alerted.kinds() == [f"capacity-unavailable/{capacity('zone-a').text}"]
    assert [type(alert) for alert in alerted.all if alert.kind == "recovered"] == [AlertRaised, AlertResolved]


@pytest.mark.parametrize("stage", [Stage.BOOT, Stage.CLAIM])
def test_a_config_that_trips_after_its_launches(alerted: Alerted, stage: Stage) -> None:
    (raised,) = alerted.commit(*(alerted.failed(stage) for _ in range(5)))
    assert (raised.kind, raised.cause) == ("config-tripped", f"{stage.value}: 5 config errors (user-data)")


def test_a_row_that_trips_again_in_the_same_commit_has_not_recovered(alerted: Alerted) -> None:
    alerted.commit(alerted.refused(), alerted.refused())
    permit = alerted.permit("zone-a")
    assert alerted.commit(alerted.launched(probe_permit=permit), alerted.refused(), alerted.refused()) == []


def test_a_recovery_ends_once_nothing_uses_what_has_recovered(alerted: Alerted) -> None:
    """Its policy is unknown then."""
    alerted.commit(alerted.refused(), alerted.refused())
    alerted.commit(alerted.launched(probe_permit=alerted.permit("zone-a")))
    alerted.declare("zone-a", instance_type="m6.large", revision=2)
    assert alerted.open == {}


def test_one_notice_for_a_shortage_of_capacity() -> None:
    """In four pools of two accounts: it resolves by itself, and is not repeated for each config."""
    alerted, shared = Alerted(), "sim-1/z1/m5.large/spot"
    for pool in range(4):
        fields = {"pool_id": f"pool-{pool}", "account_id": f"acc-{pool % 2}", "capacity_key": shared}
        alerted.declare(*(f"c-{pool}-{n}" for n in range(10)), **fields)
        alerted.declare(f"od-{pool}", pool_id=f"pool-{pool}", account_id=f"acc-{pool % 2}")
    alerted.commit(alerted.refused(config_id="c-0-0"))
    (raised,) = alerted.commit(alerted.refused(config_id="c-3-9"))
    assert isinstance(raised, AlertRaised)
    assert (raised.kind, raised.severity, raised.subject_kind, raised.subject_id) == (
        "capacity-unavailable",
        NOTICE,
        "capacity",
        shared,
    )
    assert raised.summary == f"capacity {shared} is unavailable: 2 capacity errors (capacity-code)"
    assert raised.effect.startswith("pending tasks of pool-0 get workers from 1 of 11 launch configs; ")
    assert raised.doing.startswith("launches from other capacity; probes with one start at a time")
    ready = [id_ for id_ in alerted.world.configs if _permitted(alerted, id_)]
    assert ready == []
    alerted.commit(seconds=20)
    (ready_id,) = [id_ for id_ in alerted.world.configs if _permitted(alerted, id_)]
    permit = alerted.world.rows[config_key(ready_id)].permit
    resolved, recovered = alerted.commit(alerted.launched(ready_id, probe_permit=permit))
    assert (type(resolved), resolved.summary) == (AlertResolved, f"capacity {shared} recovered")
    assert (recovered.kind, recovered.subject_id) == ("recovered", shared)


def _permitted(alerted: Alerted, config_id: str) -> bool:
    return alerted.world.rows[config_key(config_id)].ready


@pytest.mark.parametrize("scope", [Scope.CREDENTIAL, Scope.QUOTA])
def test_one_page_for_a_trip_of_forty_configs(scope: Scope) -> None:
    """In four pools of one account: the pools raise notices that name the cause, the configs raise none."""
    alerted = Alerted()
    for pool in range(4):
        alerted.declare(*(f"c-{pool}-{n}" for n in range(10)), pool_id=f"pool-{pool}")
    alerted.commit(alerted.refused(scope, "c-0-0"))
    raised = alerted.commit(alerted.refused(scope, "c-3-9"))
    pages = [alert for alert in raised if alert.severity == PAGE]
    assert len(pages) == 1
    page = pages[0]
    assert isinstance(page, AlertRaised)
    assert page.kind == {Scope.CREDENTIAL: "credential-failing", Scope.QUOTA: "quota-exhausted"}[scope]
    assert page.command == "slipway account check sim-a"
    assert "pending tasks of pool-0 get workers from probes only" in page.effect
    assert [alert.kind for alert in raised if alert.severity == NOTICE] == ["pool-tripped"] * 4
    assert all(page.subject_id in alert.cause for alert in raised if alert.severity == NOTICE)
    # Further failures raise no other page.
    alerted.commit(*(alerted.refused(scope, config_id) for config_id in alerted.world.configs))
    alerted.commit(seconds=3000)
    assert [alert for alert in alerted.all if alert.severity == PAGE] == [page]
    for config_id in alerted.world.configs:
        if alerted.world.rows[config_key(config_id)].ready:
            alerted.commit(alerted.launched(config_id, probe_permit=alerted.world.rows[config_key(config_id)].permit))
    assert alerted.kinds(PAGE) == []
    assert alerted.kinds() == [f"recovered/{Key(page.subject_kind, page.subject_id).text}"]


def test_a_pool_tripped_by_its_own_failures_is_a_page(alerted: Alerted) -> None:
    for config_id in CONFIGS:
        alerted.commit(alerted.refused(config_id=config_id), alerted.refused(config_id=config_id))
    pages = [alert for alert in alerted.all if alert.severity == PAGE]
    assert len(pages) == 1
    page = pages[0]
    assert (page.dedup_key, page.subject_id) == ("weight-calculator/pool-tripped/pool/linux", "linux")
    cause = ", ".join(str(capacity(config_id)) for config_id in CONFIGS)
    assert page == AlertRaised(
        dedup_key=page.dedup_key,
        subject_kind="pool",
        subject_id="linux",
        kind="pool-tripped",
        summary=f"every launch config of linux is tripped: {cause}",
        effect="pending tasks of linux get workers from probes only",
        doing="continues with probes, one every 30 s for the whole pool where launches fail",
        command="slipway why linux",
        since=datetime.fromtimestamp(alerted.now, UTC),
        cause=cause,
        severity=PAGE,
    )
    alerted.commit(alerted.launched("zone-b", probe_permit=alerted.permit("zone-b")))
    assert "pool-tripped/pool/linux" not in alerted.kinds()


def test_a_pool_is_judged_by_the_configs_that_it_has_left(alerted: Alerted) -> None:
    """A config that moves leaves one pool tripped as a whole, and joins another that is."""
    for config_id in ("zone-a", "zone-b"):
        alerted.commit(*(alerted.refused(Scope.CONFIG, config_id) for _ in range(5)))
    alerted.declare("zone-c", pool_id="other", revision=2)
    assert alerted.kinds(PAGE) == ["pool-tripped/pool/linux"]
    alerted.declare("zone-a", pool_id="lone", revision=2)
    assert alerted.kinds(PAGE) == ["pool-tripped/pool/linux", "pool-tripped/pool/lone"]


def test_a_page_explains_its_pool_as_long_as_it_is_open(alerted: Alerted) -> None:
    """Also in a commit that changes only a signal on one of its configs."""
    alerted.commit(alerted.refused(Scope.CREDENTIAL), alerted.refused(Scope.CREDENTIAL))
    assert alerted.kinds(PAGE) == ["credential-failing/credential/sim-a"]
    alerted.commit(alerted.down("zone-a"))
    assert alerted.kinds(PAGE) == ["credential-failing/credential/sim-a"]


def test_a_notice_becomes_a_page_once_its_cause_is_gone() -> None:
    """The credential works again, but the pool is still tripped by its own failures."""
    alerted = Alerted()
    alerted.declare("zone-a")
    alerted.declare("other", pool_id="other")
    alerted.commit(alerted.refused(Scope.CREDENTIAL), alerted.refused(Scope.CREDENTIAL))
    assert alerted.kinds(PAGE) == ["credential-failing/credential/sim-a"]
    alerted.commit(alerted.refused(), alerted.refused())
    alerted.commit(alerted.launched("other", probe_permit=alerted.permit("other")))
    assert alerted.kinds(PAGE) == ["pool-tripped/pool/linux"]
    assert [
        alert.severity for alert in alerted.all if alert.kind == "pool-tripped" and alert.subject_id == "linux"
    ] == [
        NOTICE,
        PAGE,
    ]


def test_a_bad_image_is_one_page_with_evidence(alerted: Alerted) -> None:
    """The failures of all configs raise one page, with the console logs of the machines."""
    for config_id in ("zone-a", "zone-b", "zone-a", "zone-c", "zone-a"):
        alerted.commit(alerted.dead_boot(config_id))
    assert alerted.kinds(PAGE) == ["image-tripped/image/linux-1"]
    page = alerted.open["weight-calculator/image-tripped/image/linux-1"]
    assert page.summary == "image linux-1 fails to start: 5 image errors (boot_timeout)"
    assert page.evidence[0] == "worker w-1, instance i-7, console http://cloud/i-7/console"
    assert len(page.evidence) == 5
    assert page.command == "slipway why image/linux-1"
    assert page.cause == "boot: 5 image errors (boot_timeout)"
    assert page.since == datetime.fromtimestamp(alerted.now, UTC)
    alerted.commit(*(alerted.dead_boot(config_id) for config_id in CONFIGS * 5))
    assert alerted.kinds() == ["image-tripped/image/linux-1", "pool-tripped/pool/linux"]
    assert alerted.kinds(PAGE) == ["image-tripped/image/linux-1"]


def test_a_page_names_the_stage_that_fails_most(alerted: Alerted) -> None:
    boots = [alerted.dead_boot() for _ in range(6)]
    alerted.commit(*(alerted.refused(Scope.IMAGE) for _ in range(5)), *boots)
    page = alerted.open["weight-calculator/image-tripped/image/linux-1"]
    assert page.cause.startswith("boot: ")


def test_an_alert_of_a_config_stays_open_when_a_page_explains_it_later(alerted: Alerted) -> None:
    alerted.commit(*(alerted.failed(Stage.BOOT) for _ in range(5)))
    assert alerted.kinds() == ["config-tripped/config/zone-a"]
    alerted.commit(*(alerted.dead_boot(config_id) for config_id in ("zone-b", "zone-c") * 3))
    assert "config-tripped/config/zone-a" in alerted.kinds()
    assert alerted.kinds(PAGE) == ["image-tripped/image/linux-1"]


def test_a_config_that_fails_to_launch_has_its_alert_beside_the_page_of_its_image(alerted: Alerted) -> None:
    """Its boots have tripped it before, which the page explains."""
    alerted.commit(*(alerted.dead_boot() for _ in range(5)))
    assert alerted.kinds() == ["image-tripped/image/linux-1", "pool-tripped/pool/linux"]
    (raised,) = alerted.commit(*(alerted.refused(Scope.CONFIG) for _ in range(5)))
    assert (raised.kind, raised.cause) == ("config-tripped", "launch: 5 config errors (config-code)")


def test_each_pool_that_trips_in_a_commit_has_its_alert(alerted: Alerted) -> None:
    ids = [f"lone-{n}" for n in range(3)]
    for id_ in ids:
        alerted.declare(id_, pool_id=f"pool-{id_}")
    alerted.commit(*(alerted.refused(config_id=id_) for id_ in ids * 2))
    assert alerted.kinds(PAGE) == [f"pool-tripped/pool/pool-{id_}" for id_ in ids]


def test_an_alert_fits_its_limits_as_it_is_stored(alerted: Alerted) -> None:
    """Its evidence quotes locations of console logs, each as long as a note may be."""
    alerted.commit(*(msgspec.structs.replace(alerted.dead_boot(), console="c" * 4000) for _ in range(5)))
    page = alerted.open["weight-calculator/image-tripped/image/linux-1"]
    assert all(line.endswith("c…") for line in page.evidence)
    assert msgspec.json.decode(msgspec.json.encode(page), type=AlertRaised) == page


def test_late_boots_name_their_machines(alerted: Alerted) -> None:
    """The boots have not timed out yet; their consoles are known since the launch."""
    alerted.commit(*known_boots(alerted.world.configs["zone-a"].declared))
    alerted.commit(*(alerted.launched(console=f"/log/{n}") for n in range(5)))
    alerted.commit(seconds=201)
    page = alerted.open["weight-calculator/image-tripped/image/linux-1"]
    assert page.evidence == tuple(f"worker w-{n + 1}, instance i-7, console /log/{n}" for n in range(5))


def test_a_frozen_pool_is_left_to_the_provisioner() -> None:
    """The provisioner raises the alert of a frozen pool; the alert of its image is the same before and after."""
    alerted = Alerted()
    alerted.declare(on_bad_image="freeze", freeze_after=7)
    alerted.commit(*(alerted.dead_boot() for _ in range(5)))
    alerted.commit(alerted.dead_boot(), alerted.dead_boot())
    assert [alert.kind for alert in alerted.all if alert.severity == PAGE] == ["image-tripped"]
    alerted = Alerted()
    alerted.declare(on_bad_image="freeze", freeze_after=2)
    assert alerted.commit(*(alerted.dead_boot() for _ in range(2))) == []


def test_an_unknown_code_is_reported_once_an_hour(alerted: Alerted) -> None:
    """The alert contains the provider's message without possible secrets."""
    odd: dict[str, Any] = {"code": "Odd token=abcdef", "classified": False, "sample": "key AKIAIOSFODNN7EXAMPLE is odd"}
    (raised,) = alerted.commit(alerted.refused(Scope.CONFIG, **odd))
    assert raised.dedup_key == "weight-calculator/unclassified-error/account/sim-a/Odd%20token%3D%E2%80%A6"
    assert raised == AlertRaised(
        dedup_key=raised.dedup_key,
        subject_kind="account",
        subject_id="sim-a",
        kind="unclassified-error",
        summary="account sim-a refused a launch with Odd token=…, an unknown error code",
        effect="unknown: it may affect more than zone-a",
        doing="charges zone-a, which trips after 5 of them in a row",
        command="slipway lc show zone-a  # then classify the code in `errors` of the account",
        since=datetime.fromtimestamp(alerted.now, UTC),
        cause="Odd token=… in response to a launch from zone-a, with the message: key … is odd",
        severity=NOTICE,
        evidence=("worker w-1",),
    )
    assert "abcdef" not in str(raised)
    assert "AKIA" not in str(raised)
    assert alerted.commit(alerted.refused(Scope.CONFIG, "zone-b", **odd)) == []
    assert alerted.commit(alerted.launched(), alerted.launched("zone-b"), seconds=100) == []
    assert alerted.commit(alerted.refused(Scope.CONFIG, **odd)) == []
    assert alerted.commit(seconds=3600) == []  # the code still occurs
    (resolved,) = alerted.commit(alerted.launched())
    assert (type(resolved), resolved.summary) == (AlertResolved, "no more errors with this code from sim-a")
    assert alerted.open == {}


def test_a_trip_by_a_signal(alerted: Alerted) -> None:
    cause = "down signal from page: flooded"
    (raised,) = alerted.commit(alerted.down("zone-a"))
    assert (raised.kind, raised.severity) == ("config-tripped", NOTICE)
    assert isinstance(raised, AlertRaised)
    assert (raised.summary, raised.cause) == (f"zone-a tripped: {cause}", cause)
    (resolved,) = alerted.commit(seconds=600)
    assert resolved.summary == "zone-a recovered"


@pytest.mark.parametrize("code", ["Odd", "x" * 100, ""])
def test_an_alert_of_an_unknown_code_outlives_neither_the_code_nor_its_hour(alerted: Alerted, code: str) -> None:
    """Another unknown code is another alert; a code is compared as it is shown, cut and named."""
    alerted.commit(
        alerted.refused(Scope.CONFIG, code="Known"), alerted.refused(Scope.CONFIG, code=code, classified=False)
    )
    (raised,) = alerted.open.values()
    assert raised.cause == f"{code[:60] or 'no code'} in response to a launch from zone-a"
    assert alerted.commit(seconds=4000) == []
    changed = alerted.commit(alerted.launched(), alerted.refused(Scope.CONFIG, code="Strange", classified=False))
    assert [(type(alert), alert.kind) for alert in changed] == [
        (AlertRaised, "unclassified-error"),
        (AlertResolved, "unclassified-error"),
    ]
    assert [alert.cause for alert in alerted.open.values()] == ["Strange in response to a launch from zone-a"]


def test_an_unknown_code_that_is_charged_to_an_image_is_none_of_a_config(alerted: Alerted) -> None:
    """Not even of one that is named like the image."""
    alerted.declare("linux-1")
    assert alerted.commit(alerted.refused(Scope.IMAGE, code="Odd", classified=False)) == []


def test_every_unknown_code_of_a_commit_has_its_alert(alerted: Alerted) -> None:
    """Those of the run that are known, or have an alert, hide none that follows."""
    alerted.commit(alerted.refused(Scope.CONFIG, code="Odd", classified=False))
    codes = [("Known", True), ("Odd", False), ("Strange", False)]
    (raised,) = alerted.commit(*(alerted.refused(Scope.CONFIG, code=code, classified=ok) for code, ok in codes))
    assert raised.cause == "Strange in response to a launch from zone-a"


def test_a_code_is_redacted_and_cut(alerted: Alerted) -> None:
    (raised,) = alerted.commit(*(alerted.refused(Scope.CONFIG, code=f"token=abcdef {'x' * 100}") for _ in range(5)))
    assert "abcdef" not in str(raised)
    assert raised.cause == f"launch: 5 config errors (token=… {'x' * 47})"


@pytest.mark.parametrize(("pools", "more"), [(5, ""), (6, "; and 1 more pools")])
def test_the_effect_lists_five_pools(pools: int, more: str) -> None:
    alerted = Alerted()
    for n in range(pools):
        alerted.declare(f"c-{n}", pool_id=f"pool-{n}")
    alerted.commit(alerted.refused(Scope.CREDENTIAL, "c-0"), alerted.refused(Scope.CREDENTIAL, "c-0"))
    page = alerted.open["weight-calculator/credential-failing/credential/sim-a"]
    assert page.effect == "; ".join(f"pending tasks of pool-{n} get workers from probes only" for n in range(5)) + more


@pytest.mark.parametrize("state", ["paused", "draining", "archived"])
def test_alerts_of_unused_configs_are_resolved(alerted: Alerted, state: str) -> None:
    alerted.commit(alerted.refused(), alerted.refused(), *(alerted.refused(Scope.CONFIG) for _ in range(5)))
    assert len(alerted.open) == 2
    alerted.declare("zone-a", state=state, revision=2)
    assert alerted.open == {}
    assert [alert.summary for alert in alerted.all[-2:]] == [
        f"{capacity('zone-a')} is no longer in use",
        "zone-a is no longer in use",
    ]


def test_an_alert_names_the_revision_and_its_effect_counts_names(alerted: Alerted) -> None:
    """A launch config with a revision that launches is not lost, whatever another of its revisions does."""
    alerted.declare("zone-b@2", instance_type="m6.large")
    (raised,) = alerted.commit(*(alerted.refused(Scope.CONFIG, "zone-b@2") for _ in range(5)))
    assert isinstance(raised, AlertRaised)
    assert (raised.subject_kind, raised.subject_id) == ("config", "zone-b@2")
    assert raised.effect == "pending tasks of linux get workers from 3 of 3 launch configs"
    (raised,) = alerted.commit(*(alerted.refused(Scope.CONFIG, "zone-b") for _ in range(5)))
    assert isinstance(raised, AlertRaised)
    assert raised.effect == "pending tasks of linux get workers from 2 of 3 launch configs"


@pytest.mark.parametrize("state", ["paused", "archived"])
def test_a_shared_cause_is_resolved_with_the_last_that_has_it(alerted: Alerted, state: str) -> None:
    """It is raised again once an active config uses the key again."""
    alerted.commit(alerted.refused(Scope.CREDENTIAL), alerted.refused(Scope.CREDENTIAL))
    assert "credential-failing/credential/sim-a" in alerted.kinds(PAGE)
    for n, config_id in enumerate(CONFIGS):
        alerted.declare(config_id, state=state, revision=2)
        assert bool(alerted.open) == (n < 2)
    alerted.declare("zone-b", revision=3)
    assert alerted.kinds(PAGE) == ["credential-failing/credential/sim-a"]


def test_a_trip_without_active_configs_is_one_page_later() -> None:
    """An image fails in boots started before nine pools were paused; once these resume, it is one page."""
    alerted, ids = Alerted(), [f"c{n}" for n in range(9)]
    for id_ in ids:
        alerted.declare(id_, pool_id=f"pool-{id_}", account_id=f"account-{id_}")
    alerted.commit(*(alerted.launched(id_) for id_ in ids))
    for id_ in ids:
        alerted.declare(id_, pool_id=f"pool-{id_}", account_id=f"account-{id_}", state="paused", revision=2)
    alerted.commit(*(alerted.dead_boot(id_) for id_ in ids))
    assert alerted.kinds() == []
    for id_ in ids:
        alerted.declare(id_, pool_id=f"pool-{id_}", account_id=f"account-{id_}", revision=3)
    assert alerted.kinds(PAGE) == ["image-tripped/image/linux-1"]


def test_when_an_open_alert_ends_by_time(alerted: Alerted) -> None:
    """A turn is needed then, even if nothing happens."""
    assert alerts.due(alerted.open, Draft(alerted.world), alerted.now) is None
    alerted.commit(alerted.refused(Scope.CONFIG, classified=False))
    assert alerts.due(alerted.open, Draft(alerted.world), alerted.now) == alerted.now + 3600
    alerted.commit(alerted.refused(config_id="zone-b"), alerted.refused(config_id="zone-b"))
    alerted.commit(alerted.launched("zone-b", probe_permit=alerted.permit("zone-b")))
    assert alerts.due(alerted.open, Draft(alerted.world), alerted.now) == alerted.now + 1800
    (over,) = alerted.commit(seconds=1800)
    assert (type(over), over.kind) == (AlertResolved, "recovered"), "after the one that stays open"


@pytest.mark.parametrize("seconds", [3600, 4000])
def test_an_outlived_alert_waits_for_an_event(alerted: Alerted, seconds: float) -> None:
    """Otherwise turns would follow each other without end."""
    alerted.commit(alerted.refused(Scope.CONFIG, classified=False))
    assert alerted.commit(seconds=seconds) == []
    assert alerts.due(alerted.open, Draft(alerted.world), alerted.now) is None
    (over,) = alerted.commit(alerted.launched())
    assert (type(over), over.kind) == (AlertResolved, "unclassified-error")


Step = tuple[str, str, float]
steps = st.lists(
    st.tuples(
        st.sampled_from(["capacity", "credential", "quota", "config", "image", "ok", "probe", "wait"]),
        st.sampled_from([*CONFIGS, "win-a"]),
        st.sampled_from([1.0, 20.0, 400.0, 4000.0]),
    ),
    max_size=60,
)


def play(taken: Sequence[Step], *, restarts: bool = False) -> Alerted:
    alerted = Alerted()
    alerted.declare()
    alerted.declare("win-a", pool_id="win", account_id="sim-b", image_revision="win-1")
    for what, config_id, seconds in taken:
        events: list[Any] = []
        if what in ("capacity", "credential", "quota", "config"):
            events = [alerted.refused(Scope(what), config_id, classified=what != "config")]
        elif what == "image":
            events = [alerted.dead_boot(config_id)]
        elif what == "ok":
            ids = alerted.of(config_id)
            booted, claimed = Outcome(Stage.BOOT, Result.OK), Outcome(Stage.CLAIM, Result.OK)
            events = [
                alerted.launched(config_id, worker_id=ids["worker_id"]),
                WorkerRegistered(instance_id="i-7", boot_seconds=1.0, outcome=booted, **ids),
                WorkerClaimed(task_id="t", source="q", outcome=claimed, **ids),
            ]
        elif what == "probe" and alerted.world.rows[config_key(config_id)].ready:
            events = [alerted.launched(config_id, probe_permit=alerted.world.rows[config_key(config_id)].permit)]
        alerted.commit(*events, seconds=seconds)
        if restarts:
            again = World()
            world = alerted.world
            again.load(world.configs.values(), world.rows, world.boots, world.signals)
            alerted.world = again
            alerted.open = msgspec.json.decode(msgspec.json.encode(alerted.open), type=dict[str, AlertRaised])
    return alerted


@given(steps)
def test_each_is_raised_and_resolved_in_turn(taken: Sequence[Step]) -> None:
    """Under one key: raised, perhaps raised again as a page, resolved; never resolved without being raised."""
    alerted = play(taken)
    open_: dict[str, Alert] = {}
    for alert in alerted.all:
        before = open_.pop(alert.dedup_key, None)
        if isinstance(alert, AlertRaised):
            assert before is None or (before.severity, before.kind) != (alert.severity, alert.kind)
            open_[alert.dedup_key] = alert
        else:
            assert before is not None
    assert open_ == alerted.open


@given(steps)
def test_open_alerts_match_their_conditions(taken: Sequence[Step]) -> None:
    """An alert is open exactly while its condition holds; each trip has an alert of the config or of a shared key."""
    alerted = play(taken)
    draft = Draft(alerted.world)
    for config in alerted.world.configs.values():
        active = draft.trips_on(config)
        known = {
            Key(alert.subject_kind, alert.subject_id) for alert in alerted.open.values() if alert.kind != "recovered"
        }
        assert bool(active) == bool({key for key, _, _ in active} & known)
    for pool_id in ("linux", "win"):
        members = [config for config in alerted.world.configs.values() if config.declared.pool_id == pool_id]
        tripped = all(draft.trips_on(config) for config in members)
        assert (f"pool-tripped/pool/{pool_id}" in alerted.kinds()) == tripped


@given(steps)
def test_at_most_one_page_per_shared_cause(taken: Sequence[Step]) -> None:
    """A pool is a page only if at least one of its configs is tripped without a page that explains it."""
    alerted = play(taken)
    open_: dict[str, Alert] = {}
    for alert in alerted.all:
        if isinstance(alert, AlertResolved):
            del open_[alert.dedup_key]
            continue
        open_[alert.dedup_key] = alert
        if alert.kind == "pool-tripped":
            pages = [each for each in open_.values() if each.kind in PAGES]
            explained = {str(Key(each.subject_kind, each.subject_id)) for each in pages}
            assert (alert.severity == NOTICE) == (set(alert.cause.split(", ")) <= explained)
        elif alert.severity == PAGE:
            assert alert.kind in PAGES


@given(steps)
def test_a_restart_raises_nothing_twice(taken: Sequence[Step]) -> None:
    assert [alert.dedup_key for alert in play(taken, restarts=True).all] == [
        alert.dedup_key for alert in play(taken).all
    ]
