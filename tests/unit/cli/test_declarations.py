"""`slipway apply` and `slipway diff` against stand-ins for the services."""

import json
import re
import shlex
from pathlib import Path
from typing import Any, Final

import pytest
from typer.testing import CliRunner

from slipway_client.cli.commands.declared import DECLARED_ALREADY
from slipway_client.cli.main import app
from tests.support.cli_services import EXAMPLE, NOWHERE, ROOT, Services, slipway
from tests.support.recorded import ACCOUNT, CONFIG, changed


@pytest.mark.parametrize("output", ["table", "json"])
def test_an_apply_shows_what_it_replaces(services: Services, url: str, output: str) -> None:
    """In the words of set-image: revisions, strategy, and what becomes of the old ones."""
    services.replaced = CONFIG | {"id": "zone-a@8b1d00", "image_revision": "linux-2", "proven": False}
    made = slipway("apply", EXAMPLE, "--replace", "rolling", "-o", output, url=url)
    assert made.exit_code == 0
    assert {"name": CONFIG["name"]} in services.queries  # other launch configs are not read
    if output == "json":
        (config,) = [change for change in json.loads(made.stdout) if change["kind"] == "launch config"]
        (old,) = config["replacement"]["replaces"]
        assert (config["replacement"]["revision"], old["id"], old["replaced_by"]) == (
            "zone-a@8b1d00",
            CONFIG["id"],
            "rolling",
        )
    else:
        assert made.stdout.splitlines()[-1] == (
            "zone-a: linux-1 → linux-2, revision 3f2c9a → 8b1d00 (created), "
            "the old one shares launches until 5 starts have succeeded"
        )


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
    (tmp_path / "latin.yaml").write_bytes(b"version:\n  \xe9")
    answer = slipway("apply", str(tmp_path / "latin.yaml"))
    assert answer.exit_code == 2
    assert "latin.yaml:2: is not UTF-8 text: byte 0xe9; save it as UTF-8" in answer.stderr
    assert slipway("apply", str(tmp_path / "missing.yaml")).exit_code == 2
    assert slipway("apply", str(tmp_path)).exit_code == 2


def test_service_that_is_not_there_is_named_with_its_setting() -> None:
    answer = slipway("apply", EXAMPLE)
    assert answer.exit_code == 1
    assert f"the lease-broker at {NOWHERE} is unavailable" in answer.stderr
    assert "; a demo writes its own to .slipway/env" in answer.stderr
    assert "--lease-broker or SLIPWAY_LEASE_BROKER_URL" in answer.stderr


def test_apply_checks_both_services_first_and_is_idempotent(services: Services, url: str) -> None:
    first = slipway("apply", EXAMPLE, url=url)
    assert first.exit_code == 0
    assert services.puts == ["lease-pools", "declaration"]
    header, *lines = services.kept["declaration"]
    sections = ["accounts", "worker_pools"]
    assert header == {"version": 1, "metadata": {"owner": "slipway.yaml"}, "sections": sections}
    assert [list(line) for line in lines] == [["account"], ["account"], ["worker_pool"]]
    assert [document["owner"] for document in services.kept["lease-pools"]["documents"]] == ["slipway.yaml"]
    assert [line.split() for line in first.stdout.splitlines()] == [
        ["kind", "id", "result", "detail"],
        ["lease", "pool", "sim-a", "created"],
        ["lease", "pool", "sim-b", "created"],
        ["lease", "pool", "demo", "created"],
        ["worker", "pool", "linux", "created"],
    ]
    second = slipway("apply", EXAMPLE, url=url)
    assert (second.exit_code, second.stdout) == (0, "no changes\n")
    assert services.puts == ["lease-pools", "declaration"]


POOL_OF_AWS: Final = "version: 1\nlease_pools: [{id: aws-main, limit: 50}]\n"
ACCOUNT_OF_AWS: Final = """accounts:
  - {id: aws-main, provider: aws, region: eu-central-1, identity: "1", lease_pool: aws-main, credential: {name: ci}}
"""
PACED_BY_AWS: Final = {"interval_seconds": 0.5, "burst": 1}


LAUNCH: Final = {"weight": 1, "reserved_units": 0, "max_wait_seconds": None, "pacing": None}


def launch_pacing(services: Services) -> Any:
    """Pacing of launches that was applied to the lease pool aws-main."""
    ((declared,),) = (document["lease_pools"] for document in services.kept["lease-pools"]["documents"])
    return declared["operations"].get("launch", {}).get("pacing")


def test_apply_paces_launches_by_the_provider_of_their_account(services: Services, url: str, tmp_path: Path) -> None:
    """With the account declared here, or applied before; diff shows it, and the same file changes nothing again."""
    both, pools = tmp_path / "both.yaml", tmp_path / "pools.yaml"
    both.write_text(POOL_OF_AWS + ACCOUNT_OF_AWS)
    pools.write_text(POOL_OF_AWS)
    said = "lease pool aws-main: launches are paced by provider aws of account aws-main, 120 a minute"
    assert said in slipway("diff", str(both), url=url).stdout
    assert slipway("apply", str(both), url=url).exit_code == 0
    assert launch_pacing(services) == PACED_BY_AWS
    assert slipway("apply", str(both), url=url).stdout == "no changes\n"
    services.accounts = [changed(ACCOUNT, id="aws-main", owner="both.yaml", provider="aws", lease_pool_id="aws-main")]
    assert slipway("apply", str(pools), url=url).exit_code == 0
    assert launch_pacing(services) == PACED_BY_AWS
    pools.write_text(POOL_OF_AWS.replace("limit: 50", "limit: 50, pacing: 'off'"))
    assert slipway("apply", str(pools), url=url).exit_code == 0
    assert launch_pacing(services) is None
    services.accounts[0]["removed"] = True
    both.write_text(POOL_OF_AWS + "accounts: []\n")
    assert slipway("apply", str(both), url=url).exit_code == 0
    assert launch_pacing(services) is None


def test_an_account_of_a_pool_declared_elsewhere_gets_a_hint(services: Services, url: str, tmp_path: Path) -> None:
    accounts = tmp_path / "accounts.yaml"
    accounts.write_text("version: 1\n" + ACCOUNT_OF_AWS.replace("lease_pool: aws-main", "lease_pool: theirs"))
    answer = slipway("apply", str(accounts), url=url)
    assert answer.exit_code == 0
    assert "slipway lease set theirs --pacing 0.5s --operation launch" in answer.stderr


def test_launches_stay_paced_while_the_provisioner_is_unavailable(services: Services, url: str, tmp_path: Path) -> None:
    """Lease pools are applied without it: their launches do not fall back to the default."""
    pools = tmp_path / "pools.yaml"
    pools.write_text(POOL_OF_AWS)
    services.lease_pool |= {"id": "aws-main", "operations": {"launch": LAUNCH | {"pacing": PACED_BY_AWS}}}
    answer = slipway("--provisioner", NOWHERE, "--lease-broker", url, "apply", str(pools))
    assert answer.exit_code == 0
    assert launch_pacing(services) == PACED_BY_AWS


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
    assert [(row["kind"], row["id"], row["result"]) for row in json.loads(found.stdout)] == [
        ("lease pool", "sim-a", "created"),
        ("lease pool", "sim-b", "created"),
        ("lease pool", "demo", "created"),
        ("worker pool", "linux", "created"),
    ]
    assert services.puts == []
    slipway("apply", EXAMPLE, url=url)
    none = slipway("diff", EXAMPLE, "-o", "json", url=url)
    assert (none.exit_code, json.loads(none.stdout)) == (0, [])


@pytest.mark.parametrize("dangerous", ["lease-pools", "declaration"])
def test_dangers_need_a_confirmation_by_their_digest(
    services: Services, url: str, tmp_path: Path, dangerous: str
) -> None:
    """Without it, exit code 4 and no change in either service; the printed command makes the change."""
    services.dangers, services.more = {dangerous: ["worker pool windows is removed"]}, 1_000
    folder = tmp_path / "two words"
    folder.mkdir()
    (folder / "slipway.yaml").write_text(Path(EXAMPLE).read_text())
    options = ["-f", str(folder), "--prune", "--replace", "now", "--drain-for", "2h", "--terminate"]
    refused = slipway("apply", *options, url=url)
    assert (refused.exit_code, refused.stdout, services.puts) == (4, "", [])
    *_, danger, _ = refused.stderr.splitlines()
    assert danger == "  worker pool windows is removed"
    assert re.search(r"worker pool +linux +created", refused.stderr), "what is confirmed is shown"
    assert "and 2,000 more changes, which are not listed" in refused.stderr
    shown = slipway("diff", *options, url=url)
    assert (shown.exit_code, services.puts) == (3, [])
    assert "and 2,000 more changes, which are not listed" in shown.stderr
    command = shown.stderr.splitlines()[-1]
    assert command == refused.stderr.splitlines()[-1]
    words = shlex.split(command.removeprefix("To make them: "))
    assert words[:4] == ["slipway", "apply", "-f", str(folder)]
    wrong = slipway("apply", *options, "--confirm", "0" * 12, url=url)
    assert (wrong.exit_code, services.puts) == (4, [])
    assert slipway(*words[1:], url=url).exit_code == 0
    assert services.puts == ["lease-pools", "declaration"]
    asked = {"replace": "now", "drain_seconds": "7200.0", "terminate": "true", "prune": "true"}
    assert services.queries[-1] == asked | {"confirm": "digest of declaration"}


def test_dangers_that_appear_after_the_check_change_nothing(services: Services, url: str) -> None:
    """The service refuses what was not confirmed, and the command says that the deployment changed meanwhile."""
    services.dangers = {"declaration": ["worker pool windows is removed"]}
    digest = slipway("diff", EXAMPLE, url=url).stderr.split()[-1]
    slipway("apply", EXAMPLE, "--confirm", digest, url=url)
    assert services.puts == ["lease-pools", "declaration"]
    services.reset()
    services.refused = "lease-pools"
    refused = slipway("apply", EXAMPLE, url=url)
    assert (refused.exit_code, services.puts) == (1, [])


def test_each_service_is_asked_for_its_sections_only(services: Services, url: str, tmp_path: Path) -> None:
    """A file that holds only lease pools needs no provisioner, and one without them no lease-broker."""
    text = Path(EXAMPLE).read_text()
    cut = text.index("accounts:")
    (tmp_path / "limits.yaml").write_text(text[:cut])
    (tmp_path / "pools.yaml").write_text("version: 1\n" + text[cut:])
    for file, service in (("limits.yaml", "lease-pools"), ("pools.yaml", "declaration")):
        services.reset()
        where = {"LEASE_BROKER" if service == "declaration" else "PROVISIONER": NOWHERE}
        alone = {f"SLIPWAY_{name}_URL": where.get(name, url) for name in ("PROVISIONER", "LEASE_BROKER")}
        for command in ("diff", "apply"):
            answer = CliRunner().invoke(app, [command, str(tmp_path / file)], env=alone | {"SLIPWAY_TOKEN": "good"})
            assert (answer.exit_code, answer.stderr) == ({"diff": 3, "apply": 0}[command], "")
        assert services.puts == [service]


def test_a_section_that_is_absent_is_not_sent(services: Services, url: str, tmp_path: Path) -> None:
    """`[]` removes what the owner declared before in that section; an absent section is left alone."""
    file = tmp_path / "none.yaml"
    file.write_text("version: 1\nworker_pools: []\n")
    slipway("apply", str(file), url=url)
    assert services.queries == [{"dry_run": "true"}]
    (tmp_path / "both.yaml").write_text("version: 1\naccounts: []\nlease_pools: []\n")
    assert slipway("diff", "-f", str(tmp_path), url=url).exit_code == 0
    services.kept["declaration"] = []
    (tmp_path / "linux.yaml").write_text(Path(EXAMPLE).read_text())
    assert slipway("apply", "-f", str(tmp_path), url=url).exit_code == 0
    headers = [line for line in services.kept["declaration"] if "version" in line]
    assert [(line["metadata"]["owner"], line["sections"]) for line in headers] == [
        ("both.yaml", ["accounts"]),
        ("linux.yaml", ["accounts", "worker_pools"]),
        ("none.yaml", ["worker_pools"]),
    ]
    documents = services.kept["lease-pools"]["documents"]
    assert [(document["owner"], len(document["lease_pools"])) for document in documents] == [
        ("both.yaml", 0),
        ("linux.yaml", 3),
    ]


LIMIT = "version: 1\nlease_pools:\n- {id: ID, limit: 3}\n"


def test_a_folder_is_applied_as_its_files(services: Services, url: str, tmp_path: Path) -> None:
    """Every file is a declaration of its own owner, in the order of their names; other files are left alone."""
    for name, owner in (("b.yml", None), ("a.yaml", None), ("c.json", "team-c"), ("d.yaml", "team-c")):
        text = LIMIT.replace("ID", name) + (f"metadata: {{owner: {owner}}}\n" if owner else "")
        (tmp_path / name).write_text(text)
    (tmp_path / "notes.txt").write_text("no declaration")
    (tmp_path / ".hidden.yaml").write_text("no declaration")
    (tmp_path / "inside").mkdir()
    assert slipway("apply", "-f", str(tmp_path), str(tmp_path / "a.yaml"), url=url).exit_code == 0
    documents = services.kept["lease-pools"]["documents"]
    assert [(document["owner"], [pool["id"] for pool in document["lease_pools"]]) for document in documents] == [
        ("a.yaml", ["a.yaml"]),
        ("b.yml", ["b.yml"]),
        ("team-c", ["c.json", "d.yaml"]),
    ]
    empty = slipway("apply", "-f", str(tmp_path / "inside"), url=url)
    assert (empty.exit_code, "no .yaml, .yml or .json file" in empty.stderr) == (2, True)


def test_one_object_in_two_files_is_refused_with_both_named(services: Services, url: str, tmp_path: Path) -> None:
    for name in ("a.yaml", "b.yaml"):
        (tmp_path / name).write_text(LIMIT.replace("ID", "same"))
    answer = slipway("apply", "-f", str(tmp_path), url=url)
    where = f"{tmp_path}/b.yaml:3: lease_pools[0].id: 'same' is already used by lease_pools[0] of {tmp_path}/a.yaml\n"
    assert (answer.exit_code, answer.stderr, services.queries) == (2, where, [])


def test_problems_of_all_files_are_reported(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("version: 1\nlease_pools:\n- {id: a, limit: -1}\n")
    (tmp_path / "b.yaml").write_text("version: [\n")
    (tmp_path / "c.yaml").write_text("version: 1\nlease_pools:\n" + "- {id: a}\n" * 300)
    answer = slipway("diff", "-f", str(tmp_path))
    assert answer.exit_code == 2
    lines = answer.stderr.splitlines()
    assert [line.split(": ")[0] for line in lines[:2]] == [f"{tmp_path}/a.yaml:3", f"{tmp_path}/b.yaml:2"]
    assert lines[-1] == f"{tmp_path}/c.yaml: and 200 more problems"
    assert len(lines) == 103


def test_owner_of_a_declaration_is_the_name_of_its_file(services: Services, url: str, tmp_path: Path) -> None:
    """Where no name can be the owner, it has to be given: for standard input, an odd name, or one name twice."""
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "slipway.yaml").write_text(LIMIT.replace("ID", folder))
    (tmp_path / "my file.yaml").write_text(LIMIT.replace("ID", "mine"))
    one, two = (str(tmp_path / folder / "slipway.yaml") for folder in ("one", "two"))
    twice = slipway("apply", one, two, url=url)
    assert (twice.exit_code, f"metadata.owner: is missing: {one} has the same name" in twice.stderr) == (2, True)
    odd = slipway("apply", str(tmp_path / "my file.yaml"), url=url)
    assert (odd.exit_code, "metadata.owner: is missing, and the file's name" in odd.stderr) == (2, True)
    where = {"SLIPWAY_LEASE_BROKER_URL": url, "SLIPWAY_TOKEN": "good"}
    piped = CliRunner().invoke(app, ["apply", "-"], input=LIMIT.replace("ID", "x"), env=where)
    assert (piped.exit_code, "metadata.owner: is missing: standard input" in piped.stderr) == (2, True)
    assert services.puts == []
    command = ["apply", "-", "--owner", "generator"]
    for text, owner in ((LIMIT, "generator"), (LIMIT + "metadata: {owner: ci}\n", "ci")):
        assert CliRunner().invoke(app, command, input=text.replace("ID", "x"), env=where).exit_code == 0
        assert services.kept["lease-pools"]["documents"][0]["owner"] == owner


def test_references_to_what_others_declared(services: Services, url: str, tmp_path: Path) -> None:
    """Checked against the deployment, with the line of each that is unknown, before anything is sent."""
    text = Path(EXAMPLE).read_text()
    file = tmp_path / "pools.yaml"
    file.write_text("version: 1\n" + text[text.index("worker_pools:") :].replace("sim-a", "sim-z"))
    answer = slipway("apply", str(file), url=url)
    assert (answer.exit_code, services.puts, services.asked) == (2, [], ["declaration"])
    assert re.fullmatch(
        rf"{re.escape(str(file))}:\d+: \S+\[2\].account: no account 'sim-b' is declared; declared: sim-z\n",
        answer.stderr,
    )
    file.write_text(file.read_text().replace("sim-b", "sim-z"))
    assert slipway("apply", str(file), url=url).exit_code == 0
    (tmp_path / "all.yaml").write_text(text.replace("lease_pool: sim-b", "lease_pool: theirs"))
    assert slipway("apply", str(tmp_path / "all.yaml"), url=url).exit_code == 0
    (tmp_path / "all.yaml").write_text(text.replace("lease_pool: sim-b", "lease_pool: nobodys"))
    unknown = slipway("apply", str(tmp_path / "all.yaml"), url=url)
    assert (unknown.exit_code, "no lease pool 'nobodys' is declared" in unknown.stderr) == (2, True)


def test_an_account_without_its_lease_pool_is_refused(services: Services, url: str, tmp_path: Path) -> None:
    """Also from a file without the section, since its launches would wait for ever. Only an unavailable lease-broker
    is not asked."""
    text = Path(EXAMPLE).read_text()
    file = tmp_path / "accounts.yaml"
    text = "version: 1\n" + text[text.index("accounts:") :]
    file.write_text(text.replace("lease_pool: sim-b", "lease_pool: nobodys"))
    answer = slipway("apply", str(file), url=url)
    assert (answer.exit_code, services.puts) == (2, [])
    assert "accounts[1].lease_pool: no lease pool 'nobodys' is declared; declared: theirs" in answer.stderr
    where = {"SLIPWAY_PROVISIONER_URL": url, "SLIPWAY_LEASE_BROKER_URL": NOWHERE, "SLIPWAY_TOKEN": "good"}
    assert CliRunner().invoke(app, ["apply", str(file)], env=where).exit_code == 0
    assert services.puts == ["declaration"]


def test_speed_divides_durations(services: Services, url: str) -> None:
    assert slipway("apply", EXAMPLE, "--speed", "20", url=url).exit_code == 0
    assert services.pools[0]["hold_seconds"] == 60


def test_a_partial_apply_is_reported(services: Services, url: str) -> None:
    """The provisioner refuses between dry run and change: the message names what was applied."""
    services.refused = "declaration"
    answer = slipway("apply", EXAMPLE, url=url)
    assert answer.exit_code == 1
    assert services.puts == ["lease-pools"]
    assert "The lease pools were applied; fix this and apply again" in answer.stderr
