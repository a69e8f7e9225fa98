"""`slipway pool set-image`, `set`, `history` and `rollback`: requests, sentences, confirmations."""

import json
from collections.abc import Iterator
from typing import Any, Final

import pytest
from fastapi import FastAPI, Request, Response
from typer.testing import CliRunner, Result

from slipway_client.cli.main import app
from slipway_common.web import problem
from slipway_common.web.problem import Problem
from tests.support.recorded import AT, CONFIG, RECORDED, changed, environment, serving, worker

COST: Final = "pool gecko-t/linux may cost up to 2 an hour"
POOL_DETAILS: Final = RECORDED["pools/linux"]
POOL: Final = "gecko-t/linux"
OLD, NEW = "gecko-t/linux-a@3f2c9a", "gecko-t/linux-a@8b1d00"
OTHER: Final = "gecko-t/linux/sim-a/b/m5"  # made of the config's place


def declared(**fields: Any) -> dict[str, Any]:
    place = {"account": "sim-a", "instance_type": "m5", "image": "linux-1"}
    configs = [place | {"name": "gecko-t/linux-a", "zone": "a"}, place | {"zone": "b"}]
    return {
        "id": POOL,
        "max_capacity": 60,
        "min_capacity": 0,
        "scaling_ratio": "1",
        "launch_configs": configs,
    } | fields


class Provisioner:
    """One pool with entity tags. Its first `others` writes come after one of somebody else."""

    def __init__(self) -> None:
        self.app = FastAPI()
        problem.install(self.app)
        self.version = 1
        self.others = 0
        self.mode = "enforce"
        self.workers: list[dict[str, Any]] = []
        self.spec = declared()
        self.dangers: list[str] = []
        self.changes: list[dict[str, Any]] = [
            {
                "kind": "launch config",
                "id": "gecko-t/linux-a",
                "result": "created",
                "detail": "image: linux-1 → linux-2",
            }
        ]
        self.received: list[tuple[str, dict[str, Any], dict[str, Any]]] = []
        self.before = [CONFIG | {"id": OLD, "name": "gecko-t/linux-a"}]
        self.after = [CONFIG | {"id": NEW, "name": "gecko-t/linux-a", "image_revision": "linux-2", "proven": False}]

        @self.app.get("/launch-configs")
        async def configs(pool: str) -> dict[str, Any]:
            return {"items": self.after if self.received else self.before}

        @self.app.get("/pools/{pool:path}/history")
        async def history(pool: str, limit: int) -> dict[str, Any]:
            revisions = {name: {"revision": "8b1d00", "image": "linux-2"} for name in "ab"}
            many = {f"z{n}": {"revision": "77aa01", "image": "linux-1"} for n in range(4)}
            change = {
                "at": AT,
                "revisions": revisions,
                "to_revision": None,
                "by": "ann",
                "owner": "a.yaml",
                "reason": "",
                "spec_digest": "d",
            }
            config = {"kind": "launch config", "result": "updated"}
            config["detail"] = "revision: 3f2c9a → 8b1d00, image_revision: linux-1 → linux-2"
            rows = [
                {"revision": 9, "action": "rollback", "changes": [], "reason": "no boot"},
                {"revision": 8, "action": "put", "changes": [config | {"id": name} for name in "ab"]},
                {"revision": 7, "action": "put", "changes": [config | {"id": "a"}]},
                {
                    "revision": 4,
                    "revisions": many,
                    "action": "apply",
                    "changes": [
                        {"kind": "worker pool", "id": POOL, "result": "updated", "detail": "max_capacity: 60 → 80"}
                    ],
                },
            ]
            return {"items": [change | row for row in rows][:limit]}

        @self.app.get("/pools/{pool:path}")
        async def read(pool: str, response: Response) -> dict[str, Any]:
            response.headers["ETag"] = f'"{self.version}"'
            return changed(POOL_DETAILS, id=pool, declared=self.spec, owner="a.yaml", mode=self.mode)

        @self.app.get("/workers")
        async def workers() -> dict[str, Any]:
            return {"items": self.workers}

        @self.app.put("/pools/{pool:path}")
        async def write(pool: str, body: dict[str, Any], request: Request) -> dict[str, Any]:
            if self.others:
                self.others -= 1
                self.version += 1
            if request.headers["If-Match"] != f'"{self.version}"':
                raise Problem(412, "precondition-failed", "The pool has changed", "read it again")
            return self.answer(pool, body, dict(request.query_params))

        @self.app.post("/pools/{pool:path}/rollback")
        async def roll_back(pool: str, body: dict[str, Any]) -> dict[str, Any]:
            revisions = {"a": {"revision": "3f2c9a", "image": "linux-1"}, "b": {"revision": "55", "image": "linux-2"}}
            return self.answer(f"{pool}/rollback", body, body) | {"to_revision": 3, "revisions": revisions}

    def answer(self, path: str, body: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
        if self.dangers and given.get("confirm") != "d1gest":
            facts = {"digest": "d1gest", "dangers": self.dangers, "items": self.changes, "more": 1_000}
            raise Problem(409, "confirmation-required", "A confirmation is needed", "; ".join(self.dangers), **facts)
        if body.get("min_capacity", 0) > 60:
            errors = [{"path": "min_capacity", "reason": "must not exceed max_capacity"}]
            raise Problem(
                422, "invalid-declaration", "The declaration is not valid", "min_capacity: must …", errors=errors
            )
        self.received.append((path, body, given))
        answer = {"items": self.changes, "more": 0, "unchanged": 1, "digest": "d1gest", "dangers": [], "applied": True}
        answer["unpriced"] = [{"pool": POOL, "kinds": [], "text": f"pool {POOL}: launches of m9.huge would be refused"}]
        return answer | {
            "costs": [
                {"pool": POOL, "mode": "", "cost": None, "unknown": [], "text": f"pool {POOL} may cost up to 2 an hour"}
            ]
        }


@pytest.fixture
def provisioner() -> Provisioner:
    return Provisioner()


@pytest.fixture
def url(provisioner: Provisioner) -> Iterator[str]:
    with serving(provisioner.app) as url:
        yield url


def slipway(*arguments: str, url: str) -> Result:
    env = environment(url) | {"SLIPWAY_PROVISIONER_URL": url}
    return CliRunner().invoke(app, ("pool", *arguments), env=env, catch_exceptions=False)


def test_an_image_is_replaced_by_one_word(provisioner: Provisioner, url: str) -> None:
    provisioner.after.append(provisioner.before[0] | {"current": False, "replaced_by": "natural"})
    made = slipway("set-image", POOL, "linux-2", url=url)
    assert (made.exit_code, made.stdout) == (
        0,
        "gecko-t/linux-a: linux-1 → linux-2, revision 3f2c9a → 8b1d00 (created), "
        "the old one launches what it does not until 5 starts have succeeded\n",
    )
    ((path, body, given),) = provisioner.received
    assert (path, given) == (POOL, {"action": "set-image"})
    assert [config["image"] for config in body["launch_configs"]] == ["linux-2", "linux-2"]
    assert body | {"launch_configs": []} == declared(launch_configs=[])


def test_a_declaration_of_a_newer_provisioner(provisioner: Provisioner, url: str) -> None:
    """Fields that this version does not know are sent back as they were."""
    newer = declared(later=1)
    newer["launch_configs"] = [config | {"invented": {"by": ["a later version"]}} for config in newer["launch_configs"]]
    provisioner.spec = newer
    assert slipway("set-image", POOL, "linux-2", url=url).exit_code == 0
    ((_, body, _),) = provisioner.received
    assert body == newer | {"launch_configs": [config | {"image": "linux-2"} for config in newer["launch_configs"]]}


def test_only_the_named_configs_get_the_image(provisioner: Provisioner, url: str) -> None:
    """A config without a name has the one of its place. Options become parameters."""
    options = ("--replace", "now", "--drain-for", "30m", "--terminate", "--reason", "leaked")
    assert slipway("set-image", POOL, "linux-2", "--config", OTHER, *options, url=url).exit_code == 0
    ((_, body, given),) = provisioner.received
    assert [config["image"] for config in body["launch_configs"]] == ["linux-1", "linux-2"]
    assert given == {
        "action": "set-image",
        "reason": "leaked",
        "replace": "now",
        "drain_seconds": "1800.0",
        "terminate": "true",
    }


def test_an_unknown_config_changes_nothing(provisioner: Provisioner, url: str) -> None:
    refused = slipway("set-image", POOL, "linux-2", "--config", "linux-z", url=url)
    assert (refused.exit_code, provisioner.received) == (2, [])
    assert "no launch config linux-z" in refused.stderr


@pytest.mark.parametrize(
    ("old", "fate"),
    [
        ({"current": False, "replaced_by": "rolling"}, "the old one shares launches until 5 starts have succeeded"),
        ({"current": False, "state": "draining", "live": 3}, "the old one drains, 3 workers left"),
        (
            {"current": False, "state": "draining", "live": 0, "drain_until": "2126-08-01T14:03:07Z"},
            "the old one drains, no workers left",
        ),
        (None, "the old one is archived"),
    ],
    ids=["rolling", "draining", "empty", "archived"],
)
def test_the_fate_of_the_old_revision_is_named(
    provisioner: Provisioner, url: str, old: dict[str, Any] | None, fate: str
) -> None:
    provisioner.after += [] if old is None else [provisioner.before[0] | old]
    assert slipway("set-image", POOL, "linux-2", url=url).stdout.rstrip().endswith(f", {fate}")


def test_a_pool_that_others_change_is_read_again(provisioner: Provisioner, url: str) -> None:
    """Three attempts; a write never replaces what it has not read."""
    provisioner.others = 2
    assert slipway("set", POOL, "--max", "80", url=url).exit_code == 0
    assert [body["max_capacity"] for _, body, _ in provisioner.received] == [80]
    provisioner.others = 3
    refused = slipway("set", POOL, "--max", "90", url=url)
    assert (refused.exit_code, len(provisioner.received)) == (1, 1)
    assert refused.stderr.startswith("The pool has changed: read it again")


@pytest.mark.parametrize(("mode", "then"), [("observe", "canary"), ("canary", "enforce")])
def test_a_pool_is_promoted(provisioner: Provisioner, url: str, mode: str, then: str) -> None:
    """To the next mode, of which the file needs to know nothing if it declares none."""
    provisioner.mode, provisioner.workers = mode, [worker("w-1", registered_at=None), worker("w-2")]
    provisioner.changes = [{"kind": "worker pool", "id": POOL, "result": "updated", "detail": f"mode: {mode} → {then}"}]
    made = slipway("promote", POOL, "--reason", "it works", url=url)
    assert f"mode: {mode} → {then}" in made.stdout
    assert "may cost up to 2 an hour" in made.stdout
    assert "the next apply reverts this" not in made.stderr
    ((_, body, given),) = provisioner.received
    assert (body["mode"], given) == (then, {"action": "set", "reason": "it works"})


def test_a_canary_that_has_not_registered_is_not_promoted(provisioner: Provisioner, url: str) -> None:
    """Unless it is forced; and in mode enforce nothing is left to do."""
    provisioner.mode, provisioner.workers = "canary", [worker("w-1", registered_at=None)]
    refused = slipway("promote", POOL, url=url)
    assert (refused.exit_code, f"no worker of pool {POOL} has registered in mode canary" in refused.stderr) == (1, True)
    assert provisioner.received == []
    assert slipway("promote", POOL, "--force", url=url).exit_code == 0
    provisioner.mode = "enforce"
    assert slipway("promote", POOL, url=url).stdout == f"pool {POOL} is in mode enforce already\n"


def test_settings_of_a_pool(provisioner: Provisioner, url: str) -> None:
    provisioner.changes = [
        {"kind": "worker pool", "id": POOL, "result": "updated", "detail": "max_capacity: 60 → 80, mode: …"}
    ]
    options = ("--max", "80", "--min", "2", "--mode", "canary", "--ratio", "1/3", "--drain-for", "2h")
    made = slipway("set", POOL, *options, url=url)
    assert made.stdout.splitlines()[1].split()[:4] == ["worker", "pool", POOL, "updated"]
    ((_, body, given),) = provisioner.received
    assert given == {"action": "set"}
    settings = {
        "max_capacity": 80,
        "min_capacity": 2,
        "mode": "canary",
        "scaling_ratio": "1/3",
        "deadlines": {"drain_seconds": 7200.0},
    }
    assert body == declared(**settings)
    assert slipway("set", POOL, url=url).exit_code == 2


def test_a_change_of_what_a_file_declares_is_noted(provisioner: Provisioner, url: str) -> None:
    """The next apply of the file would revert it."""
    note = "declared by a.yaml: change it there too, or the next apply reverts this\n"
    for command in (("set-image", POOL, "linux-2"), ("set", POOL, "--max", "80")):
        assert slipway(*command, url=url).stderr == note
    provisioner.changes = []
    assert slipway("set", POOL, "--max", "80", url=url).stderr == ""


def test_invalid_settings(provisioner: Provisioner, url: str) -> None:
    """Exit code 2 and each problem once, whether the service or the command finds it."""
    refused = slipway("set", POOL, "--min", "500", url=url)
    assert refused.exit_code == 2
    lines = ["The declaration is not valid", "  min_capacity: must not exceed max_capacity"]
    assert refused.stderr.splitlines() == lines
    assert slipway("set", POOL, "--mode", "fast", url=url).exit_code == 2
    assert provisioner.received == []


def test_nothing_to_change(provisioner: Provisioner, url: str) -> None:
    provisioner.changes, provisioner.after = [], provisioner.before
    assert slipway("set-image", POOL, "linux-1", url=url).stdout == f"pool {POOL} is unchanged\n"
    assert slipway("set", POOL, "--max", "60", url=url).stdout == f"pool {POOL} is unchanged\n"


@pytest.mark.parametrize(
    ("command", "again"),
    [
        (
            ("set-image", POOL, "linux-2", "--config", OTHER, "--replace", "now", "--terminate"),
            f"slipway pool set-image {POOL} linux-2 --config {OTHER} --replace now --terminate",
        ),
        (("set", POOL, "--max", "600"), f"slipway pool set {POOL} --max 600"),
        (
            ("rollback", POOL, "--to", "4", "--reason", "no boot"),
            f"slipway pool rollback {POOL} --reason 'no boot' --to 4",
        ),
    ],
)
def test_dangerous_changes_need_a_confirmation(
    provisioner: Provisioner, url: str, command: tuple[str, ...], again: str
) -> None:
    """Exit code 4, all changes, the dangers among them and the command that makes them; nothing is changed before."""
    provisioner.dangers = [f"worker pool {POOL}: archives 2 of 3 active launch configs"]
    refused = slipway(*command, url=url)
    assert (refused.exit_code, refused.stdout, provisioner.received) == (4, "", [])
    assert refused.stderr.splitlines() == [
        "Nothing was changed. These are the changes:",
        "  kind           id               result   detail",
        "  launch config  gecko-t/linux-a  created  image: linux-1 → linux-2",
        "  and 1,000 more changes, which are not listed",
        "These changes need a confirmation:",
        f"  worker pool {POOL}: archives 2 of 3 active launch configs",
        f"To make them: {again} --confirm d1gest",
    ]
    assert slipway(*command, "--confirm", "d1gest", url=url).exit_code == 0
    assert len(provisioner.received) == 1


def test_a_rollback(provisioner: Provisioner, url: str) -> None:
    provisioner.changes = [{"kind": "launch config", "id": "gecko-t/linux-a", "result": "reactivated", "detail": ""}]
    provisioner.before, provisioner.after = provisioner.after, provisioner.before
    provisioner.after.append(provisioner.before[0] | {"current": False, "state": "draining", "live": 1})
    made = slipway("rollback", POOL, "--reason", "it does not boot", "--force", url=url)
    assert (made.exit_code, made.stdout) == (
        0,
        "gecko-t/linux-a: linux-2 → linux-1, revision 8b1d00 → 3f2c9a (reactivated), "
        "the old one drains, 1 worker left\n"
        "As of entry 3 of the history; current: linux-1 (a@3f2c9a); linux-2 (b@55)\n",
    )
    ((path, body, _),) = provisioner.received
    assert (path, body) == (f"{POOL}/rollback", {"reason": "it does not boot", "force": True})
    assert slipway("rollback", POOL, url=url).exit_code == 2  # without a reason


def test_all_revisions_that_a_rollback_drains_are_named(provisioner: Provisioner, url: str) -> None:
    """With their images; one that drained before is not among them."""
    fallback = CONFIG | {"id": "gecko-t/linux-a@77aa01", "image_revision": "linux-0", "current": False}
    drained = fallback | {"id": "gecko-t/linux-a@000000", "state": "draining"}
    provisioner.before = [*provisioner.after, fallback, drained]
    gone = {"current": False, "state": "draining"}
    old, provisioner.after = provisioner.after[0] | gone | {"live": 1}, [CONFIG | {"id": OLD}]
    provisioner.after += [old, fallback | gone | {"live": 58}, drained]
    made = slipway("rollback", POOL, "--reason", "it does not boot", url=url).stdout.splitlines()[0]
    assert made.endswith(
        ", the old one drains, 1 worker left; gecko-t/linux-a@77aa01 (linux-0) drains, 58 workers left"
    )


def test_a_rollback_takes_a_number(provisioner: Provisioner, url: str) -> None:
    """The hash of a revision, which lists show, is refused with what is taken in its place."""
    refused = slipway("rollback", POOL, "--reason", "r", "--to", "9d1a8e", url=url)
    assert (refused.exit_code, provisioner.received) == (2, [])
    assert f"--to takes a number from `slipway pool history {POOL}`" in " ".join(refused.stderr.split())
    assert slipway("rollback", POOL, "--reason", "r", "--to", "9", "--whole", url=url).exit_code == 0
    assert [body for _, body, _ in provisioner.received] == [{"to_revision": 9, "whole": True, "reason": "r"}]


def test_json_has_the_changes(provisioner: Provisioner, url: str) -> None:
    assert json.loads(slipway("set", POOL, "--max", "9", "-o", "json", url=url).stdout) == provisioner.changes


@pytest.mark.parametrize("command", [("set-image", POOL, "linux-2"), ("rollback", POOL, "--reason", "r")])
def test_json_has_the_replacements(provisioner: Provisioner, url: str, command: tuple[str, ...]) -> None:
    """With strategy, workers left and deadline of the revisions that are replaced."""
    old = {"state": "draining", "replaced_by": "natural", "live": 3, "drain_until": AT, "drain_terminate": True}
    provisioner.after.append(provisioner.before[0] | {"current": False} | old)
    (change,) = json.loads(slipway(*command, "-o", "json", url=url).stdout)
    replaced = {"id": OLD, "image_revision": "linux-1"} | old
    new = {"revision": NEW, "image_revision": "linux-2", "made": "created", "needed_starts": 5}
    assert change == provisioner.changes[0] | {"replacement": new | {"replaces": [replaced]}}


def test_the_history_of_a_pool(url: str) -> None:
    heading, *rows = slipway("history", POOL, url=url).stdout.splitlines()
    assert heading.split() == ["number", "at", "by", "action", "owner", "detail", "current", "reason"]
    parts = [row.split("  ") for row in rows]
    assert [[part.strip() for part in row if part.strip()][-2:] for row in parts] == [
        ["linux-2 (a@8b1d00, b@8b1d00)", "no boot"],
        ["2 launch configs updated: image_revision: linux-1 → linux-2", "linux-2 (a@8b1d00, b@8b1d00)"],
        ["a updated: revision: 3f2c9a → 8b1d00, image_revision: linux-1 → linux-2", "linux-2 (a@8b1d00, b@8b1d00)"],
        ["max_capacity: 60 → 80", "linux-1 (4 launch configs)"],
    ]
    assert len(json.loads(slipway("history", POOL, "-n", "2", "-o", "json", url=url).stdout)) == 2
