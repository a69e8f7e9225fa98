"""Comparison of a database with the log that it has written: it finds lost commits, and no others."""

import pytest
from aiokafka import TopicPartition
from aiokafka.cluster import ClusterMetadata
from aiokafka.protocol.metadata import MetadataResponse_v1
from hypothesis import given
from hypothesis import strategies as st

from slipway_common.messaging.incarnation import Incarnation, Sent, lost_commits
from slipway_common.messaging.partition_queues import Place
from slipway_common.messaging.sent import by_leader

HERE = Incarnation("b", "", ("a",), 0, None)
PLACES: tuple[Place, ...] = (("t", 0), ("t", 1), ("u", 0))

#           positions, log, evidence
CASES: list[tuple[dict[Place, int], dict[Place, dict[str, int]], str]] = [
    ({}, {}, ""),
    ({("t", 0): 7}, {("t", 0): {"b": 7}}, ""),
    ({("t", 0): 7}, {("t", 0): {"b": 3}}, ""),  # the rest was not sent yet, or has been deleted
    ({("t", 0): 7}, {}, ""),  # an empty topic, or a new cluster
    ({("t", 0): 7}, {("t", 0): {"a": 99, "b": 7}}, ""),  # before the last restore, or sent late by a zombie
    ({("t", 0): 7}, {("t", 0): {"b": 8}}, "t/0 has sequence number 8 of this database, whose last is 7"),
    ({}, {("u", 0): {"b": 1}}, "u/0 has sequence number 1 of this database, whose last is 0"),
    ({("t", 0): 7}, {("t", 0): {"c": 1}}, "t/0 has events of incarnation c, unknown to this database"),
]


@pytest.mark.parametrize(("positions", "log", "evidence"), CASES)
def test_evidence(positions: dict[Place, int], log: dict[Place, dict[str, int]], evidence: str) -> None:
    assert lost_commits(HERE, positions, Sent(log)) == evidence


def test_leaders() -> None:
    """A partition without a leader is distinguished from one that does not exist, to which nothing was sent."""
    cluster = ClusterMetadata()
    partitions = [(0, 0, 1, [1], [1]), (5, 1, -1, [1], [])]  # error, partition, leader, replicas, in sync
    cluster.update_metadata(MetadataResponse_v1([(1, "here", 9092, None)], 1, [(0, "t", False, partitions)]))
    tps = [TopicPartition("t", 0), TopicPartition("t", 1), TopicPartition("t", 2), TopicPartition("u", 0)]
    assert by_leader(cluster, tps) == (tps[:1], tps[1:2])


numbers = st.dictionaries(st.sampled_from(PLACES), st.integers(1, 9))


@given(numbers, numbers, st.dictionaries(st.sampled_from(PLACES), st.integers(1, 10**9)))
def test_the_log_behind_the_rows_is_no_evidence(
    positions: dict[Place, int], behind: dict[Place, int], former: dict[Place, int]
) -> None:
    """A database that has everything that it sent is trusted, whatever was sent before its last restore."""
    log = {
        place: {"b": min(number, positions[place])} | ({"a": former[place]} if place in former else {})
        for place, number in behind.items()
        if place in positions
    }
    assert lost_commits(HERE, positions, Sent(log)) == ""


@given(numbers, st.sampled_from(PLACES), st.integers(1, 5), st.booleans())
def test_one_partition_ahead_is_enough(positions: dict[Place, int], place: Place, ahead: int, known: bool) -> None:
    """The others may look as they like."""
    log = {each: {"b": number} for each, number in positions.items()}
    log[place] = {"b": positions.get(place, 0) + ahead} if known else {"lost": ahead}
    assert lost_commits(HERE, positions, Sent(log))


@given(numbers, numbers)
def test_a_renewed_incarnation_trusts_the_same_log(positions: dict[Place, int], sent: dict[Place, int]) -> None:
    """Otherwise each start of a relay would renew it again."""
    log = Sent({place: {"b": number, "lost": number} for place, number in sent.items()})
    former = tuple(sorted({*HERE.former, HERE.id, *log.incarnations}))
    assert lost_commits(Incarnation("new", "restored", former, 1, None), {}, log) == ""
    assert bool(lost_commits(HERE, positions, log)) == bool(sent)
