"""Statements compiled for asyncpg: their text, the order of their values, and what they refuse."""

from importlib import import_module
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Final

import pytest
from sqlalchemy import Boolean, Column, Integer, MetaData, Table, Text, any_, bindparam, func, insert, select, update
from sqlalchemy.dialects.postgresql import JSONB

import slipway_common
import slipway_lease_broker
import slipway_provisioner
import slipway_weight_calculator
from slipway_common.database.sql import Statement, array, arrays, combine, given, matches, names, seconds
from tests.support.statements import unbounded_claims

thing: Final = Table(
    "thing", MetaData(), Column("id", Text), Column("units", Integer), Column("done", Boolean), Column("body", JSONB)
)
FINISH: Final = Statement(update(thing).where(thing.c.id == bindparam("thing")).values(units=bindparam("left")))


def text(statement: Statement) -> str:
    return " ".join(statement.text.split())


def test_values_are_in_the_order_of_the_text() -> None:
    assert FINISH.text == "UPDATE thing SET units=$1::INTEGER WHERE thing.id = $2::VARCHAR"
    assert FINISH.arguments(thing="a", left=3) == [3, "a"]


@pytest.mark.parametrize("values", [{"thing": "a"}, {"thing": "a", "left": 3, "rest": 4}, {}])
def test_missing_and_unknown_names_are_refused(values: dict[str, object]) -> None:
    with pytest.raises(TypeError, match="expected values for left, thing"):
        FINISH.arguments(**values)


def test_constants_are_part_of_the_text() -> None:
    """Partial indexes are used by generic plans too, which see no values of parameters."""
    live = select(thing.c.id).where(~thing.c.done, thing.c.units > 0, thing.c.id.in_(["a", "it's"])).limit(5)
    condition = "NOT thing.done AND thing.units > 0 AND thing.id IN ('a', 'it''s') LIMIT 5"
    assert text(Statement(live)) == f"SELECT thing.id FROM thing WHERE {condition}"
    assert Statement(live).arguments() == []


def test_rows_are_passed_as_an_array_per_column() -> None:
    fields = thing.c["id", "units", "body"]
    add = Statement(insert(thing).from_select(fields.keys(), select(given(*fields))))
    assert add.text.endswith("FROM unnest($1::TEXT[], $2::INTEGER[], $3::JSONB[]) AS given(id, units, body)")
    rows = [SimpleNamespace(id="a", units=1, body={}), SimpleNamespace(id="b", units=2, body=[])]
    assert add.rows(rows) == [["a", "b"], [1, 2], [{}, []]]
    assert add.rows(rows, units=[7, 8]) == [["a", "b"], [7, 8], [{}, []]]


def test_conditions() -> None:
    found = select(thing.c.id).where(matches(thing.c.id, "id"), thing.c.units == any_(array("units", thing.c.units)))
    condition = "($1::VARCHAR IS NULL OR thing.id = $1::VARCHAR) AND thing.units = ANY ($2::INTEGER[])"
    assert text(Statement(found)) == f"SELECT thing.id FROM thing WHERE {condition}"
    assert text(Statement(select(func.now() - seconds("age")))).startswith("SELECT now() - make_interval(secs => $1)")


def test_statements_are_combined() -> None:
    """With the parameters of all, in the order of the statements; a `WITH` of the last is merged."""
    change, add = "UPDATE a SET x = $2 WHERE id = $1 OR y = $2", "INSERT INTO b VALUES ($1)"
    publish = "WITH event AS (SELECT $1 AS id) INSERT INTO c SELECT id FROM event"
    assert combine((change,)) == change
    assert combine((change, add)) == f"WITH part_0 AS ({change}) INSERT INTO b VALUES ($3)"
    assert combine((change, add, publish)) == (
        f"WITH part_0 AS ({change}), part_1 AS (INSERT INTO b VALUES ($3)), "
        "event AS (SELECT $4 AS id) INSERT INTO c SELECT id FROM event"
    )


def test_columns_of_a_statement_in_text() -> None:
    assert names(thing.c["id", "done"], "t.") == "t.id, t.done"
    assert arrays(thing.c["id", "body"], first=2) == "$2::TEXT[], $3::JSONB[]"


@pytest.mark.parametrize(
    "package", [slipway_common, slipway_provisioner, slipway_lease_broker, slipway_weight_calculator]
)
def test_no_statement_takes_more_rows_than_its_limit(package: ModuleType) -> None:
    """Under any plan."""
    assert unbounded_claims(package) == set()


@pytest.mark.parametrize(
    ("where", "is_found"),
    [
        ("id IN (SELECT id FROM thing ORDER BY id LIMIT 4 FOR UPDATE SKIP LOCKED)", True),
        (
            "(id, units) in (\n  SELECT id, units FROM thing WHERE (done) LIMIT $1 FOR UPDATE OF t SKIP LOCKED)",
            True,
        ),
        ("id = ANY (ARRAY(SELECT id FROM thing LIMIT 4 FOR UPDATE SKIP LOCKED))", False),
        ("id = (SELECT id FROM thing LIMIT 1 FOR UPDATE SKIP LOCKED)", False),
        ("id IN (SELECT id FROM thing FOR UPDATE SKIP LOCKED)", False),
    ],
)
def test_a_claim_in_a_subquery_of_in_is_found(
    where: str, is_found: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"claims_{abs(hash(where))}"
    (tmp_path / name).mkdir()
    (tmp_path / name / "__init__.py").touch()
    (tmp_path / name / "store.py").write_text(f"TAKE = {f'UPDATE thing SET done = true WHERE {where}'!r}\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert unbounded_claims(import_module(name)) == ({"store.TAKE"} if is_found else set())
