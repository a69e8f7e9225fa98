"""Machines of the secured deployment: processes that register over TLS with the authority in their user data, claim
and leave. A gate holds them between their launch and their registration, so that secrets are replaced meanwhile."""

import asyncio
import os
import pwd
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
from aiokafka import AIOKafkaConsumer, TopicPartition

from slipway_api.events.lifecycle import State
from slipway_api.events.topics import WORKER_LIFECYCLE
from slipway_api.percent import encoded
from slipway_common.base.clock import utc_now
from slipway_common.base.process import identities
from slipway_common.base.process.guard import guard
from slipway_common.base.process.identities import INSTANCE_TAG
from slipway_common.messaging.clients import KafkaAccess, client_options
from slipway_common.messaging.partitions import closed, partitions_of
from slipway_provisioner.domain.registration import RegistrationKeys
from tests.support.authority import Authority

POOL: Final = "linux"
OWNER: Final = "secured.yaml"
USER: Final = "nobody"  # machines run as another user than the services
WAVE: Final = 3
STEP_SECONDS: Final = 120.0
REFUSALS: Final = "slipway_registrations_refused_total"


class Machines:
    """Machines of one pool, in waves: some launch, register, claim and leave."""

    def __init__(
        self, folder: Path, authority: Authority, call: Callable[..., Awaitable[Any]], seen: Callable[[set[str]], None]
    ) -> None:
        """`call` is a request of the operator; `seen` is told the secrets that machines are about to use."""
        self.folder = folder
        self.authority = authority
        self.gate = folder / "gate"
        self.logs = folder / "machines"
        self.agent = f"{_interpreter(folder)} -m slipway_client.worker"
        self.known: set[str] = set()
        """Workers that have had an instance."""
        self.tag = ""
        """Beginning of the tags of all machines, once it is known."""
        self._call = call
        self._seen = seen
        self.renew_certificate()

    def renew_certificate(self) -> None:
        """Certificate with which machines present themselves. Its file is theirs alone."""
        certificate = self.authority.issue("machine")
        os.chown(certificate, *_user())

    @property
    def providers(self) -> str:
        """Operator's settings of the provider: what a machine runs, and the files that it needs."""
        job = f"{self.agent} hook claimed job-$$ --source mine && {self.agent} hook idle job-$$ && exec sleep 1000"
        waiting = f"while [ ! -e {self.gate} ]; do sleep 0.1; done; exec {self.agent} wrap -- sh -c '{job}'"
        entry = {
            "command": ["sh", "-c", waiting],
            "environment": {"SLIPWAY_CLIENT_CERTIFICATE_FILE": str(self.folder / "machine.pem")},
            "log_folder": str(self.logs),
        }
        return msgspec.json.encode({"process": {"entries": {"default": entry}}}).decode()

    async def declare(self) -> None:
        self.tag = encoded((await self._call("GET", "provisioner", "/deployment"))["id"]) + "/"
        guard().tagged(f"{INSTANCE_TAG}={self.tag}")
        config = {
            "name": "linux-here",
            "account": "here",
            "zone": "here",
            "instance_type": "process",
            "image": "worker",
            "settings": {"heartbeat_seconds": 5, "poll_seconds": 1, "stop_seconds": 10, "source": "mine"},
        }
        account = {
            "id": "here",
            "provider": "process",
            "region": "local",
            "credential": "none",
            "identity": socket.gethostname(),
            "lease_pool": "here",
            "settings": {"processes_max": 4 * WAVE},
        }
        times = {"hold_seconds": 1200, "ttl_seconds": 300, "reserve_seconds": 180, "pacing": "off"}
        lease_pools = [{"id": "here", "limit": 4 * WAVE, **times}]
        pools = [{"id": POOL, "min_capacity": 0, "max_capacity": 2 * WAVE, "launch_configs": [config]}]
        documents = {"documents": [{"owner": OWNER, "lease_pools": lease_pools}]}
        await self._call("PUT", "lease-broker", "/lease-pools", documents)
        body = {"version": 1, "metadata": {"owner": OWNER}, "accounts": [account], "worker_pools": pools}
        await self._call("PUT", "provisioner", "/declaration", body)

    async def wave(self, keys: str, change: Callable[[], Awaitable[None]] | None = None) -> int:
        """Let machines launch, make the change while they boot, and wait until they have registered, claimed and left.
        `keys` are the registration keys at their launch. Returns how many were booting at the change."""
        self.gate.unlink(missing_ok=True)
        await self._report(WAVE)
        booting = await self._until("launched", lambda rows: len(rows) >= WAVE and all(map(_is_booting, rows)) and rows)
        self.known |= {row["id"] for row in booting}
        self._seen({RegistrationKeys(keys).secret(row["batch_id"]) for row in booting})
        if change is not None:
            await change()
        self.gate.touch()
        ids = {row["id"] for row in booting}
        await self._until("claimed", lambda rows: all(row["first_claimed_at"] for row in rows if row["id"] in ids))
        await self._report(0)
        await self._until("left", lambda rows: not rows)
        return len(booting)

    def end(self) -> None:
        """Kill those that are left, once the provisioner has ended."""
        for process in identities.tagged(INSTANCE_TAG, self.tag) if self.tag else ():
            identities.send(process.identity, signal.SIGKILL)

    async def _report(self, pending: int) -> None:
        body = {"source": "mine", "pending": pending, "claimed": 0, "observed_at": utc_now().isoformat()}
        await self._call("PUT", "provisioner", f"/pools/{POOL}/demand", body)

    async def _until(self, what: str, condition: Callable[[list[dict[str, Any]]], Any]) -> Any:
        """What the condition returns for the workers that have not stopped, once it is true."""
        try:
            async with asyncio.timeout(STEP_SECONDS):
                while not (found := condition(rows := await self._live())):
                    await asyncio.sleep(0.3)
        except TimeoutError:
            states = {row["id"]: (row["state"], row["reason"]) for row in rows}
            raise RuntimeError(f"machines have not {what} in {STEP_SECONDS:g} s: {states}\n{self.log_tail()}") from None
        return found

    async def _live(self) -> list[dict[str, Any]]:
        answer = await self._call("GET", "provisioner", f"/workers?pool={POOL}&limit=1000")
        return [row for row in answer["items"] if row["state"] != State.STOPPED]

    def log_tail(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-300:] for path in sorted(self.logs.glob("*.log"))[-WAVE:])

    async def facts(self, access: KafkaAccess) -> "Facts":
        """What the topic of workers, the provisioner's counter and the machines themselves say about the run."""
        seen: dict[str, set[str]] = {}
        async for kind, worker_id in _events(access):
            seen.setdefault(kind, set()).add(worker_id)
        counters = str(await self._call("GET", "provisioner", "/metrics"))
        lines = [line for line in counters.splitlines() if line.startswith(REFUSALS)]
        logs = [path.read_text(errors="replace") for path in self.logs.glob("*.log")]
        return Facts(
            launched=seen.get("launched", set()),
            registered=seen.get("registered", set()),
            claimed=seen.get("claimed", set()),
            drained=seen.get("stopping", set()),
            stopped=seen.get("stopped", set()),
            ended_otherwise=seen.get("lost", set()) | seen.get("launch_failed", set()),
            refusals=int(sum(float(line.split()[-1]) for line in lines)),
            refused=sum("refused" in log for log in logs),
        )


class Facts(NamedTuple):
    """Workers by what the topic says about them; registrations that the provisioner has refused, and machines that say
    so."""

    launched: set[str]
    registered: set[str]
    claimed: set[str]
    drained: set[str]
    stopped: set[str]
    ended_otherwise: set[str]
    refusals: int
    refused: int

    @property
    def whole(self) -> bool:
        """True if each machine went the whole path."""
        steps = (self.registered, self.claimed, self.drained, self.stopped)
        return bool(self.launched) and all(step == self.launched for step in steps) and not self.ended_otherwise

    def __str__(self) -> str:
        parts = {name: len(getattr(self, name)) for name in self._fields[:6]}
        return ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in parts.items())


async def _events(access: KafkaAccess) -> AsyncIterator[tuple[str, str]]:
    """Kind and worker of each event of the lifecycle of workers so far."""
    topic = WORKER_LIFECYCLE.name
    consumer = AIOKafkaConsumer(**client_options(access), enable_auto_commit=False, group_id=None)
    await consumer.start()
    try:
        places = [TopicPartition(topic, number) for number in await partitions_of(consumer, topic)]
        consumer.assign(places)
        await consumer.seek_to_beginning(*places)
        ends = await consumer.end_offsets(places)
        while any([await consumer.position(place) < ends[place] for place in places]):
            for records in (await consumer.getmany(timeout_ms=500)).values():
                for record in records:
                    kind = dict(record.headers)["ce_type"].decode().split(".")[-2]
                    yield kind, msgspec.json.decode(record.value or b"{}").get("worker_id", "")
    finally:
        await closed(consumer.stop)


def _is_booting(row: dict[str, Any]) -> bool:
    return row["instance_id"] is not None and row["registered_at"] is None and row["state"] == State.STARTING


def _interpreter(folder: Path) -> str:
    """A Python that other users may run: this one, or that of the system with the packages of this one."""
    if all(parent.stat().st_mode & stat.S_IXOTH for parent in Path(sys.executable).resolve().parents):
        return sys.executable
    version, place = f"python{sys.version_info.major}.{sys.version_info.minor}", folder / "python"
    subprocess.run([f"/usr/bin/{version}", "-m", "venv", "--without-pip", place], check=True)
    ours = f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n"
    (place / "lib" / version / "site-packages/ours.pth").write_text(ours)
    return str(place / "bin/python")


def _user() -> tuple[int, int]:
    user = pwd.getpwnam(USER)
    return user.pw_uid, user.pw_gid
