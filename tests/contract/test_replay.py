"""`slipway weights replay` as a command: equal digests, the table of differences, and refused input."""

import asyncio
import json
import sys
from asyncio.subprocess import PIPE
from datetime import datetime, timedelta
from pathlib import Path

import pytest

RECORDING = str(Path(__file__).parents[1] / "data" / "outage.jsonl")
COMMAND = (
    sys.executable,
    "-c",
    "from slipway_client.cli.main import app; app(prog_name='slipway')",
    "weights",
    "replay",
)
SECONDS = 60.0


async def replayed(*arguments: str, from_: str = RECORDING, cwd: Path | None = None) -> tuple[int | None, str, str]:
    """Exit code, stdout and stderr of the command."""
    process = await asyncio.create_subprocess_exec(
        *COMMAND, "--from", from_, *arguments, stdout=PIPE, stderr=PIPE, cwd=cwd
    )
    out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    return process.returncode, out.decode(), err.decode()


async def test_twice_the_same(tmp_path: Path) -> None:
    """Equal output twice; another policy has differences and its own digest."""
    code, printed, errors = await replayed("--policy", "default")
    assert (code, errors) == (0, "")
    assert (await replayed("--policy", "default"))[1] == printed
    digest = printed.splitlines()[1].split()
    assert digest[:2] == ["default", "digest"]
    policy = tmp_path / "patient.yaml"
    policy.write_text("trip_capacity: 5\nprobe_initial_seconds: 60\n")
    code, compared, errors = await replayed("--policy", str(policy))
    assert (code, errors) == (0, "")
    assert compared.splitlines()[1].split()[1:] == digest[1:]
    assert compared.splitlines()[2].split()[2] != digest[2]
    (zone_b,) = [line for line in compared.splitlines() if line.startswith("linux-b@") and "launch" not in line]
    (outage,) = [line for line in compared.splitlines() if line.startswith("linux-b@") and "launch" in line]
    assert " → " in zone_b
    assert "after 56 s → after " in outage


async def test_a_recording_at_higher_speed() -> None:
    """The digest is the same at speed 1 only; a pool without recorded events is an error, not an empty table."""
    plain = (await replayed("-o", "json"))[1]
    assert (await replayed("-o", "json", "--speed", "1"))[1] == plain
    assert (await replayed("-o", "json", "--speed", "20"))[1] != plain
    code, printed, errors = await replayed("--pool", "nope")
    assert (code, printed) == (1, "")
    assert "no recorded events of pool nope" in errors


@pytest.mark.parametrize("wrong", [timedelta(hours=1), timedelta(days=365)])
async def test_one_wrong_clock(tmp_path: Path, wrong: timedelta) -> None:
    """A wrong timestamp is reported and affects no other config."""
    lines = Path(RECORDING).read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if n > 1000 and "worker.registered" in line)
    event = json.loads(lines[place])
    lines[place] = json.dumps(event | {"time": (datetime.fromisoformat(event["time"]) + wrong).isoformat()})
    (tmp_path / "log.jsonl").write_text("\n".join(lines))
    code, printed, errors = await replayed(from_=str(tmp_path / "log.jsonl"))
    assert (code, errors) == (0, "")
    assert "1 timestamp clamped because of clock skew" in printed
    configs = [line.split() for line in printed.splitlines() if line.startswith("linux-a@")]
    assert configs == [line.split() for line in (await replayed())[1].splitlines() if line.startswith("linux-a@")]


async def test_pipes_and_devices(tmp_path: Path) -> None:
    """A pipe is read like a file; events in the wrong order are reported, and an empty device is refused."""
    script = '"$0" -c "from slipway_client.cli.main import app; app()" weights replay --from <(tac "$1")'
    process = await asyncio.create_subprocess_exec(
        "bash", "-c", script, sys.executable, RECORDING, stdout=PIPE, stderr=PIPE
    )
    out, err = await asyncio.wait_for(process.communicate(), SECONDS)
    assert (process.returncode, err) == (0, b"")
    assert b"2,500 events of 1 h 59 min" in out
    assert b"events more than 2 min" in out
    code, printed, errors = await replayed(from_="/dev/null")
    assert (code, printed) == (2, "")
    assert "/dev/null: contains no events" in errors


async def test_files_named_like_policies(tmp_path: Path) -> None:
    """A file does not replace the policy of the same name; without a "/" the name is meant."""
    digests: dict[str, str] = {}
    for name in ("default", "spot"):
        (tmp_path / name).write_text("trip_capacity: 5\nprobe_initial_seconds: 60\n")
    for policy in ("./default", "./spot", "spot"):
        code, printed, errors = await replayed("--policy", policy, "-o", "json", cwd=tmp_path)
        assert (code, errors) == (0, "")
        found = {name: each["digest"] for name, each in json.loads(printed)["policies"].items()}
        assert set(found) == {"default", policy}
        assert digests.setdefault("default", found["default"]) == found["default"]
        digests |= found
    assert digests["./default"] == digests["./spot"]
    assert len(set(digests.values())) == 3


async def test_for_programs_and_of_one_pool() -> None:
    code, printed, _ = await replayed("--policy", "bare-metal", "--pool", "win", "-o", "json")
    body = json.loads(printed)
    assert code == 0
    assert (body["events"], body["repeated"]) == (2500, 21)
    assert set(body["policies"]) == {"default", "bare-metal"}
    for policy in body["policies"].values():
        assert {config_id.partition("@")[0] for config_id in policy["configs"]} == {"win-a", "win-b"}
    assert {outage["config"] for outage in body["outages"]} == set(policy["configs"])
    assert body["outages"][0]["detected_seconds"]["default"] > 0


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("p.yaml", "half_life: 60\n", "p.yaml: unknown coefficient half_life; known: half_life_seconds, mass_cap,"),
        ("p.toml", 'trip_boot = "many"\n', "p.toml: Expected `int`, got `str` - at `trip_boot`"),
        ("p.json", '{"floor": 0}', "p.json: floor is 0; it must be at least 1e-06 and at most 1"),
        ("p.toml", "trip_boot =", "p.toml: is not TOML: "),
        ("p.yaml", "trip_boot: 1\ntrip_boot: 2\n", "p.yaml:2: trip_boot: "),
        ("p.yaml", "- 1\n", "p.yaml: is not a mapping of coefficients to values"),
        ("p.yaml", "{", "p.yaml:2: is not YAML: "),
    ],
)
async def test_an_invalid_policy_file(tmp_path: Path, name: str, content: str, reason: str) -> None:
    """The error names the mistake, and nothing is replayed."""
    (tmp_path / name).write_text(content)
    code, printed, errors = await replayed("--policy", str(tmp_path / name))
    assert (code, printed) == (2, "")
    assert reason in errors


async def test_invalid_arguments(tmp_path: Path) -> None:
    """An unknown policy, a missing file and a truncated line are reported with exit code 2 and no output."""
    cut = tmp_path / "cut.jsonl"
    cut.write_bytes(Path(RECORDING).read_bytes()[:100_000])
    last = cut.read_bytes().count(b"\n") + 1
    for arguments, from_, reason in (
        (("--policy", "cheapest"), RECORDING, "unknown policy 'cheapest'; use default, on-demand, spot"),
        ((), str(tmp_path / "none.jsonl"), "none.jsonl is neither a file nor a topic"),
        ((), str(cut), f"cut.jsonl:{last}: is truncated"),
    ):
        code, printed, errors = await replayed(*arguments, from_=from_)
        assert (code, printed) == (2, "")
        assert reason in " ".join(errors.replace("│", " ").split())
