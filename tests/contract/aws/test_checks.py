"""Status checks of instances, which confirm the boots of workers that do not register."""

from tests.contract.aws.conftest import Cloud
from tests.support.ec2_server import Received, Reply, checked, error

NOT_FOUND = error("InvalidInstanceID.NotFound", "The instance IDs 'i-2' do not exist")


async def test_both_checks_have_to_pass(cloud: Cloud) -> None:
    """An instance without checks, such as one that does not run any more, has passed none."""
    cloud.server.answers(checked(i_1="ok/ok", i_2="ok/initializing", i_3="impaired/ok", i_4="ok/insufficient-data"))
    asked = [f"i-{n}" for n in range(1, 6)]
    assert await cloud.provider.ready(cloud.account(), asked) == ["i-1"]


async def test_a_call_asks_for_a_hundred(cloud: Cloud) -> None:
    """Instances of a call that fails are left out, for a later pass."""
    ids = [f"i-{n}" for n in range(250)]

    def answer(call: Received) -> Reply:
        asked = call.listed("InstanceId")
        assert len(asked) <= 100
        if "i-150" in asked:
            return error("InternalError", status=500)
        return checked(**{id_.replace("-", "_"): "ok/ok" for id_ in asked})

    cloud.server.answer = answer
    assert await cloud.provider.ready(cloud.account(), ids) == ids[:100] + ids[200:]
    assert len(cloud.server.received) == 3


async def test_an_unknown_instance_does_not_hide_the_others(cloud: Cloud) -> None:
    """EC2 refuses a call as a whole if it does not know an id."""
    cloud.server.answers(NOT_FOUND, checked(i_1="ok/ok", i_3="ok/ok"))
    assert await cloud.provider.ready(cloud.account(), ["i-1", "i-2", "i-3"]) == ["i-1", "i-3"]
    cloud.server.answers(NOT_FOUND)
    assert await cloud.provider.ready(cloud.account(), ["i-2"]) == []
