"""Starts a database, a paused service and, on request, a broker and an agent known by its tag only; prints "up" and
waits. For test_local.py."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path

from slipway_common.base.process.guard import guard
from slipway_local.servers.kafka import EmbeddedKafka
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_local.servers.supervisor import Part, Service, Supervisor, run

FOLDER = Path(sys.argv[1])


async def main(supervisor: Supervisor) -> int:
    print("starting", flush=True)
    sleeper = [sys.executable, "-c", "import time; time.sleep(600)"]
    servers: list[Part] = [EmbeddedPostgres(FOLDER / "postgres")]
    if "kafka" in sys.argv:
        servers.append(EmbeddedKafka(FOLDER / "kafka"))
    await supervisor.start(*servers)
    await supervisor.start(Service("sleeper", sleeper, env=os.environ, log=FOLDER / "sleeper.log"))
    supervisor.pause("sleeper")
    if "agent" in sys.argv:
        start_agent()
    if "fail" in sys.argv:
        raise RuntimeError("as requested")
    print("up", flush=True)
    await asyncio.sleep(600)
    return 0


def start_agent() -> None:
    """In a session of its own, with a child in another."""
    guard().tagged(f"OWNERS_AGENT={FOLDER}/")
    env = os.environ | {"OWNERS_AGENT": f"{FOLDER}/1"}
    script = "setsid sleep 600 & exec sleep 600"
    subprocess.Popen(["sh", "-c", script], env=env, start_new_session=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    sys.exit(run(main))
