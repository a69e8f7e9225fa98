"""Calls of a host to one lease-broker."""

import os
from collections.abc import Callable
from random import Random
from typing import NamedTuple

from slipway_client.leases.admission import FailOpen
from slipway_client.leases.broker import Broker
from slipway_client.leases.state import State, folder
from slipway_client.transport.failed import Failed


class Host(NamedTuple):
    """Broker, state files, chance and log, which all requests of this host share."""

    broker: Broker
    state: State
    rng: Random
    log: Callable[[str], None]


def this_host(url: str, read_token: Callable[[], str], fail_open: FailOpen, log: Callable[[str], None]) -> Host:
    """Calls to the lease-broker at `url`, with the token that `read_token` returns. In mode `always` an
    unreadable one is logged: the broker refuses a request without it, which starts without a lease then."""
    try:
        token = read_token()
    except (Failed, ValueError) as error:
        if fail_open is not FailOpen.ALWAYS:
            raise
        log(str(error))
        token = ""
    return Host(Broker(url, token), State(folder(os.environ), url, log), Random(), log)  # noqa: S311 (spreads repetitions)
