"""Marker for tests that need Linux, by the platform alone, so that a wrong check in the product fails a test."""

import sys
from typing import Final

import pytest

IS_LINUX: Final = sys.platform == "linux"
REASON: Final = "identifying processes needs Linux's /proc"
needs_linux: Final = pytest.mark.skipif(not IS_LINUX, reason=REASON)
