"""Machine identity: what the provisioner makes of documents that machines of EC2 register with, over its HTTP API.

A refused registration changes nothing, so that the refusals share one batch.
"""

from collections.abc import AsyncIterator, Iterator
from functools import partial
from typing import Any, Final

import httpx2
import pytest

from slipway_common.base.ids import new_id, new_worker_token
from slipway_local.ec2.identity import Signer
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner import metrics
from slipway_provisioner.apply.enrolment import BatchInstances
from slipway_provisioner.domain.declaration import DeclarationRefused
from slipway_provisioner.domain.registration import RegistrationKeys
from slipway_provisioner.providers.aws.adapter import Ec2
from slipway_provisioner.providers.aws.body import BATCH
from tests.support.ec2_provisioner import opened, with_ec2
from tests.support.ec2_server import LOST, Answer, Received, Reply, checked, described, error, instance, serving
from tests.support.identity import (
    STARTED,
    Machines,
    account,
    document,
    instance_id,
    launching,
    proof,
    shown,
)
from tests.support.provisioner import KEY, after

A, B, STRANGER, OF_OTHER = 1, 2, 7, 8
OWN: Final = instance_id(A)
FRESH_SECONDS: Final = 900 + 600
STATUS: Final = "DescribeInstanceStatus"

ANOTHER_KEY = "YW5vdGhlciByZWdpc3RyYXRpb24ga2V5LCB0ZXN0cy4="


@pytest.fixture(scope="module", autouse=True)
def credential() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("CI_AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
        patch.setenv("CI_AWS_SECRET_ACCESS_KEY", "secret")
        yield


@pytest.fixture(scope="module")
async def provider() -> AsyncIterator[Ec2]:
    async with opened() as ec2:
        yield ec2


@pytest.fixture(scope="module")
async def shared(postgres: EmbeddedPostgres, provider: Ec2) -> AsyncIterator[tuple[Machines, str, str]]:
    """Two batches: of A and B, and of another machine."""
    async with serving() as server, with_ec2(postgres, provider) as provisioner:
        machines = Machines(provisioner, server)
        await machines.declare()
        first = await machines.launch(2, launching(A, B))
        second = await machines.launch(3, launching(OF_OTHER))
        await provisioner.set_clock(STARTED + 30)
        yield machines, first, second


@pytest.fixture
async def machines(postgres: EmbeddedPostgres, provider: Ec2) -> AsyncIterator[Machines]:
    async with serving() as server, with_ec2(postgres, provider) as provisioner:
        yield Machines(provisioner, server)


def only(name: str, **changes: Any) -> dict[str, str]:
    """A's proof with one of its signatures."""
    made = proof(OWN, **changes)
    return {"document": made["document"], name: made[name]}


DOCUMENT: Final = document(OWN)
REFUSED: Final[dict[str, tuple[dict[str, Any], int, str, str]]] = {
    "the secret alone": ({"identity": None}, 403, "identity-missing", "the batch secret alone does not register"),
    "another secret": (
        {"secret": RegistrationKeys(ANOTHER_KEY).secret(new_id())},
        401,
        "bad-secret",
        "",
    ),
    "forged, RSA-2048": (
        {"identity": {"document": DOCUMENT, "rsa2048": Signer().rsa2048(DOCUMENT)}},
        403,
        "identity-forged",
        "its rsa2048 matches none",
    ),
    "A as B": ({"instance_id": instance_id(B)}, 403, "identity-other-instance", "a machine registers for itself"),
    "B's document": ({"identity": proof(instance_id(B))}, 403, "identity-other-instance", "is that of i-"),
    "old": (
        {"identity": proof(OWN, pendingTime=shown(after(STARTED + 30 - FRESH_SECONDS - 1)))},
        403,
        "identity-old",
        "was started 1501 s ago",
    ),
    "of the future": (
        {"identity": proof(OWN, pendingTime=shown(after(STARTED + 30 + 121)))},
        403,
        "identity-early",
        "correct the clock of the database server",
    ),
    "large document": ({"identity": {"document": "x" * 4097}}, 422, "invalid-request", "4096"),
    "large signature": ({"identity": {"document": "{}", "rsa2048": "x" * 8193}}, 422, "invalid-request", "8192"),
    "weak token": ({"token": "slipway-worker-1"}, 422, "invalid-request", "matching regex"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_refused(shared: tuple[Machines, str, str], name: str) -> None:
    """Each with its reason; it changes nothing, calls nobody, and tells no secret."""
    machines, batch_id, _ = shared
    changes, status, slug, words = REFUSED[name]
    before, called = await machines.rows(), len(machines.server.received)
    counted = refusals(slug)
    response = await machines.register(batch_id, A, **changes)
    check_refused(response, status, slug, words)
    assert RegistrationKeys(KEY).secret(batch_id) not in response.text
    assert await machines.rows() == before
    assert len(machines.server.received) == called
    assert status == 422 or refusals(slug) == counted + 1


async def test_machines_that_a_batch_did_not_launch_are_refused(shared: tuple[Machines, str, str]) -> None:
    """However genuine their documents and whatever secret they have stolen."""
    machines, batch_id, other_id = shared
    before = await machines.rows()
    for batch, number, status, slug in (
        (batch_id, OF_OTHER, 409, "foreign-instance"),
        (other_id, A, 409, "foreign-instance"),
        (batch_id, STRANGER, 409, "orphan-instance"),
        (new_id(), A, 404, "unknown-batch"),
    ):
        check_refused(await machines.register(batch, number), status, slug)
    assert await machines.rows() == before


@pytest.mark.parametrize("name", ["signature", "rsa2048"])
async def test_either_signature_registers(machines: Machines, name: str) -> None:
    """RSA-1024 and RSA-2048, under certificates that have expired, as some of AWS have."""
    await machines.declare()
    batch_id = await machines.launch(1, launching(A))
    registered(await machines.register(batch_id, A, identity=only(name)))
    assert await machines.provisioner.states() == {"running": 1}


async def test_an_account_may_require_long_keys(machines: Machines) -> None:
    await machines.declare(identity_key_bits=2048)
    batch_id = await machines.launch(1, launching(A))
    check_refused(await machines.register(batch_id, A, identity=only("signature")), 403, "identity-forged")
    registered(await machines.register(batch_id, A, identity=only("rsa2048")))


async def test_a_document_enrols_once(machines: Machines) -> None:
    """A copy of it is refused whatever the token it comes with, before and after the machine has used its own."""
    await machines.declare()
    batch_id = await machines.launch(1, launching(A))
    own = registered(await machines.register(batch_id, A))
    for _ in range(2):
        before = await machines.rows()
        for changes in ({}, {"token": None}):
            check_refused(await machines.register(batch_id, A, **changes), 409, "identity-used", "has copied it")
        assert await machines.rows() == before
        assert await heartbeat(machines, own) == 200


async def test_a_restarted_agent_shows_its_token(machines: Machines) -> None:
    """It is the same worker, days later too; so is one whose first answer was lost."""
    await machines.declare()
    batch_id = await machines.launch(1, launching(A))
    token = new_worker_token()
    first = registered(await machines.register(batch_id, A, token=token))
    assert first["token"] == token
    assert registered(await machines.register(batch_id, A, token=token)) == first
    assert await heartbeat(machines, first) == 200
    await machines.provisioner.set_clock(3 * 86_400)
    assert registered(await machines.register(batch_id, A, token=token)) == first
    assert await heartbeat(machines, first) == 200
    assert len(await machines.provisioner.workers()) == 1


async def test_an_agent_without_a_token_gets_one(machines: Machines) -> None:
    await machines.declare()
    batch_id = await machines.launch(1, launching(A))
    first = registered(await machines.register(batch_id, A, token=None))
    assert await heartbeat(machines, first) == 200
    assert registered(await machines.register(batch_id, A, token=first["token"])) == first


async def test_the_end_of_a_machine_is_final(machines: Machines) -> None:
    """Its document and token do not bring it back."""
    await machines.declare()
    batch_id = await machines.launch(1, launching(A))
    own = registered(await machines.register(batch_id, A))
    async with machines.provisioner.client(token=own["token"]) as client:
        response = await client.post(f"/workers/{own['worker_id']}/stopped", json={"at": shown(after(20))})
    assert response.status_code == 200, response.text
    await machines.provisioner.database.execute("UPDATE worker SET state = 'stopped', ended_at = slipway_clock()")
    check_refused(await machines.register(batch_id, A, token=own["token"]), 410, "worker-gone")


async def test_a_machine_registers_before_the_reply(machines: Machines) -> None:
    """The reply is lost: the tag of the batch says that the machine is of it. One listing serves all its machines."""
    await machines.declare()
    batch_id = await machines.launch(2, LOST, listed=described(*(instance(instance_id(n)) for n in (A, B))))
    for number in (A, B):
        registered(await machines.register(batch_id, number))
    assert machines.looked_up() == 1
    asked = next(call for call in machines.server.received if f"tag:{BATCH}" in call.parameters.values())
    assert batch_id in asked.parameters.values()
    assert await machines.provisioner.states() == {"running": 2}
    bound = {worker.instance_id for worker in await machines.provisioner.workers()}
    assert bound == {instance_id(A), instance_id(B)}


async def test_a_machine_that_is_not_listed_yet_tries_again(machines: Machines) -> None:
    """A look-up that finds nothing is no refusal, and is not repeated for each attempt."""
    await machines.declare()
    batch_id = await machines.launch(1, LOST)
    clock = stopped_clock(machines)
    for looked_up in (1, 2):
        for _ in range(5):
            response = await machines.register(batch_id, A)
            check_refused(response, 503, "identity-unknown", "in the listing yet; try again")
            assert response.headers["Retry-After"] == "1"
        assert machines.looked_up() == looked_up
        clock.seconds += 2
    assert await machines.provisioner.states() == {"launching": 1}
    machines.server.answers(DescribeInstances=described(instance(OWN)))
    registered(await machines.register(batch_id, A))


async def test_a_look_up_that_fails_proves_nothing(machines: Machines) -> None:
    """Nor does one from before the machine was visible, however long ago it was started."""
    await machines.declare()
    batch_id = await machines.launch(1, LOST)
    clock = stopped_clock(machines)
    await machines.provisioner.set_clock(STARTED + 299)
    check_refused(await machines.register(batch_id, A), 503, "identity-unknown")
    await machines.provisioner.set_clock(STARTED + 300.5)
    clock.seconds += 1.5
    check_refused(await machines.register(batch_id, A), 503, "identity-unknown")
    machines.server.answers(DescribeInstances=error("InternalError", status=500))
    clock.seconds += 2
    for _ in range(3):
        check_refused(await machines.register(batch_id, A), 503, "identity-unknown")
    machines.server.answers(DescribeInstances=described(instance(OWN)))
    clock.seconds += 2
    registered(await machines.register(batch_id, A))


async def test_a_machine_without_the_tag_of_its_batch_is_refused(machines: Machines) -> None:
    """A genuine machine with a stolen secret, once all instances of the batch would be listed."""
    await machines.declare()
    batch_id = await machines.launch(1, LOST, listed=described(instance(OWN)))
    clock = stopped_clock(machines)
    check_refused(await machines.register(batch_id, STRANGER), 503, "identity-unknown")
    await machines.provisioner.set_clock(STARTED + 301)
    clock.seconds += 291
    check_refused(await machines.register(batch_id, STRANGER), 403, "identity-foreign-batch", "no tag of batch")
    assert await machines.provisioner.states() == {"launching": 1}
    registered(await machines.register(batch_id, A))


async def test_an_outage_makes_no_document_old(machines: Machines) -> None:
    """Time in which nothing could register does not count, and what remains of the time to register does."""
    await machines.declare()
    batch_id = await machines.launch(2, launching(A, B))
    await machines.provisioner.set_clock(STARTED + FRESH_SECONDS - 60)
    outage = 20 * 60
    await machines.provisioner.jump_clock(STARTED + FRESH_SECONDS - 60 + outage)
    registered(await machines.register(batch_id, A))
    await machines.provisioner.expire()  # records the downtime
    await machines.provisioner.set_clock(STARTED + FRESH_SECONDS + outage + 10)
    check_refused(await machines.register(batch_id, B), 403, "identity-old")


async def test_an_adopted_machine_registers_with_its_old_document(machines: Machines) -> None:
    """Its worker was restored without a token, which is the one that it shows then."""
    await machines.declare()
    batch_id = await machines.launch(1, launching(A))
    own = registered(await machines.register(batch_id, A))
    await machines.provisioner.database.execute("UPDATE worker SET token_sha256 = NULL, token_used = false")
    await machines.provisioner.set_clock(5 * 86_400)
    assert registered(await machines.register(batch_id, A, token=own["token"])) == own
    check_refused(await machines.register(batch_id, A), 409, "identity-used")


async def test_a_new_region_is_a_setting(machines: Machines) -> None:
    """A region whose certificates nobody has published here is refused when it is declared, with the setting."""
    wanted = account(machines.server.url, partition="aws-iso")
    wanted["accounts"][0]["region"] = "us-iso-east-1"
    certificates = wanted["accounts"][0]["settings"].pop("identity_certificates")
    for given, words in ((None, "us-iso-east-1 are unknown; write those"), (["no PEM"], r"\[1\] cannot be used")):
        wanted["accounts"][0]["settings"] |= {} if given is None else {"identity_certificates": given}
        with pytest.raises(DeclarationRefused, match=words):
            await machines.provisioner.declare(wanted)
    wanted["accounts"][0]["settings"]["identity_certificates"] = certificates
    await machines.provisioner.declare(wanted)
    await machines.provisioner.trust()
    batch_id = await machines.launch(1, launching(A))
    registered(await machines.register(batch_id, A, identity=proof(OWN, region="us-iso-east-1")))


async def test_a_region_without_certificates_says_what_to_set(machines: Machines) -> None:
    """As an account that was declared with short keys only, and requires long ones."""
    await machines.declare()
    batch_id = await machines.launch(1, launching(A))
    forget = "UPDATE account SET region = 'us-iso-east-1', settings = settings - 'identity_certificates'"
    await machines.provisioner.database.execute(forget)
    response = await machines.register(batch_id, A, identity=proof(OWN, region="us-iso-east-1"))
    check_refused(response, 403, "identity-no-certificate", "add those that AWS publishes to identity_certificates")


async def test_machines_without_an_agent_pass_status_checks(machines: Machines) -> None:
    """Where they are the boot evidence: an instance that runs has not booted before."""
    wanted = account(machines.server.url)
    wanted["worker_pools"][0]["evidence"] = {"boot": "provider_running", "claim": "none"}
    await machines.provisioner.declare(wanted)
    await machines.provisioner.trust()
    await machines.launch(2, launching(A, B), listed=described(*(instance(instance_id(n)) for n in (A, B))))
    others = machines.server.answer
    for seconds, states, expected in (
        (61, ("ok/initializing", "impaired/ok"), {"starting": 2}),
        (122, ("ok/ok", "ok/initializing"), {"starting": 1, "running": 1}),
        (183, ("ok/ok", "ok/ok"), {"running": 2}),
    ):
        status = checked(**dict(zip((instance_id(n).replace("-", "_") for n in (A, B)), states, strict=True)))
        machines.server.answer = partial(_answered, status, others)
        await machines.provisioner.set_clock(seconds)
        await machines.provisioner.reap()
        assert await machines.provisioner.states() == expected


def _answered(status: Reply, others: Answer, call: Received) -> Reply:
    return status if call.action == STATUS else others(call)


class Stopped:
    """Monotonic clock that stands still."""

    seconds = 0.0

    def __call__(self) -> float:
        return self.seconds


def stopped_clock(machines: Machines) -> Stopped:
    """Clock of the provisioner's look-ups by tag."""
    clock = Stopped()
    machines.provisioner.app.state.enroller.instances = BatchInstances(clock=clock)
    return clock


def check_refused(response: httpx2.Response, status: int, slug: str, words: str = "") -> None:
    problem = response.json()
    assert (response.status_code, problem.get("type")) == (status, f"urn:slipway:problem:{slug}"), response.text
    assert words in problem["detail"], response.text


def registered(response: httpx2.Response) -> dict[str, Any]:
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def refusals(slug: str) -> float:
    return float(metrics.REGISTRATIONS_REFUSED.labels(slug)._value.get())


async def heartbeat(machines: Machines, worker: dict[str, Any]) -> int:
    async with machines.provisioner.client(token=worker["token"]) as client:
        return (await client.post(f"/workers/{worker['worker_id']}/heartbeat")).status_code
