"""Settings of the process, from the environment. Read once, in main.py."""

from pathlib import Path

from slipway_common.base.settings import EnvironmentSettings


class Settings(EnvironmentSettings):
    """Settings of the stand-in. Everything about a run is part of its scenario."""

    host: str = "127.0.0.1"
    port: int = 7305
    # Ledger file. A run cannot be continued, because moto persists nothing.
    ledger: Path = Path("ec2.jsonl")
    # Folder of moto's log, and of a folder per machine with its console.
    folder: Path = Path("ec2")
