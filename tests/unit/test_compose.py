"""Rules of `make compose-check`: the project's files satisfy them, and each planted mistake is found."""

import copy
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.compose import rules, run
from tests.compose.image import Builder, BuildFailed, Image, ignored, parse
from tests.compose.stack import properties

ROOT = Path(__file__).parents[2]
Services = dict[str, Any]


@pytest.fixture(scope="module")
def files() -> rules.ComposeFiles:
    return run.load()


def test_files_satisfy_the_rules(files: rules.ComposeFiles) -> None:
    assert rules.problems(files) == []


def put(name: str, key: str, value: Any) -> Callable[[Services], Any]:
    return lambda services: services[name].update({key: value})


def drop(name: str, key: str) -> Callable[[Services], Any]:
    return lambda services: services[name].pop(key)


def variable(name: str, key: str, value: str) -> Callable[[Services], Any]:
    """One mapping more, because YAML anchors share them."""
    return lambda services: put(name, "environment", services[name].get("environment", {}) | {key: value})(services)


MISTAKES: list[tuple[Callable[[Services], Any], str]] = [
    (variable("provisioner", "SLIPWAY_REGISTER_ULR", "x"), "provisioner: SLIPWAY_REGISTER_ULR is not a setting of"),
    (variable("topics", "SLIPWAY_DATABASE_URL", "x"), "topics: SLIPWAY_DATABASE_URL is not a setting of"),
    (variable("declare", "SLIPWAY_PROVISIONER", "x"), "declare: SLIPWAY_PROVISIONER is not a setting of slipway"),
    (variable("postgres", "POSTGRES_PASSWD_FILE", "x"), "postgres: POSTGRES_PASSWD_FILE is not a variable"),
    (variable("provisioner", "SLIPWAY_REGISTRATION_KEYS", "k"), "SLIPWAY_REGISTRATION_KEYS holds a secret"),
    (drop("provisioner", "environment"), "provisioner: SLIPWAY_REGISTRATION_KEYS is not set"),
    (variable("declare", "SLIPWAY_LEASE_BROKER_URL", "http://lease-broker:7301"), "connects to lease-broker:7301"),
    (put("provisioner", "ports", ["7301:7301"]), "provisioner: publishes 7301:7301, which is not 127.0.0.1"),
    (put("kafka", "ports", ["0.0.0.0:9092:9092"]), "kafka: publishes 0.0.0.0:9092:9092, which is not 127.0.0.1"),
    (put("kafka", "ports", ["127.0.0.1:9092:9093"]), "kafka: publishes port 9093, but listens on"),
    (variable("kafka", "KAFKA_ADVERTISED_LISTENERS", "A://broker:19092"), "kafka: advertises broker:19092, where no"),
    (put("simulator", "network_mode", "host"), "simulator: shares a network"),
    (drop("kafka", "healthcheck"), "kafka: stays up and has no health check"),
    (put("postgres", "healthcheck", {"test": ["CMD", "x", "--port=1"]}), "postgres: its health check uses port 1"),
    (put("kafka", "image", "apache/kafka:latest"), "kafka: apache/kafka:latest is not pinned"),
    (put("kafka", "image", "apache/kafka:4.2.0"), "apache/kafka:4.2.0 is not the version that the project uses"),
    (put("provisioner", "image", "slipway-provisioner:0.0.9"), "0.0.9 is not the version that the project uses"),
    (put("provisioner", "command", ["slipway-provisionr"]), "['slipway-provisionr'] is not a known program"),
    (drop("simulator", "depends_on"), "declare: no service waits for it"),
    (put("migrate", "depends_on", {"postgres": {"condition": "service_started"}}), "by service_started, not by"),
    (put("grafana", "depends_on", {"loki": {"condition": "service_healthy"}}), "depends on loki, which does not exist"),
    (put("simulator", "depends_on", {"prometheus": {"condition": "service_healthy"}}), "runs in other profiles only"),
    (put("postgres", "volumes", ["database:/var/lib/postgresql"]), "mounts database, which is not declared"),
    (put("kafka", "volumes", ["kafka:/data"]), "kafka: has no volume at /var/lib/kafka/data:"),
    (put("grafana", "volumes", ["./infra/graphana:/etc/grafana:ro"]), "./infra/graphana, which does not exist"),
    (put("grafana", "volumes", ["./infra/grafana:/etc/grafana"]), "grafana: mounts ./infra/grafana, which does not"),
    (drop("provisioner", "read_only"), "provisioner: its root file system is writable"),
    (put("provisioner", "cap_drop", []), "provisioner: keeps privileges"),
    (put("provisioner", "deploy", {"resources": {"limits": {"cpus": "1"}}}), "provisioner: has no limit of memory"),
    (drop("provisioner", "restart"), "provisioner: has no restart policy"),
    # Keys without a rule could undo what the rules require.
    (put("provisioner", "user", "0:0"), "provisioner: user is not expected here"),
    (put("lease-broker", "entrypoint", ["/bin/true"]), "lease-broker: entrypoint is not expected here"),
    (put("simulator", "healthcheck", {"test": ["CMD", "true"]}), "simulator: healthcheck is not expected here"),
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
        ("uv:0.13.8", "uv:0.13.7", "uv:0.13.7 is not the version that the project uses"),
        ('CMD ["slipway-service"]', 'CMD ["slipway-servce"]', "is not a known program"),
        ("USER 10001:10001", "USER root", "has to end as a numbered user"),
        ("SLIPWAY_HOST=0.0.0.0", "SLIPWAY_HOST=127.0.0.1", "listens inside its container only"),
        ("HEALTHCHECK ", "HEALTHCHECK NONE #", "provisioner: stays up and has no health check"),
    ],
)
def test_a_mistake_in_the_dockerfile_is_found(files: rules.ComposeFiles, old: str, new: str, expected: str) -> None:
    assert old in files.dockerfiles["Dockerfile"]
    broken = {**files.dockerfiles, "Dockerfile": files.dockerfiles["Dockerfile"].replace(old, new)}
    found = rules.problems(rules.ComposeFiles(files.root, files.compose, broken, files.uv_version))
    assert any(expected in problem for problem in found), found


@pytest.mark.parametrize(
    ("given", "extras"), [({}, ""), ({"SLIPWAY_EXTRAS": ""}, ""), ({"SLIPWAY_EXTRAS": "aws"}, "aws")]
)
def test_the_extras_of_the_provisioner_are_a_variable_of_the_compose_file(given: dict[str, str], extras: str) -> None:
    compose = yaml.safe_load(run.interpolated((ROOT / "docker-compose.yml").read_text(), given))
    assert compose["services"]["provisioner"]["build"]["args"]["EXTRAS"] == extras


def test_parsing() -> None:
    tool, final = parse(
        "ARG V=1.2.3\nFROM tool:4.5.6 AS tool\nFROM base:${V}\nARG P=/p\nCOPY --from=tool --chown=1:2 /x $P\n"
        'ENV A="$P/a b" B=$P\n# a comment\nRUN one $P && \\\n    # another\n    two\nCMD ["x", "y z"]\n',
        {"P": "/q"},
        "/bin",
    )
    assert (tool.name, tool.base, final.base) == ("tool", "tool:4.5.6", "base:1.2.3")
    assert final.environment == {"PATH": "/bin", "A": "/q/a b", "B": "/q"}
    copied, _, ran, _ = final.instructions
    assert (copied.flags, copied.text, copied.line) == ({"from": "tool", "chown": "1:2"}, "/x /q", 5)
    assert (ran.text.split(), ran.variables["P"]) == (["one", "$P", "&&", "two"], "/q")


@pytest.mark.parametrize("text", ["ADD x y", "RUN --mount=type=cache x", "COPY --link x y", "COPY $X y"])
def test_unknown_instructions_are_refused(text: str) -> None:
    with pytest.raises(BuildFailed, match=r"line 2: .* is not known"):
        parse(f"FROM a:1\n{text}\n", {}, "")


@pytest.mark.parametrize(
    ("path", "kept_out"),
    [
        ("README.md", True),
        ("LICENSE", False),
        ("requirements.services.lock", False),
        ("requirements.aws.lock", False),
        ("requirements.operations.lock", False),
        ("requirements.terraform.lock", False),
        ("requirements.redis.lock", False),
        ("requirements.terraform-tests.lock", True),
        ("requirements.contracts-check.lock", True),
        ("requirements.audit.lock", True),
        ("libs/terraform/a/b.py", False),
        ("libs/common/a/b.py", False),
        ("libs/local/a.py", True),
        ("services/x/a/b.pyc", True),
    ],
)
def test_files_that_reach_the_builder(path: str, kept_out: bool) -> None:
    assert ignored(path, (ROOT / ".dockerignore").read_text()) == kept_out


def test_broker_settings_of_the_image() -> None:
    given = {"KAFKA_LOG_DIRS": "/d", "KAFKA_A__B_C___D": "e", "KAFKA_HEAP_OPTS": "-Xmx1g", "CLUSTER_ID": "x"}
    assert properties(given) == {"log.dirs": "/d", "a_b.c-d": "e"}


def built(folder: Path, text: str) -> Image:
    (folder / "context").mkdir()
    for name, content in (("kept", "kept"), ("secret", "secret"), (".dockerignore", "secret\n"), ("Dockerfile", text)):
        (folder / "context" / name).write_text(content)
    return Builder(folder / "context", folder / "build").build("Dockerfile", {"WORD": "given"}, folder / "image")


BASE = "FROM python:3.14.7-slim-trixie AS build\nARG PREFIX=/opt/slipway\nWORKDIR /src\n"


def test_a_build_executes_its_lines(tmp_path: Path) -> None:
    """A stage has the results of its COPY and RUN lines, and nothing else from earlier stages."""
    made = built(
        tmp_path,
        BASE
        + 'ARG WORD\nCOPY . ./\nENV TEXT=$WORD\nRUN mkdir -p "$PREFIX/bin" && printf "$TEXT" > "$PREFIX/bin/text"\n'
        'RUN cp kept "$PREFIX/bin/run" && chmod +x "$PREFIX/bin/run" && test ! -e secret\n'
        "FROM python:3.14.7-slim-trixie\nARG PREFIX=/opt/slipway\nCOPY --from=build $PREFIX $PREFIX\n"
        'ENV PATH="$PREFIX/bin:$PATH"\nUSER 10001:10001\n',
    )
    files = {str(path.relative_to(made.root)) for path in made.root.rglob("*") if path.is_file()}
    assert files == {"opt/slipway/bin/text", "opt/slipway/bin/run"}
    assert (made.root / "opt/slipway/bin/text").read_text() == "given"
    assert (made.find("run"), made.uid) == (made.root / "opt/slipway/bin/run", 10001)
    assert made.find("python").exists()
    with pytest.raises(BuildFailed, match="slipway-nothing is not on the image's PATH"):
        made.find("slipway-nothing")


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("RUN echo sorry && exit 3", "Dockerfile: line 4: exit code 3\nsorry"),
        ("COPY secret ./", "Dockerfile: line 4: secret is not in the build context"),
        ("COPY --from=nowhere /a /b", "Dockerfile: line 4: no stage nowhere"),
    ],
)
def test_a_failed_line_fails_the_build(tmp_path: Path, line: str, expected: str) -> None:
    with pytest.raises(BuildFailed, match=re.escape(expected)):
        built(tmp_path, f"{BASE}{line}\n")
