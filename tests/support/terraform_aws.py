"""The real provider for AWS on moto: specifications, a quick resource, and what moto has by region."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from slipway_local.ec2.moto import HOST, Moto, Scope
from slipway_local.servers.ports import free_ports
from slipway_local.terraform.packages import AWS
from slipway_terraform.domain.specs import ProviderSpec

REGIONS: Final = ("eu-west-1", "us-east-1")
# The resource that takes least of the provider's time: an instance waits for ten seconds by itself.
GROUP: Final = """
terraform {
  required_providers {
    aws = { source = "hashicorp/aws" }
  }
}
variable "name" { type = string }
resource "aws_security_group" "one" {
  name = var.name
}
output "id" { value = aws_security_group.one.id }
"""


class AwsCloud:
    """moto on a port of its own. `groups` is the truth about what was created where."""

    def __init__(self, folder: Path) -> None:
        (self.port,) = free_ports(1)
        self.server = Moto(self.port, folder / "moto.log", {})

    def spec(self, region: str, **configuration: str) -> ProviderSpec:
        return spec_at(self.port, region, **configuration)

    async def groups(self, regions: Sequence[str] = REGIONS) -> Counter[tuple[str, str]]:
        """Security groups that exist, as (region, first part of the name before a dash), without the default ones."""
        found: Counter[tuple[str, str]] = Counter()
        for region in regions:
            root = await self.server.call(Scope("AKIAEXAMPLE", region), "DescribeSecurityGroups", {})
            for item in root.findall("securityGroupInfo/item"):
                if (name := item.findtext("groupName", "")) != "default":
                    found[region, name.rpartition("-")[0]] += 1
        return found


def spec_at(port: int, region: str, **configuration: str) -> ProviderSpec:
    """The provider in a region of moto at a port of this host."""
    endpoint = f"http://{HOST}:{port}"
    return ProviderSpec(
        source=AWS.source,
        version=AWS.version,
        binary=str(AWS.path),
        digest=AWS.digest,
        configuration={
            "region": region,
            "access_key": "AKIAEXAMPLE",
            "secret_key": "secret-of-the-test",
            "skip_credentials_validation": True,
            "skip_metadata_api_check": True,
            "skip_requesting_account_id": True,
            "endpoints": [{"ec2": endpoint, "iam": endpoint, "sts": endpoint}],
            **configuration,
        },
    )
