"""How these programs reach Kafka: KAFKA alone, or over TLS as KAFKA_USERNAME, whose password is in a file."""

import os
import ssl
from pathlib import Path
from typing import Any


def scram() -> tuple[str, str, ssl.SSLContext] | None:
    """User, password and TLS, with the authorities in KAFKA_CA_FILE [default: the system's]; None without a user."""
    if not (user := os.getenv("KAFKA_USERNAME")):
        return None
    password = Path(os.environ["KAFKA_PASSWORD_FILE"]).read_text().strip()
    return user, password, ssl.create_default_context(cafile=os.getenv("KAFKA_CA_FILE"))


def options() -> dict[str, Any]:
    """Options of a client of aiokafka."""
    servers = {"bootstrap_servers": os.environ["KAFKA"]}
    if (known := scram()) is None:
        return servers
    names = ("sasl_plain_username", "sasl_plain_password", "ssl_context")
    how = {"security_protocol": "SASL_SSL", "sasl_mechanism": "SCRAM-SHA-512"}
    return servers | how | dict(zip(names, known, strict=True))
