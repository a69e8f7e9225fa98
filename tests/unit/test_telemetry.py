"""Lines of libraries that a service logs."""

import logging

from slipway_common.observability.telemetry import OncePerMinute


def record(name: str, line: int) -> logging.LogRecord:
    return logging.LogRecord(name, logging.ERROR, "client.py", line, "Unable connect to %s", ("broker:9092",), None)


def test_the_kafka_client_logs_an_outage_once_a_minute() -> None:
    """Each of its lines, and none of other libraries is held back."""
    now = 0.0
    once = OncePerMinute(lambda: now)
    assert [once.filter(record("aiokafka", 1)) for _ in range(3)] == [True, False, False]
    assert once.filter(record("aiokafka.producer.sender", 2))
    assert all(once.filter(record(name, 1)) for name in ("asyncpg", "slipway_common.messaging.relay", "aiokafkas"))
    now = 59.9
    assert not once.filter(record("aiokafka", 1))
    now = 60.0
    assert once.filter(record("aiokafka", 1))
