"""Families of instance types that share a quota of vCPUs on EC2."""

import pytest

from slipway_provisioner.providers.aws.quotas import quota_family

#        type              family
FAMILIES = [
    ("m5.large", "standard"),
    ("c6i.xlarge", "standard"),
    ("a1.medium", "standard"),
    ("d3en.xlarge", "standard"),
    ("h1.2xlarge", "standard"),
    ("i4i.large", "standard"),
    ("im4gn.large", "standard"),
    ("is4gen.large", "standard"),
    ("r7iz.large", "standard"),
    ("t3.micro", "standard"),
    ("z1d.large", "standard"),
    ("g4dn.xlarge", "g-vt"),
    ("gr6.4xlarge", "g-vt"),
    ("vt1.3xlarge", "g-vt"),
    ("p4d.24xlarge", "p"),
    ("f1.2xlarge", "f"),
    ("x2idn.16xlarge", "x"),
    ("inf2.xlarge", "inf"),
    ("trn1.2xlarge", "trn"),
    ("dl1.24xlarge", "dl"),
    ("u-6tb1.metal", "u"),
    ("hpc6a.48xlarge", "hpc"),
    ("mac2.metal", "mac"),
    ("7x", "7x"),
]


@pytest.mark.parametrize(("instance_type", "family"), FAMILIES)
def test_families_share_quotas(instance_type: str, family: str) -> None:
    """Spot instances have quotas of their own."""
    assert quota_family(instance_type, "on-demand") == family
    assert quota_family(instance_type, "spot") == f"{family}-spot"
