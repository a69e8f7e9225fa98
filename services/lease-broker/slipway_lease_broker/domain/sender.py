"""The sender of a lease command. Value only."""

import msgspec


class Sender(msgspec.Struct, frozen=True, kw_only=True):
    """The token or service that sends a lease command, and the process that uses it."""

    name: str = ""  # of the token or service; owner of what it acquires
    admin: bool = False  # it may act for every owner
    over_kafka: bool = False  # the command came over Kafka, not over HTTP
    holder: str = ""  # name that the process gave itself; empty for none
    adapter: bool = False  # it reports what the provider itself answered
    join: bool = False  # the process holds a lease together with its present holders
    waiting_max: int | None = None  # requests of the token that may wait in one lease pool; None: any number
