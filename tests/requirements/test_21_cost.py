from slipway_api.events.lease import LeaseGranted
from tests.requirements.virtual import POOL, Virtual, acquire_request, paced, release
from tests.support.lease_broker import Broker, admissions, terms

FEW, MANY = 20, 5000
OTHERS = 20
READ = """
SELECT coalesce(sum(seq_tup_read + idx_tup_fetch), 0)::int FROM pg_stat_xact_user_tables
WHERE schemaname = current_schema()"""


async def test_cost(broker: Broker) -> None:
    """O(log n) in the waiting requests of the own pool, independent of other pools."""
    others = [terms(f"other-{number}", 1) for number in range(OTHERS)]
    await broker.declare(paced(1, pacing="off", hold_seconds=1e6), *others)
    lived = Virtual(broker)
    (held,) = await lived.send(*(acquire_request(f"few-{number}") for number in range(FEW)))
    few, held = await rows_read(lived, held)
    for other in others:
        await broker.send(*(acquire_request(f"r{number}", lease_pool_id=other.id) for number in range(MANY // OTHERS)))
    await lived.send(*(acquire_request(f"many-{number}") for number in range(MANY)))
    many, _ = await rows_read(lived, held)
    assert 0 < many <= 2 * few


async def rows_read(lived: Virtual, held: LeaseGranted) -> tuple[int, LeaseGranted]:
    """Number of rows that PostgreSQL reads for one release and the grant after it, and that grant."""
    broker = lived.broker
    await broker.pool.execute(
        "VACUUM (ANALYZE) requests, leases, lease_pools"
    )  # dead rows are read too until they are removed
    async with broker.pool.acquire() as db, db.transaction():
        await db.execute("SET LOCAL enable_seqscan = off")  # which is faster only because there are few other pools
        before = await db.fetchval(READ)  # of earlier statements of this session
        await broker.send_in(db, release(held))
        admission = admissions(waiter_ttl_seconds=1e9).begin(db)
        await admission.lock([POOL])
        await admission.decide([POOL])
        rows: int = await db.fetchval(READ) - before
    (granted,) = await lived.decide()
    return rows, granted
