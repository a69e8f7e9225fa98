"""Check 28: the process of rotated credentials ends with its last owner."""

from pathlib import Path

from tests.support.plugins import plugin, plugins_in, shared, soon, until


async def test_rotation(sockets: Path) -> None:
    old, new = plugin(configuration={"key": "old1"}), plugin(configuration={"key": "new1"})
    async with shared(sockets) as scheduler:
        for owner in ("one", "two"):
            async with await scheduler.acquire([old], owner=owner, deadline=soon()):
                pass
        (before,) = plugins_in(sockets)
        async with await scheduler.acquire([new], owner="one", deadline=soon()):
            assert before in plugins_in(sockets)  # the other owner may still need it
        async with await scheduler.acquire([new], owner="two", deadline=soon()):
            assert [each.reason for each in scheduler.processes()] == ["rotated", None]
            await until(lambda: before not in plugins_in(sockets))
            assert len(plugins_in(sockets)) == 1


async def test_no_rotation(sockets: Path) -> None:
    """Two regions of one owner at once, callers without an owner, and other tenants rotate nothing."""
    east, west = plugin(configuration={"region": "east"}), plugin(configuration={"region": "west"})
    async with shared(sockets) as scheduler:
        async with await scheduler.acquire([east], owner="one", deadline=soon()) as first:
            async with await scheduler.acquire([west], owner="one", deadline=soon()):
                pass
            async with await scheduler.acquire([east], owner="one", deadline=soon()) as again:
                assert again.env == first.env
        for spec in (east, west, east):
            async with await scheduler.acquire([spec], owner="", deadline=soon()):
                pass
        tenant = plugin(configuration={"region": "west"}, tenant="other")
        async with await scheduler.acquire([tenant], owner="one", deadline=soon()):
            pass
        assert [each.reason for each in scheduler.processes() if each.reason] == []
