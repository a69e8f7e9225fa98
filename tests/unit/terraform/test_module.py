"""Modules: everything that would configure a provider twice is found, whatever stands around it."""

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slipway_terraform.domain import hcl
from slipway_terraform.domain.errors import ModuleInvalid
from slipway_terraform.domain.module import digest, is_configuration, needs

SAFE = """
# provider "aws" {}
// provider "aws" {}
/* provider "aws" {
} */
terraform {
  required_version = ">= 1.0"
  required_providers {
    aws    = { source = "hashicorp/aws", version = ">= 3.0" }
    ledger = {
      source : "registry.terraform.io/slipway/ledger"
    }
    legacy = "~> 2.0"
  }
  backend "local" {}
}
locals { provider = "aws", text = "provider \\"aws\\" { ${upper("}\\"")} $${ %%{ }" }
resource "aws_instance" "one" {
  provider  = aws
  user_data = <<-EOT
    provider "aws" {
      alias = "east"
    }
    ${jsonencode({ "a" = "}" })}
    EOT
  tags = {
    "provider" = <<EOF
provider "aws" { region = "x" }
EOF
    k = "v"
  }
  dynamic "disk" {
    for_each = { for key, value in var.disks : key => value if value != "" }
    content { size = disk.value }
  }
}
module "inner" {
  source    = "./inner"
  providers = { aws = aws }
}
"""


def test_a_module_without_provider_configuration_is_safe() -> None:
    found = needs({"main.tf": SAFE})
    assert found.unsafe == ()
    assert found.sources == {"aws": "hashicorp/aws", "ledger": "registry.terraform.io/slipway/ledger"}


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("main.tf", 'provider "aws" {\n  region = "x"\n}\n', "main.tf:1: provider aws is configured"),
        ("main.tf", '\nprovider "aws" {}\n', "main.tf:2: provider aws is configured"),
        ("main.tf", 'provider aws { alias = "east" }\n', "main.tf:1: provider aws is configured"),
        ("main.tf", 'locals { a = 1 } /* */ \n provider\t"aws"{}', "main.tf:2: provider aws is configured"),
        ("main.tf", '\ufeffprovider "aws" {}\n', "main.tf:1: provider aws is configured"),
        ("main.tf", 'locals {\r\n  a = 1\r\n}\r\nprovider "aws" {\r\n}\r\n', "main.tf:4: provider aws is configured"),
        ("providers.tofu", 'provider "aws" { for_each = {} }\n', "providers.tofu:1: provider aws is configured"),
        ("p.tf.json", '{"provider": {"aws": {"region": "x"}}}', "p.tf.json: provider aws is configured"),
        ("p.tf.json", '[{"provider": [{"aws": [{"alias": "x"}]}]}]', "p.tf.json: provider aws is configured"),
        ("p.tf.json", '{"provider": {"aws": {}}, "provider": []}', "p.tf.json: provider aws is configured"),
        (
            "main.tf",
            "terraform {\n required_providers {\n  aws = {\n   configuration_aliases = [aws.east]\n  }\n }\n}\n",
            "main.tf:4: a second configuration of aws is asked for",
        ),
        (
            "p.tf.json",
            '{"terraform": {"required_providers": {"aws": {"configuration_aliases": ["aws.east"]}}}}',
            "p.tf.json: a second configuration of aws is asked for",
        ),
    ],
)
def test_unsafe(path: str, text: str, reason: str) -> None:
    assert needs({path: text}).unsafe == (reason,)


@given(
    st.lists(
        st.sampled_from(
            [
                "# provider\n",
                "/* } */",
                'locals { a = "{" }\n',
                'locals {\n  a = "${"}"}"\n}\n',
                'locals {\n  a = "\\""\n}\n',
                'locals {\n  a = "$${"\n}\n',
                "locals {\n  a = <<EOT\n}\nprovider\nEOT\n}\n",
                "locals {\n  a = [for x in y : {\n    b = x }\n  ]\n}\n",
                'variable "x" {}\n',
                "\n\n",
            ]
        )
    ),
    st.lists(st.sampled_from(["// {\n", 'output "o" {\n  value = "a${b["c"]}d"\n}\n'])),
)
def test_a_provider_block_is_found_between_any_others(before: list[str], after: list[str]) -> None:
    found = needs({"main.tf": "".join([*before, '\nprovider "aws" {}\n', *after])})
    assert len(found.unsafe) == 1


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('locals {\n  a = "b\n}\n', "line 2: a string has no end"),
        ("locals {\n  a = <<EOT\n}\n", "line 2: the heredoc EOT has no end"),
        ("locals {\n", "line 1: the block locals has no end"),
        ('locals { a = "${b ', "line 1: a template in a string has no end"),
        ("}\n", "line 1: '}' begins neither a block nor an attribute"),
        ("locals\n", "line 1: locals begins neither a block nor an attribute"),
    ],
)
def test_an_unreadable_file_is_refused(text: str, reason: str) -> None:
    with pytest.raises(ModuleInvalid, match="terraform validate") as refused:
        needs({"main.tf": text})
    assert reason in str(refused.value)


def test_json_that_is_no_object_is_refused() -> None:
    for text in ('{"provider": "aws"}', "[1]", "{", '{"terraform": [[]]}'):
        with pytest.raises(ModuleInvalid, match=r"p\.tf\.json is unreadable"):
            needs({"p.tf.json": text})


@given(st.text(alphabet='{}"$%<\\\n#/*= abEOT[](),.', max_size=80))
def test_any_text_is_read_or_refused(text: str) -> None:
    with contextlib.suppress(hcl.Unreadable):
        hcl.read(text)


def test_the_digest_covers_names_and_contents() -> None:
    one = digest({"main.tf": b"a", "files/x": b"b"})
    assert one == digest({"files/x": b"b", "main.tf": b"a"})
    assert len({one, digest({"main.tf": b"ab"}), digest({"main.tf": b"a", "files/y": b"b"}), digest({})}) == 4


def test_configuration_files() -> None:
    assert [
        path for path in ("a.tf", "a.tf.json", "a.tofu", "a.tfvars", "a.tftest.hcl", "tf") if is_configuration(path)
    ] == [
        "a.tf",
        "a.tf.json",
        "a.tofu",
    ]
