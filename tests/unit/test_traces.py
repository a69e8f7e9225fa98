"""Traces of events, as W3C Trace Context has them."""

import re

import pytest

from slipway_common.observability.telemetry import child_of

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize("flags", ["00", "01", "03"])
@pytest.mark.parametrize("version", ["00", "01", "cc"])
def test_a_span_of_the_same_trace(version: str, flags: str) -> None:
    found = re.fullmatch(f"00-{TRACE}-([0-9a-f]{{16}})-{flags}", child_of(f"{version}-{TRACE}-{SPAN}-{flags}"))
    assert found is not None
    assert found[1] != SPAN


@pytest.mark.parametrize(
    "malformed",
    [
        "",
        "x",
        f"ff-{TRACE}-{SPAN}-01",
        f"00-{'0' * 32}-{SPAN}-01",
        f"00-{TRACE}-{'0' * 16}-01",
        f"00-{TRACE.upper()}-{SPAN}-01",
        f"00-{TRACE}-{SPAN}",
        f"00-{TRACE}-{SPAN}-01-",
        f"00-{TRACE[1:]}g-{SPAN}-01",
    ],
)
def test_a_new_trace_that_nobody_asked_to_record(malformed: str) -> None:
    first, second = child_of(malformed), child_of(malformed)
    assert re.fullmatch("00-(?!0{32})[0-9a-f]{32}-[0-9a-f]{16}-00", first)
    assert first[3:35] != second[3:35]
    assert TRACE not in first.lower()
