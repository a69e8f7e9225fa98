"""Settings of the process, from the environment. Read once, in main.py."""

from pathlib import Path

from slipway_common.messaging.clients import KafkaSettings


class Settings(KafkaSettings):
    """Settings of the simulator. Everything about a run is part of its scenario."""

    # Kafka bootstrap servers. Empty: demand is not reported.
    kafka: str = ""
    # Prepended to every topic name, so that runs can share a broker.
    topic_prefix: str = ""
    host: str = "127.0.0.1"
    port: int = 7304
    # Ledger file. A run in an existing ledger is continued.
    ledger: Path = Path("ledger.jsonl")
    # Initial scenario in JSON, used only if the ledger is empty: a continued run keeps its scenario.
    scenario: Path | None = None
