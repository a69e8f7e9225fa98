"""Positions of a group."""

from tests.support.harness import Place, until


async def positions(place: Place) -> int:
    """Number of offsets consumed over all partitions."""
    return int(await place.database.fetchval("SELECT coalesce(sum(next_offset), 0) FROM consumed"))


async def until_read(place: Place, records: int) -> None:
    async def done() -> bool:
        return await positions(place) >= records

    await until(done, f"{records} records are done with")


async def severities(place: Place) -> set[str]:
    return {row["severity"] for row in await place.database.fetch("SELECT severity FROM alert")}
