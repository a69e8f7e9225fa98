"""Settings of the process, from the environment. Read once, in main.py."""

from pathlib import Path

from pydantic_settings import BaseSettings, SettingsConfigDict


class Settings(BaseSettings):
    """Everything about a run itself stands in its scenario."""

    model_config = SettingsConfigDict(env_prefix="SLIPWAY_")

    # Bootstrap servers. Empty: demand is reported nowhere.
    kafka: str = ""
    # Put before every topic name, so that runs can share a broker.
    topic_prefix: str = ""
    host: str = "127.0.0.1"
    port: int = 7304
    # The file that is the truth about this run; an existing one is continued.
    ledger: Path = Path("ledger.jsonl")
