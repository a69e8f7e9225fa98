"""Timeline of a worker, as shown to people."""

from datetime import UTC, datetime, timedelta

from slipway_api.events.lifecycle import State
from slipway_provisioner.domain.claims import Claim
from slipway_provisioner.domain.timeline import Moment, timeline
from slipway_provisioner.domain.workers import Worker

START = datetime(2030, 1, 1, tzinfo=UTC)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def test_a_whole_life_in_order() -> None:
    """A worker that registered before the provider's reply and was stopped during its second task."""
    worker = Worker(
        id="w",
        pool_id="p",
        launch_config_id="c",
        account_id="a",
        image_revision="i",
        state=State.STOPPED,
        decision_id="d",
        probe_permit=3,
        batch_id="b",
        instance_id="i-1",
        requested_at=at(0),
        registered_at=at(5),
        launched_at=at(6),
        stopping_at=at(30),
        ended_at=at(50),
        reason="drill",
    )
    claims = [
        Claim(
            task_id=task_id,
            source="q",
            claimed_at="",
            reported_at=began,
            started_at=began,
            ended_at=ended,
            counted=fits,
        )
        for task_id, began, ended, fits in (("1", at(10), at(20), True), ("2", at(20), at(40), False))
    ]
    assert timeline(worker, claims, at(1)) == [
        Moment(at(0), "requested", "on c, probe 3"),
        Moment(at(1), "calling", "batch b"),
        Moment(at(5), "registered", "i-1"),
        Moment(at(6), "launched", "i-1"),
        Moment(at(10), "claimed", "task 1 of q"),
        Moment(at(20), "finished", "task 1 of q"),
        Moment(at(20), "claimed", "task 2 of q, above its task slots"),
        Moment(at(30), "stopping", "drill"),
        Moment(at(40), "finished", "task 2 of q, above its task slots"),
        Moment(at(50), "stopped", "drill"),
    ]


def test_one_that_has_only_been_asked_for() -> None:
    """A delay is no entry of the timeline."""
    worker = Worker(
        id="w",
        pool_id="p",
        launch_config_id="c",
        account_id="a",
        image_revision="i",
        state=State.REQUESTED,
        decision_id="d",
        requested_at=at(0),
        reason="throttled",
        not_before=at(60),
    )
    assert timeline(worker, [], None) == [Moment(at(0), "requested", "on c")]
