"""What people are told: once each, taken back once, one page per cause, and nothing secret."""

from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import count
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.events.alert import Alert, AlertRaised, AlertResolved
from slipway_common.events.launch_config import LaunchConfigCreated
from slipway_common.events.signal import SignalRaised
from slipway_common.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerClaimed,
    WorkerLaunched,
    WorkerLaunchFailed,
    WorkerRegistered,
    WorkerStopping,
)
from slipway_weight_calculator.domain import alerts
from slipway_weight_calculator.domain.alerts import NOTICE, PAGE
from slipway_weight_calculator.domain.world import Draft, World

START = 1_900_000_000.0
CONFIGS = ("zone-a", "zone-b", "zone-c")


class Told:
    """A world that things happen to, one commit each, and all that was told of it."""

    def __init__(self) -> None:
        self.world = World()
        self.open: dict[str, AlertRaised] = {}
        self.now = START
        self.all: list[Alert] = []
        self.workers = count(1)

    def commit(self, *events: Any, at: float | None = None, seconds: float = 1.0) -> list[Alert]:
        self.now = START + at if at is not None else self.now + seconds
        draft = Draft(self.world)
        draft.advance(self.now)
        for event in events:
            if isinstance(event, LaunchConfigCreated):
                draft.declare(event, self.now)
            elif isinstance(event, SignalRaised):
                assert draft.signal(event, self.now) == ""
            else:
                draft.fold(event, self.now)
        told = alerts.changes(draft, self.open, self.now)
        draft.commit()
        self.open = alerts.after(self.open, told)
        self.all += told
        return told

    def kinds(self, *severities: str) -> list[str]:
        """Keys of the open alerts, without what they share."""
        return sorted(
            alert.dedup_key.removeprefix("weight-calculator/")
            for alert in self.open.values()
            if not severities or alert.severity in severities
        )

    def declare(self, *ids: str, **fields: Any) -> None:
        self.commit(*(declared(id_, **fields) for id_ in ids or CONFIGS))

    def launched(self, config_id: str = "zone-a", **fields: Any) -> WorkerLaunched:
        ok = Outcome(Stage.LAUNCH, Result.OK)
        return WorkerLaunched(outcome=ok, batch_id="b", **self.of(config_id, **fields) | {"instance_id": "i-7"})

    def refused(self, scope: Scope = Scope.CAPACITY, config_id: str = "zone-a", **fields: Any) -> WorkerLaunchFailed:
        given = {"code": f"{scope.value}-code"} | {
            name: fields.pop(name) for name in ("code", "scope_key", "classified", "sample") if name in fields
        }
        outcome = Outcome(Stage.LAUNCH, Result.FAILED, scope, **given)
        return WorkerLaunchFailed(outcome=outcome, batch_id="b", **self.of(config_id, **fields))

    def dead_boot(self, config_id: str = "zone-a", **fields: Any) -> WorkerStopping:
        ids = self.of(config_id, **fields)
        outcome = Outcome(Stage.BOOT, Result.FAILED, Scope.IMAGE, ids["image_revision"], "boot_timeout")
        return WorkerStopping(
            reason="late", outcome=outcome, instance_id="i-7", console="http://cloud/i-7/console", **ids
        )

    def of(self, config_id: str, **fields: Any) -> dict[str, Any]:
        config = self.world.configs[config_id].declared
        return {
            "worker_id": f"w-{next(self.workers)}",
            "launch_config_id": config_id,
            "pool_id": config.pool_id,
            "account_id": config.account_id,
            "image_revision": config.image_revision,
        } | fields

    def permit(self, config_id: str) -> int:
        """Waits until a probe may launch, and gives its number."""
        for _ in range(1000):
            row = self.world.rows[config_id]
            if row.ready and not row.spent:
                return row.permit
            self.commit(seconds=5)
        raise AssertionError(f"no probe of {config_id}")


def declared(config_id: str, **fields: Any) -> LaunchConfigCreated:
    usual: dict[str, Any] = {
        "pool_id": "linux",
        "account_id": "sim-a",
        "region": "sim-1",
        "zone": config_id,
        "instance_type": "m5.large",
        "image_revision": "linux-1",
        "base_weight": 1.0,
        "price_factor": 1.0,
        "state": "active",
        "revision": 1,
    }
    return LaunchConfigCreated(launch_config_id=config_id, **usual | fields)


@pytest.fixture
def told() -> Told:
    told = Told()
    told.declare()
    return told


def test_a_config_that_closes_and_opens_again(told: Told) -> None:
    """A notice with what, since when, effect, cause, what Slipway does, one command and evidence; then its end, and the
    news that a probe has succeeded, which ends by time."""
    assert told.commit(told.refused()) == []
    (raised,) = told.commit(told.refused())
    assert isinstance(raised, AlertRaised)
    assert raised == AlertRaised(
        dedup_key="weight-calculator/config-closed/zone-a",
        subject_id="zone-a",
        kind="config-closed",
        summary="zone-a launches nothing but probes: launch: 2 capacity errors (capacity-code)",
        effect="of the tasks that wait, those of linux get workers from 2 of 3 launch configs",
        doing="launches from the pool's other configs; probes with one start at a time, further and further apart, and "
        "launches again by itself after the first success",
        command="slipway lc show zone-a",
        since=datetime.fromtimestamp(told.now, UTC),
        cause="launch: 2 capacity errors (capacity-code)",
        severity=NOTICE,
        evidence=("worker w-1", "worker w-2"),
    )
    assert told.commit(told.refused()) == []
    permit = told.permit("zone-a")
    resolved, recovered = told.commit(told.launched(probe_permit=permit))
    assert isinstance(resolved, AlertResolved)
    assert (resolved.dedup_key, resolved.summary) == (raised.dedup_key, "zone-a is open again")
    assert (resolved.since, resolved.cause, resolved.severity) == (raised.since, raised.cause, NOTICE)
    assert (recovered.kind, recovered.severity) == ("recovered", NOTICE)
    assert recovered.summary.startswith("zone-a launches again, after ")
    assert "2 capacity errors (capacity-code)" in recovered.cause
    assert told.commit(seconds=1790) == []
    (over,) = told.commit(seconds=20)
    assert (type(over), over.summary) == (AlertResolved, "zone-a has stayed open")
    assert told.open == {}


def test_a_recovery_that_does_not_last(told: Told) -> None:
    told.commit(told.refused(), told.refused())
    told.commit(told.launched(probe_permit=told.permit("zone-a")))
    assert told.kinds() == ["recovered/zone-a"]
    told.commit(told.refused(), told.refused())
    assert told.kinds() == ["config-closed/zone-a"]
    assert [type(alert) for alert in told.all if alert.kind == "recovered"] == [AlertRaised, AlertResolved]


@pytest.mark.parametrize("scope", [Scope.CREDENTIAL, Scope.QUOTA])
def test_one_page_for_what_closes_forty_configs(scope: Scope) -> None:
    """In four pools of one account. The pools are told as notices that name the cause; the configs not at all."""
    told = Told()
    for pool in range(4):
        told.declare(*(f"c-{pool}-{n}" for n in range(10)), pool_id=f"pool-{pool}")
    told.commit(told.refused(scope, "c-0-0"))
    raised = told.commit(told.refused(scope, "c-3-9"))
    pages = [alert for alert in raised if alert.severity == PAGE]
    assert len(pages) == 1
    page = pages[0]
    assert page.kind == {Scope.CREDENTIAL: "credential-failing", Scope.QUOTA: "quota-exhausted"}[scope]
    assert "those of pool-0 get workers from probes alone" in page.effect
    assert [alert.kind for alert in raised if alert.severity == NOTICE] == ["pool-closed"] * 4
    assert all(page.subject_id in alert.cause for alert in raised if alert.severity == NOTICE)
    # Whatever fails meanwhile, nobody is woken again.
    told.commit(*(told.refused(scope, config_id) for config_id in told.world.configs))
    told.commit(seconds=3000)
    assert [alert for alert in told.all if alert.severity == PAGE] == [page]
    for config_id in told.world.configs:
        if told.world.rows[config_id].ready:
            told.commit(told.launched(config_id, probe_permit=told.world.rows[config_id].permit))
    assert told.kinds(PAGE) == []
    assert told.kinds() == [f"recovered/{'credential' if scope is Scope.CREDENTIAL else 'quota'}/{page.subject_id}"]


def test_a_pool_that_is_closed_for_its_own_reasons_is_a_page(told: Told) -> None:
    for config_id in CONFIGS:
        told.commit(told.refused(config_id=config_id), told.refused(config_id=config_id))
    (page,) = [alert for alert in told.all if alert.severity == PAGE]
    assert (page.dedup_key, page.subject_id) == ("weight-calculator/pool-closed/linux", "linux")
    assert (page.cause, page.command) == ("zone-a, zone-b, zone-c", "slipway why linux")
    told.commit(told.launched("zone-b", probe_permit=told.permit("zone-b")))
    assert "pool-closed/linux" not in told.kinds()


def test_a_notice_becomes_a_page_once_its_cause_is_gone() -> None:
    """The credential works again, and the pool is still closed, by then for reasons of its own."""
    told = Told()
    told.declare("zone-a")
    told.declare("other", pool_id="other")
    told.commit(told.refused(Scope.CREDENTIAL), told.refused(Scope.CREDENTIAL))
    assert told.kinds(PAGE) == ["credential-failing/credential/sim-a"]
    told.commit(told.refused(), told.refused())
    told.commit(told.launched("other", probe_permit=told.permit("other")))
    assert told.kinds(PAGE) == ["pool-closed/linux"]
    assert [alert.severity for alert in told.all if alert.kind == "pool-closed" and alert.subject_id == "linux"] == [
        NOTICE,
        PAGE,
    ]


def test_a_bad_image_is_one_page_with_evidence(told: Told) -> None:
    """In whichever configs it fails; the page says where the machines' own words are."""
    for config_id in ("zone-a", "zone-b", "zone-a", "zone-c", "zone-a"):
        told.commit(told.dead_boot(config_id))
    assert told.kinds(PAGE) == ["image-tripped/image/linux-1"]
    page = told.open["weight-calculator/image-tripped/image/linux-1"]
    assert page.summary == "image linux-1 does not start: 5 image errors (boot_timeout)"
    assert page.evidence[0] == "worker w-1, instance i-7, console http://cloud/i-7/console"
    assert len(page.evidence) == 5
    assert page.command == "slipway why w-5"
    told.commit(*(told.dead_boot(config_id) for config_id in CONFIGS * 5))
    assert told.kinds() == ["image-tripped/image/linux-1", "pool-closed/linux"]
    assert told.kinds(PAGE) == ["image-tripped/image/linux-1"]


def test_late_boots_name_their_machines(told: Told) -> None:
    """Nobody has given up on them yet; where to look is known since they were launched."""
    told.commit(*(told.launched(console=f"/log/{n}") for n in range(5)))
    told.commit(seconds=301)
    page = told.open["weight-calculator/image-tripped/image/linux-1"]
    assert page.evidence == tuple(f"worker w-{n + 1}, instance i-7, console /log/{n}" for n in range(5))


def test_a_pool_that_freezes_is_told_by_who_freezes_it() -> None:
    """And unfreezes it: what it says of its image here is true before, meanwhile and after."""
    told = Told()
    told.declare(on_bad_image="freeze", freeze_after=7)
    told.commit(*(told.dead_boot() for _ in range(5)))
    told.commit(told.dead_boot(), told.dead_boot())
    assert [alert.kind for alert in told.all if alert.severity == PAGE] == ["image-tripped"]
    told = Told()
    told.declare(on_bad_image="freeze", freeze_after=2)
    assert told.commit(*(told.dead_boot() for _ in range(2))) == []


def test_a_code_that_no_table_knows_is_told_once_an_hour(told: Told) -> None:
    """With what was said of it, and without what may be secret."""
    odd: dict[str, Any] = {"code": "Odd token=abcdef", "classified": False, "sample": "key AKIAIOSFODNN7EXAMPLE is odd"}
    (raised,) = told.commit(told.refused(Scope.CONFIG, **odd))
    assert raised.dedup_key == "weight-calculator/unclassified-error/sim-a/Odd token=…"
    assert raised.summary == "sim-a refused with Odd token=…, a code that no table knows"
    assert "and said: key … is odd" in raised.cause
    assert "abcdef" not in str(raised)
    assert "AKIA" not in str(raised)
    assert told.commit(told.refused(Scope.CONFIG, "zone-b", **odd)) == []
    assert told.commit(told.launched(), told.launched("zone-b"), seconds=100) == []
    assert told.commit(told.refused(Scope.CONFIG, **odd)) == []
    assert told.commit(seconds=3600) == []  # it still comes
    (resolved,) = told.commit(told.launched())
    assert (type(resolved), resolved.summary) == (AlertResolved, "no more of it from sim-a")
    assert told.open == {}


def test_a_signal_that_closes(told: Told) -> None:
    signal = SignalRaised(
        source="page",
        target_kind="config",
        target_id="zone-a",
        kind="down",
        reason="flooded",
        observed_at=datetime.fromtimestamp(told.now, UTC),
        ttl_seconds=600,
    )
    (raised,) = told.commit(signal)
    assert (raised.kind, raised.severity) == ("config-closed", NOTICE)
    assert raised.cause == "page says that it is down: flooded"
    (resolved,) = told.commit(seconds=600)
    assert resolved.summary == "zone-a is open again"


def test_what_is_not_in_use_any_more_is_resolved(told: Told) -> None:
    told.commit(told.refused(), told.refused())
    told.declare("zone-a", state="paused", revision=2)
    assert told.open == {}
    assert told.all[-1].summary == "zone-a is not in use any more"


@pytest.mark.parametrize("state", ["paused", "archived"])
def test_a_shared_cause_is_resolved_with_the_last_that_has_it(told: Told, state: str) -> None:
    """Nobody could end it any more. Once somebody has it again, it is told again."""
    told.commit(told.refused(Scope.CREDENTIAL), told.refused(Scope.CREDENTIAL))
    assert "credential-failing/credential/sim-a" in told.kinds(PAGE)
    for n, config_id in enumerate(CONFIGS):
        told.declare(config_id, state=state, revision=2)
        assert bool(told.open) == (n < 2)
    told.declare("zone-b", revision=3)
    assert told.kinds(PAGE) == ["credential-failing/credential/sim-a"]


def test_what_trips_while_nobody_is_active_is_one_page_later() -> None:
    """An image fails in what was started before nine pools were paused; each is resumed, and none is a page of its
    own."""
    told, ids = Told(), [f"c{n}" for n in range(9)]
    for id_ in ids:
        told.declare(id_, pool_id=f"pool-{id_}", account_id=f"account-{id_}")
    told.commit(*(told.launched(id_) for id_ in ids))
    for id_ in ids:
        told.declare(id_, pool_id=f"pool-{id_}", account_id=f"account-{id_}", state="paused", revision=2)
    told.commit(*(told.dead_boot(id_) for id_ in ids))
    assert told.kinds() == []
    for id_ in ids:
        told.declare(id_, pool_id=f"pool-{id_}", account_id=f"account-{id_}", revision=3)
    assert told.kinds(PAGE) == ["image-tripped/image/linux-1"]


def test_when_an_open_alert_ends_by_time(told: Told) -> None:
    """The service has to look again then, even if nothing happens."""
    assert alerts.due(told.open, Draft(told.world), told.now) is None
    told.commit(told.refused(Scope.CONFIG, classified=False))
    assert alerts.due(told.open, Draft(told.world), told.now) == told.now + 3600


def test_what_outlives_its_time_waits_for_an_event(told: Told) -> None:
    """Or the service would look again at once, for ever."""
    told.commit(told.refused(Scope.CONFIG, classified=False))
    assert told.commit(seconds=4000) == []
    assert alerts.due(told.open, Draft(told.world), told.now) is None
    (over,) = told.commit(told.launched())
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


def play(taken: Sequence[Step], *, restarts: bool = False) -> Told:
    told = Told()
    told.declare()
    told.declare("win-a", pool_id="win", account_id="sim-b", image_revision="win-1")
    for what, config_id, seconds in taken:
        events: list[Any] = []
        if what in ("capacity", "credential", "quota", "config"):
            events = [told.refused(Scope(what), config_id, classified=what != "config")]
        elif what == "image":
            events = [told.dead_boot(config_id)]
        elif what == "ok":
            ids = told.of(config_id)
            booted, claimed = Outcome(Stage.BOOT, Result.OK), Outcome(Stage.CLAIM, Result.OK)
            events = [
                told.launched(config_id, worker_id=ids["worker_id"]),
                WorkerRegistered(instance_id="i-7", boot_seconds=1.0, outcome=booted, **ids),
                WorkerClaimed(task_id="t", source="q", outcome=claimed, **ids),
            ]
        elif what == "probe" and told.world.rows[config_id].ready:
            events = [told.launched(config_id, probe_permit=told.world.rows[config_id].permit)]
        told.commit(*events, seconds=seconds)
        if restarts:
            again = World()
            world = told.world
            again.load(world.configs.values(), world.rows, world.boots, world.signals)
            told.world = again
            told.open = msgspec.json.decode(msgspec.json.encode(told.open), type=dict[str, AlertRaised])
    return told


@given(steps)
def test_each_is_raised_and_resolved_in_turn(taken: Sequence[Step]) -> None:
    """Under one key: raised, perhaps once more as something worse, resolved; never resolved unraised."""
    told = play(taken)
    open_: dict[str, Alert] = {}
    for alert in told.all:
        before = open_.pop(alert.dedup_key, None)
        if isinstance(alert, AlertRaised):
            assert before is None or (before.severity, before.kind) != (alert.severity, alert.kind)
            open_[alert.dedup_key] = alert
        else:
            assert before is not None
    assert open_ == told.open


@given(steps)
def test_what_is_open_is_so(taken: Sequence[Step]) -> None:
    """An alert is open exactly while its condition is: whatever closes a config is told of, by it or by what it
    shares."""
    told = play(taken)
    draft = Draft(told.world)
    for config in told.world.configs.values():
        closing = draft.closing(config)
        known = {_key(alert) for alert in told.open.values() if alert.kind != "recovered"}
        assert bool(closing) == bool({key for key, _, _ in closing} & known)
    for pool_id in ("linux", "win"):
        members = [config for config in told.world.configs.values() if config.declared.pool_id == pool_id]
        closed = all(draft.closing(config) for config in members)
        assert (f"pool-closed/{pool_id}" in told.kinds()) == closed


@given(steps)
def test_at_most_one_page_per_shared_cause(taken: Sequence[Step]) -> None:
    """A pool is raised as a page only if one of its configs at least is closed by nothing that is one already."""
    told = play(taken)
    open_: dict[str, Alert] = {}
    for alert in told.all:
        if isinstance(alert, AlertResolved):
            del open_[alert.dedup_key]
            continue
        open_[alert.dedup_key] = alert
        if alert.kind == "pool-closed":
            explained = {_key(each).replace("/", " ", 1) for each in open_.values() if "/" in _key(each)}
            assert (alert.severity == NOTICE) == (set(alert.cause.split(", ")) <= explained)
        elif alert.severity == PAGE:
            assert alert.kind in ("image-tripped", "quota-exhausted", "credential-failing")


def _key(alert: Alert) -> str:
    return alert.dedup_key.split("/", 2)[2]


@given(steps)
def test_a_restart_tells_nothing_twice(taken: Sequence[Step]) -> None:
    assert [alert.dedup_key for alert in play(taken, restarts=True).all] == [
        alert.dedup_key for alert in play(taken).all
    ]
