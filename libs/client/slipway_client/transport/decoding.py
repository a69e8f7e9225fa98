"""Decoding of what others have answered."""

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding raises for an answer that is no JSON of ours, as from a proxy: text in another encoding, too."""
