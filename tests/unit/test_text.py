"""Limits of text: each text of each event has one, consumers refuse what exceeds it, and producers publish no such."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import inspect

from generate.examples import EXAMPLES
from slipway_api.events.topics import DECODERS, EVENT_OF
from slipway_api.limits import KEY, LINE, NAME, NOTE, REASON, WORD, Limit
from slipway_common.messaging import outbox
from slipway_common.messaging.records import VALUE_BYTES_MAX

Path = tuple[str | int, ...]
LIMITS = [WORD, NAME, KEY, LINE, REASON, NOTE]


def texts_of(kind: inspect.Type) -> Iterator[inspect.Type]:
    """Every text in a type, with its metadata where it has any."""
    match kind:
        case inspect.StrType() | inspect.Metadata(type=inspect.StrType()):
            yield kind
        case inspect.StructType():
            for field in kind.fields:
                yield from texts_of(field.type)
        case inspect.UnionType():
            for one in kind.types:
                yield from texts_of(one)
        case inspect.VarTupleType():
            yield from texts_of(kind.item_type)
        case inspect.DictType():
            yield from texts_of(kind.key_type)
            yield from texts_of(kind.value_type)


@pytest.mark.parametrize("event", EVENT_OF.values(), ids=lambda event: event.type)
def test_every_text_of_an_event_has_a_limit(event: type[Any]) -> None:
    found = list(texts_of(inspect.type_info(event)))
    known = [
        (inspect.Metadata(inspect.StrType(max_length=limit.characters), {"x-max-bytes": limit.bytes}))
        for limit in LIMITS
    ]
    assert found
    assert [kind for kind in found if kind not in known] == []


def places(value: Any, path: Path = ()) -> Iterator[Path]:
    """Paths of the texts in JSON data, except times."""
    if isinstance(value, dict | list):
        for name, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(inner, (*path, name))
    elif isinstance(value, str) and not value.endswith("Z"):
        yield path


def changed(value: Any, path: Path, text: str) -> Any:
    if not path:
        return text
    copy: Any = dict(value) if isinstance(value, dict) else list(value)
    copy[path[0]] = changed(value[path[0]], path[1:], text)
    return copy


def is_enum(kind: inspect.Type, path: Path) -> bool:
    """True if the text at a place is one of an enum, which decodes every other text as unknown."""
    match kind:
        case inspect.EnumType():
            return True
        case inspect.UnionType():
            return any(is_enum(one, path) for one in kind.types)
        case inspect.StructType():
            return any(is_enum(field.type, path[1:]) for field in kind.fields if field.encode_name == path[0])
    return False


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
def test_consumers_refuse_text_that_cannot_be_stored(event: Any) -> None:
    """NUL, too many characters, or too many bytes of few characters, at any place; the reason names it."""
    data, decoder = msgspec.to_builtins(event), DECODERS[event.type]
    assert decoder.decode(msgspec.json.encode(data)) == event
    for place in places(data):
        if is_enum(inspect.type_info(type(event)), place):
            continue
        for text in ("a\0b", "a" * (NOTE.characters + 1), "\N{CRAB}" * NOTE.characters):
            value = msgspec.json.encode(changed(data, place, text))
            with pytest.raises(msgspec.ValidationError, match=str(place[-1]) if len(place) == 1 else None):
                decoder.decode(value)
            assert outbox.refusal(event, value)


def test_producers_publish_what_consumers_accept() -> None:
    for event in EXAMPLES:
        assert outbox.refusal(event, msgspec.json.encode(event)) == ""
    assert "at most" in outbox.refusal(EXAMPLES[0], b'"' + b"a" * VALUE_BYTES_MAX + b'"')


@given(st.text("a\N{LATIN SMALL LETTER E WITH ACUTE}\N{CRAB}\0\ud800", max_size=12))
def test_a_cut_text_fits(text: str) -> None:
    """One that fits is left as it is; of another one the beginning is left."""
    small = Limit(6, 9)
    cut = small.cut(text)
    assert small.problem(cut) == ""
    assert cut == text or small.problem(text)
    clean = text.replace("\0", "\ufffd").replace("\ud800", "\ufffd")
    assert cut == clean or (cut.endswith("…") and clean.startswith(cut[:-1]))


@given(st.sampled_from(LIMITS), st.text("a\N{LATIN SMALL LETTER E WITH ACUTE}\N{CRAB}\0\ud800", max_size=12))
def test_a_limit_counts_characters_and_bytes(limit: Limit, text: str) -> None:
    small = Limit(6, 9)
    size = len(text.encode(errors="surrogatepass"))
    unstorable = "\0" in text or "\ud800" in text
    assert bool(small.problem(text)) == (unstorable or len(text) > 6 or size > 9)
    assert bool(limit.problem(text)) == unstorable
