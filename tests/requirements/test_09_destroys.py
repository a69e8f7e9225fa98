from slipway_lease_broker.domain.terms import Operation
from tests.requirements.virtual import Virtual, acquire_request, paced, release
from tests.support.lease_broker import Broker

OPERATIONS = {
    "install": Operation(weight=2),
    "destroy": Operation(weight=1, reserved_units=2, max_wait_seconds=300),
    "tag": Operation(weight=0),
}


async def test_destroys_are_counted_and_never_starve(broker: Broker) -> None:
    """Weighted cost per operation; destroys have a reserved share and a maximum wait after which they proceed over the
    limit; no capacity check where no provider work happens."""
    await broker.declare(paced(8, pacing="off", operations=OPERATIONS, hold_seconds=1e6))
    lived = Virtual(broker)
    installs = await lived.send(*(acquire_request(f"i{number}", operation="install") for number in range(5)))
    assert [grant.request_id for grant in installs] == ["i0", "i1", "i2"], "of 8, 2 are kept for destroys"
    assert len(await lived.send(*(acquire_request(f"d{number}", operation="destroy") for number in range(3)))) == 2
    assert len(await lived.send(*(acquire_request(f"t{number}", operation="tag") for number in range(9)))) == 9
    assert await lived.at(299) == []
    (late,) = await lived.at(300)
    assert late.request_id == "d2", "after its longest wait it goes over the limit"
    assert late.reason, "with a reason"
    assert await lived.send(release(installs[0])) == [], "what went over the limit is counted: creates are held back"
    assert [grant.request_id for grant in await lived.send(release(installs[1]))] == ["i3"]
