"""Check of a run on synthetic evidence: each single problem is found, and good evidence is ok."""

from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest

from slipway_api.events import worker as events
from slipway_api.events.topics import WORKER_LIFECYCLE
from slipway_api.events.worker import Outcome, Result, Stage
from slipway_common.messaging.envelope import Envelope
from slipway_local.check.evidence import Evidence, Published, Rows
from slipway_local.check.path_check import judge
from slipway_simulator import facts

IDS: Any = {"pool_id": "p", "launch_config_id": "c", "account_id": "a", "image_revision": "i"}
AT = datetime(1970, 1, 1, 0, 0, 10, tzinfo=UTC)
OK = Outcome(Stage.LAUNCH, Result.OK)


def published(number: int, event: Any, revision: int) -> Published:
    envelope = Envelope(
        id=str(number),
        type=event.type,
        source="/s",
        subject=event.worker_id,
        time=AT,
        sequence_number=number,
        previous=number - 1,
        sequence_source="/s/1",
        revision=revision,
    )
    return Published(WORKER_LIFECYCLE.name, 0, number, envelope, event)


def call(at: float, call_id: str, count: int = 1) -> facts.Call:
    return facts.Call(
        at=at,
        call_id=call_id,
        account="a",
        token=f"t{call_id}",
        deployment="d",
        batch=f"batch-{call_id}",
        config="c",
        count=count,
        zone="z",
        instance_type="m",
        image="i",
        request="r",
    )


def created(at: float, instance_id: str, call_id: str) -> facts.InstanceCreated:
    return facts.InstanceCreated(
        at=at,
        instance_id=instance_id,
        call_id=call_id,
        account="a",
        token=f"t{call_id}",
        request="r",
        deployment="d",
        batch=f"batch-{call_id}",
        config="c",
        zone="z",
        instance_type="m",
        image="i",
        visible_at=at,
        boots_at=None,
        claims=True,
        user_data={},
    )


def reply(at: float, call_id: str, *instances: str) -> facts.Reply:
    return facts.Reply(at=at, call_id=call_id, account="a", code="OK", instance_ids=instances)


def registered(at: float, instance_id: str) -> facts.Registered:
    return facts.Registered(at=at, instance_id=instance_id, worker_id="w", pool_id="p", token="t")


def row(worker_id: str, state: str, batch: str | None, instance: str | None) -> dict[str, Any]:
    return {"id": worker_id, "state": state, "batch_id": batch, "instance_id": instance, "requested_at": 1.0}


def good() -> Evidence:
    """Evidence of one running worker and one requested worker."""
    ledger: list[facts.Fact] = [call(1, "1"), created(2, "i-1", "1"), reply(2, "1", "i-1"), registered(5, "i-1")]
    launched = events.WorkerLaunched(worker_id="w1", **IDS, instance_id="i-1", batch_id="batch-1", outcome=OK)
    return Evidence(
        settled_before=100.0,
        ledger=ledger,
        published=[
            published(1, events.WorkerRequested(worker_id="w1", **IDS, decision_id="d"), 1),
            published(2, events.WorkerRequested(worker_id="w2", **IDS, decision_id="d"), 1),
            published(3, launched, 2),
        ],
        dead_records=0,
        rows=Rows(
            workers=[row("w1", "running", "batch-1", "i-1"), row("w2", "requested", None, None)],
            batches=[{"id": "batch-1", "state": "known"}],
            dead=0,
            gaps=[],
            sent={("/s/1", WORKER_LIFECYCLE.name, 0): 3},
            limits={"a": 1},
            pools={"p": (0, 1)},
            pool_of={"c": "p"},
        ),
    )


def changed(evidence: Evidence, *, rows: dict[str, Any] | None = None, **fields: Any) -> Evidence:
    if rows:
        fields["rows"] = msgspec.structs.replace(evidence.rows, **rows)
    return msgspec.structs.replace(evidence, **fields)


def doubled(e: Evidence) -> Evidence:
    return changed(e, ledger=[*e.ledger, created(3, "i-2", "1")], rows={"pools": {"p": (0, 9)}, "limits": {"a": 9}})


def unknown_batch(e: Evidence) -> Evidence:
    return changed(e, ledger=[*e.ledger, created(3, "i-2", "9")], rows={"pools": {"p": (0, 9)}, "limits": {"a": 9}})


def vanished(e: Evidence) -> Evidence:
    return changed(e, ledger=[*e.ledger, facts.Terminated(at=50, instance_id="i-1", account="a", by="fault")])


def over_limit(e: Evidence) -> Evidence:
    return changed(e, rows={"limits": {"a": 0}})


def over_maximum(e: Evidence) -> Evidence:
    ended = facts.Terminated(at=101, instance_id="i-1", account="a", by="self")
    return changed(e, ledger=[*e.ledger, ended], rows={"pools": {"p": (0, 0)}})


def gap(e: Evidence) -> Evidence:
    lost = msgspec.structs.replace(
        e.published[2].envelope or Envelope(id="", type="", source="", time=AT), sequence_number=7
    )
    return changed(e, published=[*e.published[:2], msgspec.structs.replace(e.published[2], envelope=lost)])


def revision_gap(e: Evidence) -> Evidence:
    nobody = Envelope(id="", type="", source="", time=AT)
    skipped = msgspec.structs.replace(e.published[2].envelope or nobody, revision=5)
    return changed(e, published=[*e.published[:2], msgspec.structs.replace(e.published[2], envelope=skipped)])


def no_outcome(e: Evidence) -> Evidence:
    return changed(e, rows={"batches": [{"id": "batch-1", "state": "calling"}]})


def unresolved(e: Evidence) -> Evidence:
    return changed(e, rows={"workers": [row("w1", "running", "batch-1", "i-1")]})


def first_lost(e: Evidence) -> Evidence:
    later = [
        msgspec.structs.replace(
            p, envelope=msgspec.structs.replace(p.envelope, sequence_number=(p.envelope.sequence_number or 0) + 50)
        )
        for p in e.published
        if p.envelope is not None
    ]
    return changed(e, published=later)


def never_published(e: Evidence) -> Evidence:
    return changed(e, rows={"workers": [*e.rows.workers, row("w3", "requested", None, None)]})


def contradiction(e: Evidence) -> Evidence:
    failed = Outcome(Stage.LAUNCH, Result.FAILED)
    refused = events.WorkerLaunchFailed(worker_id="w1", **IDS, batch_id="batch-1", outcome=failed)
    return changed(e, published=[*e.published[:2], published(3, refused, 2)])


PLANTED = [
    (first_lost, "gaps in the sequence numbers"),
    (lambda e: changed(e, rows={"sent": {("/s/1", WORKER_LIFECYCLE.name, 0): 4}}), "gaps in the sequence numbers"),
    (never_published, "disagree"),
    (contradiction, "disagree"),
    (doubled, "beyond one per requested worker"),
    (unknown_batch, "orphan and missing instances"),
    (vanished, "orphan and missing instances"),
    (over_limit, "above a limit"),
    (over_maximum, "above a limit"),
    (gap, "gaps in the sequence numbers"),
    (revision_gap, "gaps in revisions"),
    (no_outcome, "calls without an outcome"),
    (unresolved, "without an outcome that are not in flight"),
    (lambda e: changed(e, dead_records=2), "dead letters"),
    (lambda e: changed(e, rows={"gaps": [{"kind": "retention"}]}), "recorded gaps"),
    (lambda e: changed(e, published=[]), "no worker was requested"),
]


def test_good_evidence_is_ok() -> None:
    report = judge(good())
    assert list(report.problems) == []
    assert report.line() == (
        "path ok: requested=2 launched=1 registered=0 failed=0 cancelled=0 in_flight=1 doubled=0 unmatched=0 "
        "over_cap=0 gaps=0 lost=0 dead=0"
    )


@pytest.mark.parametrize(("plant", "text"), PLANTED)
def test_each_problem_is_found(plant: Any, text: str) -> None:
    report = judge(plant(good()))
    assert any(text in problem for problem in report.problems), report.problems
    assert report.line().startswith("path BROKEN")


def test_unsettled_instances_are_not_judged() -> None:
    """An instance or a termination is judged only after two passes of the instance reaper."""
    recent = changed(good(), settled_before=1.5)
    gone = changed(recent, ledger=[*recent.ledger, facts.Terminated(at=50, instance_id="i-1", account="a", by="fault")])
    assert list(judge(gone).problems) == []
