"""Two replicas that record uses of tokens, or revoke one, at the same time."""

from datetime import datetime, timedelta
from typing import Final

import slipway_common
from slipway_common.base.clock import utc_now
from slipway_common.database import tokens
from slipway_common.database.retention import DAY_SECONDS
from slipway_common.messaging import retention
from tests.support.pairs import Pair
from tests.support.statements import Covered

locking: Final = Covered(slipway_common)
HASH: Final = "0" * 64


async def times(pair: Pair) -> dict[str, datetime]:
    return await tokens.last_uses(pair.a)


@locking("database.tokens.RECORD_USES")
async def test_two_replicas_record_uses(pair: Pair) -> None:
    """Rows are written in one order, so that the second waits and no deadlock ends either; the later time stays."""
    late = utc_now()
    early = late - timedelta(seconds=1)
    async with pair.a.transaction():
        await tokens.record_uses(pair.a, {"b": late, "a": early})
        second = await pair.b_waits(tokens.record_uses(pair.b, {"a": late, "b": early}))
    await second
    assert await times(pair) == {"a": late, "b": late}


@locking("database.tokens.REVOKE")
async def test_two_replicas_revoke_a_token(pair: Pair) -> None:
    """One of them has revoked it."""
    async with pair.a.transaction():
        assert await tokens.revoke(pair.a, HASH, "ci", by="ann", reason="stolen")
        second = await pair.b_waits(tokens.revoke(pair.b, HASH, "ci", by="ben", reason="lost"))
    assert not await second
    assert await tokens.revoked(pair.b) == {HASH}
    assert await pair.a.fetchval("SELECT by FROM revoked_token") == "ann"


@locking("messaging.retention.DELETE_TOKEN_USES")
async def test_uses_are_pruned_by_two_replicas(pair: Pair) -> None:
    """The second skips what the first deletes."""
    long_ago = utc_now() - timedelta(days=retention.TOKEN_USE_DAYS + 1)
    await tokens.record_uses(pair.a, {"old": long_ago, "new": utc_now()})
    seconds = retention.TOKEN_USE_DAYS * DAY_SECONDS
    async with pair.a.transaction():
        assert await pair.a.execute(retention.DELETE_TOKEN_USES.text, seconds) == "DELETE 1"
        assert await pair.b.execute(retention.DELETE_TOKEN_USES.text, seconds) == "DELETE 0"
    assert set(await times(pair)) == {"new"}
