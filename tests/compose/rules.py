"""Rules for docker-compose.yml, the Dockerfiles and the settings of the programs. Starts nothing.

They cover what neither the schema nor a start of all services would notice. `problems` takes all files as values and
returns a sentence for each violation.
"""

import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import msgspec
import typer
from typer.core import TyperGroup

from slipway_client.cli.main import app as slipway
from slipway_common.base.settings import EnvironmentSettings, variable_of
from slipway_common.database.migrate import MigrationSettings
from slipway_common.messaging.topic_admin import TopicSettings
from slipway_common.service import VERSION
from slipway_lease_broker.settings import Settings as LeaseBrokerSettings
from slipway_local.servers.jars import kafka_version, locked_jars
from slipway_monitor.settings import Settings as MonitorSettings
from slipway_provisioner.settings import Settings as ProvisionerSettings
from slipway_simulator.settings import Settings as SimulatorSettings
from slipway_weight_calculator.settings import Settings as WeightCalculatorSettings
from tests.compose.image import Stage, parse

# Programs of containers by the first words of the command, with their declared settings. None: it has no settings.
PROGRAMS: Final[dict[tuple[str, ...], type[EnvironmentSettings] | TyperGroup | None]] = {
    ("slipway-provisioner",): ProvisionerSettings,
    ("slipway-weight-calculator",): WeightCalculatorSettings,
    ("slipway-lease-broker",): LeaseBrokerSettings,
    ("slipway-simulator",): SimulatorSettings,
    ("slipway-monitor",): MonitorSettings,
    ("python", "-m", "slipway_common.database.migrate"): MigrationSettings,
    ("python", "-m", "slipway_common.messaging.topic_admin"): TopicSettings,
    ("python", "-m", "slipway_client.cli.secret_files"): None,
    ("slipway",): typer.main.get_group(slipway),
}
# Third-party images: ports (those of Kafka are in its settings), the path of the data, and further keys.
OTHERS: Final[dict[str, tuple[set[str], str, set[str]]]] = {
    "apache/kafka": (set(), "/var/lib/kafka/data", {"healthcheck"}),
    "postgres": ({"5432"}, "/var/lib/postgresql", {"healthcheck", "user", "group_add", "shm_size"}),
    "prom/prometheus": ({"9090"}, "/prometheus", {"healthcheck", "command", "group_add"}),
    "grafana/grafana": ({"3000"}, "/var/lib/grafana", {"healthcheck"}),
}
# Keys that have rules. Any other key could undo what the rules require, so it needs a rule first.
ANYWHERE: Final = {"image", "environment", "ports", "volumes", "depends_on", "profiles", "restart", "deploy", "tmpfs"}
PROCESS: Final = {"init", "cap_drop", "security_opt", "logging", "read_only", "stop_grace_period", "network_mode"}
POSTGRES_KNOWN: Final = {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD_FILE", "POSTGRES_INITDB_ARGS"}


class ComposeFiles(msgspec.Struct, frozen=True):
    """All checked files. `root` is the folder for bind mounts and build contexts, `dockerfiles` has texts by path."""

    root: Path
    compose: Mapping[str, Any]
    dockerfiles: Mapping[str, str]
    uv_version: str


class Container:
    """One service of the compose file, combined with its image. `stages` is empty for a third-party image."""

    def __init__(self, name: str, entry: Mapping[str, Any], dockerfiles: Mapping[str, str]) -> None:
        self.name = name
        self.entry = entry
        self.dockerfile, self.arguments = dockerfile(entry), dict(entry.get("build", {}).get("args", {}))
        self.stages = parse(dockerfiles[self.dockerfile], self.arguments, "") if self.dockerfile else []
        self.repository = str(entry["image"]).rpartition(":")[0]
        self.listens, self.data, self.keys = OTHERS.get(self.repository, (set(), "", {"build", "command"}))
        self.one_shot = entry.get("restart") == "no"
        self.profiles = set(entry.get("profiles", []))
        self.needs: dict[str, Any] = entry.get("depends_on", {})

    @property
    def image(self) -> Stage | None:
        return self.stages[-1] if self.stages else None

    @cached_property
    def command(self) -> list[str]:
        words = self.entry.get("command") or msgspec.json.decode((self.image and self.image.last("CMD")) or "[]")
        return [word.replace("slipway-service", f"slipway-{self.arguments.get('SERVICE')}") for word in words]

    @cached_property
    def environment(self) -> dict[str, str]:
        own = {name: str(value) for name, value in self.entry.get("environment", {}).items()}
        return (self.image.environment if self.image else {}) | own

    @property
    def health_command(self) -> list[str]:
        """Words of its health check, from the compose file or else from the image; empty if there is none."""
        kind, *words = self.entry.get("healthcheck", {}).get("test", ["NONE"])
        text = self.image.last("HEALTHCHECK") if self.image else "NONE"
        if self.image and text.startswith("CMD"):
            return msgspec.json.decode(text.removeprefix("CMD"), type=list[str])
        return words if kind == "CMD" else []

    @property
    def program(self) -> tuple[str, ...] | None:
        return next((words for words in PROGRAMS if tuple(self.command[: len(words)]) == words), None)

    def ports(self) -> set[str]:
        """Ports on which it listens inside its network."""
        if self.repository == "apache/kafka":
            return set(re.findall(r":(\d+)", self.environment.get("KAFKA_LISTENERS", "")))
        return self.listens or {self.environment[name] for name in self.environment if name == "SLIPWAY_PORT"}


def dockerfile(entry: Mapping[str, Any]) -> str:
    """Path of a service's Dockerfile; empty for a third-party image."""
    return str(entry["build"].get("dockerfile", "Dockerfile")) if "build" in entry else ""


def containers(files: ComposeFiles) -> dict[str, Container]:
    return {name: Container(name, entry, files.dockerfiles) for name, entry in files.compose["services"].items()}


def problems(files: ComposeFiles) -> list[str]:
    every = containers(files)
    rules = (_keys, _image, _environment, _addresses, _order, _health, _hardened, _storage)
    return [f"{one.name}: {text}" for one in every.values() for rule in rules for text in rule(one, every, files)]


def _keys(one: Container, _: Mapping[str, Container], __: ComposeFiles) -> Iterator[str]:
    known = ANYWHERE | PROCESS | one.keys
    yield from (f"{key} is not expected here" for key in sorted(set(one.entry) - known))


def _image(one: Container, _: Mapping[str, Container], files: ComposeFiles) -> Iterator[str]:
    """Versions are pinned, and equal to those that the project pins elsewhere."""
    expected = {"ghcr.io/astral-sh/uv": files.uv_version, "apache/kafka": kafka_version(locked_jars())}
    own = {stage.name for stage in one.stages}
    for image in (one.entry["image"], *sorted({stage.base for stage in one.stages} - own)):
        repository, _, tag = image.rpartition(":")
        numbers = 1 if repository == "postgres" else 2  # its releases are named 18.6 instead of 1.2.3
        if not re.fullmatch(rf"v?\d+(\.\d+){{{numbers}}}(-[\w.]+)*", tag):
            yield f"{image} is not pinned to a version"
        elif tag != expected.get(repository, VERSION if repository.startswith("slipway-") else tag):
            yield f"{image} is not the version that the project uses elsewhere"
    if one.image and not re.fullmatch(r"[1-9]\d*:[1-9]\d*", one.image.last("USER")):
        yield f"{one.dockerfile} has to end as a numbered user other than root"
    if one.image is None and one.repository not in OTHERS:
        yield f"image {one.entry['image']} is not known here"


def _environment(one: Container, _: Mapping[str, Container], __: ComposeFiles) -> Iterator[str]:
    """The program reads each variable, each required variable is set, and none holds a secret."""
    declared = set(one.entry.get("environment", {}))
    for name in sorted(declared):
        if re.search("PASSWORD|KEY|TOKEN|SECRET", name) and not name.endswith("_FILE") and not name.startswith("GF_"):
            yield f"{name} holds a secret: name its file by {name}_FILE"
    if one.repository == "postgres":
        yield from (f"{name} is not a variable of this image" for name in sorted(declared - POSTGRES_KNOWN))
    if one.image is None:
        return
    if one.program is None:
        yield f"its command {one.command} is not a known program"
        return
    settings, program = PROGRAMS[one.program], " ".join(one.program)
    ours = declared | {name for name in one.environment if name.startswith("SLIPWAY_")}
    required: set[str] = set()
    if isinstance(settings, TyperGroup):
        variables = [getattr(option, "envvar", None) or [] for option in settings.params]
        known = {name for words in variables for name in ([words] if isinstance(words, str) else words)}
    else:
        fields = settings.model_fields if settings else {}
        known = {f"{variable_of(name)}{suffix}" for name in fields for suffix in ("", "_FILE")}
        required = {variable_of(name) for name, field in fields.items() if field.is_required()}
    yield from (f"{name} is not a setting of {program}" for name in sorted(ours - known))
    yield from (f"{name} is not set" for name in sorted(required) if not {name, f"{name}_FILE"} & ours)


def _addresses(one: Container, every: Mapping[str, Container], files: ComposeFiles) -> Iterator[str]:
    """Ports match the listeners, and are published only on the loopback interface."""
    for published in one.entry.get("ports", []):
        match = re.fullmatch(r"127\.0\.0\.1:(\d+):(\d+)", str(published))
        if not match:
            yield f"publishes {published}, which is not 127.0.0.1:port:port"
        elif match[2] not in one.ports():
            yield f"publishes port {match[2]}, but listens on {', '.join(sorted(one.ports())) or 'none'}"
    if one.image and one.ports() and one.environment.get("SLIPWAY_HOST") != "0.0.0.0":
        yield "listens inside its container only: SLIPWAY_HOST has to be 0.0.0.0"
    reached = {f"{one.name}:{port}" for port in one.ports()} | {
        p.rpartition(":")[0] for p in one.entry.get("ports", [])
    }
    for advertised in re.findall(r"//([\w.-]*:\d+)", one.environment.get("KAFKA_ADVERTISED_LISTENERS", "")):
        if advertised not in reached:
            yield f"advertises {advertised}, where no client reaches it"
    if one.entry.get("network_mode", "none") != "none":
        yield "shares a network that is not its own"
    mounted = [files.root / str(m).split(":")[0] for m in one.entry.get("volumes", []) if str(m).startswith(".")]
    texts = [path.read_text() for top in mounted for path in ([top] if top.is_file() else top.rglob("*.y*ml"))]
    for text in [*one.environment.values(), *one.command, *texts]:
        for name, port in re.findall(r"\b([a-z][a-z-]*[a-z]):(\d{4,5})\b", text):
            if name in every and port not in every[name].ports():
                yield f"connects to {name}:{port}, but {name} listens on {', '.join(sorted(every[name].ports()))}"


def _order(one: Container, every: Mapping[str, Container], _: ComposeFiles) -> Iterator[str]:
    """Dependencies exist and use conditions that can be met."""
    for name, how in one.needs.items():
        if (other := every.get(name)) is None:
            yield f"depends on {name}, which does not exist"
            continue
        condition = "service_completed_successfully" if other.one_shot else "service_healthy"
        if how != {"condition": condition}:
            yield f"waits for {name} by {how['condition']}, not by {condition}"
        if other.profiles - one.profiles:
            yield f"depends on {name}, which runs in other profiles only"
    if one.one_shot and not one.profiles and not any(one.name in other.needs for other in every.values()):
        yield "no service waits for it, so `up --wait` treats its exit as a failure"


def _health(one: Container, _: Mapping[str, Container], __: ComposeFiles) -> Iterator[str]:
    if not one.one_shot and not one.health_command:
        yield "stays up and has no health check"
    if wrong := set(re.findall(r"(?::|--port=)(\d+)", " ".join(one.health_command))) - one.ports():
        yield f"its health check uses port {', '.join(sorted(wrong))}, where it does not listen"


def _hardened(one: Container, _: Mapping[str, Container], __: ComposeFiles) -> Iterator[str]:
    entry = one.entry
    if entry.get("cap_drop") != ["ALL"] or "no-new-privileges:true" not in entry.get("security_opt", []):
        yield "keeps privileges: cap_drop [ALL] and no-new-privileges:true"
    if not entry.get("read_only") and one.repository != "apache/kafka":
        yield "its root file system is writable"
    if entry.get("restart") not in ("no", "unless-stopped"):
        yield "has no restart policy"
    if "max-size" not in entry.get("logging", {}).get("options", {}):
        yield "its log has no size limit"
    limits = entry.get("deploy", {}).get("resources", {}).get("limits", {})
    yield from (f"has no limit of {name}" for name in ("cpus", "memory", "pids") if name not in limits)


def _storage(one: Container, _: Mapping[str, Container], files: ComposeFiles) -> Iterator[str]:
    """Mounts exist, data is on volumes, and files of the repository are read-only."""
    targets = set()
    for mount in one.entry.get("volumes", []):
        source, target, *mode = str(mount).split(":")
        targets.add(target)
        if source.startswith(".") and (mode != ["ro"] or not (files.root / source).exists()):
            yield f"mounts {source}, which does not exist or is not read-only"
        elif not source.startswith(".") and source not in files.compose["volumes"]:
            yield f"mounts {source}, which is not declared"
    if one.data and one.data not in targets:
        yield f"has no volume at {one.data}: its data would end with the container"
