"""A token that reads everything, for tests of services that are asked only."""

from pathlib import Path
from typing import Final

TOKENS_FILE: Final = Path(__file__).with_name("tokens.yaml")
TOKEN: Final = "reader"  # hashed in TOKENS_FILE
HEADERS: Final = {"Authorization": f"Bearer {TOKEN}"}
