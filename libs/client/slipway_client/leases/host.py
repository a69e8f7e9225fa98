"""Calls of a host to one lease-broker, and its name as a holder of leases."""

import functools
import os
import socket
from collections.abc import Callable
from random import Random
from typing import Final, NamedTuple

from slipway_client.leases.admission import FailOpen
from slipway_client.leases.broker import Broker
from slipway_client.leases.state import State, folder
from slipway_client.transport.failed import Failed
from slipway_common.base.ids import random_bytes

HOST_CHARACTERS_MAX: Final = 100


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


def holder() -> str:
    """Name by which the broker tells apart processes with one request id: host:pid:random; host and pid are for people.
    The same for all leases of a process, another one after a fork."""
    return _name(os.getpid())


@functools.cache
def _name(pid: int) -> str:
    return f"{socket.gethostname()[:HOST_CHARACTERS_MAX]}:{pid}:{random_bytes(4).hex()}"
