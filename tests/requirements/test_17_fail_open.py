import asyncio
from pathlib import Path

import pytest

from slipway_client.leases import Unreachable, lease
from slipway_common.base.clock import monotonic_seconds
from tests.requirements.live import Live
from tests.support.harness import until

LIMIT = 10
HOLD_SECONDS = 4.0  # 0.4 s per start: the turnover of the limit
JOBS = 4


async def test_fail_open(live: Live, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Total wait budget; modes pessimistic, optimistic and safe; safe is a local limiter at the last known safe rate
    with jitter, so that an outage causes no herd; unleased starts are reported later and counted."""
    monkeypatch.setenv("SLIPWAY_STATE_DIR", str(tmp_path))
    pool = await live.pool("outage", LIMIT, hold_seconds=HOLD_SECONDS, ttl_seconds=HOLD_SECONDS, reserve_seconds=1.0)
    proxy, url = live.proxies[0], f"http://127.0.0.1:{live.proxy_ports[0]}"
    starts: list[float] = []

    async def job(mode: str, max_wait_seconds: float = 60.0) -> str:
        async with lease(
            pool,
            url=url,
            token=live.secrets["ann"],
            fail_open=mode,
            max_wait_seconds=max_wait_seconds,
            unavailable_seconds=0.1 if proxy.cut else 60.0,
            log=lambda _: None,
        ) as held:
            starts.append(monotonic_seconds())
            return held.lease_id

    assert await job("safe"), "while the broker answers, it admits"
    await until(lambda: any(tmp_path.rglob("pace/*")), "what is safe is known")
    proxy.cut_off()
    try:
        with pytest.raises(Unreachable):
            await job("pessimistic", max_wait_seconds=0.3)
        assert await job("optimistic") == ""
        starts.clear()
        began = monotonic_seconds()
        assert await asyncio.gather(*(job("safe") for _ in range(JOBS))) == [""] * JOBS
    finally:
        proxy.cut = False
    # The machine may hold up a start, so that the next one follows it at once, but none comes before its turn.
    turns = [began + number * HOLD_SECONDS / LIMIT * 0.9 for number in range(JOBS)]
    assert all(start >= turn for start, turn in zip(sorted(starts), turns, strict=True)), "no herd"
    assert await job("safe")
    await until(lambda: not any(tmp_path.rglob("unleased/*")), "every unleased start is reported")
    charged = await live.rows("SELECT request_id FROM leases WHERE lease_pool_id = $1 AND granted_at IS NOT NULL", pool)
    assert len(charged) == 2 + 1 + JOBS, "and charged"
