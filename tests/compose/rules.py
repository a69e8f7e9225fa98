"""Rules for docker-compose.yml, the Dockerfiles and the settings of the programs. Starts nothing.

`problems` takes all files as values and returns a sentence for each violation.
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
from slipway_provisioner.settings import Settings as ProvisionerSettings
from slipway_simulator.settings import Settings as SimulatorSettings
from slipway_weight_calculator.settings import Settings as WeightCalculatorSettings
from tests.compose.dockerfile import Dockerfile

# Programs of containers by the first words of the command, with their declared settings. None: it has no settings.
PROGRAMS: Final[dict[tuple[str, ...], type[EnvironmentSettings] | TyperGroup | None]] = {
    ("slipway-provisioner",): ProvisionerSettings,
    ("slipway-weight-calculator",): WeightCalculatorSettings,
    ("slipway-lease-broker",): LeaseBrokerSettings,
    ("slipway-simulator",): SimulatorSettings,
    ("python", "-m", "slipway_common.database.migrate"): MigrationSettings,
    ("python", "-m", "slipway_common.messaging.topic_admin"): TopicSettings,
    ("python", "-m", "slipway_client.cli.secret_files"): None,
    ("slipway",): typer.main.get_group(slipway),
}


class ThirdPartyImage(msgspec.Struct, frozen=True):
    """Requirements of a third-party image, by its documentation. The ports of Kafka are in its settings."""

    health: str
    data: str
    memory_mib: int
    ports: tuple[str, ...] = ()
    user: str | None = None  # None: the image's user is not root
    tmpfs: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()


OTHERS: Final = {
    "apache/kafka": ThirdPartyImage("/opt/kafka/bin/kafka-broker-api-versions.sh", "/var/lib/kafka/data", 1024),
    # Since version 18 the volume is above the data folder. The entry point as root needs capabilities, so set the user.
    "postgres": ThirdPartyImage(
        "pg_isready",
        "/var/lib/postgresql",
        256,
        ("5432",),
        user="999:999",
        tmpfs=frozenset({"/tmp", "/run/postgresql"}),
        keys=frozenset({"user", "group_add", "shm_size"}),
    ),
    "prom/prometheus": ThirdPartyImage("wget", "/prometheus", 256, ("9090",), keys=frozenset({"command"})),
    "grafana/grafana": ThirdPartyImage("wget", "/var/lib/grafana", 256, ("3000",), tmpfs=frozenset({"/tmp"})),
}
# Keys that have rules. Any other key could undo what the rules require, so it needs a rule first.
KEYS: Final = {
    "image",
    "environment",
    "ports",
    "volumes",
    "depends_on",
    "profiles",
    "restart",
    "init",
    "cap_drop",
    "security_opt",
    "logging",
    "read_only",
    "tmpfs",
    "stop_grace_period",
    "deploy",
    "network_mode",
}
HEALTH_KEYS: Final = {"test", "interval", "timeout", "retries", "start_period", "start_interval"}
# Services that have to wait for others.
NEEDS: Final = {
    "postgres": {"secrets"},
    "migrate": {"postgres"},
    "topics": {"kafka"},
    "provisioner": {"migrate", "topics"},
    "weight-calculator": {"migrate", "topics"},
    "lease-broker": {"migrate", "topics"},
    "declare": {"provisioner", "weight-calculator", "lease-broker"},
    "simulator": {"declare"},
}
WRITERS: Final = {("python", "-m", "slipway_client.cli.secret_files"), ("slipway-simulator",)}
OUR_MEMORY_MIB: Final = 128
PIDS_MIN: Final = 50
# Variables of the Kafka image that are not broker settings.
KAFKA_OWN: Final = {"KAFKA_HEAP_OPTS", "KAFKA_OPTS", "KAFKA_JVM_PERFORMANCE_OPTS"}
POSTGRES_KNOWN: Final = {"POSTGRES_USER", "POSTGRES_DB", "POSTGRES_PASSWORD_FILE", "POSTGRES_INITDB_ARGS"}
TWO_NUMBERS: Final = {"postgres"}  # releases are named 18.6 instead of 1.2.3


class ComposeFiles(msgspec.Struct, frozen=True):
    """All checked files. `root` is the folder for bind mounts and build contexts."""

    root: Path
    compose: Mapping[str, Any]
    dockerfiles: Mapping[str, Dockerfile]
    uv_version: str


class Container:
    """One service of the compose file, combined with its image."""

    def __init__(self, name: str, entry: Mapping[str, Any], dockerfile: Dockerfile | None) -> None:
        self.name = name
        self.entry = entry
        self.dockerfile = dockerfile

    @cached_property
    def command(self) -> list[str]:
        if "command" in self.entry:
            return list(self.entry["command"])
        last = self.dockerfile.final.last("CMD") if self.dockerfile else None
        return last.exec_form() if last else []

    @cached_property
    def environment(self) -> dict[str, str]:
        own = {name: str(value) for name, value in self.entry.get("environment", {}).items()}
        return (self.dockerfile.environment() if self.dockerfile else {}) | own

    @property
    def one_shot(self) -> bool:
        return self.entry.get("restart") == "no"

    @property
    def profiles(self) -> set[str]:
        return set(self.entry.get("profiles", []))

    @property
    def repository(self) -> str:
        return str(self.entry.get("image", "")).rpartition(":")[0]

    @property
    def health_command(self) -> list[str]:
        """Words of its health check, from the compose file or else from the image; empty if there is none."""
        if "healthcheck" in self.entry:
            kind, *words = self.entry["healthcheck"].get("test", ["NONE"])
            return words if kind == "CMD" else []
        last = self.dockerfile.final.last("HEALTHCHECK") if self.dockerfile else None
        if last is None or last.text == "NONE":
            return []
        return msgspec.json.decode(last.text.removeprefix("CMD").strip(), type=list[str])

    @property
    def third_party(self) -> ThirdPartyImage | None:
        return OTHERS.get(self.repository)

    def mounts(self) -> dict[str, tuple[str, bool]]:
        """Mounts by target: the source, and True if it is writable."""
        parts = [str(mount).split(":") for mount in self.entry.get("volumes", [])]
        return {target: (source, mode != ["ro"]) for source, target, *mode in parts}

    @property
    def program(self) -> tuple[str, ...] | None:
        return next((words for words in PROGRAMS if tuple(self.command[: len(words)]) == words), None)

    def ports(self) -> set[str]:
        """Ports on which it listens inside its network."""
        if self.repository == "apache/kafka":
            return set(re.findall(r":(\d+)", self.environment.get("KAFKA_LISTENERS", "")))
        if self.third_party:
            return set(self.third_party.ports)
        return {port} if (port := self.environment.get("SLIPWAY_PORT")) else set()


def containers(house: ComposeFiles) -> dict[str, Container]:
    def of(entry: Mapping[str, Any]) -> Dockerfile | None:
        return house.dockerfiles.get(entry["build"]["dockerfile"]) if "build" in entry else None

    return {name: Container(name, entry, of(entry)) for name, entry in house.compose["services"].items()}


def problems(house: ComposeFiles) -> list[str]:
    every = containers(house)
    found = [*_declared(house), *_order(every), *_images(house)]
    for one in every.values():
        found += [
            f"{one.name}: {problem}"
            for rule in (_keys, _build, _environment, _addresses, _kafka, _health, _hardened, _storage, _limits)
            for problem in rule(one, every, house)
        ]
    return found


def _declared(house: ComposeFiles) -> Iterator[str]:
    """Named volumes, networks, secrets and configs are declared and used, and mounted files exist."""
    used: dict[str, set[str]] = {"volumes": set(), "networks": set(), "secrets": set(), "configs": set()}
    for name, entry in house.compose["services"].items():
        for mount in entry.get("volumes", []):
            source, target = str(mount).split(":")[:2]
            if source.startswith("."):
                if not (house.root / source).exists():
                    yield f"{name}: mounts {source}, which does not exist"
            else:
                used["volumes"].add(source)
            if not target.startswith("/"):
                yield f"{name}: mounts {source} at {target}, which is not absolute"
        for kind in ("networks", "secrets", "configs"):
            used[kind].update(r["source"] if isinstance(r, dict) else r for r in entry.get(kind, []))
    for kind, names in used.items():
        declared = set(house.compose.get(kind, {}))
        yield from (f"{kind}: {name} is used but not declared" for name in sorted(names - declared - {"default"}))
        yield from (f"{kind}: {name} is declared but not used" for name in sorted(declared - names))


def _order(every: Mapping[str, Container]) -> Iterator[str]:
    """Dependencies exist, have no cycles, and use conditions that can be met."""
    waited_for: set[str] = set()
    for one in every.values():
        for name, how in one.entry.get("depends_on", {}).items():
            condition, other = how["condition"], every.get(name)
            if set(how) != {"condition"} or condition == "service_started":
                yield f"{one.name}: waits for {name} by {how}, which may not wait at all"
            if other is None:
                yield f"{one.name}: depends on {name}, which does not exist"
                continue
            if condition == "service_healthy" and not other.health_command:
                yield f"{one.name}: waits for {name} to be healthy, which has no health check"
            if (condition == "service_completed_successfully") != other.one_shot:
                yield f"{one.name}: waits for {name} by {condition}, which does not fit how it is restarted"
            if other.profiles - one.profiles:
                yield f"{one.name}: depends on {name}, which runs in other profiles only"
            if other.one_shot and not (one.profiles - other.profiles):
                waited_for.add(name)
        missing = NEEDS.get(one.name, set()) - set(one.entry.get("depends_on", {}))
        yield from (f"{one.name}: does not wait for {name}" for name in sorted(missing))
    for name, one in every.items():
        if one.one_shot and "tools" not in one.profiles and name not in waited_for:
            yield f"{name}: no service waits for it, so `up --wait` treats its exit as a failure"
        if name in _reached(name, every):
            yield f"{name}: depends on itself"


def _reached(begin: str, every: Mapping[str, Container]) -> set[str]:
    seen: set[str] = set()
    ahead = list(every[begin].entry.get("depends_on", {}))
    while ahead:
        if (name := ahead.pop()) not in seen and name in every:
            seen.add(name)
            ahead += every[name].entry.get("depends_on", {})
    return seen


def pinned(image: str) -> bool:
    """True if an image has a full version, not a moving tag."""
    repository, _, tag = image.rpartition(":")
    numbers = re.match(r"v?(\d+(?:\.\d+)*)(?:-[\w.]+)*$", tag)
    needed = 2 if repository in TWO_NUMBERS else 3
    return bool(repository and numbers and len(numbers[1].split(".")) >= needed)


def _images(house: ComposeFiles) -> Iterator[str]:
    """Versions are pinned, and equal to those that the project pins elsewhere."""
    named = {entry["image"]: name for name, entry in house.compose["services"].items() if "image" in entry}
    for path, dockerfile in house.dockerfiles.items():
        named |= dict.fromkeys(dockerfile.external_images(), path)
    expected = {"ghcr.io/astral-sh/uv": house.uv_version, "apache/kafka": kafka_version(locked_jars())}
    for image, where in sorted(named.items()):
        repository, _, tag = image.rpartition(":")
        if not pinned(image):
            yield f"{where}: {image} is not pinned to a version"
        elif tag != expected.get(repository, VERSION if repository.startswith("slipway-") else tag):
            yield f"{where}: {image} is not the version that the project uses elsewhere"
    bases = {stage.base for d in house.dockerfiles.values() for stage in d.stages if stage.base.startswith("python:")}
    if len(bases) > 1:
        yield f"Dockerfiles have different bases: {', '.join(sorted(bases))}"


def _keys(one: Container, _: Mapping[str, Container], __: ComposeFiles) -> Iterator[str]:
    known = KEYS | ({"healthcheck"} | one.third_party.keys if one.third_party else {"build", "command"})
    yield from (f"{key} is not expected here" for key in sorted(set(one.entry) - known))
    health = set(one.entry.get("healthcheck", {}))
    yield from (f"healthcheck.{key} is not expected here" for key in sorted(health - HEALTH_KEYS))


def _build(one: Container, _: Mapping[str, Container], house: ComposeFiles) -> Iterator[str]:
    if "build" not in one.entry:
        if one.third_party is None:
            yield f"image {one.entry.get('image')} is not known here"
        return
    path, context = one.entry["build"]["dockerfile"], one.entry["build"]["context"]
    if not (house.root / context).is_dir():
        yield f"its build context {context} does not exist"
    if one.dockerfile is None:
        yield f"its Dockerfile {path} does not exist"
        return
    final = one.dockerfile.final
    user = final.last("USER")
    if user is None or not re.fullmatch(r"[1-9]\d*:[1-9]\d*", user.text):
        yield f"{path} has to end as a numbered user other than root"
    yield from (f"{path} lacks {word}" for word in ("HEALTHCHECK", "STOPSIGNAL", "CMD") if final.last(word) is None)
    if len(one.dockerfile.stages) < 2:
        yield f"{path} is not built in stages: what builds it would be shipped"
    if one.environment.get("PYTHONDONTWRITEBYTECODE") != "1":
        yield f"{path} may write bytecode at run time"


def _environment(one: Container, every: Mapping[str, Container], _: ComposeFiles) -> Iterator[str]:
    """The program reads each variable, and each required variable is set."""
    given = one.environment
    for name in one.entry.get("environment", {}):
        if re.search("PASSWORD|KEY|TOKEN|SECRET", name) and not name.endswith("_FILE") and not name.startswith("GF_"):
            yield f"{name} holds a secret: name its file by {name}_FILE"
    if one.repository == "postgres":
        yield from (f"{name} is not a variable of this image" for name in sorted(set(given) - POSTGRES_KNOWN))
    if "build" not in one.entry:
        return
    if one.program is None:
        yield f"its command {one.command} is not a known program"
        return
    settings, ours = PROGRAMS[one.program], {name for name in given if name.startswith("SLIPWAY_")}
    for name in sorted(set(one.entry.get("environment", {})) - ours):
        yield f"{name} is not a setting of {' '.join(one.program)}"
    if isinstance(settings, TyperGroup):
        known = {name for p in settings.params for name in _words(getattr(p, "envvar", None))}
        needed: set[str] = set()
    else:
        fields = settings.model_fields if settings else {}
        plain = {variable_of(name) for name in fields}
        known = plain | {f"{name}_FILE" for name in plain}
        needed = {variable_of(name) for name, field in fields.items() if field.is_required()}
    yield from (f"{name} is not a setting of {' '.join(one.program)}" for name in sorted(ours - known))
    yield from (f"{name} is not set" for name in sorted(needed) if name not in ours and f"{name}_FILE" not in ours)
    for other in every.values():
        for name in ("SLIPWAY_KAFKA", "SLIPWAY_TOPIC_PREFIX", "SLIPWAY_PARTITIONS", "SLIPWAY_DATABASE_URL_FILE"):
            theirs = other.environment.get(name)
            if other.name > one.name and name in given and theirs not in (None, given[name]):
                yield f"{name} is {given[name]} here and {theirs} for {other.name}"
    if isinstance(settings, type) and "partitions" in settings.model_fields and "SLIPWAY_PARTITIONS" not in given:
        yield "SLIPWAY_PARTITIONS is not set, as it is for others"


def _words(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else list(value or [])


def _addresses(one: Container, every: Mapping[str, Container], house: ComposeFiles) -> Iterator[str]:
    """Ports match the listeners, and are published only on the loopback interface."""
    for published in one.entry.get("ports", []):
        match = re.fullmatch(r"127\.0\.0\.1:(\d+):(\d+)", str(published))
        if not match:
            yield f"publishes {published}, which is not 127.0.0.1:port:port"
        elif match[2] not in one.ports():
            yield f"publishes port {match[2]}, but listens on {', '.join(sorted(one.ports())) or 'none'}"
    network = one.entry.get("network_mode")
    if network not in (None, "none"):
        yield "shares a network that is not its own"
    elif network and (one.entry.get("depends_on") or not one.one_shot):
        yield "has no network, but connects to other containers or is reached by them"
    if one.dockerfile and (exposed := one.dockerfile.final.last("EXPOSE")) and set(exposed.text.split()) != one.ports():
        yield f"its image exposes {exposed.text}, but it listens on {', '.join(one.ports())}"
    if one.dockerfile and one.ports() and one.environment.get("SLIPWAY_HOST") != "0.0.0.0":
        yield "listens inside its container only: SLIPWAY_HOST has to be 0.0.0.0"
    files = [house.root / str(m).split(":")[0] for m in one.entry.get("volumes", []) if str(m).startswith(".")]
    texts = [path.read_text() for top in files for path in ([top] if top.is_file() else sorted(top.rglob("*.y*ml")))]
    for text in [*one.environment.values(), *one.command, *texts]:
        for name, port in re.findall(r"\b([a-z][a-z-]*[a-z]):(\d{4,5})\b", text):
            if name in every and port not in every[name].ports():
                yield f"connects to {name}:{port}, but {name} listens on {', '.join(sorted(every[name].ports()))}"


def _kafka(one: Container, every: Mapping[str, Container], _: ComposeFiles) -> Iterator[str]:
    """Each client can reach the address that the broker advertises to it."""
    if one.repository != "apache/kafka":
        return
    listeners, advertised = (
        {name: (host, port) for name, host, port in re.findall(r"(\w+)://([\w.-]*):(\d+)", one.environment.get(v, ""))}
        for v in ("KAFKA_LISTENERS", "KAFKA_ADVERTISED_LISTENERS")
    )
    published = {str(port).rpartition(":")[0] for port in one.entry.get("ports", [])}
    for name, (host, port) in advertised.items():
        if listeners.get(name, ("", ""))[1] != port:
            yield f"advertises {name} at port {port}, where it does not listen"
        if host != one.name and f"{host}:{port}" not in published:
            yield f"advertises {name} as {host}:{port}: neither {one.name} nor published"
    inside = {f"{host}:{port}" for host, port in advertised.values() if host == one.name}
    for other in every.values():
        if other.environment.get("SLIPWAY_KAFKA", next(iter(inside), "")) not in inside:
            yield f"advertises {', '.join(inside) or 'nothing'} inside, but {other.name} connects elsewhere"
    asked = set(re.findall(r":(\d+)", " ".join(one.health_command)))
    if not asked <= {port for _, port in advertised.values()}:
        yield f"its health check uses port {', '.join(asked)}, which is not a listener for clients"
    if one.environment.get("KAFKA_LOG_DIRS") != OTHERS[one.repository].data:
        yield f"KAFKA_LOG_DIRS is not {OTHERS[one.repository].data}, where its volume is"
    own = next((word for word in one.health_command if word.startswith("KAFKA_HEAP_OPTS=")), "")
    broker, check = _heap_mib(one.environment.get("KAFKA_HEAP_OPTS", "")), _heap_mib(own)
    if not broker or not check or broker + check > 0.6 * _mib(_limit(one, "memory")):
        yield "the heaps of broker and health check have to be set, and to leave memory for everything else"


def _heap_mib(text: str) -> int:
    found = re.search(r"-Xmx(\d+)m\b", text)
    return int(found[1]) if found else 0


def _health(one: Container, _: Mapping[str, Container], __: ComposeFiles) -> Iterator[str]:
    words = one.health_command
    if one.one_shot:
        return
    if not words:
        yield "stays up and has no health check"
    elif one.third_party:
        program = next((word for word in words if word != "env" and not re.match(r"[A-Z_]+=", word)), "")
        if program != one.third_party.health:
            yield f"its health check runs {program}, which is not in its image"
        if wrong := set(re.findall(r"(?::|--port=)(\d+)", " ".join(words))) - one.ports():
            yield f"its health check uses port {', '.join(sorted(wrong))}, where it does not listen"


def _hardened(one: Container, _: Mapping[str, Container], __: ComposeFiles) -> Iterator[str]:
    entry = one.entry
    if entry.get("cap_drop") != ["ALL"] or "no-new-privileges:true" not in entry.get("security_opt", []):
        yield "keeps privileges: cap_drop [ALL] and no-new-privileges:true"
    if entry.get("privileged") or entry.get("cap_add"):
        yield "adds privileges"
    if not entry.get("read_only") and one.repository != "apache/kafka":
        yield "its root file system is writable"
    if entry.get("restart") not in ("no", "unless-stopped"):
        yield "has no restart policy"
    if "max-size" not in entry.get("logging", {}).get("options", {}):
        yield "its log has no size limit"
    if one.third_party and entry.get("user") != one.third_party.user:
        yield f"runs as {entry.get('user')}, not as {one.third_party.user}"


def _storage(one: Container, every: Mapping[str, Container], _: ComposeFiles) -> Iterator[str]:
    """Written paths are on volumes, named paths are mounted, and mounts are writable only where needed."""
    mounts = one.mounts()
    needed = one.third_party.tmpfs if one.third_party else {"/tmp"}
    yield from (f"has no tmpfs {path}" for path in sorted(needed - set(one.entry.get("tmpfs", []))))
    if one.third_party and mounts.get(one.third_party.data, (".", False))[0].startswith("."):
        yield f"has no volume at {one.third_party.data}: its data would end with the container"
    for target, (source, writable) in mounts.items():
        if source.startswith("."):
            if writable:
                yield f"mounts {source} writable"
        elif writable != (one.program in WRITERS or bool(one.third_party and target == one.third_party.data)):
            yield f"mounts {source} {'writable' if writable else 'read-only'}, which does not fit its program"
    named = {v for n, v in one.environment.items() if n.endswith("_FILE") or n.startswith("SLIPWAY_")}
    for path in sorted(word for word in named | set(one.command) if word.startswith("/")):
        if not any(Path(path).is_relative_to(target) for target in mounts):
            yield f"names {path}, where nothing is mounted"
    for maker in every.values():
        user = maker.dockerfile.final.last("USER") if maker.dockerfile and maker.program in WRITERS else None
        shared = {source for source, _ in maker.mounts().values()} & {source for source, _ in mounts.values()}
        if one.third_party and user and shared and user.text.rpartition(":")[2] not in one.entry.get("group_add", []):
            yield f"cannot read {', '.join(sorted(shared))}: group_add lacks the group of {maker.name}"


def _limits(one: Container, _: Mapping[str, Container], __: ComposeFiles) -> Iterator[str]:
    missing = [name for name in ("cpus", "memory", "pids") if not _limit(one, name)]
    yield from (f"has no limit of {name}" for name in missing)
    least = one.third_party.memory_mib if one.third_party else OUR_MEMORY_MIB
    if "memory" not in missing and _mib(_limit(one, "memory")) < least:
        yield f"needs more than {_limit(one, 'memory')} of memory, at least {least}M"
    if "pids" not in missing and int(_limit(one, "pids")) < PIDS_MIN:
        yield f"needs more than {_limit(one, 'pids')} threads, at least {PIDS_MIN}"


def _limit(one: Container, name: str) -> str:
    return str(one.entry.get("deploy", {}).get("resources", {}).get("limits", {}).get(name, ""))


def _mib(text: str) -> int:
    """0 for another form than 512M or 1G."""
    found = re.fullmatch(r"(\d+)([MG])", text)
    return int(found[1]) * {"M": 1, "G": 1024}[found[2]] if found else 0
