"""Group commit: who shares a transaction, and what one member's error does to the others."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from slipway_provisioner.loops.group_commit import GroupCommit


class Commits:
    """Commits as they were made; a group is held until it is released, and fails if it has a refused member."""

    def __init__(self, *refused: str) -> None:
        self.made: list[list[str]] = []
        self.release = asyncio.Event()
        self.began = asyncio.Event()
        self._refused = set(refused)

    async def __call__(self, _: Any, members: Sequence[str]) -> None:
        self.began.set()
        await self.release.wait()
        if self._refused & set(members):
            raise ValueError(f"{', '.join(members)} cannot be committed")
        self.made.append([*members])


async def test_what_comes_during_a_commit_is_committed_together() -> None:
    """The first member waits for no other one."""
    commits = Commits()
    group: GroupCommit[str] = GroupCommit(commits, commits)
    first = asyncio.create_task(group.commit(None, "a"))
    await commits.began.wait()
    others = [asyncio.create_task(group.commit(None, name)) for name in "bc"]
    await asyncio.sleep(0)
    commits.release.set()
    await asyncio.gather(first, *others)
    assert commits.made == [["a"], ["b", "c"]]


async def test_an_error_of_one_undoes_no_other() -> None:
    """Each member of a group that fails is committed alone, and only the one at fault gets the error."""
    commits = Commits("b")
    group: GroupCommit[str] = GroupCommit(commits, commits)
    first = asyncio.create_task(group.commit(None, "a"))
    await commits.began.wait()
    others = [asyncio.create_task(group.commit(None, name)) for name in "bc"]
    await asyncio.sleep(0)
    commits.release.set()
    await first
    with pytest.raises(ValueError, match="b cannot"):
        await others[0]
    await others[1]
    assert commits.made == [["a"], ["c"]]


async def test_a_caller_that_is_cancelled() -> None:
    """Its member is committed, and the group of the others goes on."""
    commits = Commits()
    group: GroupCommit[str] = GroupCommit(commits, commits)
    first = asyncio.create_task(group.commit(None, "a"))
    await commits.began.wait()
    first.cancel()
    other = asyncio.create_task(group.commit(None, "b"))
    await asyncio.sleep(0)
    commits.release.set()
    await other
    assert commits.made == [["a"], ["b"]]
    with pytest.raises(asyncio.CancelledError):
        await first


class Death(BaseException):
    """The process dies in a commit."""


async def test_nobody_waits_for_a_process_that_dies_in_a_commit() -> None:
    """Those of the group, those that wait for their turn and those that come later all get its end."""
    began, release = asyncio.Event(), asyncio.Event()

    async def dies(_: Any, __: Sequence[str]) -> None:
        began.set()
        await release.wait()
        raise Death

    group: GroupCommit[str] = GroupCommit(dies, dies)
    first = asyncio.create_task(group.commit(None, "a"))
    await began.wait()
    other = asyncio.create_task(group.commit(None, "b"))
    await asyncio.sleep(0)
    release.set()
    for waiting in (first, other):
        with pytest.raises(Death):
            await waiting
    with pytest.raises(Death):
        await group.commit(None, "c")
