"""A dead letter with its bytes, as `slipway dlq show` prints it."""

from datetime import UTC, datetime
from typing import Any

import msgspec

from slipway_api.http.service import DeadLetterContent
from slipway_client.view.dead_letter import BYTES_MAX, CHARACTERS_MAX, lines

NOW = datetime(2026, 8, 1, 14, 30, tzinfo=UTC)
LETTER: dict[str, Any] = {
    "topic": "slipway.pool.demand.v1",
    "partition": 3,
    "offset": 17,
    "subject": "linux/queue",
    "state": "dead",
    "reason": "no pool linux",
    "at": "2026-08-01T14:29:05Z",
    "record_at": "2026-08-01T14:29:05Z",
    "undecoded": False,
    "key": b"linux/queue".hex(),
    "value": b'{"pending": 1}'.hex(),
    "headers": [["ce_id", b"1".hex()], ["n\ufffdme", b"\xff\x00".hex(), b"n\xffme".hex()], ["none", None]],
}


def shown(**changes: Any) -> list[str]:
    return list(lines(msgspec.convert(LETTER | changes, DeadLetterContent), now=NOW))


def test_text() -> None:
    """Text is shown as text, other bytes in hexadecimal, also those of a header's name."""
    assert shown() == [
        "slipway.pool.demand.v1/3 at offset 17, dead since 14:29:05",
        "reason   no pool linux",
        "subject  linux/queue",
        "key      linux/queue",
        "header   ce_id: 1",
        "header   0x6eff6d65: 0xff00",
        "header   none: null",
        "value    14 bytes",
        '  {"pending": 1}',
    ]


def test_untrusted_text() -> None:
    """Nothing reaches the terminal that it would interpret."""
    text = "\n".join(shown(key=b"\x1b[2J".hex(), value=b"\x1b]0;x\x07\n\0".hex(), reason="\x1b", subject="\u202e"))
    assert all(character.isprintable() or character == "\n" for character in text)


def test_null() -> None:
    assert shown(key=None, value=None)[3:] == [
        "key      null",
        "header   ce_id: 1",
        "header   0x6eff6d65: 0xff00",
        "header   none: null",
        "value    null",
    ]


def test_undecoded_batch() -> None:
    """Its bytes are shown with their places; --raw writes those that are left out."""
    raw = bytes(range(256)) * 3
    first, reason, size, row, *rest = shown(undecoded=True, subject="", value=raw.hex(), reason="wrong checksum")
    assert (first[-8:], reason, size) == ("14:29:05", "reason   wrong checksum", "batch    768 bytes")
    assert row == "  00000000  00 01 02 03 04 05 06 07 08 09 0a 0b 0c 0d 0e 0f  ................"
    assert rest[3].endswith("  @ABCDEFGHIJKLMNO")
    assert (len(rest), rest[-1]) == (BYTES_MAX // 16, "  … --raw writes all bytes")


def test_long_text() -> None:
    *_, text, more = shown(value=b"a".hex() * (CHARACTERS_MAX + 1))
    assert (text, more) == ("  " + "a" * CHARACTERS_MAX, "  … --raw writes all bytes")
