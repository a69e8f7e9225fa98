"""Settings of the monitor; read once, in main.py."""

from pathlib import Path
from typing import Annotated

from slipway_common.base.settings import Secret, has_password
from slipway_common.messaging.clients import KafkaSettings
from slipway_common.web.listening import ListenerSettings


class Settings(KafkaSettings, ListenerSettings):
    """Settings of `slipway-monitor run`. What it reads is in its file of sources."""

    topic_prefix: str = ""
    database_url: Annotated[str, Secret(has_password)] = ""
    """PostgreSQL whose advisory locks decide which of several replicas reads a source. Without one, run one replica."""
    port: int = 7305
    """Port of the metrics and the probes; 0: none."""
    tokens_file: Path | None = None
    """Tokens, of which those with the scope `read:metrics` read the metrics [default: nobody does]."""
