"""Settings of the process, from the environment. Read once, in main.py."""

from pathlib import Path

from slipway_common.settings import EnvironmentSettings


class Settings(EnvironmentSettings):
    """Everything about a run itself stands in its scenario."""

    # Bootstrap servers. Empty: demand is reported nowhere.
    kafka: str = ""
    # Put before every topic name, so that runs can share a broker.
    topic_prefix: str = ""
    host: str = "127.0.0.1"
    port: int = 7304
    # The file that is the truth about this run; an existing one is continued.
    ledger: Path = Path("ledger.jsonl")
    # A scenario in JSON to begin with when the ledger is empty; a run that is continued keeps its own.
    scenario: Path | None = None
