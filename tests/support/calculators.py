"""Launch configs that the tests of the weight-calculator declare."""

from typing import Final

from slipway_api.events.scopes import config_key

ZONE_B: Final = config_key("zone-b")
ZONES = ("zone-a", "zone-b", "zone-c")
