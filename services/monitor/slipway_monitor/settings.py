"""Settings of the monitor; read once, in main.py."""

from typing import Annotated

from slipway_common.base.settings import Secret, has_password
from slipway_common.messaging.clients import KafkaSettings


class Settings(KafkaSettings):
    """Settings of `slipway-monitor run`. What it reads is in its file of sources."""

    topic_prefix: str = ""
    database_url: Annotated[str, Secret(has_password)] = ""
    """PostgreSQL whose advisory locks decide which of several replicas reads a source. Without one, run one replica."""
    host: str = "127.0.0.1"
    port: int = 7305
    """Port of the metrics; 0: none."""
