"""Families of instance types that share a quota of vCPUs. Pure.

EC2 counts vCPUs per region and group of families, and spot instances apart. The family of a type is the letters before
its first digit: `m5.large` and `c6i.xlarge` share the quota `standard`.
"""

import re
from typing import Final

from slipway_api.events.scopes import SPOT

STANDARD: Final = "standard"
GROUPS: Final = {
    **dict.fromkeys(("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"), STANDARD),
    **dict.fromkeys(("g", "gr", "vt"), "g-vt"),
}
"""Group of each family; other families have a quota of their own."""
_LETTERS: Final = re.compile(r"[a-z]+")

CODES: Final = {
    "standard": "L-1216C47A",
    "standard-spot": "L-34B43A08",
    "g-vt": "L-DB2E81BA",
    "g-vt-spot": "L-3819A6DF",
    "p": "L-417A185B",
    "p-spot": "L-7212CCBC",
    "f": "L-74FC7D96",
    "f-spot": "L-88CF9481",
    "x": "L-7295265B",
    "x-spot": "L-E3A00192",
    "inf": "L-1945791B",
    "inf-spot": "L-B5D1601B",
    "trn": "L-2C3B7624",
    "trn-spot": "L-6B0D517C",
    "dl": "L-6E869C2A",
    "dl-spot": "L-85EED4F7",
}
"""Codes of the quotas of vCPUs in Service Quotas, by the names of `quota_family`. They are those of "On-Demand
Instances" and "Spot Instance quotas" in the Amazon EC2 user guide."""


def quota_family(instance_type: str, lifecycle: str) -> str:
    """Quota that an instance type of a lifecycle counts towards, such as `standard`, `g-vt-spot` or `p`."""
    letters = _LETTERS.match(instance_type)
    family = letters[0] if letters else instance_type
    group = GROUPS.get(family, family)
    return f"{group}-{SPOT}" if lifecycle == SPOT else group
