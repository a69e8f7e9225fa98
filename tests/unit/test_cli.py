"""The `slipway` command against stub services: output and exit codes."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fastapi import FastAPI, Request
from typer.testing import CliRunner, Result

from slipway_client.cli import tokens
from slipway_client.cli.commands.declared import DECLARED_ALREADY
from slipway_client.cli.commands.tokens import create_token
from slipway_client.cli.main import app
from slipway_common.base.ids import hash_secret
from slipway_common.web import problem
from slipway_common.web.access import Tokens, allows
from slipway_common.web.problem import Problem
from tests.support.answers import POOL, serving

ROOT = Path(__file__).parents[2]
EXAMPLE = str(ROOT / "examples/slipway.yaml")
NOWHERE = "http://127.0.0.1:1"


class Services:
    """Provisioner and lease-broker in one: stores what was put, and lists two of every kind."""

    def __init__(self) -> None:
        self.app = FastAPI()
        problem.install(self.app)
        self.puts: list[str] = []
        self.kept: dict[str, Any] = {}
        self.demand: dict[str, Any] = {}
        self.queries: list[dict[str, str]] = []
        self.refused = ""
        self._route()

    def _route(self) -> None:
        @self.app.put("/{kind:path}")
        async def put(kind: str, request: Request, dry_run: bool = False) -> dict[str, Any]:
            if request.headers.get("authorization") != "Bearer good":
                raise Problem(403, "scope-missing", "The token lacks a scope", f"nobody needs {kind}:write")
            body = await request.json()
            if kind.startswith("pools/"):
                if kind != "pools/linux/demand":
                    raise Problem(404, "unknown-pool", "No such pool", f"no pool {kind.split('/')[1]!r} is declared")
                self.demand = body
                return {"stored": True}
            changed = self.kept.get(kind) != body
            if not dry_run:
                if kind == self.refused:
                    raise Problem(409, "declaration-refused", "The declaration cannot be followed", "not now")
                self.puts.append(kind)
                self.kept[kind] = body
            if kind == "lease-pools":
                fields = {"limit": [None, 40]} if changed else {}
                change = "created" if changed else "unchanged"
                return {"items": [{"id": entry["id"], "change": change, "fields": fields} for entry in body]}
            made = {"kind": "pool", "id": "linux", "action": "update", "detail": "max_capacity: 60 → 120"}
            return {"items": [made] if changed else []}

        @self.app.get("/{kind:path}")
        async def get(kind: str, request: Request) -> dict[str, Any]:
            self.queries.append(dict(request.query_params))
            if kind == "leases":
                raise Problem(503, "unavailable", "Temporarily unavailable", "a database cannot be reached")
            if kind == "launch-configs":
                pools = self.kept.get("declaration", {}).get("worker_pools", [])
                return {"items": [config for pool in pools for config in pool["launch_configs"]]}
            if kind == "workers":
                return {"items": []}
            return {
                "items": [
                    POOL | {"serving": 7, "wanted": None},
                    POOL | {"id": "windows", "mode": "observe", "serving": 112, "wanted": 3, "paused": True},
                ]
            }


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[Services, str]]:
    services = Services()
    with serving(services.app) as url:
        yield services, url


@pytest.fixture
def services(server: tuple[Services, str]) -> Services:
    server[0].puts.clear()
    server[0].kept.clear()
    server[0].queries.clear()
    server[0].refused = ""
    return server[0]


@pytest.fixture
def url(server: tuple[Services, str]) -> str:
    return server[1]


def slipway(*arguments: str, url: str = NOWHERE, token: str = "good") -> Result:
    where = {"SLIPWAY_PROVISIONER_URL": url, "SLIPWAY_LEASE_BROKER_URL": url, "SLIPWAY_TOKEN": token}
    return CliRunner().invoke(app, arguments, env=where, catch_exceptions=False)


@pytest.mark.parametrize("command", ["apply", "diff"])
def test_invalid_file_is_refused_before_any_request(command: str) -> None:
    file = str(ROOT / "tests/data/broken.yaml")
    answer = slipway(command, file)
    assert answer.exit_code == 2
    assert answer.stdout == ""
    lines = answer.stderr.splitlines()
    assert len(lines) == 12
    assert all(re.fullmatch(rf"{re.escape(file)}:\d+: \S+: .+", line) for line in lines)
    assert f"{file}:5: lease_pools[0].limit: -1: must be greater than or equal to 0" in lines


def test_file_that_is_not_text_or_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.yaml").write_bytes(b"version: \xe9")
    answer = slipway("apply", str(tmp_path / "latin.yaml"))
    assert (answer.exit_code, "is not UTF-8 text" in answer.stderr) == (2, True)
    assert slipway("apply", str(tmp_path / "missing.yaml")).exit_code == 2
    assert slipway("apply", str(tmp_path)).exit_code == 2


def test_service_that_is_not_there_is_named_with_its_setting() -> None:
    answer = slipway("apply", EXAMPLE)
    assert answer.exit_code == 1
    assert f"the lease-broker at {NOWHERE} is unavailable" in answer.stderr
    assert "--lease-broker or SLIPWAY_LEASE_BROKER_URL" in answer.stderr


def test_apply_checks_both_services_first_and_is_idempotent(services: Services, url: str) -> None:
    first = slipway("apply", EXAMPLE, url=url)
    assert first.exit_code == 0
    assert services.puts == ["lease-pools", "declaration"]
    assert services.kept["lease-pools"] == services.kept["declaration"]["lease_pools"]
    assert [line.split() for line in first.stdout.splitlines()] == [
        ["kind", "id", "change", "detail"],
        ["lease", "pool", "sim-a", "created"],
        ["lease", "pool", "sim-b", "created"],
        ["lease", "pool", "demo", "created"],
        ["pool", "linux", "update", "max_capacity:", "60", "→", "120"],
    ]
    second = slipway("apply", EXAMPLE, url=url)
    assert (second.exit_code, second.stdout) == (0, "no changes\n")
    assert services.puts == ["lease-pools", "declaration"]


def test_apply_if_empty_keeps_an_existing_declaration(services: Services, url: str, tmp_path: Path) -> None:
    services.refused = "declaration"  # a first start that was cut short is no declaration: it is made up for
    assert slipway("apply", "--if-empty", EXAMPLE, url=url).exit_code == 1
    services.refused = ""
    assert slipway("apply", "--if-empty", EXAMPLE, url=url).exit_code == 0
    assert services.puts[-1] == "declaration"
    declared, puts = services.kept["declaration"], list(services.puts)
    other = tmp_path / "other.yaml"
    other.write_text(Path(EXAMPLE).read_text().replace("max_capacity: 100", "max_capacity: 7"))
    again = slipway("apply", "--if-empty", str(other), url=url)
    assert (again.exit_code, again.stdout) == (0, f"{DECLARED_ALREADY}\n")
    assert (services.puts, services.kept["declaration"]) == (puts, declared)
    assert slipway("apply", str(other), url=url).exit_code == 0
    assert services.kept["declaration"] != declared


def test_diff_changes_nothing(services: Services, url: str) -> None:
    found = slipway("diff", EXAMPLE, "-o", "json", url=url)
    assert found.exit_code == 3
    assert [(row["kind"], row["id"], row["change"]) for row in json.loads(found.stdout)] == [
        ("lease pool", "sim-a", "created"),
        ("lease pool", "sim-b", "created"),
        ("lease pool", "demo", "created"),
        ("pool", "linux", "update"),
    ]
    assert services.puts == []
    slipway("apply", EXAMPLE, url=url)
    none = slipway("diff", EXAMPLE, "-o", "json", url=url)
    assert (none.exit_code, json.loads(none.stdout)) == (0, [])


def test_speed_divides_durations(services: Services, url: str) -> None:
    assert slipway("apply", EXAMPLE, "--speed", "20", url=url).exit_code == 0
    assert services.kept["lease-pools"][0]["hold_seconds"] == 60


def test_a_refusal_is_printed_with_a_remedy(services: Services, url: str) -> None:
    answer = slipway("apply", EXAMPLE, url=url, token="bad")
    assert answer.exit_code == 1
    assert "http" not in answer.stderr
    assert "The token lacks a scope: nobody needs lease-pools:write" in answer.stderr
    assert "slipway token create --scope" in answer.stderr
    assert services.puts == []


def test_a_partial_apply_is_reported(services: Services, url: str) -> None:
    """The provisioner refuses between dry run and change: the message names what was applied."""
    services.refused = "declaration"
    answer = slipway("apply", EXAMPLE, url=url)
    assert answer.exit_code == 1
    assert services.puts == ["lease-pools"]
    assert "The lease pools were applied; fix this and apply again" in answer.stderr


def test_numbers_are_aligned_right_and_gaps_are_dashes(services: Services, url: str) -> None:
    answer = slipway("pool", "ls", url=url)
    assert answer.exit_code == 0
    header, *rows = answer.stdout.splitlines()
    ends = [line.index(word) + len(word) for line, word in zip([header, *rows], ["serving", "  7", "112"], strict=True)]
    assert len(set(ends)) == 1
    assert "wanted" in header
    assert [row.split()[0] for row in rows] == ["linux", "windows"]
    assert " - " in rows[0]


def test_lists_for_programs_have_every_field(services: Services, url: str) -> None:
    rows = json.loads(slipway("pool", "ls", "-o", "json", url=url).stdout)
    assert [row["paused"] for row in rows] == [False, True]
    assert slipway("lc", "ls", url=url).stdout == "no launch configs\n"
    assert json.loads(slipway("lc", "ls", "--output", "json", url=url).stdout) == []


def test_filters_are_passed_on(services: Services, url: str) -> None:
    assert slipway("worker", "ls", "--pool", "linux", "--state", "running", url=url).exit_code == 0
    assert slipway("lease", "ls", "--pool", "sim-a", url=url).exit_code == 69
    assert slipway("worker", "ls", url=url).exit_code == 0
    newest = {"limit": "100"}
    assert services.queries == [{"pool": "linux", "state": "running"} | newest, {"pool": "sim-a"}, newest]


def test_demand_is_reported_with_its_time(services: Services, url: str) -> None:
    answer = slipway("demand", "set", "linux", "--pending", "12", "--claimed", "3", "--valid-for", "600", url=url)
    assert (answer.exit_code, answer.stdout) == (0, "linux: 12 pending, 3 claimed, from operator\n")
    observed_at = services.demand.pop("observed_at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*\+00:00", observed_at)
    assert services.demand == {"pending": 12, "claimed": 3, "source": "operator", "valid_for_seconds": 600.0}
    unknown = slipway("demand", "set", "solaris", "--pending", "1", "--claimed", "0", url=url)
    assert (unknown.exit_code, unknown.stderr) == (1, "no worker pool solaris; there are linux, windows\n")


@pytest.mark.parametrize(
    "arguments",
    [
        ["demand", "set", "linux", "--pending", "-1", "--claimed", "0"],
        ["pool", "ls", "-o", "xml"],
        ["pool", "fly"],
        ["apply"],
        ["token", "create", "--name", "x"],
    ],
)
def test_wrong_usage_is_2(arguments: list[str]) -> None:
    answer = slipway(*arguments)
    assert (answer.exit_code, answer.stdout) == (2, "")


def test_token_is_shown_once_and_kept_as_a_hash(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    scopes = ["--scope", "demand:write:linux", "--scope", "declaration:write"]
    first = slipway("token", "create", "--name", "ci", *scopes, "--file", str(file))
    second = slipway("token", "create", "--name", "me", "--scope", "admin", "--file", str(file))
    assert (first.exit_code, second.exit_code) == (0, 0)
    secret = first.stdout.strip()
    assert secret not in file.read_text()
    assert [entry["name"] for entry in yaml.safe_load(file.read_text())] == ["ci", "me"]
    found = Tokens(file).find(secret)
    assert found is not None
    assert (found.name, found.sha256) == ("ci", hash_secret(secret))
    assert allows(found.scopes, "demand:write:linux")
    assert not allows(found.scopes, "demand:write:windows")


def test_tokens_file_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    answer = slipway("token", "create", "--name", "ci", "--scope", "admin", "--file", str(tmp_path / "no/where.yaml"))
    assert (answer.exit_code, answer.stdout) == (1, "")
    assert "cannot use the tokens file" in answer.stderr


def test_token_without_a_file_shows_the_line_beside_the_secret() -> None:
    answer = slipway("token", "create", "--name", "ci", "--scope", "demand:*")
    assert answer.exit_code == 0
    assert len(answer.stdout.split()) == 1
    assert hash_secret(answer.stdout.strip()) in answer.stderr


BAD_TOKENS = [
    (["--name", "C I", "--scope", "admin"], "--name: 'C I' is invalid"),
    (["--name", "ci", "--scope", "everything"], "--scope: 'everything' is not area:verb"),
    (["--name", "known", "--scope", "admin"], "already has a token 'known'"),
    (["--name", "ci", "--scope", "lease:write:demo"], "--scope: 'lease:write:demo' allows nothing; scopes are"),
    (["--name", "ci", "--scope", "leases:write"], "--scope: 'leases:write' allows nothing"),
    (["--name", "ci", "--scope", "pools:write:linux"], "--scope: 'pools:write:linux' allows nothing"),
]


@pytest.mark.parametrize(("arguments", "reason"), BAD_TOKENS)
def test_bad_token_changes_no_file(tmp_path: Path, arguments: list[str], reason: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text("- {name: known, sha256: 00, scopes: []}")
    before = file.read_text()
    answer = slipway("token", "create", *arguments, "--file", str(file))
    assert (answer.exit_code, answer.stdout, file.read_text()) == (2, "", before)
    assert reason in answer.stderr


@pytest.mark.parametrize("scope", [*tokens.SCOPES, "*", "leases:*", "leases:write:*", "leases:write:aws-*"])
def test_every_scope_can_be_given(scope: str) -> None:
    assert slipway("token", "create", "--name", "ci", "--scope", scope).exit_code == 0


def test_every_scope_is_documented() -> None:
    helps = create_token.__doc__ or ""
    guide = (ROOT / "docs/guides/operators.md").read_text()
    assert [scope for scope in tokens.SCOPES if scope not in helps or f"`{scope}`" not in guide] == []


@pytest.mark.parametrize("before", ['[{"name": "known", "sha256": "00", "scopes": []}]', "- {name: a}\n...\n"])
def test_no_token_is_added_where_a_line_would_break_the_file(tmp_path: Path, before: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text(before)
    answer = slipway("token", "create", "--name", "ci", "--scope", "admin", "--file", str(file))
    assert (answer.exit_code, answer.stdout, file.read_text()) == (2, "", before)
    assert f"{file}:1: no line can be appended to this list" in answer.stderr


@pytest.mark.parametrize(
    "command",
    [
        [],
        ["apply"],
        ["diff"],
        ["pool", "ls"],
        ["lc", "ls"],
        ["worker", "ls"],
        ["lease", "ls"],
        ["demand", "set"],
        ["token", "create"],
    ],
)
def test_help_has_an_example(command: list[str]) -> None:
    answer = slipway(*command, "--help")
    assert answer.exit_code == 0
    assert "Example" in answer.stdout
    assert " ".join(["slipway", *command]) in answer.stdout.split("Example", 1)[1]
