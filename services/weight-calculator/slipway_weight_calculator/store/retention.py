"""Retention of the weight-calculator's tables. What the leader holds as one value it deletes itself."""

from typing import Final

from slipway_common.database.retention import Bounded, Retention, Rule, delete_ended, older
from slipway_common.database.sql import Statement
from slipway_weight_calculator.store.signals import REFUSED_MAX
from slipway_weight_calculator.store.tables import journal

LEADER: Final = "leader"
ONE_TURN: Final = "those of one turn"
DELETE_TURNS: Final = Statement(delete_ended(journal, older(journal.c.written_at), order=[journal.c.written_at]))

RETENTION: Final[Retention] = (
    Bounded("leader", "one row"),
    Rule(
        table="config",
        rows="launch configs",
        after="the tombstone of the launch config; 8 days after the first event about one that was never declared",
        loop=LEADER,
        chunk=ONE_TURN,
    ),
    Rule(
        table="health",
        rows="health of launch configs and of the keys that they share",
        after="the deletion of the last launch config that has the key",
        loop=LEADER,
        chunk=ONE_TURN,
    ),
    Rule(table="boot", rows="boots", after="the boot's outcome", loop=LEADER, chunk=ONE_TURN),
    Rule(table="signal", rows="signals", after="the signal's expiry", loop=LEADER, chunk=ONE_TURN),
    Rule(table="open_alert", rows="open alerts", after="the end of the alert", loop=LEADER, chunk=ONE_TURN),
    Rule(
        table="refused_signal",
        rows="refused signals",
        after=f"{REFUSED_MAX} newer ones",
        loop=LEADER,
        chunk=ONE_TURN,
    ),
    Rule(
        table="weight",
        rows="published weight records",
        after="the tombstone of the launch config",
        loop=LEADER,
        chunk=ONE_TURN,
    ),
    Rule(
        table="journal",
        rows="turns",
        after="the turn: as long as the records of its topics",
        days=7,
        delete=DELETE_TURNS,
    ),
)
