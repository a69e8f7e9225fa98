"""Probes of the monitor over HTTP."""

import httpx2
import pytest

from slipway_monitor.http import app
from slipway_monitor.settings import Settings


@pytest.mark.parametrize("reasons", [[], ["the broker is unavailable"]])
async def test_probes_answer_head_as_get(reasons: list[str]) -> None:
    transport = httpx2.ASGITransport(app=app(Settings(kafka=""), lambda: [*reasons]))
    async with httpx2.AsyncClient(transport=transport, base_url="http://monitor") as client:
        for path in ("/livez", "/readyz"):
            by_get, by_head = await client.get(path), await client.head(path)
            assert by_head.status_code == by_get.status_code == (503 if reasons and path == "/readyz" else 200)
            assert by_head.headers == by_get.headers
