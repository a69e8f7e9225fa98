"""What runs on Linux only: by the platform, not by what our code says of it, whose wrong answer must turn tests red."""

import sys
from typing import Final

import pytest

IS_LINUX: Final = sys.platform == "linux"
needs_linux: Final = pytest.mark.skipif(not IS_LINUX, reason="processes are told apart by Linux's /proc")
