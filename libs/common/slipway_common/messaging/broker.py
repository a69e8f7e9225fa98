"""FastStream's broker, made from the options of Kafka clients.

Apart from kafka.py, so that a process that only publishes loads nothing of consumers and their database.
"""

from typing import Any, Final

from faststream.kafka import KafkaBroker
from faststream.security import BaseSecurity, SASLOAuthBearer, SASLPlaintext, SASLScram256, SASLScram512

from slipway_common.messaging.clients import Kafka, client_options

SECURITIES: Final = {"PLAIN": SASLPlaintext, "SCRAM-SHA-256": SASLScram256, "SCRAM-SHA-512": SASLScram512}


def connect(kafka: Kafka, service: str) -> KafkaBroker:
    """Make a broker, without automatic topic creation and argument injection. Raises UnusableFile for files of TLS."""
    return KafkaBroker(
        **_options(kafka),
        client_id=service,
        allow_auto_create_topics=False,
        apply_types=False,
        logger=None,
        graceful_timeout=10.0,
    )


def _options(kafka: Kafka) -> dict[str, Any]:
    """The options of clients as FastStream takes them: security is an object of the mechanism's class."""
    options = client_options(kafka)
    security: BaseSecurity | None = None
    context = options.pop("ssl_context", None)
    mechanism = options.pop("sasl_mechanism", None)
    if mechanism in SECURITIES:
        name, password = options.pop("sasl_plain_username"), options.pop("sasl_plain_password")
        security = SECURITIES[mechanism](name, password, ssl_context=context)
    elif mechanism is not None:
        security = SASLOAuthBearer(ssl_context=context)
    elif context is not None:
        security = BaseSecurity(ssl_context=context)
    options.pop("security_protocol", None)
    return options | {"security": security}
