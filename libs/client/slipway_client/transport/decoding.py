"""Decoding of what others have answered."""

from typing import Final

import msgspec

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""Errors of decoding an answer that is not JSON of ours, such as a proxy's, or text in another encoding."""
