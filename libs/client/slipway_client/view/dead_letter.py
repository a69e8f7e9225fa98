"""A dead letter with its bytes, in lines for people. Pure."""

from collections.abc import Iterator
from datetime import datetime
from typing import Final

from slipway_api.http.service import DeadLetterContent
from slipway_client.view import moments
from slipway_client.view.phrases import count
from slipway_common.base.sanitize import printable

CHARACTERS_MAX: Final = 4000  # of a text that is shown
BYTES_MAX: Final = 512  # of other bytes that are shown
ROW_BYTES: Final = 16


def lines(letter: DeadLetterContent, *, now: datetime) -> Iterator[str]:
    """The lines of a dead letter as the service returns it; bytes that are not text in hexadecimal."""
    place = f"{letter.topic}/{letter.partition} at offset {letter.offset}"
    yield printable(f"{place}, {letter.state} since {moments.clock(letter.at, now)}")
    yield printable(f"reason   {letter.reason}")
    if letter.subject:
        yield printable(f"subject  {letter.subject}")
    if letter.undecoded:
        yield from _content("batch", letter.value)
        return
    yield f"key      {_short(letter.key)}"
    for name, value, *raw in letter.headers:
        yield f"header   {_short(raw[0]) if raw else printable(name or '')}: {_short(value)}"
    yield from _content("value", letter.value)


def _short(hexadecimal: str | None) -> str:
    """Bytes in one line: null, text, or hexadecimal after 0x."""
    if hexadecimal is None:
        return "null"
    raw = bytes.fromhex(hexadecimal)
    text, is_cut = _text(raw)
    shown = f"0x{raw[:BYTES_MAX].hex()}" if text is None else text
    return printable(shown) + (f"… ({len(raw)} bytes)" if is_cut else "")


def _content(name: str, hexadecimal: str | None) -> Iterator[str]:
    """Bytes in lines of their own, at most as many as help."""
    if hexadecimal is None:
        yield f"{name:<8} null"
        return
    raw = bytes.fromhex(hexadecimal)
    yield f"{name:<8} {count(len(raw), 'byte')}"
    text, is_cut = _text(raw)
    if text is None:
        shown = raw[:BYTES_MAX]
        for start in range(0, len(shown), ROW_BYTES):
            row = shown[start : start + ROW_BYTES]
            ascii_text = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
            yield f"  {start:08x}  {row.hex(' '):<{3 * ROW_BYTES}} {ascii_text}"
    else:
        yield from (f"  {printable(line)}" for line in text.splitlines())
    if is_cut:
        yield "  … --raw writes all bytes"


def _text(raw: bytes) -> tuple[str | None, bool]:
    """The beginning of a text, None for other bytes, and True if more is there than is shown."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None, len(raw) > BYTES_MAX
    return text[:CHARACTERS_MAX], len(text) > CHARACTERS_MAX
