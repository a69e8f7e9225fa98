"""The machine that a worker is: an EC2 instance, known by its metadata service, or this process.

A provider lists an EC2 instance by its instance id, and would terminate as an orphan one that registers under another
id. So a machine that is known to be one never registers as a process.
"""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import datetime
from enum import Enum
from pathlib import Path
from random import Random
from typing import Final

from slipway_client.transport.exchange import NoAnswer, retried
from slipway_client.worker import core, state
from slipway_client.worker.core import INTERRUPTION, Notice, Worker
from slipway_client.worker.imds import LINK_LOCAL, Identity, Imds
from slipway_client.worker.log import log
from slipway_common.base.clock import monotonic_seconds, utc_now
from slipway_common.base.process.identities import INSTANCE_TAG, own_identity

# The variables of AWS' own tools.
ENDPOINT: Final = "AWS_EC2_METADATA_SERVICE_ENDPOINT"
DISABLED: Final = "AWS_EC2_METADATA_DISABLED"
# Files that begin so on an EC2 instance, in its containers too: the vendor, and under Xen a UUID.
SIGNS: Final[Mapping[Path, str]] = {
    Path("/sys/class/dmi/id/sys_vendor"): "Amazon EC2",
    Path("/sys/hypervisor/uuid"): "ec2",
}
PROBE_SECONDS: Final = 1.0
FIND_SECONDS: Final = 300.0
POLL_SECONDS: Final = 5.0
ADVICE: Final = (
    "enable the instance's metadata service; in a container its hop limit must be 2; if this is not an EC2 instance, "
    f"set {DISABLED}=true"
)


class NoIdentity(Exception):
    """The machine is an EC2 instance, but its metadata service has not answered with its id. The text is for people."""


class Expected(Enum):
    """Expectation of a metadata service."""

    NO, POSSIBLY, YES = "no", "possibly", "yes"


def expected(environment: Mapping[str, str], *, has_sign: bool) -> Expected:
    """Expectation of a metadata service. A process of the provider `process` is an instance itself, on any machine."""
    if environment.get(INSTANCE_TAG) or environment.get(DISABLED, "").lower() == "true":
        return Expected.NO
    return Expected.YES if has_sign or environment.get(ENDPOINT) else Expected.POSSIBLY


def has_sign_of_ec2() -> bool:
    """True if a file says that this is an EC2 instance. Without one it may still be: not every sandbox shows them."""
    for path, begin in SIGNS.items():
        with contextlib.suppress(OSError, ValueError):
            if path.read_text().startswith(begin):
                return True
    return False


def noticed(worker: Worker, notices: Sequence[Notice], now: float, wall: datetime) -> Worker:
    """Apply notices at a time of both clocks."""
    for notice in notices:
        ends_at = None if notice.ends_at is None else now + (notice.ends_at - wall).total_seconds()
        worker = core.noticed(worker, notice, ends_at, now)
    return worker


class Machine:
    """The machine of this process. `imds` is its metadata service, if it is an EC2 instance, and `state` the directory
    in which its agent keeps what outlives a restart."""

    def __init__(
        self,
        identity: Identity,
        imds: Imds | None = None,
        *,
        state: Path | None = None,
        poll_seconds: float = POLL_SECONDS,
    ) -> None:
        self.identity = identity
        self.state = state
        self._imds = imds
        self._poll_seconds = poll_seconds

    async def watch(
        self,
        worker: Callable[[], Worker],
        worker_changed: Callable[[Worker], None],
        wait: Callable[[float | None], Awaitable[None]],
    ) -> None:
        """Poll for notices until the machine is interrupted, and apply them to the worker: from its registration on,
        since only then can they be reported."""
        answered = True
        while self._imds is not None and INTERRUPTION not in worker().notices:
            if not worker().registered:
                await wait(None)
                continue
            try:
                notices = await self._imds.notices()
            except NoAnswer as error:
                if answered:
                    log(f"metadata service unavailable, retrying: {error}")
                answered = False
            else:
                answered = True
                after = noticed(worker(), notices, monotonic_seconds(), utc_now())
                if after is not worker():
                    log(f"leaving after the current task: {after.leaving}")
                    worker_changed(after)
            await asyncio.sleep(self._poll_seconds)


async def this_machine(environment: Mapping[str, str], rng: Random) -> Machine:
    """Find out which machine this is. Raises NoIdentity."""
    expectation = expected(environment, has_sign=has_sign_of_ec2())
    url = environment.get(ENDPOINT) or LINK_LOCAL
    found = await ec2_identity(url, expectation, rng)
    if found is None:
        return Machine(Identity(instance_id=own_identity()))
    log(f"this is instance {found.instance_id} in zone {found.zone or 'unknown'}, id {found.zone_id or 'unknown'}")
    return Machine(found, Imds(url), state=state.directory(environment))


async def ec2_identity(
    url: str, expectation: Expected, rng: Random, *, find_seconds: float = FIND_SECONDS
) -> Identity | None:
    """Identity of this machine as an EC2 instance; None if it is none. Raises NoIdentity."""
    if expectation is Expected.NO:
        return None
    if expectation is Expected.POSSIBLY:
        with contextlib.suppress(NoAnswer):
            return await Imds(url, request_seconds=PROBE_SECONDS).identity()
        return None
    # The metadata service may answer late in a boot.

    def failed(error: NoAnswer) -> None:
        log(f"metadata service unavailable, retrying: {error}")

    try:
        return await retried(Imds(url).identity, rng, monotonic_seconds() + find_seconds, failed)
    except NoAnswer as error:
        problem = f"the metadata service has not answered for {find_seconds:g} s: {error}"
        raise NoIdentity(f"{problem}; {ADVICE}") from error
