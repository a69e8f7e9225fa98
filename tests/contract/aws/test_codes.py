"""A short run of `make ec2-codes`: one code of each scope, and one reason of an end of each stage."""

from slipway_local.servers.postgres import EmbeddedPostgres
from tests.support.ec2_codes import codes, state_reasons
from tests.tools.ec2_codes import expected, playing


async def test_codes_reach_windows_and_alerts(postgres: EmbeddedPostgres) -> None:
    """A launch that fails by a code releases its lease, shrinks the windows of its scope and raises their alert."""
    rows = list({row.scope: row for row in reversed(codes())}.values())
    ends = list({row.stage: row for row in reversed(state_reasons())}.values())
    async with playing(postgres) as play:
        async for row, seen in play.codes(rows):
            assert seen == expected(row)
        for reason in ends:
            assert await play.state_reason(reason) == (reason.stage, reason.scope, reason.window, reason.alert)
