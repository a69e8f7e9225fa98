"""Boot of a machine by its user data."""

import pytest

from slipway_local.ec2.boot import AGENT, UnusableUserData, decoded, plan

CLOUD_CONFIG = b"""#cloud-config
write_files:
  - path: /etc/slipway/user-data.json
    permissions: "0600"
    content: '{"batch_id":"b"}'
  - path: /etc/slipway
    encoding: b64
    content: aGk=
runcmd:
  - [sh, -c, "slipway-worker run --user-data /etc/slipway/user-data.json; poweroff"]
  - echo done
"""


def test_json_starts_the_agent_of_the_image() -> None:
    found = plan(b'{"batch_id":"b"}', "/machine")
    assert found is not None
    assert (found.argv, found.standard_input, found.files) == (AGENT, b'{"batch_id":"b"}', ())
    assert found.agent_is_service


def test_script_is_run() -> None:
    found = plan(b"#!/bin/sh\npoweroff\n", "/machine")
    assert found is not None
    assert found.files == (("/machine/user-data", b"#!/bin/sh\npoweroff\n", 0o700),)
    assert (found.argv, found.agent_is_service) == (("/machine/user-data",), False)


def test_cloud_config_writes_below_the_folder_of_the_machine() -> None:
    found = plan(CLOUD_CONFIG, "/machine")
    assert found is not None
    assert found.files[:2] == (
        ("/machine/etc/slipway/user-data.json", b'{"batch_id":"b"}', 0o600),
        ("/machine/etc/slipway", b"hi", 0o644),
    )
    path, script, permissions = found.files[2]
    assert (found.argv, permissions) == ((path,), 0o700)
    assert script.decode().splitlines()[1:] == [
        "sh -c 'slipway-worker run --user-data /machine/etc/slipway/user-data.json; poweroff'",
        "echo done",
    ]


def test_nothing_is_booted_without_user_data() -> None:
    assert plan(b"", "/machine") is None


@pytest.mark.parametrize("text", [b"#cloud-config\n- a\n", b"#cloud-config\na: [\n"])
def test_unusable_cloud_config(text: bytes) -> None:
    with pytest.raises(UnusableUserData, match="cloud-config"):
        plan(text, "/machine")


def test_user_data_has_to_be_base64() -> None:
    assert decoded("aGk=") == b"hi"
    with pytest.raises(UnusableUserData, match="BASE64"):
        decoded("{}")
