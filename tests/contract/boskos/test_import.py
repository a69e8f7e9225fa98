"""Slots declared as a list, and `slipway import boskos` from a file to the lease-broker's rows."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from slipway_api.events.lease import LeaseLimitChanged
from slipway_client.cli.boskos_file import resources
from slipway_client.cli.main import app
from slipway_common.declaration.strict_yaml import Invalid
from tests.contract.boskos.slot_broker import SLOTS, SlotBroker
from tests.contract.boskos.test_calls import acquire, by_state, release
from tests.support.lease_broker import terms
from tests.support.serving import listening

FILE = """
resources:
- type: aws-account
  state: free
  names: [aws-1, aws-2]
- type: gce-project
  state: dirty
  min-count: 1
  max-count: 3
  lifespan: 12h
- type: aws-account
  state: free
  names: [aws-3]
"""


async def run(slot_broker: SlotBroker, folder: Path, text: str, *options: str, by: str = "operator") -> Result:
    """Run the command with the text as its file."""
    (folder / "_boskos.yaml").write_text(text)
    async with listening(slot_broker.replica.app) as url:
        arguments = ["--token", f"secret of {by}", "--lease-broker", url, "import", "boskos", *options]
        return await asyncio.to_thread(CliRunner().invoke, app, [*arguments, str(folder / "_boskos.yaml")])


async def limits(slot_broker: SlotBroker) -> dict[str, int]:
    items = (await slot_broker.replica.call("GET", "/lease-pools")).json()["items"]
    return {item["id"]: item["limit"] for item in items}


async def test_a_file_becomes_slots(slot_broker: SlotBroker, tmp_path: Path) -> None:
    """With lease pools of their number and the hold of the command; the output lists the ignored parts."""
    result = await run(slot_broker, tmp_path, FILE, "--hold", "4h", "--ttl", "20m", "-o", "json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout) == [
        {
            "id": "aws-account",
            "result": "created",
            "limit": 3,
            "added": ["aws-1", "aws-2", "aws-3"],
            "removed": [],
            "kept": [],
            "restored": [],
        },
        {
            "id": "gce-project",
            "result": "created",
            "limit": 3,
            "removed": [],
            "kept": [],
            "restored": [],
            "added": ["gce-project-0", "gce-project-1", "gce-project-2"],
        },
    ]
    assert result.stderr.splitlines() == [
        "gce-project is dynamic: imported as 3 static slots, gce-project-0 to -2",
        "gce-project: not imported: lifespan, min-count",
        "declare aws-account, gce-project in slipway.yaml too, which then owns them: "
        "`slipway apply --prune` removes the others",
    ]
    (row,) = [
        item
        for item in (await slot_broker.replica.call("GET", "/lease-pools")).json()["items"]
        if item["id"] == "aws-account"
    ]
    assert (row["hold_seconds"], row["ttl_seconds"], row["pacing"], row["mode"]) == (14400, 1200, "off", "enforce")
    answer = await slot_broker.done(*[acquire(type_="aws-account")] * 3)
    assert answer.json()["name"] == "aws-3"
    assert (await slot_broker.slots())["gce-project-2"] == ("dirty", "")


async def test_the_same_again_changes_nothing(slot_broker: SlotBroker, tmp_path: Path) -> None:
    """No row changes, whatever happens to the slots in the meantime."""
    await run(slot_broker, tmp_path, FILE)
    await slot_broker.done(acquire(type_="aws-account"))
    before = await slot_broker.rows()
    result = await run(slot_broker, tmp_path, FILE)
    assert (result.exit_code, result.stdout) == (0, "no changes\n")
    assert await slot_broker.rows() == before


async def test_a_dry_run_changes_nothing(slot_broker: SlotBroker, tmp_path: Path) -> None:
    """And prints what would change."""
    before = await slot_broker.rows()
    result = await run(slot_broker, tmp_path, FILE, "--dry-run")
    assert result.exit_code == 0
    assert "aws-1, aws-2, aws-3" in result.stdout
    assert await slot_broker.rows() == before


async def test_a_list_that_changed(slot_broker: SlotBroker, tmp_path: Path) -> None:
    """New slots are added, free ones removed, and an owned one is removed by its release; the limit follows."""
    await run(slot_broker, tmp_path, FILE)
    await slot_broker.done(acquire(type_="aws-account"))
    changed = FILE.replace("[aws-1, aws-2]", "[aws-4, aws-5, aws-6]")
    result = await run(slot_broker, tmp_path, changed, "-o", "json")
    assert json.loads(result.stdout)[0] == {
        "id": "aws-account",
        "result": "updated",
        "limit": 5,
        "added": ["aws-4", "aws-5", "aws-6"],
        "removed": ["aws-2"],
        "kept": ["aws-1"],
        "restored": [],
    }
    assert "still leased: aws-1; removed once released" in result.stderr
    await slot_broker.done(release("aws-1"))
    assert await of_type(slot_broker, "aws") == ["aws-3", "aws-4", "aws-5", "aws-6"]
    assert (await limits(slot_broker))["aws-account"] == 4
    result = await run(slot_broker, tmp_path, changed)
    assert (result.exit_code, result.stdout) == (0, "no changes\n")


async def of_type(slot_broker: SlotBroker, prefix: str) -> list[str]:
    return [name for name in await slot_broker.slots() if name.startswith(prefix)]


FEWER = FILE.replace("[aws-1, aws-2]", "[aws-2]")


async def test_a_slot_that_left_the_file_is_never_handed_out_again(slot_broker: SlotBroker, tmp_path: Path) -> None:
    """Its release removes it, and lowers the limit, with an event and an entry of the audit."""
    await run(slot_broker, tmp_path, FILE)
    await slot_broker.done(by_state("aws-1"))
    await run(slot_broker, tmp_path, FEWER)
    await slot_broker.broker.events()
    await slot_broker.done(release("aws-1"))
    got = [await slot_broker.call(acquire(type_="aws-account")) for _ in range(3)]
    assert [answer.json()["name"] for answer in got[:2]] == ["aws-2", "aws-3"]
    assert got[2].status_code == 404
    assert (await slot_broker.call(release("aws-1"))).status_code == 404
    changed = await slot_broker.broker.events()
    assert [(event.limit, event.previous_limit) for event in changed if isinstance(event, LeaseLimitChanged)] == [
        (2, 3)
    ]


async def test_a_lower_maximum_count_removes_leased_slots_at_their_release(
    slot_broker: SlotBroker, tmp_path: Path
) -> None:
    """Dynamic types have generated names: the highest of them go."""
    await run(slot_broker, tmp_path, FILE)
    names = ["gce-project-0", "gce-project-2"]
    await slot_broker.done(*(by_state(name, state="dirty", dest="cleaning") for name in names))
    result = await run(slot_broker, tmp_path, FILE.replace("max-count: 3", "max-count: 1"))
    assert "still leased: gce-project-2; removed once released" in result.stderr
    assert await of_type(slot_broker, "gce") == names
    await slot_broker.done(*(release(name, dest="free") for name in names))
    assert await of_type(slot_broker, "gce") == ["gce-project-0"]
    assert (await limits(slot_broker))["gce-project"] == 1


async def test_a_later_file_cancels_a_removal(slot_broker: SlotBroker, tmp_path: Path) -> None:
    await run(slot_broker, tmp_path, FILE)
    await slot_broker.done(by_state("aws-1"))
    await run(slot_broker, tmp_path, FEWER)
    result = await run(slot_broker, tmp_path, FILE, "-o", "json")
    assert json.loads(result.stdout)[0]["restored"] == ["aws-1"]
    assert (await run(slot_broker, tmp_path, FILE)).stdout == "no changes\n"
    await slot_broker.done(release("aws-1"))
    assert await of_type(slot_broker, "aws") == ["aws-1", "aws-2", "aws-3"]


ENDS = {
    "reset": ["POST /reset?type=car&state=leased&dest=free&expire=1ms"],
    "update of another slot": ["POST /update?name=car-2&owner=ann&state=leased"],
    "metric": ["GET /metric?type=car"],
}


@pytest.mark.parametrize("calls", ENDS.values(), ids=ENDS)
async def test_a_slot_that_left_the_list_goes_however_it_is_freed(slot_broker: SlotBroker, calls: list[str]) -> None:
    """By a reaper, and by the end of its lease, which the next call finds."""
    await slot_broker.open(limit=2, hold_seconds=1200, ttl_seconds=300)
    await slot_broker.done(by_state("car-1"), by_state("car-2"))
    await slot_broker.put({"lease_pool": "car", "names": ["car-2"]})
    await slot_broker.broker.set_clock(200)
    await slot_broker.done("POST /update?name=car-2&owner=ann&state=leased")
    await slot_broker.broker.set_clock(301)
    await slot_broker.broker.decide()
    await slot_broker.done(*calls)
    assert list(await slot_broker.slots()) == ["car-2", "van-1"]
    assert (await limits(slot_broker))["car"] == 1


async def test_a_removed_lease_pool_with_holders_grants_nothing_again(slot_broker: SlotBroker) -> None:
    """A release frees nothing for others, and no list of other lease pools brings it back; a later declaration that
    names it does."""
    await slot_broker.done(acquire())
    held = (await slot_broker.replica.acquire(pool="car")).json()
    await slot_broker.broker.declare(terms("van", 1))
    await slot_broker.done(release())
    token = {"fencing_token": held["fencing_token"]}
    assert (await slot_broker.replica.call("POST", f"/leases/{held['lease_id']}/release", token)).status_code == 200
    refused = await slot_broker.call(acquire())
    assert (refused.status_code, "archived" in refused.text) == (404, True)
    assert (await slot_broker.replica.acquire("again", pool="car")).status_code == 404
    await slot_broker.put(SLOTS[1])
    assert (await slot_broker.call(acquire())).status_code == 404
    await slot_broker.broker.declare(terms("car", 2), terms("van", 1))
    await slot_broker.done(acquire())


async def test_a_limit_set_by_an_operator_stays(slot_broker: SlotBroker) -> None:
    """The limit follows the slots only while it equals their number; an archived pool is reactivated with it."""
    more = SLOTS[0] | {"names": ["car-1", "car-2", "car-3"]}
    await slot_broker.broker.declare(terms("car", 1))
    assert (await slot_broker.put(more)).json()["items"][0]["limit"] is None
    assert (await limits(slot_broker))["car"] == 1
    await slot_broker.broker.declare()
    answer = (await slot_broker.put(more)).json()["items"][0]
    assert (answer["result"], answer["limit"]) == ("reactivated", 3)
    assert (await limits(slot_broker))["car"] == 3


@pytest.mark.parametrize(
    ("slots", "status", "words"),
    [
        ([{"lease_pool": "van", "names": ["car-1"]}], 409, "slot car-1 belongs to lease pool car but is listed in van"),
        ([{"lease_pool": "a", "names": ["x"]}, {"lease_pool": "b", "names": ["x"]}], 422, "x"),
        ([{"lease_pool": "a", "names": []}, {"lease_pool": "a", "names": []}], 422, "a"),
        ([{"lease_pool": "A_/", "names": []}], 422, "lease_pool"),
        ([{"lease_pool": "a", "names": ["X!"]}], 422, "names"),
        ([{"lease_pool": "a", "names": [], "state": ""}], 422, "state"),
        ([{"lease_pool": "a", "names": ["new-1"]}, {"lease_pool": "van", "names": ["car-1"]}], 409, "car-1"),
    ],
)
async def test_refused_lists(slot_broker: SlotBroker, slots: list[Any], status: int, words: str) -> None:
    """Each with a problem, and nothing changed."""
    before = await slot_broker.rows()
    answer = await slot_broker.put(*slots)
    assert answer.status_code == status
    assert words in answer.json()["detail"]
    assert await slot_broker.rows() == before


async def test_scopes_of_slots(slot_broker: SlotBroker, tmp_path: Path) -> None:
    """Declaring slots needs the scope of lease pools; reading them needs none."""
    before = await slot_broker.rows()
    result = await run(slot_broker, tmp_path, FILE, by="ann")
    assert result.exit_code == 1
    assert "ann needs lease-pools:write" in result.stderr
    assert await slot_broker.rows() == before
    assert (await slot_broker.replica.call("GET", "/slots?pool=nowhere", by="reader")).status_code == 404
    shown = (await slot_broker.replica.call("GET", "/slots?pool=car", by="reader")).json()["items"]
    assert [slot["name"] for slot in shown] == ["car-1", "car-2"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a: 1", "resources: must be a list"),
        ("resources: [1]", "resources[0]: must have type, state and names"),
        ("resources:\n- {type: A_B/, state: free, names: [a]}", "resources[0].type: is not a valid lease pool ID"),
        ("resources:\n- {state: free, names: [a]}", "resources[0].type: is not a valid lease pool ID"),
        ("resources:\n- {type: a, names: [a]}", "resources[0].state: must be a state"),
        ("resources:\n- {type: a, state: free}", "resources[0]: has neither names nor min-count and max-count"),
        ("resources:\n- {type: a, state: free, names: a}", "resources[0].names: must be a list"),
        ("resources:\n- {type: a, state: free, names: [a, b, a]}", "resources[0].names[2]: a is listed twice"),
        ("resources:\n- {type: a, state: free, names: [A]}", "resources[0].names[0]: is not a valid name"),
        ("resources:\n- {type: a, state: free, max-count: -1}", "resources[0].max-count: must be an integer"),
        ("resources:\n- {type: a, state: free, max-count: many}", "resources[0].max-count: must be an integer"),
        (
            "resources:\n- {type: a, state: free, names: [a]}\n- {type: a, state: dirty, names: [b]}",
            "resources[1].state: conflicts with free above",
        ),
        ("resources: [", "file: is not YAML"),
    ],
)
def test_refused_files(text: str, problem: str) -> None:
    """With every problem and its line."""
    with pytest.raises(Invalid) as refused:
        resources(text)
    assert str(refused.value).startswith(problem)
    assert all(found.line for found in refused.value.problems) or text == "a: 1"
