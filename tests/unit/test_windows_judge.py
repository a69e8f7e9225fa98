"""The judge of `make e2e-windows` on hand-made ledgers: each single excess is reported, allowed calls are not."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_api.events.scopes import capacity_key, credential_key, image_key, quota_key
from slipway_api.events.topics import LAUNCH_CONFIG_WEIGHT, SERVICE_HEARTBEAT
from slipway_api.events.weight import SharedWindow, StageHealth, WeightChanged
from slipway_simulator import facts
from tests.e2e import windows
from tests.e2e.mirror import Copied
from tests.e2e.windows import Work
from tests.e2e.windows_judge import ConfigKeys, Report, Times, Visible, judge

Facts = facts.Fact | list[facts.Fact]
TIMES: Final = Times(reading=1.0, boot=50.0, unavailable=5.0, attempt=3.0)
KEYS: Final = ConfigKeys(
    "pool", image_key("i"), quota_key("a", "r", "m"), credential_key("a"), capacity_key("a", "r", "z", "m")
)
OTHER: Final = ConfigKeys(
    "other", image_key("i"), quota_key("b", "r", "m"), credential_key("b"), capacity_key("b", "r", "z", "m")
)
CONFIGS: Final = {"c": KEYS, "d": OTHER}
BEATS: Final = [float(second) for second in range(200)]


def call(at: float, name: str, count: int = 1, config: str = "c") -> facts.Call:
    return facts.Call(
        at=at,
        call_id=name,
        account="a",
        token=name,
        deployment="d",
        batch=name,
        config=config,
        count=count,
        zone="z",
        instance_type="m",
        image="i",
        request="r",
    )


def refused(at: float, name: str, code: Any = "InsufficientCapacity") -> facts.Reply:
    return facts.Reply(at=at, call_id=name, account="a", code=code)


def given(at: float, name: str, count: int = 1, config: str = "c", boots_at: float | None = None) -> list[facts.Fact]:
    """Machines of a call, and its reply."""
    ids = tuple(f"{name}-{number}" for number in range(count))
    machines = [
        facts.InstanceCreated(
            at=at,
            instance_id=instance,
            call_id=name,
            account="a",
            token=name,
            request="r",
            deployment="d",
            batch=name,
            config=config,
            zone="z",
            instance_type="m",
            image="i",
            visible_at=at,
            boots_at=boots_at,
            claims=True,
            user_data={},
        )
        for instance in ids
    ]
    return [*machines, facts.Reply(at=at, call_id=name, account="a", code="OK", instance_ids=ids)]


def registered(at: float, instance: str) -> facts.Registered:
    return facts.Registered(at=at, instance_id=instance, worker_id="w", pool_id="pool", token="")


def worked(at: float, instance: str) -> facts.TaskStarted:
    return facts.TaskStarted(at=at, task_id=f"t{instance}", pool_id="pool", instance_id=instance, ends_at=at + 1)


def visible(
    at: float,
    config: str = "c",
    *,
    launch: int = 4,
    boot: int = 12,
    folded: int = 0,
    boots_folded: int = 0,
    state: str = "healthy",
    permit: int | None = None,
    ready: bool = False,
    shared: Sequence[SharedWindow] = (),
) -> Visible:
    def stage(window: int, folded: int = 0) -> StageHealth:
        return StageHealth(probability=0.9, successes=1.0, failures=0.0, window=window, failures_folded=folded)

    record = WeightChanged(
        launch_config_id=config,
        name=config.partition("@")[0],
        pool_id="pool",
        config_revision=1,
        weight=1.0,
        health=1.0,
        stages={"launch": stage(launch, folded), "boot": stage(boot, boots_folded), "claim": stage(64)},
        state=state,
        probe_permit=permit,
        probe_ready=ready,
        reason="",
        shared=tuple(shared),
    )
    return Visible(at, record)


def share(
    window: int, *, kind: str = "image", id_: str = "i", stage: str = "boot", state: str = "healthy"
) -> SharedWindow:
    return SharedWindow(kind=kind, id=id_, stage=stage, version=1, window=window, state=state)


def judged(
    *ledger_facts: Facts,
    seen: Sequence[Visible] = (),
    beats: Sequence[float] = BEATS,
    decided: Mapping[str, float] | None = None,
) -> Report:
    ledger = [fact for each in ledger_facts for fact in (each if isinstance(each, list) else [each])]
    return judge(sorted(ledger, key=lambda fact: fact.at), seen, beats, CONFIGS, TIMES, decided=decided or {})


def texts(report: Report) -> list[str]:
    return [violation.text for violation in report.violations]


def test_the_window_of_a_config_that_was_never_seen() -> None:
    full = judged(call(1, "1", 4))
    assert (texts(full), dict(full.reached)) == ([], {"config launch": 1})
    assert texts(judged(call(1, "1", 4), call(2, "2"))) == ["1 started: config launch window exceeded by 1"]
    assert texts(judged(call(1, "1", 5))) == ["5 started: config launch window exceeded by 1"]


def test_a_success_frees_its_unit_at_once_and_counts_in_the_next_stage() -> None:
    steps = [step for n in range(4) for step in (call(2 * n + 1, str(n), 4), given(2 * n + 2, str(n), 4))]
    assert judged(*steps, call(9, "4", 2)).reached == {"config launch": 4, "image boot": 1}
    image = judged(*steps, call(9, "4", 2), given(10, "4", 2), call(11, "5"))
    assert texts(image) == ["1 started: image boot window exceeded by 1"]
    own = judged(*steps, call(9, "4"), seen=[visible(0.0, boot=16)])
    assert texts(own) == ["1 started: config boot window exceeded by 1"]


def test_a_failure_fills_its_unit_until_a_record_that_folded_it_can_be_read() -> None:
    run = (call(1, "1", 4), refused(2, "1"))
    late = visible(60.0, folded=4)
    assert texts(judged(*run, call(59.9, "2"), seen=[late])) == ["1 started: config launch window exceeded by 1"]
    assert texts(judged(*run, call(60.0, "2"), seen=[late])) == []
    assert texts(judged(*run, call(70.0, "2"), seen=[visible(60.0, folded=3, launch=1)])) == [
        "1 started: config launch window exceeded by 1"
    ]
    put_back = (call(1, "1", 4), refused(2, "1", "RequestLimitExceeded"), call(3, "2", 4))
    assert texts(judged(*put_back)) == [], "a throttle is not a failure"


def test_machines_missing_from_a_reply_have_failed() -> None:
    partly = (call(1, "1", 4), given(2, "1", 1), call(3, "2"))
    assert judged(*partly).failures == 3
    assert judged(*partly).reached == {"config launch": 2}


def test_a_smaller_window_applies_once_a_decision_must_have_read_it() -> None:
    shrunk = [visible(0.0, launch=8), visible(10.0, launch=2)]
    assert texts(judged(call(10.9, "1", 8), seen=shrunk)) == []
    assert texts(judged(call(11.5, "1", 8), seen=shrunk)) == ["8 started: config launch window exceeded by 6"]
    assert texts(judged(call(20, "1", 8), seen=shrunk, decided={"1": 10.5})) == [], "the call was made late"
    # An old window cannot be combined with newly folded failures.
    torn = [visible(0.0, launch=8), visible(10.0, launch=1, folded=4)]
    assert len(texts(judged(call(1, "1", 4), refused(2, "1"), call(10.5, "2", 5), seen=torn))) == 1


def test_windows_of_shared_keys_limit_all_their_configs() -> None:
    image = [visible(0.0, launch=64, boot=64), visible(0.0, "d", launch=64, boot=64)]
    full = (call(1, "1", 11), given(2, "1", 11), call(3, "2", 7, "d"))
    assert judged(*full, seen=image).reached == {"image boot": 1}
    assert texts(judged(*full, call(4, "3", 1, "d"), seen=image)) == ["1 started: image boot window exceeded by 1"]
    grown = SharedWindow(kind="image", id="i", stage="boot", version=7, window=19)
    stale = SharedWindow(kind="image", id="i", stage="boot", version=6, window=64)
    records = [
        *image,
        visible(0.5, shared=[grown], launch=64, boot=64),
        visible(0.6, "d", shared=[stale], launch=64, boot=64),
    ]
    assert texts(judged(*full, call(4, "3", 1, "d"), seen=records)) == []
    assert texts(judged(*full, call(4, "3", 2, "d"), seen=records)) == ["2 started: image boot window exceeded by 1"]
    quota = [visible(0.0, launch=64, shared=[share(3, kind="quota", id_="a/r/m", stage="launch")])]
    assert texts(judged(call(1, "1", 4), seen=quota)) == ["4 started: quota window exceeded by 1"]


def test_a_machine_that_does_not_register_in_time_has_failed() -> None:
    calls = [(2 * n + 1, str(n), count) for n, count in enumerate((4, 4, 4, 4, 2))]
    run = [step for at, name, count in calls for step in (call(at, name, count), given(at + 1, name, count))]
    assert texts(judged(*run, call(100, "5"))) == ["1 started: image boot window exceeded by 1"]
    assert judged(*run, call(100, "5")).failures == 18
    folded = visible(99.0, boots_folded=18)
    assert texts(judged(*run, call(100, "5", 4), seen=[folded])) == []
    registers: list[Facts] = [
        call(1, "1", 4),
        given(2, "1", 4, boots_at=40.0),
        *(registered(41, f"1-{n}") for n in range(4)),
    ]
    assert judged(*registers, call(45, "3", 4), given(46, "3", 4), call(47, "4", 4)).violations == []


def test_registered_machines_without_a_task_count_for_claims() -> None:
    idle: list[Facts] = [
        call(1, "1", 64),
        given(2, "1", 64, boots_at=5.0),
        *(registered(6, f"1-{n}") for n in range(64)),
    ]
    roomy = [visible(0.0, launch=99, boot=99, shared=[share(99)])]
    assert texts(judged(*idle, call(10, "2"), seen=roomy)) == [
        "1 started: config claim window exceeded by 1, image claim window exceeded by 1"
    ]
    assert texts(judged(*idle, worked(7, "1-0"), call(10, "2"), seen=roomy)) == []


def test_a_tripped_config_starts_one_probe_per_permit() -> None:
    tripped = [visible(0.0, state="tripped"), visible(10.0, state="probing", permit=3, ready=True)]
    assert texts(judged(call(5, "1"), seen=tripped)) == ["1 started although tripped, without a permit"]
    probe = judged(call(12, "1"), seen=tripped)
    assert (probe.probes, texts(probe)) == (1, [])
    assert len(texts(judged(call(12, "1"), call(20, "2"), seen=tripped))) == 1, "a permit is spent once"
    assert len(texts(judged(call(12, "1", 2), seen=tripped))) == 1, "a probe is one machine"
    by_share = [visible(0.0, "d", shared=[share(2, state="tripped")])]
    assert len(texts(judged(call(5, "1"), seen=by_share))) == 1, "tripped by the record of its image alone"


def test_without_a_calculator_windows_are_four_and_a_pool_makes_attempts() -> None:
    wide, gone = [visible(0.0, launch=64, boot=64)], [0.0, 1.0, 100.0]
    assert texts(judged(call(1, "1", 6), seen=wide, beats=gone)) == []
    many = judged(call(20, "1", 4), call(21, "2", 2), seen=wide, beats=gone)
    assert texts(many) == [
        "2 started: config launch window exceeded by 2, config boot window exceeded by 2, "
        "config claim window exceeded by 2, image boot window exceeded by 2, image claim window exceeded by 2, "
        "quota window exceeded by 2, capacity window exceeded by 2"
    ]
    tried = judged(call(20, "1", 4), refused(21, "1"), call(24, "2"), call(27, "3"), seen=wide, beats=gone)
    assert (tried.attempts, texts(tried)) == (2, [])
    between = judged(
        call(9.5, "1"), seen=[visible(-9.0, state="tripped")], decided={"1": 4.0}, beats=[-4.0, 0.0, 1.0, 9.0]
    )
    assert between.attempts == 1, "the outage began and ended after the decision"
    often = [call(20 + number / 10, f"{number}") for number in range(40)]
    assert texts(judged(*often, seen=wide, beats=gone)) == ["36 attempts without a calculator, at most 32"]


def test_a_repeated_call_starts_nothing() -> None:
    again = msgspec.structs.replace(call(3, "1", 4), call_id="again")
    assert texts(judged(call(1, "1", 4), again, given(4, "1", 4))) == []


def test_a_slow_call_excuses_itself_alone() -> None:
    """Only the replica that made the slow call may have read records as late."""
    config = next(id_ for id_ in windows.config_keys() if id_.startswith("alone-zone-g@"))
    seen = [visible(0.0, config, launch=8), visible(10.0, config, launch=2)]
    copied = [
        Copied(
            each.at,
            each.at,
            LAUNCH_CONFIG_WEIGHT,
            (("ce_type", b"io.slipway.weight.changed.v1"),),
            msgspec.json.encode(each.record),
        )
        for each in seen
    ]
    copied += [Copied(beat, beat, SERVICE_HEARTBEAT, (), None) for beat in BEATS]
    slow = [call(12, "slow", 4, config), *given(12.1, "slow", 4, config, boots_at=12.2)]
    slow += [registered(12.3, f"slow-{n}") for n in range(4)]
    assert texts(windows.judged(slow, copied, {"slow": 5.0})) == []
    assert texts(windows.judged([*slow, call(14, "quick", 4, config)], copied, {"slow": 5.0, "quick": 13.9})) == [
        "4 started: config launch window exceeded by 2"
    ]


def test_a_run_without_enough_evidence_is_rejected() -> None:
    """Few launches, weights without delay, or a single replica make a run insufficient."""
    reached = dict.fromkeys(windows.REQUIRED_KINDS, 1)
    shown = Report(
        launches=windows.LAUNCHES_MIN, failures=50, probes=0, attempts=0, reached=reached, peaks={}, violations=()
    )
    work = {name: Work(9, 9) for name in ("provisioner", "provisioner-1", "provisioner-2")}
    assert windows.missing(shown, heartbeat_gap=9.0, late=60.0, work=work) == []
    assert windows.missing(shown, heartbeat_gap=9.0, late=7.0, work=work) == [
        "a weight was only 7.0 s of product time late; 60 s are required"
    ]
    for idle in (Work(0, 9), Work(9, 0)):
        assert windows.missing(shown, heartbeat_gap=9.0, late=60.0, work=work | {"provisioner-2": idle}) == [
            "2 replicas decided and launched; 3 are required"
        ]
    nothing = msgspec.structs.replace(shown, launches=windows.LAUNCHES_MIN - 1, failures=49, reached={})
    assert len(windows.missing(nothing, heartbeat_gap=5.0, late=60.0, work=work)) == len(windows.REQUIRED_KINDS) + 3
