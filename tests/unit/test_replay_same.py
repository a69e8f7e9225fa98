"""Translation of expected records into today's words, and the comparison of the translated records."""

from typing import Any

import msgspec
import pytest

from tests.tools.replay_same import Words, WrongMap, differences, main, without_additions

GIVEN: dict[str, Any] = {
    "fields": {"closed_by": "tripped_by"},
    "splits": {"key": "(?P<kind>[a-z]+)(?:/(?P<id>.+))?"},
    "added": [
        {
            "field": "subject_kind",
            "before": "subject_id",
            "of": "alert",
            "by": [{"old": "pool/.+", "new": "pool"}, {"old": "([a-z]+):.+", "new": r"\1"}],
        }
    ],
    "values": [
        {"field": "state", "old": "closed", "new": "probing", "if": r"reason ~ probe \d+$"},
        {"field": "state", "old": "closed", "new": "tripped"},
    ],
    "types": {"zone": "[a-z]", "errors": r"\d+ errors?", "permit": r"\d+"},
    "sentences": {
        "reason": {
            "{zone}: closed, {errors}, probe {permit}": "{data.pool}-{zone} tripped: probe {permit}; {errors}",
            "{zone}: closed, {errors}": "{data.pool}-{zone} tripped: {errors}",
        }
    },
}


def line(**data: Any) -> dict[str, Any]:
    return {"at": 1.5, "type": "t", "data": data}


TRANSLATED = [
    ({"closed_by": "x"}, {"tripped_by": "x"}),
    ({"state": "closed", "reason": "b: closed, 2 errors"}, {"state": "tripped", "reason": "linux-b tripped: 2 errors"}),
    (
        {"state": "closed", "reason": "b: closed, 2 errors, probe 3"},
        {"state": "probing", "reason": "linux-b tripped: probe 3; 2 errors"},
    ),
    ({"reason": "b: closed, many errors"}, {"reason": "b: closed, many errors"}),
    ({"reason": "b: closed, 2 errors and more"}, {"reason": "b: closed, 2 errors and more"}),
    ({"other": "closed"}, {"other": "closed"}),
    ({"key": "image/a/b"}, {"kind": "image", "id": "a/b"}),
    ({"key": "signal"}, {"kind": "signal", "id": ""}),
    ({"alert": "pool/x", "subject_id": "x"}, {"alert": "pool/x", "subject_kind": "pool", "subject_id": "x"}),
    ({"alert": "quota:x", "subject_id": "x"}, {"alert": "quota:x", "subject_kind": "quota", "subject_id": "x"}),
    ({"alert": "x", "subject_id": "x"}, {"alert": "x", "subject_id": "x"}),
    ({"shared": [{"state": "closed", "version": 7}]}, {"shared": [{"state": "tripped", "version": 7}]}),
]


@pytest.mark.parametrize(("old", "new"), TRANSLATED)
def test_translation(old: dict[str, Any], new: dict[str, Any]) -> None:
    assert Words(GIVEN).line(line(pool="linux", **old)) == line(pool="linux", **new)


def test_unused_entries_are_known() -> None:
    words = Words(GIVEN)
    assert len(words.unused) == words.size == 8
    words.line(line(pool="linux", state="closed", reason="b: closed, 2 errors", closed_by=""))
    assert len(words.unused) == 5


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        ("{errors} in {zone}", "{errors}", "the placeholders differ"),
        ("{errors}", "{errors} in {zone}", "the placeholders differ"),
        ("{zone} {zone}", "{zone} {zone}", "occurs twice"),
        ("{anything}", "{anything}", "no type for anything"),
    ],
)
def test_a_map_that_could_hide_a_fact_is_refused(old: str, new: str, reason: str) -> None:
    with pytest.raises(WrongMap, match=reason):
        Words(GIVEN | {"sentences": {"reason": {old: new}}})


def test_a_split_that_would_lose_a_part_is_refused() -> None:
    with pytest.raises(WrongMap, match="key: 'image/a' is split into"):
        Words(GIVEN | {"splits": {"key": "(?P<kind>[a-z]+)/.+"}}).line(line(key="image/a"))


@pytest.mark.parametrize(
    ("got", "where"),
    [
        ({"at": 1.5, "data": {"n": 1, "list": [1, 2]}}, []),
        ({"at": 1.5, "data": {"n": 1.0, "list": [1, 2]}}, ["data.n:"]),
        ({"at": 1.25, "data": {"n": 1, "list": [1, 3]}}, ["at:", "data.list[1]:"]),
        ({"at": 1.5, "data": {"n": 1, "list": [2]}}, ["data.list:"]),
        ({"data": {"n": 1, "list": [1, 2]}, "at": 1.5}, ["line: fields"]),
        (None, ["line:"]),
    ],
)
def test_differences(got: Any, where: list[str]) -> None:
    found = sorted(differences({"at": 1.5, "data": {"n": 1, "list": [1, 2]}}, got))
    assert [text.startswith(place) for text, place in zip(found, sorted(where), strict=True)] == [True] * len(where)


class Inner(msgspec.Struct):
    """A struct within a record, with an added field."""

    n: int
    added: int = 0


class Record(msgspec.Struct):
    """A record of the earlier version with an added field."""

    inner: list[Inner]
    old: str = ""
    added: tuple[str, ...] = ()


@pytest.mark.parametrize(
    ("record", "where"),
    [
        (Record([Inner(1)]), []),
        (Record([Inner(1)], added=("x",)), ["line: fields"]),
        (Record([Inner(1, added=7)]), ["inner[0]: fields"]),
        (Record([Inner(1)], old="x"), ["old:"]),
        (Record([]), ["inner:"]),
    ],
)
def test_an_added_field_with_its_default_is_no_difference(record: Record, where: list[str]) -> None:
    expected = {"inner": [{"n": 1}], "old": ""}
    found = list(differences(expected, without_additions(record, expected)))
    assert [text.startswith(place) for text, place in zip(found, where, strict=True)] == [True] * len(where)


def test_the_recorded_outage_is_replayed_as_before(capsys: pytest.CaptureFixture[str]) -> None:
    assert main() == 0, capsys.readouterr().out
