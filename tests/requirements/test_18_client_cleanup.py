import asyncio
import os
import signal
import sys
from collections import Counter

from tests.requirements.live import Live
from tests.support.harness import until

SLIPWAY = (sys.executable, "-c", "from slipway_client.cli.main import app; app(prog_name='slipway')")
# A program with a signal handler of its own, set before it acquires a lease. The handler does not print: the signal may
# come before the first `print` has returned, and prints cannot be nested. One long sleep could begin between the signal
# and its handler.
PROGRAM = """
import os, signal, sys, time
from slipway_client.leases import lease

def mine(signum, frame):
    os.write(1, b"my own handler\\n")
    sys.exit(7)

signal.signal(signal.SIGTERM, mine)
with lease(sys.argv[1], log=lambda _: None) as held:
    print("holding", flush=True)
    while True:
        time.sleep(0.05)
"""


async def test_client_cleanup(live: Live) -> None:
    """Context manager; signal handlers are *chained*, never replaced (the trap bug); release is idempotent; errors are
    never returned as values."""
    pool = await live.pool("cleanup", 1)
    url = f"http://127.0.0.1:{live.ports[0]}"
    environment = os.environ | {"SLIPWAY_LEASE_BROKER_URL": url, "SLIPWAY_TOKEN": live.secrets["ann"]}

    async def run(*command: str) -> asyncio.subprocess.Process:
        pipe = asyncio.subprocess.PIPE
        return await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, env=environment)

    program = await run(sys.executable, "-c", PROGRAM, pool)
    assert program.stdout is not None
    try:
        assert await program.stdout.readline() == b"holding\n"
        program.send_signal(signal.SIGTERM)
        output, complaint = await program.communicate()
    finally:
        if program.returncode is None:
            program.kill()
            await program.wait()
    assert (output, program.returncode) == (b"my own handler\n", 7), complaint
    assert await released(live, pool) == Counter({1: 1}), "given back, once"

    acquire = await run(*SLIPWAY, "lease", "acquire", "--pool", pool)
    handle, _ = await acquire.communicate()
    for units in (b"1", b"0"):
        release = await run(*SLIPWAY, "lease", "release", handle.decode().strip())
        output, complaint = await release.communicate()
        assert (release.returncode, complaint) == (0, b"")
        assert units in output.split(), "a repetition is no error and releases nothing"
    wrong = await run(*SLIPWAY, "lease", "acquire", "--pool", "no-such-pool")
    value, complaint = await wrong.communicate()
    assert (wrong.returncode, value) == (78, b"")
    assert b"no-such-pool" in complaint
    await until(lambda: _free(live, pool), "nothing is held")


async def _free(live: Live, pool: str) -> bool:
    return not (await live.get(f"/leases?pool={pool}"))["items"]


async def released(live: Live, pool: str) -> Counter[int]:
    """Units released, with the number of times."""
    rows = await live.rows("SELECT units FROM history WHERE lease_pool_id = $1 AND kind = 'released'", pool)
    return Counter(row["units"] for row in rows)
