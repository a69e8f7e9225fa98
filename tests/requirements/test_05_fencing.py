import asyncio
import signal
import sys

from tests.histories.system import OWNERS
from tests.requirements.live import Live


async def test_fencing(live: Live) -> None:
    """SIGSTOP a holder past TTL: its late write is rejected."""
    pool = await live.pool("fencing", 1, ttl_seconds=3.0, reserve_seconds=3.0)
    holder = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        "tests.requirements.holder",
        str(live.ports[0]),
        str(live.resource_port),
        live.secrets[OWNERS[0]],
        pool,
        stdout=asyncio.subprocess.PIPE,
    )
    assert holder.stdout is not None
    try:
        assert {await holder.stdout.readline() for _ in range(2)} == {b"write accepted\n", b"renew accepted\n"}
        holder.send_signal(signal.SIGSTOP)
        client = live.client(owner=OWNERS[1])
        assert await client.write(pool, await live.granted(client, pool, "next"))
        holder.send_signal(signal.SIGCONT)
        output = (await holder.communicate())[0].decode()
    finally:
        if holder.returncode is None:
            holder.kill()
            await holder.wait()
    assert set(output.splitlines()[-2:]) == {"write refused", "renew refused lost"}
    assert [write.accepted for write in live.resource.writes if write.pool == pool][-1] is False
    assert await live.violations(pool) == []
