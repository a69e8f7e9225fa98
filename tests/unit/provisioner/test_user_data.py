"""User data of machines, rendered from a template."""

import json
import re
import subprocess
from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from slipway_client.worker.user_data import UserData
from slipway_common.declaration.user_data import BYTES_MAX, PLACEHOLDERS, URL_PATTERN, names, problem
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.user_data import (
    Values,
    complete,
    longest_bytes,
    preview,
    queue_url_problem,
    render,
    size_problem,
    values_of,
)
from slipway_simulator.user_data import found

VALUES = Values(
    register_url="http://slipway:7301",
    batch_id="01980f00-0000-7000-8000-000000000000",
    queue_url="",
    settings={"tasks_per_worker": 1, "motd": "it's {{batch_secret}}\n\u2028ünï"},
    pool="linux",
    launch_config="linux/a",
    account="ci",
    region="eu-west-1",
    zone="eu-west-1b",
    instance_type="m5.large",
    image="ami-1",
)
SECRET = "5" * 64
CLOUD_CONFIG = """#cloud-config
hostname: {{pool}}-{{ zone }}
write_files:
  - path: /run/slipway/user-data.json
    permissions: "0600"
    content: '{{user_data}}'
runcmd:
  - [sh, -c, 'slipway-worker run --user-data /run/slipway/user-data.json; poweroff']
"""


def made(template: str = "", values: Values = VALUES) -> str:
    return complete(render(template, values), SECRET)


def test_the_default_is_what_the_agent_reads() -> None:
    """One line of ASCII with sorted keys: the same bytes wherever it is made."""
    text = made()
    assert text == made("{{user_data}}")
    assert text.isascii()
    assert "\n" not in text
    assert list(json.loads(text)) == ["batch_id", "queue_url", "register_url", "secret", "settings"]
    data = msgspec.json.decode(text, type=UserData)
    assert (data.register_url, data.batch_id, data.secret) == (VALUES.register_url, VALUES.batch_id, SECRET)
    assert json.loads(text)["settings"] == VALUES.settings


def test_values_of_a_revision_in_its_account() -> None:
    revision = {
        "settings": VALUES.settings,
        "pool_id": "linux",
        "name": "linux/a",
        "region": "eu-west-1",
        "zone": "eu-west-1b",
        "instance_type": "m5.large",
        "image_revision": "ami-1",
    }
    account = Account(
        id="ci", deployment="d", provider="p", region="r", identity="i", lease_pool_id="l", settings={"queue_url": None}
    )
    given_values = {"register_url": VALUES.register_url, "batch_id": VALUES.batch_id}
    assert values_of(revision, account, **given_values, source="") == VALUES
    queued = msgspec.structs.replace(account, settings={"queue_url": "http://q"})
    expected = msgspec.structs.replace(VALUES, queue_url="http://q", source="gh", ca="PEM")
    assert values_of(revision, queued, **given_values, source="gh", ca="PEM") == expected


def test_the_source_of_a_pool_stands_beside_its_urls() -> None:
    """Sorted and without spaces, so that a repeat has the same bytes."""
    text = made(values=msgspec.structs.replace(VALUES, settings={"b": 1, "a": 2}, source="gh"))
    head = f'{{"batch_id":"{VALUES.batch_id}","queue_url":"","register_url":"{VALUES.register_url}","source":"gh"'
    assert text == f'{head},"secret":"{SECRET}","settings":{{"a":2,"b":1}}}}'


def test_authorities_reach_the_agent() -> None:
    """One line in user data, several again for the agent; absent where machines trust the service already."""
    pem = "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----\n"
    text = made(values=msgspec.structs.replace(VALUES, ca=pem))
    assert "\n" not in text
    assert msgspec.json.decode(text, type=UserData).ca == pem
    assert "ca" not in json.loads(made())


def test_the_secret_is_in_no_part() -> None:
    """Parts are committed. Only the template names the place of the secret, never a value."""
    parts = render("a{{batch_secret}}b{{settings}}c{{user_data}}{{batch_secret}}", VALUES)
    assert len(parts) == 4
    assert "*" in complete(parts, "*")
    assert SECRET not in "".join(parts)
    assert complete(parts, SECRET).count(SECRET) == 3
    assert "{{batch_secret}}" in complete(parts, SECRET)  # the value of a setting


@pytest.mark.parametrize("name", PLACEHOLDERS)
def test_every_placeholder_has_a_value(name: str) -> None:
    """The same with spaces in the braces."""
    text = made(f"<{{{{{name}}}}}>")
    assert "{{" not in text.replace("{{batch_secret}}", "")
    assert text == made(f"<{{{{ {name}\t}}}}>")
    assert names(f"{{{{{name}}}}}") == {name}


def test_a_preview_shows_no_secret() -> None:
    """Neither that of the batch, nor what a name in the template or in the settings calls one."""
    settings = {"tasks": 1, "registry": [{"api_key": {"id": "hunter2"}, "host": "hub"}], "Token": "hunter2"}
    values = msgspec.structs.replace(VALUES, settings=settings)
    head = "#!/bin/sh\nexport DB_PASSWORD=hunter2\n\tcurl https://me:hunter2@hub\n"
    *lines, last = preview(head + "start --pool {{pool}} '{{user_data}}'", values).split("\n")
    assert lines == ["#!/bin/sh", "export DB_PASSWORD=…", "\tcurl https://…@hub"]
    assert last.startswith("start --pool linux '{")
    shown = json.loads(last.split("'")[1])
    assert (shown["batch_id"], shown["secret"]) == (VALUES.batch_id, "***")
    assert shown["settings"] == {"tasks": 1, "registry": [{"api_key": "***", "host": "hub"}], "Token": "***"}


def test_a_template_for_cloud_init_stays_yaml() -> None:
    """Between single quotes the JSON needs no escape, whatever the settings contain."""
    config = yaml.safe_load(made(CLOUD_CONFIG))
    assert config["hostname"] == "linux-eu-west-1b"
    assert json.loads(config["write_files"][0]["content"]) == json.loads(made())


def test_a_template_for_a_shell_stays_a_script() -> None:
    """The shell passes the JSON on unchanged."""
    script = made("printf %s '{{user_data}}'")
    ran = subprocess.run(["sh", "-c", script], capture_output=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert json.loads(ran.stdout) == json.loads(made())


@given(st.recursive(st.none() | st.integers(-9, 9) | st.text(), lambda inner: st.dictionaries(st.text(), inner)))
def test_settings_are_one_line_without_quotes(value: Any) -> None:
    settings = {"k": value}
    text = made("{{settings}}", msgspec.structs.replace(VALUES, settings=settings))
    assert re.fullmatch(r"[ -&(-~]+", text)
    assert json.loads(text) == settings


def test_two_braces() -> None:
    """Written as a literal; one brace, and closing ones, need none."""
    template = "docker inspect -f '{{ \"{{\" }}.State}}' {x} }}"
    assert problem(template) == ""
    assert made(template) == "docker inspect -f '{{.State}}' {x} }}"


@pytest.mark.parametrize(
    ("template", "words"),
    [
        (
            "#!/bin/sh\necho {{registerurl}}\n",
            "line 2: there is no placeholder {{registerurl}}; use one of user_data, ",
        ),
        ("{{ds.meta_data.instance_id}}", "line 1: there is no placeholder {{ds.meta_data.instance_id}}"),
        ("a\n\n{{.State}}", "line 3: there is no placeholder {{.State}}; "),
        ("a\n\n{{|x}}", 'line 3: {{ does not begin a placeholder; write {{ "{{" }} for two braces'),
        ("{{", "line 1: {{ does not begin a placeholder"),
        ("{{register_url\n}}", "line 1: {{ does not begin a placeholder"),
        ("a\0", "NUL"),
        ("\ud800", "surrogate"),
        ("é" * 8_193, "has 16,386 bytes in UTF-8; at most 16,384 are allowed"),
    ],
)
def test_problems_of_templates(template: str, words: str) -> None:
    """With the line and the remedy."""
    assert words in problem(template)


@given(
    st.from_regex(URL_PATTERN, fullmatch=True).map(str.strip),
    st.just("") | st.from_regex(URL_PATTERN, fullmatch=True).map(str.strip),
    st.sampled_from(["", CLOUD_CONFIG, "{{register_url}}{{queue_url}}{{batch_id}}{{batch_secret}}{{user_data}}"]),
)
def test_the_longest_values_bound_every_batch(register_url: str, queue_url: str, template: str) -> None:
    """User data that fit when they are declared fit at every launch, behind any URL."""
    changed = msgspec.structs.replace(VALUES, register_url=register_url, queue_url=queue_url)
    assert len(made(template, changed).encode()) <= longest_bytes(template, VALUES)


def test_the_longest_values_are_those_that_a_batch_may_have() -> None:
    """A URL of 200 characters for the service and the queue, ids, a secret, and the longest name of a source."""
    sizes = {"register_url": 200, "queue_url": 200, "batch_id": 36, "batch_secret": 64}
    assert {name: longest_bytes(f"{{{{{name}}}}}", VALUES) for name in sizes} == sizes
    assert longest_bytes("{{batch_id}}", msgspec.structs.replace(VALUES, batch_id="")) == 36
    source = msgspec.structs.replace(VALUES, source="\U0001f40b" * 150)
    assert longest_bytes("", VALUES) == longest_bytes("", source) > longest_bytes("{{settings}}", VALUES) + 12 * 150


def test_size() -> None:
    """16,384 bytes fit."""
    padding = BYTES_MAX - longest_bytes("{{user_data}}", VALUES)
    assert size_problem("{{user_data}}" + "#" * padding, VALUES) == ""
    reason = size_problem("{{user_data}}" + "#" * (padding + 1), VALUES)
    assert reason.startswith("its user data may have 16,385 bytes, of at most 16,384; shorten the pool's user_data")


@pytest.mark.parametrize("url", ["", None, "http://127.0.0.1:7304/queue", "https://q/" + "x" * 190])
def test_queue_urls(url: Any) -> None:
    assert queue_url_problem({"queue_url": url}) == ""


@pytest.mark.parametrize("url", ["queue", 7, "http://a'b", "http://a b", "http://a\n", "https://q/" + "x" * 191])
def test_queue_urls_that_cannot_be_used(url: Any) -> None:
    assert "write where agents claim tasks" in queue_url_problem({"queue_url": url})


@pytest.mark.parametrize(
    "template", ["", CLOUD_CONFIG, "#!/bin/sh\nif true; then { echo {}; }; fi\necho '{{user_data}}'"]
)
def test_a_simulated_machine_finds_its_json(template: str) -> None:
    """Also in a script with braces of its own; without any it finds nothing."""
    assert found(made(template)) == json.loads(made())
    assert found("#!/bin/sh\necho {}") == {}
