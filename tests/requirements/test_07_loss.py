import pytest

from slipway_client.leases import LeaseLost, lease
from tests.histories.bus import Bus
from tests.histories.history import Lease
from tests.histories.system import PARTITIONS
from tests.requirements.live import Live
from tests.support.harness import until


async def test_loss_is_signalled(live: Live) -> None:
    """Renew returns 409/410 with a reason, and `lease.lost` is published; a client that needs fencing stops by its
    monotonic clock minus the skew margin."""
    pool = await live.pool("loss", 1, ttl_seconds=10.0, reserve_seconds=10.0)
    mine = Lease(lease_id="", fencing_token=0, units=1, seconds_left=0.0)
    proxy, url = live.proxies[0], f"http://127.0.0.1:{live.proxy_ports[0]}"

    async def lose() -> None:
        nonlocal mine
        async with lease(pool, url=url, token=live.secrets["ann"], on_loss="raise", log=lambda _: None) as held:
            mine = Lease(lease_id=held.lease_id, fencing_token=held.fencing_token, units=1, seconds_left=0.0)
            proxy.cut_off()
            await held.lost.wait()
            shown = await live.get(f"/leases/{held.lease_id}")
            assert shown["state"] == "confirmed", "it stops before the broker lets anybody else begin"

    async def is_refused() -> bool:
        answer = await live.client().send("renew", pool, mine)
        return (answer.answer, answer.reason) == ("refused", "lost")

    async with Bus(live.kafka.bootstrap, live.prefix, PARTITIONS).running() as bus:
        try:
            with pytest.raises(LeaseLost):
                await lose()
        finally:
            proxy.cut = False
        await until(
            lambda: [each.reason for each in bus.ended([pool])] == ["lost"], "the loss is published as an event"
        )
    await until(is_refused, "a renewal is refused, with the reason")
    former = await live.client().send("renew", pool, mine, token=mine.fencing_token + 1)
    assert (former.answer, former.reason) == ("refused", "stale-token")
