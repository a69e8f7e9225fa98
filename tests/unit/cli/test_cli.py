"""`slipway`: lists, reports of demand, tokens, usage and help."""

import json
import re
from pathlib import Path

import pytest
import yaml

from slipway_client.cli.commands.tokens import create_token
from slipway_common.base.ids import hash_secret
from slipway_common.base.token_scopes import SCOPES
from slipway_common.web.access import allows
from slipway_common.web.tokens import Tokens
from tests.support.cli_services import EXAMPLE, ROOT, Services, slipway


def test_a_refusal_is_printed_with_a_remedy(services: Services, url: str) -> None:
    answer = slipway("apply", EXAMPLE, url=url, token="bad")
    assert answer.exit_code == 1
    assert "http" not in answer.stderr
    assert "The token lacks a scope: nobody needs lease-pools:write" in answer.stderr
    assert "slipway token create --name NAME --scope lease-pools:write --file TOKENS" in answer.stderr
    assert services.puts == []


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
    newest = {"limit": "101"}  # one more than is shown
    assert services.queries == [
        {"pool": "linux", "state": "running"} | newest,
        {"pool": "sim-a"} | newest,
        newest,
    ]


def test_demand_is_reported_with_its_time(services: Services, url: str) -> None:
    answer = slipway("demand", "set", "linux", "--pending", "12", "--claimed", "3", "--valid-for", "600", url=url)
    assert (answer.exit_code, answer.stdout) == (0, "linux: 12 pending, 3 claimed, from operator\n")
    observed_at = services.demand.pop("observed_at")
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT.*\+00:00", observed_at)
    assert services.demand == {"pending": 12, "claimed": 3, "source": "operator", "valid_for_seconds": 600.0}
    waiting = slipway("demand", "set", "linux", "--pending", "2", url=url)
    assert waiting.stdout == "linux: 2 pending, claimed as its workers report, from operator\n"
    assert services.demand["claimed"] is None
    unknown = slipway("demand", "set", "solaris", "--pending", "1", "--claimed", "0", url=url)
    assert (unknown.exit_code, unknown.stderr) == (1, "no worker pool solaris; there are linux, windows\n")


def test_demand_that_was_not_stored(services: Services, url: str) -> None:
    services.stores = False
    answer = slipway("demand", "set", "linux", "--pending", "1", url=url)
    assert (answer.exit_code, answer.stderr) == (
        1,
        "not stored: a report of operator with a later time was stored before; check this host's clock\n",
    )


def test_a_source_is_removed(services: Services, url: str) -> None:
    answer = slipway("demand", "rm", "linux", "old queue/1", "--reason", "renamed", url=url)
    removed = "source old queue/1 of pool linux is removed: its 5 pending and 1 claimed task no longer count\n"
    assert (answer.exit_code, answer.stdout) == (0, removed)
    assert services.queries == [{"source": "old queue/1", "reason": "renamed"}]
    live = slipway("demand", "rm", "linux", "live", url=url)
    assert live.stdout.splitlines()[1] == (
        "its last report was still valid: if its monitor runs, the next report brings it back"
    )
    unknown = slipway("demand", "rm", "windows", "q", url=url)
    assert (unknown.exit_code, unknown.stderr) == (1, "No such source of demand: pool windows has no 'q'\n")


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


GIVEN = [scope.partition("[")[0] for scope in SCOPES]
BAD_TOKENS = [
    (["--name", "C I", "--scope", "admin"], "--name: 'C I' is invalid"),
    (["--name", "ci", "--scope", "raed"], "--scope: 'raed' allows nothing; scopes are read, read:metrics"),
    (["--name", "ci", "--scope", "demand:write:a b"], "--scope: 'demand:write:a b' allows nothing"),
    (["--name", "known", "--scope", "admin"], "already has a token 'known'"),
    (["--name", "ci", "--scope", "lease:write:demo"], "--scope: 'lease:write:demo' allows nothing; scopes are"),
    (["--name", "ci", "--scope", "leases:write"], "--scope: 'leases:write' allows nothing"),
    (["--name", "ci", "--scope", "state-keys:write:linux"], "--scope: 'state-keys:write:linux' allows nothing"),
    (["--name", "ci", "--scope", "*"], "--scope: '*' allows nothing"),
]


@pytest.mark.parametrize(("arguments", "reason"), BAD_TOKENS)
def test_bad_token_changes_no_file(tmp_path: Path, arguments: list[str], reason: str) -> None:
    file = tmp_path / "tokens.yaml"
    file.write_text("- {name: known, sha256: 00, scopes: []}")
    before = file.read_text()
    answer = slipway("token", "create", *arguments, "--file", str(file))
    assert (answer.exit_code, answer.stdout, file.read_text()) == (2, "", before)
    assert reason in answer.stderr


@pytest.mark.parametrize("scope", [*GIVEN, "leases:*", "leases:write:*", "leases:write:aws-*"])
def test_every_scope_can_be_given(scope: str) -> None:
    assert slipway("token", "create", "--name", "ci", "--scope", scope).exit_code == 0


def test_every_scope_is_documented() -> None:
    helps = create_token.__doc__ or ""
    guide = (ROOT / "docs/guides/operators.md").read_text()
    assert [scope for scope in GIVEN if scope not in helps or f"`{scope}`" not in guide] == []


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
        ["demand", "ls"],
        ["demand", "rm"],
        ["token", "create"],
    ],
)
def test_help_has_an_example(command: list[str]) -> None:
    answer = slipway(*command, "--help")
    assert answer.exit_code == 0
    assert "Example" in answer.stdout
    assert " ".join(["slipway", *command]) in answer.stdout.split("Example", 1)[1]


def test_a_token_is_revoked_in_the_file(tmp_path: Path) -> None:
    """Its lines are cut out; comments and other tokens stay as they are, and the mode of the file does."""
    file = tmp_path / "tokens.yaml"
    one, two = (f"- {{name: {name}, sha256: {hash_secret(name)}, scopes: [read]}}\n" for name in ("one", "two"))
    long = f"- name: long\n  sha256: {hash_secret('long')}\n  scopes: [read]\n"
    file.write_text(f"# ours\n{one}{long}{two}")
    file.chmod(0o640)
    assert slipway("token", "revoke", "long", "--file", str(file)).exit_code == 0
    assert file.read_text() == f"# ours\n{one}{two}"
    assert slipway("token", "revoke", "two", "--file", str(file)).exit_code == 0
    assert slipway("token", "revoke", "one", "--file", str(file)).exit_code == 0
    assert (file.read_text(), file.stat().st_mode & 0o777) == ("# ours\n", 0o640)
    answer = slipway("token", "revoke", "one", "--file", str(file))
    assert answer.exit_code != 0
    assert "has no token 'one'; it has none" in answer.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["tokens.yaml"]


def test_a_token_that_expires_is_created_and_checked(tmp_path: Path) -> None:
    file = tmp_path / "tokens.yaml"
    made = slipway("token", "create", "--name", "ci", "--scope", "read", "--expires-in-days", "90", "--file", str(file))
    found = Tokens(file).find(made.stdout.strip())
    assert found is not None
    assert found.expires_at is not None
    assert not found.expired
    assert slipway("token", "check", "--file", str(file)).stdout == "1 tokens are used as they are\n"
    file.write_text(file.read_text() + "- {name: bad, sha256: x, scopes: [read]}\n")
    assert "token 2: sha256 is no hash" in slipway("token", "check", "--file", str(file)).stderr
