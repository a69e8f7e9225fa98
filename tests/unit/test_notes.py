"""Texts of our own in events: made from lists and foreign text of any length, they fit."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
import pytest
from msgspec import inspect

from generate.examples import EXAMPLES
from slipway_api.events.alert import AlertRaised
from slipway_api.events.fitting import NOTE_TYPE, fitted
from slipway_api.events.scopes import Key
from slipway_api.events.worker import Scope
from slipway_api.limits import NOTE
from slipway_common.base.text import LISTED_MAX, listed
from slipway_common.database.process_alerts import PartitionAlert
from slipway_common.messaging import outbox
from slipway_provisioner.apply.reaping import kept_alert
from slipway_provisioner.domain import freezing
from slipway_provisioner.domain.cloud import Instance, InstanceState
from slipway_provisioner.domain.consoles import LINES_MAX
from slipway_provisioner.domain.freezing import UnconfirmedStart
from slipway_provisioner.domain.pool import Shared
from slipway_provisioner.domain.reaping import Kept
from slipway_weight_calculator.domain.record import failure_text
from slipway_weight_calculator.domain.trips import Failure

MANY: Final = 10_000
NOW: Final = datetime(2026, 1, 1, tzinfo=UTC)
TEXTS: Final = ["a" * MANY, "\N{CRAB}" * MANY, "a\0b", "\ud800" * MANY]


def with_notes(value: Any, text: str) -> Any:
    """The struct with this text as each of its notes, many times where it has several."""
    changes: dict[str, Any] = {}
    for field in inspect.type_info(type(value)).fields:  # type: ignore[attr-defined]
        now, kinds = getattr(value, field.name), getattr(field.type, "types", (field.type,))
        if NOTE_TYPE in kinds:
            changes[field.name] = text
        elif isinstance(field.type, inspect.VarTupleType) and field.type.item_type == NOTE_TYPE:
            changes[field.name] = (text,) * MANY
        elif isinstance(now, msgspec.Struct):
            changes[field.name] = with_notes(now, text)
        elif isinstance(now, tuple):
            changes[field.name] = tuple(
                with_notes(each, text) if isinstance(each, msgspec.Struct) else each for each in now
            )
    return msgspec.structs.replace(value, **changes)


@pytest.mark.parametrize("event", EXAMPLES, ids=lambda event: event.type)
def test_an_event_whose_notes_are_cut_is_accepted(event: Any) -> None:
    assert fitted(event) == event
    for text in TEXTS:
        made = fitted(with_notes(event, text))
        assert outbox.refusal(made, msgspec.json.encode(made)) == ""


def test_names_are_not_cut() -> None:
    event = next(event for event in EXAMPLES if isinstance(event, AlertRaised))
    with pytest.raises(msgspec.ValidationError, match="kind"):
        fitted(msgspec.structs.replace(event, kind="x" * MANY))


def test_the_last_note_counts_the_others() -> None:
    event = next(event for event in EXAMPLES if isinstance(event, AlertRaised))
    cut = fitted(msgspec.structs.replace(event, evidence=tuple(map(str, range(MANY)))))
    assert (len(cut.evidence), cut.evidence[18], cut.evidence[19]) == (20, "18", "and 9,981 more")


def test_the_lines_of_a_console_are_not_cut() -> None:
    """Those at its end name the cause, and their number and size have limits of their own."""
    event = next(event for event in EXAMPLES if isinstance(event, AlertRaised))
    printed = msgspec.structs.replace(event, console=tuple(f"line {number}" for number in range(LINES_MAX)))
    assert fitted(printed) == printed


def _partitions() -> str:
    names = [f"slipway.worker.lifecycle.v1/{number}" for number in range(MANY)]
    (alert,) = PartitionAlert("unowned-partition", "x", "i").changes(names, summary=f"of {listed(names)}", effect="")
    return alert.summary


def _kept() -> str:
    instance = Instance(id="i", batch_id="", created_at=NOW, state=InstanceState.RUNNING)
    return kept_alert("sim-a", MANY, [Kept(instance, f"{number:05}" * 40) for number in range(MANY)]).summary


def _failures() -> str:
    run = [Failure(0.0, scope, f"code-{n:05}" * 6, True, "w") for n in range(MANY) for scope in list(Scope)[:1]]
    return failure_text(run)


@pytest.mark.parametrize("sentence", [_partitions, _kept, _failures])
def test_a_sentence_about_many_names_the_first(sentence: Callable[[], str]) -> None:
    text = sentence()
    assert NOTE.problem(text) == ""
    assert f" and {MANY - LISTED_MAX:,} more" in text


def test_evidence_of_many_starts_fits() -> None:
    start = UnconfirmedStart(worker_id="w", instance_id="i", account_id="a", booting=False, reason="x" * MANY)
    image = Shared(key=Key("image", "ami-1"), stage="boot", tripped=True, reason="x" * MANY)
    alert = freezing.raised("linux", image, tasks=1, starts=[start] * MANY, now=NOW)
    made = fitted(alert)
    assert outbox.refusal(alert, msgspec.json.encode(alert))
    assert outbox.refusal(made, msgspec.json.encode(made)) == ""
