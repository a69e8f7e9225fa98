"""Commands of `slipway` against the routes of real services on real databases: what a command sends is accepted, and
what it prints is in the answers."""

import asyncio
import functools
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import msgspec
import pytest
import yaml
from fastapi import FastAPI
from typer.testing import CliRunner

from slipway_api.events.weight import StageHealth
from slipway_client.cli import page_reader
from slipway_client.cli.commands.declared import DIFFERENCE
from slipway_client.cli.confirming import CONFIRMATION
from slipway_client.cli.main import app
from slipway_client.transport.failed import SERVICES
from slipway_client.transport.http import Api
from slipway_client.view.navigation import Place
from slipway_common.base.ids import hash_secret, new_id
from slipway_common.declaration.strict_yaml import read
from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.deployment import Deployment, deployment_on
from tests.support.provisioner import after, declared, report, revision_id, weight
from tests.support.recorded import environment, serving


@pytest.fixture
async def deployment(postgres: EmbeddedPostgres, tmp_path: Path) -> AsyncIterator[Deployment]:
    async with deployment_on(postgres, tmp_path) as deployment:
        yield deployment


def column(table: str, heading: str) -> list[str]:
    """Cells of a table below a heading."""
    head, *rows = table.splitlines()
    start = head.index(heading)
    return [row[start:].split("  ")[0].strip() for row in rows]


async def test_a_declaration(deployment: Deployment) -> None:
    """diff says what apply will do; applied twice, it changes nothing; a refused file changes nothing."""
    file = deployment.file(declared("zone-a", "zone-b"))
    planned = json.loads(await deployment.slipway("diff", file, "-o", "json", exit_code=DIFFERENCE))
    applied = json.loads(await deployment.confirmed("apply", file, "-o", "json"))
    assert applied == planned
    assert {(row["kind"], row["id"], row["result"]) for row in applied} == {
        ("lease pool", "sim-a", "updated"),
        ("account", "sim-a", "created"),
        ("worker pool", "linux", "created"),
        ("launch config", "zone-a", "created"),
        ("launch config", "zone-b", "created"),
    }
    assert await deployment.read("diff", file) == []
    assert "(--if-empty)" in await deployment.slipway("apply", "--if-empty", file)
    refused = await deployment.slipway("apply", deployment.file(declared(max_capacity=-1)), exit_code=2)
    assert "max_capacity" in refused
    assert [row["max_capacity"] for row in await deployment.read("pool", "ls")] == [100]


LIMITS = [{"id": "sim-a", "limit": 24, "pacing": "off"}]


def named(folder: Path, name: str, body: dict[str, Any]) -> str:
    path = folder / name
    path.write_text(yaml.safe_dump(body))
    return str(path)


async def test_declarations_of_two_owners(deployment: Deployment) -> None:
    """Neither removes what the other declared; an object of both is refused with both named, unless it is adopted."""
    first = declared("zone-a") | {"lease_pools": LIMITS}
    pool = first["worker_pools"][0]
    others = pool | {"id": "windows", "launch_configs": [pool["launch_configs"][0] | {"name": "windows-a"}]}
    second: dict[str, Any] = {"version": 1, "worker_pools": [others]}
    a, b = named(deployment.folder, "a.yaml", first), named(deployment.folder, "b.yaml", second)
    await deployment.confirmed("apply", a)
    await deployment.slipway("apply", b)
    assert await deployment.read("diff", a) == await deployment.read("diff", b) == []
    assert {row["id"] for row in await deployment.read("pool", "ls")} == {"linux", "windows"}
    named(deployment.folder, "b.yaml", second | {"worker_pools": [others, pool]})
    refused = await deployment.slipway("apply", b, exit_code=1)
    assert all(word in refused for word in ("linux", "a.yaml", "b.yaml", "--adopt"))
    both = await deployment.slipway("apply", a, b, exit_code=2)
    assert f"{b}: worker_pools[1].id: 'linux' is already used by worker_pools[0] of {a}" in re.sub(r":\d+:", ":", both)
    assert {row["id"] for row in await deployment.read("pool", "ls")} == {"linux", "windows"}
    named(deployment.folder, "b.yaml", {"version": 1, "worker_pools": []})
    removed = await deployment.confirmed("apply", b)
    assert "windows" in removed
    assert {row["id"] for row in await deployment.read("pool", "ls")} == {"linux"}


async def test_the_drain_time_of_a_pool(deployment: Deployment) -> None:
    """It is one of its deadlines, of which the others stay."""
    pool = declared("zone-a", deadlines={"registration_seconds": 600.0})
    await deployment.confirmed("apply", named(deployment.folder, "a.yaml", pool | {"lease_pools": LIMITS}))
    await deployment.slipway("pool", "set", "linux", "--max", "120", "--drain-for", "2h")
    spec = (await deployment.read("pool", "show", "linux"))["declared"]
    assert spec["deadlines"] == {"registration_seconds": 600.0, "drain_seconds": 7200.0}
    assert spec["max_capacity"] == 120


async def test_every_kind_has_one_owner(deployment: Deployment) -> None:
    """Two files share no lease pool, account, worker pool or name of a launch config; a renamed file keeps
    what it declared by its old owner, or takes it over at once, and nothing is removed meanwhile."""
    first = declared("zone-a") | {"lease_pools": LIMITS}
    pool = first["worker_pools"][0]
    await deployment.confirmed("apply", named(deployment.folder, "a.yaml", first))
    before = await deployment.read("export")
    for section in ("lease_pools", "accounts", "worker_pools"):
        b = named(deployment.folder, "b.yaml", {"version": 1, section: first[section]})
        for command in ("diff", "apply"):
            refused = await deployment.slipway(command, b, exit_code=1)
            id_ = first[section][0]["id"]
            assert f"{section[:-1].replace('_', ' ')} {id_} belongs to a.yaml and is also declared by b.yaml" in refused
    b = named(deployment.folder, "b.yaml", {"version": 1, "worker_pools": [pool | {"id": "other"}]})
    refused = await deployment.slipway("apply", b, exit_code=1)
    assert "launch config zone-a of worker pool other: the name belongs to worker pool linux" in refused
    assert await deployment.read("export") == before
    renamed = named(deployment.folder, "renamed.yaml", first)
    refused = await deployment.slipway("apply", renamed, exit_code=1)
    assert "`metadata.owner` keeps the owner of a file that was renamed" in refused
    kept = named(deployment.folder, "renamed.yaml", first | {"metadata": {"owner": "a.yaml"}})
    assert await deployment.read("diff", kept) == []
    named(deployment.folder, "renamed.yaml", first)
    taken = json.loads(await deployment.slipway("apply", "--adopt", renamed, "-o", "json"))
    assert {(row["kind"], row["result"]) for row in taken} == {
        ("lease pool", "updated"),
        ("account", "updated"),
        ("worker pool", "updated"),
    }
    assert await deployment.read("diff", renamed) == []


async def test_lease_pools_alone_need_the_lease_broker_alone(deployment: Deployment) -> None:
    """Also to prune them, and the other services may be away."""
    for service in ("PROVISIONER", "WEIGHT_CALCULATOR"):
        deployment.environment[f"SLIPWAY_{service}_URL"] = "http://127.0.0.1:1"
    file = named(deployment.folder, "limits.yaml", {"version": 1, "lease_pools": [LIMITS[0] | {"id": "only"}]})
    await deployment.slipway("apply", file)
    assert await deployment.read("diff", file) == []
    removed = json.loads(await deployment.confirmed("apply", "--prune", file, "-o", "json"))
    assert [(row["id"], row["result"]) for row in removed] == [("sim-a", "archived")]


@pytest.mark.parametrize("dangerous", ["lease pool", "worker pool"])
async def test_a_danger_in_one_service_changes_neither(deployment: Deployment, dangerous: str) -> None:
    """The digest confirms the changes of both services; another one, or none, changes nothing."""
    body = declared("zone-a") | {"lease_pools": LIMITS}
    file = deployment.file(body)
    await deployment.confirmed("apply", file)
    before = await deployment.read("export")
    if dangerous == "lease pool":
        body["worker_pools"][0]["max_capacity"] = 90
        body["lease_pools"] = [LIMITS[0] | {"limit": 49}]
    else:
        body["lease_pools"] = [LIMITS[0] | {"limit": 25}]
        body["worker_pools"][0]["max_capacity"] = 201
    deployment.file(body)
    refused = await deployment.slipway("apply", file, exit_code=CONFIRMATION)
    assert f"  {dangerous} " in refused
    await deployment.slipway("apply", file, "--confirm", "0" * 12, exit_code=CONFIRMATION)
    assert await deployment.read("export") == before
    shown = await asyncio.to_thread(
        functools.partial(CliRunner().invoke, app, ["diff", file], env=deployment.environment)
    )
    assert (shown.exit_code, shown.stderr.split()[-1]) == (DIFFERENCE, refused.split()[-1])
    await deployment.slipway("apply", file, "--confirm", refused.split()[-1])
    assert await deployment.read("diff", file) == []


async def test_an_export_applied_changes_nothing(deployment: Deployment) -> None:
    """Of one owner, with its metadata, and as JSON; also for texts that YAML could read as something else."""
    body = declared("zone-a", "zone-b", min_capacity=3, evidence={"claim": "queue"}, scaling_ratio="1/3")
    body["worker_pools"][0]["launch_configs"][0] |= {"max_capacity": 7, "settings": {"a": "1e3", "b": ["no", "", 1.5]}}
    body["lease_pools"] = [LIMITS[0] | {"operations": {"build": {"weight": 2}}, "backoff": None}]
    body["metadata"] = {"owner": "team-a"}
    file = deployment.folder / "declared.json"
    file.write_text(json.dumps(body))
    await deployment.confirmed("apply", str(file))
    for output in ("yaml", "json"):
        for owner in ((), ("--owner", "team-a")):
            printed = await deployment.slipway("export", "-o", output, *owner)
            exported = deployment.folder / f"exported.{output}"
            exported.write_text(printed)
            assert read(printed).value["metadata"] == {"owner": "team-a"}
            assert read(printed).value["worker_pools"][0]["launch_configs"][0]["settings"]["a"] == "1e3"
            assert read(printed).value["lease_pools"] == body["lease_pools"]  # without defaults
            assert await deployment.read("diff", str(exported)) == []
    assert "nothing is declared by nobody" in await deployment.slipway("export", "--owner", "nobody", exit_code=1)


async def test_an_export_of_several_owners_is_restored(deployment: Deployment) -> None:
    """A file for each owner, whatever its name; together they change nothing, and restore what was removed."""
    first = declared("zone-a") | {"lease_pools": LIMITS}
    owners = {"a.yaml": "windows", "a": "mac", ".team/b": "arm"}
    await deployment.confirmed("apply", named(deployment.folder, "slipway.yaml", first))
    pool = first["worker_pools"][0]
    for owner, id_ in owners.items():
        config = pool["launch_configs"][0] | {"name": f"{id_}-a"}
        body = {"version": 1, "worker_pools": [pool | {"id": id_, "launch_configs": [config]}]}
        await deployment.slipway("apply", named(deployment.folder, "other.yaml", body), "--owner", owner)
    refused = await deployment.slipway("export", exit_code=1)
    assert all(word in refused for word in ("slipway.yaml", "a.yaml", ".team/b", "--dir DIR", "--owner NAME"))
    backup = deployment.folder / "backup"
    written = await deployment.slipway("export", "--dir", str(backup))
    names = ["%2Eteam%2Fb.yaml", "a.yaml", "a.yaml.yaml", "slipway.yaml"]
    assert sorted(file.name for file in backup.iterdir()) == names
    assert sorted(written.split()) == [str(backup / name) for name in names]
    assert await deployment.read("diff", "-f", str(backup)) == []
    assert "has declarations already" in await deployment.slipway("export", "--dir", str(backup), exit_code=1)
    before = await deployment.read("pool", "show", "mac")
    empty = {"version": 1, "metadata": {"owner": "a"}, "worker_pools": []}
    await deployment.confirmed("apply", named(deployment.folder, "empty.yaml", empty))
    await deployment.slipway("apply", "-f", str(backup))
    after = await deployment.read("pool", "show", "mac")
    assert (after["declared"], after["owner"]) == (before["declared"], "a")
    assert await deployment.read("diff", "-f", str(backup)) == []


async def test_an_export_of_what_nobody_owns(deployment: Deployment) -> None:
    """Its file owns it once it is applied."""
    await deployment.confirmed("apply", deployment.file(declared("zone-a") | {"lease_pools": LIMITS}))
    await deployment.provisioner.database.execute("UPDATE worker_pool SET owner = ''")
    backup = deployment.folder / "backup"
    written = await deployment.slipway("export", "-o", "json", "--dir", str(backup))
    assert [Path(file).name for file in written.split()] == ["unowned.json", "slipway.yaml.json"]
    assert "metadata" not in read((backup / "unowned.json").read_text()).value
    await deployment.slipway("apply", "-f", str(backup))
    assert (await deployment.read("pool", "show", "linux"))["owner"] == "unowned.json"
    assert (await deployment.slipway("export", "--owner", "unowned.json")).startswith("version: 1\n")


async def test_an_export_of_a_newer_deployment(deployment: Deployment) -> None:
    """Unknown fields and sections are kept as they were declared, at any depth: a backup has to be complete."""
    await deployment.confirmed("apply", deployment.file(declared("zone-a") | {"lease_pools": LIMITS}))
    answers, newer, newer_services = dict[str, Any](), {"invented": {"by": ["a later version"]}}, FastAPI()
    async with httpx2.AsyncClient(headers={"Authorization": "Bearer secret of root"}) as client:
        for service in ("provisioner", "lease-broker"):
            url = deployment.environment[f"SLIPWAY_{service.upper().replace('-', '_')}_URL"]
            answers[service] = (await client.get(f"{url}/declaration")).raise_for_status().json()
    for rows in [rows for answer in answers.values() for rows in answer.values()]:
        rows[:] = [row | {"spec": row["spec"] | newer} for row in rows]
    (pool,) = answers["provisioner"]["worker_pools"]
    pool["spec"]["launch_configs"] = [config | newer for config in pool["spec"]["launch_configs"]]
    answers["provisioner"]["budgets"] = [{"owner": "slipway.yaml", "spec": {"id": "b"}}]

    @newer_services.get("/{service}/declaration")
    async def declaration(service: str) -> Any:
        return answers[service]

    with serving(newer_services) as url:
        deployment.environment |= environment(url)
        exported = read(await deployment.slipway("export")).value
    sections = {name: [row["spec"] for row in rows] for answer in answers.values() for name, rows in answer.items()}
    assert exported == {"version": 1, "metadata": {"owner": "slipway.yaml"}} | sections


async def test_pools_and_launch_configs(deployment: Deployment) -> None:
    await deployment.apply("zone-a", "zone-b")
    await deployment.provisioner.follow_the_host()
    await deployment.slipway("demand", "set", "linux", "--pending", "5", "--claimed", "2", "--source", "q")
    await deployment.provisioner.plan()
    assert "pending" in await deployment.slipway("pool", "ls")
    assert [(row["pending"], row["claimed"]) for row in await deployment.read("pool", "ls")] == [(5, 2)]
    shown = await deployment.read("pool", "show", "linux")
    assert [row["pool_id"] for row in shown["decisions"]] == ["linux"]
    assert "decision" in await deployment.slipway("pool", "show", "linux")
    decision = shown["decisions"][0]["id"]
    assert [line.split() for line in (await deployment.slipway("decision", "show", decision)).splitlines()].count(
        ["q", "5", "2", "0", "no"]
    ) == 1
    assert column(await deployment.slipway("lc", "ls"), "name") == ["zone-a", "zone-b"]
    assert "no launch configs" not in await deployment.slipway("lc", "ls", "--pool", "linux")
    for command in (("lc", "pause", "zone-a"), ("pool", "pause", "linux")):
        await deployment.slipway(*command, "--reason", "maintenance", "--for", "30m")
    await deployment.slipway("pool", "freeze", "linux", "--reason", "image is suspect")
    assert (await deployment.read("lc", "show", "zone-a"))["state"] == "paused"
    assert "paused" in await deployment.slipway("lc", "show", "zone-a")
    assert column(await deployment.slipway("pool", "ls"), "mode") == ["frozen"]
    await deployment.slipway("pool", "unfreeze", "linux", "--reason", "r")
    await deployment.slipway("pool", "resume", "linux", "--reason", "r")
    await deployment.slipway("lc", "resume", "zone-a", "--reason", "r")
    assert column(await deployment.slipway("lc", "ls"), "state") == ["active", "active"]
    unknown = await deployment.slipway("pool", "show", "windows", exit_code=1)
    assert unknown == "no worker pool windows; there is linux\n"


async def test_an_image_is_replaced_and_rolled_back(deployment: Deployment) -> None:
    """Both revisions are under one name; the history has who, what and why; the old one is current again at the end."""
    await deployment.apply("zone-a", "zone-b")
    old, new = (revision_id(image=image).partition("@")[2] for image in ("linux-1", "linux-2"))
    fate = "the old one launches what it does not until 5 starts have succeeded"
    assert await deployment.slipway(
        "pool", "set-image", "linux", "linux-2", "--config", "zone-a", "--reason", "patched kernel"
    ) == (f"zone-a: linux-1 → linux-2, revision {old} → {new} (created), {fate}\n")
    listed = await deployment.slipway("lc", "ls")
    assert column(listed, "name") == ["zone-a", "zone-a", "zone-b"]
    assert column(listed, "revision")[:2] == [new, old]
    assert column(listed, "state") == ["active", "fallback", "active"]
    assert "0 of 5 starts succeeded" in await deployment.slipway("pool", "show", "linux")
    assert f"Launch config zone-a@{new}: new, 0 of 5 starts" in await deployment.slipway("why", "zone-a")
    assert f"replaced by zone-a@{new}" in await deployment.slipway("why", f"zone-a@{old}")
    assert "other revision" in await deployment.slipway("lc", "show", "zone-a")
    back = await deployment.slipway("pool", "rollback", "linux", "--reason", "it does not boot")
    assert back.startswith(f"zone-a: linux-2 → linux-1, revision {new} → {old} (reactivated), the old one ")
    history = await deployment.read("pool", "history", "linux")
    assert [(row["action"], row["by"], row["reason"]) for row in history] == [
        ("rollback", "root", "it does not boot"),
        ("set-image", "root", "patched kernel"),
        ("apply", "root", ""),
    ]
    assert "linux-2" in await deployment.slipway("pool", "history", "linux")


async def test_settings_of_a_pool(deployment: Deployment) -> None:
    """A dangerous change is refused with its dangers, and made with their digest."""
    await deployment.apply("zone-a")
    assert "max_capacity" in await deployment.slipway("pool", "set", "linux", "--max", "120", "--mode", "canary")
    assert await deployment.slipway("pool", "set", "linux", "--max", "120") == "pool linux is unchanged\n"
    dangerous = ("pool", "set", "linux", "--max", "1000")
    refused = await deployment.slipway(*dangerous, exit_code=CONFIRMATION)
    assert "the maximum grows from 120 to 1000" in refused
    assert (await deployment.read("pool", "show", "linux"))["max_capacity"] == 120
    await deployment.confirmed(*dangerous)
    assert (await deployment.read("pool", "show", "linux"))["declared"]["max_capacity"] == 1000


async def test_who_changed_what(deployment: Deployment) -> None:
    """Declarations and commands of all kinds in one list; each filter holds in both services."""
    await deployment.apply("zone-a", "zone-b")
    await deployment.slipway("pool", "set", "linux", "--max", "80")
    await deployment.slipway("lc", "pause", "zone-a", "--reason", "rack")
    await deployment.slipway("lease", "set", "sim-a", "--limit", "20", "--reason", "quota")
    lines = (await deployment.slipway("audit")).splitlines()
    assert lines[0].split() == ["at", "by", "action", "kind", "subject", "result", "change", "reason"]
    for words, change in (
        ("root  pause   config      zone-a   updated  ", "paused: true"),
        ("root  set     pool        linux    updated  ", "max_capacity: 100 → 80"),
        ("root  set     lease-pool  sim-a    updated  ", "limit: 24 → 20"),
    ):
        assert [change in line for line in lines if words in line] == [True], lines
    for kind, id_ in (("account", "sim-a"), ("pool", "linux"), ("config", "zone-a"), ("lease-pool", "sim-a")):
        rows = await deployment.read("audit", "--kind", kind, "--subject", id_)
        assert {(row["kind"], row["subject_id"]) for row in rows} == {(kind, id_)}
    assert len(await deployment.read("audit", "-n", "2")) == 2
    assert "account" in await deployment.slipway("audit", "--kind", "sector", exit_code=2)


async def test_user_data(deployment: Deployment) -> None:
    """Of the next machines, with masks for secrets and the largest size; of one launch config on request."""
    body = declared("zone-a", "zone-b")
    body["worker_pools"][0]["user_data"] = "#!/bin/sh\nPASSWORD=hunter2\n\trun {{launch_config}} '{{user_data}}'\n"
    await deployment.confirmed("apply", deployment.file(body | {"lease_pools": [{"id": "sim-a", "limit": 24}]}))
    lines = (await deployment.slipway("user-data", "linux")).splitlines()
    assert lines[:2] == ["#!/bin/sh", "PASSWORD=…"]
    assert lines[2].startswith('\trun zone-a \'{"batch_id":"00000000-')
    assert '"secret":"***"' in lines[2]
    assert "\trun zone-b " in await deployment.slipway("user-data", "linux", "--config", "zone-b")
    assert "no launch config 'zone-c'" in await deployment.slipway(
        "user-data", "linux", "--config", "zone-c", exit_code=1
    )
    shown = await deployment.read("user-data", "linux")
    assert (shown["config"].partition("@")[0], shown["bytes_max"]) == ("zone-a", 16_384)
    assert len(shown["user_data"]) < shown["bytes"] < 3_000


async def test_ids_with_slashes(deployment: Deployment) -> None:
    """The names that other systems give to their pools are taken by every command."""
    pool, config = "gecko-t/t-linux-large", "gecko-t/Linux_a.1"
    body = declared(config, id=pool)
    body["worker_pools"][0]["launch_configs"][0]["zone"] = "zone-a"
    await deployment.provisioner.follow_the_host()
    await deployment.confirmed("apply", deployment.file(body | {"lease_pools": [{"id": "sim-a", "limit": 24}]}))
    revision = (await deployment.read("lc", "show", config))["id"]
    for command in (
        ("pool", "show", pool),
        ("pool", "history", pool),
        ("lc", "show", revision),
        ("lc", "pause", config, "--reason", "r"),
        ("lc", "resume", config, "--reason", "r"),
        ("user-data", pool, "--config", config),
        ("why", pool),
        ("why", config),
        ("why", revision),
        ("pool", "set-image", pool, "linux-2"),
        ("pool", "rollback", pool, "--reason", "r"),
        ("demand", "set", pool, "--pending", "3", "--source", "queue/1"),
        ("demand", "ls", pool),
        ("demand", "rm", pool, "queue/1", "--reason", "r"),
        ("stop-launching", "--pool", pool, "--reason", "r"),
        ("start-launching", "--pool", pool, "--reason", "r"),
    ):
        assert await deployment.slipway(*command), command


async def test_launch_stops(deployment: Deployment) -> None:
    await deployment.apply("zone-a")
    await deployment.slipway("stop-launching", "--account", "sim-a", "--reason", "quota talks", "--for", "30m")
    assert "Pool linux: launching is stopped in account sim-a by root" in (await deployment.slipway("why", "linux"))
    assert (
        await deployment.slipway("start-launching", "--account", "sim-a", "--reason", "r")
        == "launches resumed in account sim-a\n"
    )
    assert await deployment.slipway("start-launching", "--reason", "r") == "launches were not stopped everywhere\n"


async def test_workers(deployment: Deployment) -> None:
    await deployment.apply("zone-a")
    first, second = await deployment.starting(2)
    assert column(await deployment.slipway("worker", "ls", "--pool", "linux"), "state") == ["starting", "starting"]
    assert await deployment.slipway("worker", "ls", "--state", "running") == "no workers\n"
    shown = await deployment.read("worker", "show", first)
    assert (shown["id"], shown["lease"]["lease_pool_id"]) == (first, "sim-a")
    assert shown["decision_id"] in await deployment.slipway("worker", "show", first)
    ended = await deployment.slipway("worker", "terminate", second, "--reason", "hung")
    assert ended == f"worker {second} is stopping\n"
    assert (await deployment.read("why", first))["kind"] == "worker"
    assert (await deployment.slipway("why", second)).startswith(f"Worker {second}: ")
    refused = await deployment.slipway("worker", "terminate", "aaaaaaaa", "--reason", "hung", exit_code=1)
    assert refused == "no worker aaaaaaaa among the newest 1000; use the full ID\n"


async def test_leases(deployment: Deployment) -> None:
    """Held, shown, explained and released, by the holder's commands and by those of operators."""
    await deployment.apply("zone-a")
    held = (await deployment.slipway("lease", "acquire", "--pool", "sim-a", "--max-wait", "0")).strip()
    lease = held.partition(":")[0]
    assert float(await deployment.slipway("lease", "renew", held)) > 0
    assert float(await deployment.slipway("lease", "confirm", held)) > 0
    assert await deployment.slipway("lease", "ls", "-o", "name") == f"{lease}\n"
    assert column(await deployment.slipway("lease", "ls", "--pool", "sim-a"), "id") == [lease]
    assert "sim-a" in await deployment.slipway("lease", "status", lease)
    assert (await deployment.slipway("why", lease)).startswith(f"Lease {lease}: ")
    await deployment.slipway("lease", "set", "sim-a", "--limit", "1", "--reason", "throttled")
    queued = ("lease", "acquire", "--pool", "sim-a", "--request-id", "second", "--max-wait", "0")
    assert '"state": "waiting"' in await deployment.slipway(*queued, "-o", "json", exit_code=75)
    assert "waiting" in await deployment.slipway("lease", "pools")
    assert [row["waiting"] for row in await deployment.read("lease", "pools")] == [1]
    explained = await deployment.read("why", "sim-a")
    assert (explained["kind"], "1 of 1 unit held" in explained["cause"]) == ("lease-pool", True)
    await deployment.slipway("lease", "cancel", "--pool", "sim-a", "second")
    assert await deployment.slipway("lease", "release", held) == "1\n"
    assert await deployment.slipway("lease", "release", held) == "0\n"
    assert await deployment.slipway("lease", "ls") == "no leases\n"


async def test_lease_pools(deployment: Deployment) -> None:
    await deployment.apply("zone-a")
    for change in ("pin", "unpin", "drain", "undrain"):
        await deployment.slipway("lease", change, "sim-a", "--reason", "test")
    members = (await deployment.slipway("lease", "gang", "--member", "sim-a:2", "--max-wait", "0")).split()
    assert len(members) == 1
    assert members[0].partition(":")[0] in await deployment.slipway("lease", "history", "sim-a")
    assert (await deployment.read("lease", "history", members[0]))[0]["lease_id"] == members[0].partition(":")[0]
    assert "limit" in await deployment.slipway("lease", "report", "sim-a", "--limit", "40", "--hold", "15m")
    await deployment.slipway("lease", "set", "sim-a", "--mode", "shadow", "--pacing", "12s/3", "--reason", "try")
    assert column(await deployment.slipway("lease", "pools"), "mode") == ["shadow"]
    unknown = await deployment.slipway("lease", "pin", "sim-b", "--reason", "test", exit_code=78)
    assert unknown == "no lease pool sim-b; there is sim-a\n"


async def test_signals_and_weights(deployment: Deployment) -> None:
    await deployment.apply("zone-a", "zone-b")
    await deployment.calculator.database.execute("UPDATE test_clock SET at = clock_timestamp()")
    raised = await deployment.slipway(
        "signal", "raise", "zone", "zone-b", "degraded", "--reason", "page", "--for", "1h"
    )
    assert "degraded of zone zone-b accepted: counts for zone-b until" in raised
    assert "no signals" in await deployment.slipway("signal", "ls")  # in force once it was consumed from its topic
    assert await deployment.read("signal", "ls") == {"items": [], "refused": []}
    await deployment.calculator.publish()


async def test_what_is_explained(deployment: Deployment) -> None:
    """The image and the launch config that failed are named as the cause."""
    await deployment.apply("zone-a")
    health = StageHealth(probability=0.1, successes=0, failures=2, window=8, failures_folded=0)
    record = weight(
        stages={"launch": health},
        state="tripped",
        tripped_stage="launch",
        tripped_since=after(0),
        probe_permit=1,
        next_probe_at=after(12),
        reason="zone-a tripped: 2 capacity errors",
    )
    await deployment.provisioner.weights(record)
    await deployment.provisioner.demand(report(5))
    await deployment.provisioner.plan()
    for subject, kind in (("linux", "pool"), ("zone-a", "config"), ("image/linux-1", "image")):
        assert (await deployment.read("why", subject))["kind"] == kind
        lines = (await deployment.slipway("why", subject)).splitlines()
        assert [line.partition(":")[0] for line in lines if line.startswith(("Effect", "Remedy"))] == [
            "Effect",
            "Remedy",
        ]
    assert "2 capacity errors" in await deployment.slipway("why", "zone-a")
    weight_shown = await deployment.slipway("weights", "show", "zone-a")
    assert weight_shown.startswith(f"launch config id  {revision_id()}\n")
    diagnosis = (await deployment.slipway("doctor", exit_code=3)).splitlines()
    assert f"remedy: slipway why {revision_id()}" in {line.strip() for line in diagnosis}
    assert diagnosis[0].startswith("fail  provisioner        not ready: ")  # nothing listens for Kafka
    assert "There is nothing named 'windows'" in await deployment.slipway("why", "windows", exit_code=1)


async def test_dead_letters(deployment: Deployment) -> None:
    assert await deployment.slipway("dlq", "ls") == "no dead letters\n"
    assert await deployment.slipway("topics", "stopped") == "no partition is stopped\n"
    place = ("provisioner", "slipway.pool.demand.v1", "3", "7")
    refused = await deployment.slipway("dlq", "drop", *place, exit_code=1)
    assert refused == "No such dead letter: slipway.pool.demand.v1/3/7; see `slipway dlq ls`\n"


async def test_a_token_without_a_scope_is_refused(deployment: Deployment) -> None:
    tokens = [{"name": "reader", "sha256": hash_secret("other"), "scopes": []}]
    (deployment.folder / "tokens.yaml").write_bytes(msgspec.json.encode(tokens))
    deployment.environment["SLIPWAY_TOKEN"] = "other"
    refused = await deployment.slipway("pool", "freeze", "linux", "--reason", "r", exit_code=1)
    assert "slipway token create --name NAME --scope pools:write --file TOKENS" in refused


async def test_the_page_of_a_launch_config_lists_its_own_workers(deployment: Deployment) -> None:
    """However many newer ones its pool has of other launch configs."""
    await deployment.apply("zone-a", "zone-b")
    statement = """
INSERT INTO worker (id, pool_id, launch_config_id, account_id, image_revision, state, decision_id, requested_at,
    ended_at, traceparent)
SELECT id::uuid, 'linux', $2, 'a', 'i', 'stopped', id::uuid, now(), now(), '' FROM unnest($1::text[]) AS g (id)"""
    old, newer = new_id(), [new_id() for _ in range(page_reader.LISTED)]
    await deployment.provisioner.database.execute(statement, [old], revision_id("zone-a"))
    await deployment.provisioner.database.execute(statement, newer, revision_id("zone-b"))
    urls = {name: deployment.environment[f"SLIPWAY_{name.upper().replace('-', '_')}_URL"] for name in SERVICES}
    api = Api(urls, deployment.environment["SLIPWAY_TOKEN"])
    page = await page_reader.read(api, Place("config", revision_id("zone-a")))
    assert [item.place.id for listing in page.listings for item in listing.items] == [old]


async def test_errors_of_a_worker_by_its_last_digits(deployment: Deployment) -> None:
    """As they are listed, and as other commands take them."""
    await deployment.apply("zone-a")
    (worker,) = await deployment.starting(1)
    await deployment.provisioner.database.execute(
        """
INSERT INTO worker_error (at, worker_id, pool_id, launch_config_id, image_revision, code, sample)
VALUES (now(), $1, 'linux', 'c', 'i', 'disk-full', 'no space left')""",
        worker,
    )
    assert "disk-full" in await deployment.slipway("error", "ls", "--worker", worker[-8:])
