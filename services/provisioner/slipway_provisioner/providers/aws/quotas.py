"""Families of instance types that share a quota of vCPUs. Pure.

EC2 counts vCPUs per region and group of families, and spot instances apart. The family of a type is the letters before
its first digit: `m5.large` and `c6i.xlarge` share the quota `standard`.
"""

import re
from typing import Final

from slipway_common.events.scopes import SPOT

STANDARD: Final = "standard"
GROUPS: Final = {
    **dict.fromkeys(("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z"), STANDARD),
    **dict.fromkeys(("g", "gr", "vt"), "g-vt"),
}
"""Group of each family; other families have a quota of their own."""
_LETTERS: Final = re.compile(r"[a-z]+")


def quota_family(instance_type: str, lifecycle: str) -> str:
    """Quota that an instance type of a lifecycle counts towards, such as `standard`, `g-vt-spot` or `p`."""
    letters = _LETTERS.match(instance_type)
    family = letters[0] if letters else instance_type
    group = GROUPS.get(family, family)
    return f"{group}-{SPOT}" if lifecycle == SPOT else group
