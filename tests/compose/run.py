"""`make compose-check`: check docker-compose.yml and its Dockerfiles on a machine without a container engine.

Runs a schema check, a linter and the project's rules; then builds every image in an empty folder and starts them as the
compose file specifies, until a worker is launched. Exit code 1 if anything fails.
"""

import asyncio
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import httpx2
import msgspec
import yaml

from slipway_common.base.process.guard import guard
from slipway_local.servers.cache import to_the_end
from slipway_local.servers.child import StartFailed
from slipway_local.servers.jars import classpath, ensure_jars
from slipway_local.servers.java import find_java
from slipway_local.servers.supervisor import Supervisor, run
from tests.compose.image import BuildFailed
from tests.compose.rules import ComposeFiles, containers, dockerfile, problems
from tests.compose.stack import Stack, StackFailed, properties

ROOT: Final = Path(__file__).parents[2]
LOCKS: Final = (
    "requirements.services.lock",
    "requirements.aws.lock",
    "requirements.terraform.lock",
    "requirements.redis.lock",
    "requirements.operations.lock",
)
EXTRA: Final = {"SERVICE": "provisioner", "PORT": "7301", "EXTRAS": "aws terraform"}
VARIABLE: Final = re.compile(r"\$\{(\w+):-([^}]*)\}")
PLATFORMS: Final = ("x86_64-manylinux_2_36", "aarch64-manylinux_2_36")
LAUNCHED_SECONDS: Final = 120.0


def load(root: Path = ROOT) -> ComposeFiles:
    compose = yaml.safe_load(interpolated((root / "docker-compose.yml").read_text(), os.environ))
    paths = {dockerfile(entry) for entry in compose["services"].values()} - {""}
    version = re.search(r"^UV_VERSION := (\S+)$", (root / "Makefile").read_text(), re.MULTILINE)
    assert version is not None
    return ComposeFiles(root, compose, {path: (root / path).read_text() for path in paths}, version[1])


def interpolated(text: str, environment: Mapping[str, str]) -> str:
    """Text of a compose file with its variables replaced, all of which have a default."""
    return VARIABLE.sub(lambda found: environment.get(found[1]) or found[2], text)


def wheels(files: ComposeFiles) -> list[list[str]]:
    """Commands that fail if the locks need a compiler on the Python of the base images, on either platform."""
    (base,) = {one.image.base for one in containers(files).values() if one.image}
    version = ".".join(base.partition(":")[2].split(".")[:2])
    command = ["uv", "pip", "install", "--dry-run", "--quiet", "--only-binary", ":all:", "--require-hashes"]
    command += ["--target", "/nonexistent", "--python-version", version]
    command += [word for lock in LOCKS for word in ("--requirement", lock)]
    return [[*command, "--python-platform", platform] for platform in PLATFORMS]


def output_of(command: list[str]) -> list[str]:
    """Run a tool of the development environment; returns its output if it fails."""
    program = Path(sys.executable).with_name(command[0])
    ended = subprocess.run([program, *command[1:]], cwd=ROOT, capture_output=True, text=True, check=False)
    return [f"exit code {ended.returncode}", ended.stdout + ended.stderr] if ended.returncode else []


async def unknown_broker_settings(files: ComposeFiles) -> list[str]:
    """Settings that the broker does not have: it ignores them silently. Kafka itself provides the list of settings."""
    jars = await ensure_jars()
    command = [str(find_java().executable), "-cp", classpath(jars), "kafka.server.KafkaConfig"]
    listed = await asyncio.to_thread(lambda: subprocess.check_output(command, text=True))
    known = set(re.findall(r'<a id="([a-z][a-z0-9._-]+)"', listed))
    assert "auto.create.topics.enable" in known
    given = properties(files.compose["services"]["kafka"]["environment"])
    return [f"kafka: {name} is not a setting of the broker" for name in sorted(set(given) - known)]


def judge(name: str, found: list[str]) -> bool:
    print(*([f"{name} NOT ok", *(f"  {line}" for line in found)] if found else [f"{name} ok"]), sep="\n", flush=True)
    return not found


async def launched(stack: Stack) -> str:
    """Wait for a worker with an instance, confirmed by the simulator; returns its id. Raises StackFailed."""
    deadline = time.monotonic() + LAUNCHED_SECONDS
    headers = {"Authorization": f"Bearer {stack.token}"}
    async with httpx2.AsyncClient(timeout=30.0, trust_env=False, headers=headers) as client:
        while time.monotonic() < deadline:
            rows: list[dict[str, Any]] = (await client.get(f"{stack.url('provisioner')}/workers")).json()["items"]
            with_instance = [row for row in rows if row.get("instance_id")]
            if with_instance and (await client.get(f"{stack.url('simulator')}/state")).json()["instances"]:
                return str(with_instance[0]["id"])
            await asyncio.sleep(0.2)
    raise StackFailed(f"no worker was launched within {LAUNCHED_SECONDS:g} s{stack.children['provisioner'].log_tail()}")


async def start(files: ComposeFiles, supervisor: Supervisor) -> list[str]:
    """Build and start everything; returns the failures."""
    begin = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="slipway-compose-"))
    guard().remove(folder)
    folder.chmod(0o755)
    stack = Stack(files, folder, supervisor)
    failures: list[str] = []
    try:
        await stack.start()
        await to_the_end(lambda: build_extra(stack))
        worker = await launched(stack)
        pools = msgspec.json.decode(await stack.run_once("cli", ["slipway", "pool", "ls", "--output", "json"]))
        await stack.stop()
    except* (StackFailed, BuildFailed, StartFailed) as failed:
        failures = [line for error in leaves(failed) for line in str(error).splitlines()]
    else:
        slowest = sorted(stack.seconds.items(), key=lambda item: -item[1])[:4]
        steps = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in slowest)
        print(f"built and started in {time.monotonic() - begin:.0f} s, slowest: {steps}")
        print(f"worker {worker} launched; `slipway pool ls` lists {', '.join(pool['id'] for pool in pools)}")
        print(f"{len(stack.images)} images installed and started")
    finally:
        await stack.kill()
        await supervisor.stop()
        shutil.rmtree(folder, ignore_errors=True)
    return failures


def build_extra(stack: Stack) -> None:
    """Build the image of the provisioner with its extras, and import what needs them. Raises BuildFailed."""
    image = stack.builder.build("Dockerfile", EXTRA, stack.folder / "extra")
    modules = ("aws.client", "terraform.engine")
    imports = "; ".join(f"import slipway_provisioner.providers.{module}" for module in modules)
    command: list[str | Path] = [image.find("python"), "-c", imports]
    ended = subprocess.run(command, env=image.environment, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise BuildFailed(f"EXTRAS={EXTRA['EXTRAS']}: {ended.stderr}")


def leaves(failed: BaseException) -> list[BaseException]:
    inner = failed.exceptions if isinstance(failed, BaseExceptionGroup) else ()
    return [leaf for one in inner for leaf in leaves(one)] or [failed]


async def main(supervisor: Supervisor) -> int:
    files = load()
    schema = ["check-jsonschema", "--builtin-schema", "vendor.compose-spec", "docker-compose.yml"]
    tools = {"schema": [schema], "hadolint": [["hadolint", "--no-color", *files.dockerfiles]], "wheels": wheels(files)}
    fine = judge("rules", problems(files))
    for name, commands in tools.items():
        fine &= judge(name, [line for command in commands for line in await asyncio.to_thread(output_of, command)])
    fine &= judge("broker settings", await unknown_broker_settings(files))
    fine &= judge("start", await start(files, supervisor))
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(run(main))
