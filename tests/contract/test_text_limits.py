"""Names over HTTP: the longest are stored together, longer ones are refused with the field, and change nothing."""

from itertools import product
from pathlib import Path
from random import Random
from typing import Any, Final

from slipway_api.limits import NAME
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.store.demand import OBSERVE, observed
from tests.support.lease_broker_http import World
from tests.support.provisioner import administrator, provisioner_on, report

LETTERS: Final = [chr(code) for code in range(0x4E00, 0x9FA5)]
"""Three bytes each. PostgreSQL cannot compress random ones."""


def name(seed: int, characters: int = NAME.characters) -> str:
    return "".join(Random(seed).choices(LETTERS, k=characters))


LONG: Final = [name(1, 500), name(2, NAME.characters + 1), "\N{CRAB}" * NAME.characters]
GROUP: Final = {"size": 100_000, "spread_seconds": 86_399.5}


async def test_the_longest_names_of_a_waiting_request_fit_into_its_index(world: World) -> None:
    terms: dict[str, Any] = {"tenant": name(1), "operation": name(2), "group": GROUP | {"name": name(3)}, "units": 2}
    answers = [await world.replica.acquire(name(4 + n), by="root", **terms) for n in range(2)]
    assert [answer.status_code for answer in answers] == [200, 202], answers[-1].text
    lease = answers[0].json()
    renewal = {"fencing_token": lease["fencing_token"], "progress": name(6, 500)}
    renewed = await world.replica.call("POST", f"/leases/{lease['lease_id']}/renew", renewal, by="root")
    assert renewed.status_code == 200


async def test_two_long_names_of_a_lease_request_are_refused(world: World) -> None:
    before = await world.rows()
    for long, field in product(LONG, ("tenant", "operation", "request_id", "group/name", "replaces/lease_id")):
        body: dict[str, Any] = {"request_id": name(1), "units": 1, "tenant": name(2)}
        match field.split("/"):
            case ["group", inner]:
                body["group"] = {inner: long, **GROUP}
            case ["replaces", inner]:
                body["replaces"] = {inner: long, "fencing_token": 1}
            case [plain]:
                body[plain] = long
        answer = await world.replica.call("POST", "/lease-pools/sim-a/leases", body)
        assert answer.status_code == 422, answer.text
        assert answer.json()["errors"][0]["where"] == f"body/{field}"
        assert "200" in answer.json()["detail"] or "600" in answer.json()["detail"]
    assert await world.rows() == before


async def test_long_names_in_a_demand_report(postgres: EmbeddedPostgres, tmp_path: Path) -> None:
    """Of pool and source at once. The longest source is stored."""
    async with provisioner_on(postgres) as provisioner, administrator(provisioner, tmp_path) as client:
        await provisioner.declare()
        body = {"pending": 1, "observed_at": report(0).observed_at.isoformat(), "source": name(1)}
        assert (await client.put("/pools/linux/demand", json=body)).json() == {"stored": True}
        for long in LONG:
            for pool, source, where in ((long, name(1), "path/pool_id"), ("linux", long, "body/source")):
                answer = await client.put(f"/pools/{pool}/demand", json=body | {"source": source})
                assert (answer.status_code, answer.json()["errors"][0]["where"]) == (422, where), answer.text
        rows = await provisioner.database.fetch(OBSERVE, "linux")
        assert [demand.source for demand in observed(rows)] == [name(1)]
