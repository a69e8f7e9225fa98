"""The generated root module, source addresses, tools, states and redaction."""

import json
from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_terraform.domain.errors import SpecInvalid, ToolUnsupported
from slipway_terraform.domain.redaction import SECRET_CHARACTERS_MIN
from slipway_terraform.domain.root import literal, root_module
from slipway_terraform.domain.sensitive import message, secrets_of
from slipway_terraform.domain.specs import ProviderSpec
from slipway_terraform.domain.state import foreign_providers, is_state, outputs
from slipway_terraform.domain.tools import Kind, Tool, tool_of

OTHER = "/t is neither Terraform nor OpenTofu: `version` printed"


def spec(source: str = "registry.terraform.io/hashicorp/aws", **configuration: Any) -> ProviderSpec:
    return ProviderSpec(source=source, version="3.39.0", binary="/plugin", digest="", configuration=configuration)


def test_the_root_module() -> None:
    document = json.loads(root_module([spec(region="eu-1", endpoints=[{"ec2": "http://x"}])], {"size": 2, "on": True}))
    assert document == {
        "terraform": [
            {"required_providers": [{"aws": {"source": "registry.terraform.io/hashicorp/aws", "version": "= 3.39.0"}}]}
        ],
        "provider": {"aws": [{"region": "eu-1", "endpoints": [{"ec2": "http://x"}]}]},
        "module": {"worker": [{"source": "./module", "size": 2, "on": True}]},
        "output": {"worker": [{"value": "${module.worker}", "sensitive": True}]},
    }


def test_the_root_module_without_providers() -> None:
    assert json.loads(root_module([], {})).keys() == {"module", "output"}


def test_required_outputs() -> None:
    """The root module refers to each, so that a plan fails without it; a name cannot be an expression."""
    assert json.loads(root_module([], {}, ["id"]))["locals"] == [{"required": ["${module.worker.id}"]}]
    with pytest.raises(SpecInvalid, match="write the names of the module's outputs"):
        root_module([], {}, ["id} ${file(1)"])


def test_values_are_literal() -> None:
    """No variable and no setting can refer to anything, or run a function."""
    given = {'${file("/etc/passwd")}': ["%{if true}", "$${a", "$", {"k": "a${b}%{c}"}]}
    assert literal(given) == {'$${file("/etc/passwd")}': ["%%{if true}", "$$${a", "$", {"k": "a$${b}%%{c}"}]}


@pytest.mark.parametrize("name", ["source", "providers", "count", "for_each", "depends_on", "version", "lifecycle"])
def test_variables_cannot_change_the_module_block(name: str) -> None:
    with pytest.raises(SpecInvalid, match=name):
        root_module([spec()], {name: "x"})


@pytest.mark.parametrize("name", ["alias", "version", "for_each"])
def test_configurations_cannot_change_the_provider_block(name: str) -> None:
    with pytest.raises(SpecInvalid, match=name):
        root_module([spec(**{name: "x"})], {})


def test_two_providers_of_one_name_are_refused() -> None:
    with pytest.raises(SpecInvalid, match="two providers are named aws"):
        root_module([spec(), spec("example.com/other/aws")], {})


def test_a_value_without_a_literal_is_refused() -> None:
    with pytest.raises(SpecInvalid, match="bytes"):
        literal({"x": b"y"})


@pytest.mark.parametrize(
    ("output", "tool"),
    [
        ("Terraform v1.0.3\non linux_amd64\n", Tool("/t", Kind.TERRAFORM, (1, 0, 3))),
        ("\nYour version is out of date\nTerraform v1.15.5\n", Tool("/t", Kind.TERRAFORM, (1, 15, 5))),
        ("OpenTofu v1.12.6\non linux_amd64\n", Tool("/t", Kind.TOFU, (1, 12, 6))),
        ("OpenTofu v1.13.0-beta1\n", Tool("/t", Kind.TOFU, (1, 13, 0))),
    ],
)
def test_tools(output: str, tool: Tool) -> None:
    assert tool_of("/t", output) == tool


@pytest.mark.parametrize(
    ("output", "reason"),
    [
        ("git version 2.40\n", f"{OTHER} 'git version 2.40'; set the path of terraform or tofu"),
        ("", f"{OTHER} 'nothing'; set the path of terraform or tofu"),
        ("Terraform v0.12.31\n", "/t is Terraform 0.12.31; install 1.0.3 or later"),
    ],
)
def test_other_tools_are_refused(output: str, reason: str) -> None:
    with pytest.raises(ToolUnsupported) as refused:
        tool_of("/t", output)
    assert str(refused.value) == reason


def test_states() -> None:
    resources = [
        {"provider": 'provider["registry.terraform.io/hashicorp/aws"]'},
        {"provider": 'provider["registry.terraform.io/hashicorp/aws"].east'},
        {"provider": 'module.worker.provider["registry.terraform.io/hashicorp/aws"]'},
    ]
    state = json.dumps({"outputs": {"worker": {"value": {"id": "i-1"}}}, "resources": resources}).encode()
    assert outputs(state) == {"id": "i-1"}
    assert foreign_providers(state) == (resources[2]["provider"], resources[1]["provider"])
    assert outputs(None) == {}
    assert foreign_providers(None) == ()
    assert is_state(state)
    assert not is_state(state[:-1])
    assert not is_state(b"")


def test_secrets_are_redacted_by_the_names_of_their_settings() -> None:
    given = spec(access_key="AKIDxyz", region="eu-1", nested=[{"password": "hunter2"}], token={"value": ["abcdef"]})
    assert secrets_of([given], ["user-data"]) == ("user-data", "AKIDxyz", "hunter2", "abcdef")
    assert message("hunter2 in eu-1 at http://me:pw@host", secrets_of([given])) == "… in eu-1 at http://…@host"


# Spaces around it are no part of a secret.
SECRETS: Final = st.text(min_size=4, max_size=9).filter(lambda text: len(text.strip()) >= SECRET_CHARACTERS_MIN)


@given(st.lists(SECRETS, max_size=4), st.text())
def test_no_secret_stays(secrets: list[str], text: str) -> None:
    hidden = message(text + "".join(secrets), secrets_of([], secrets))
    assert not [secret for secret in secrets if secret in hidden and secret not in "…://…"]
