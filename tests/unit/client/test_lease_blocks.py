"""Leases of Python programs, held by a block."""

import asyncio
import signal
import subprocess
import sys
from typing import Any

import pytest

from slipway_client.leases import LeaseLost, NotAdmitted, Refused, Unreachable, lease
from slipway_common.base.clock import monotonic_seconds
from tests.support import lease_answers
from tests.support.harness import until
from tests.support.lease_answers import ACQUIRE, LEASE, RELEASE, RENEW, UNLEASED, LeaseBroker, problem, waiting
from tests.support.lease_commands import CANCEL, NOWHERE, SECONDS, TTL_SECONDS


def test_an_empty_pool_is_an_unset_variable(options: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="lease pool id is empty"):
        lease("", **options)


def test_a_block_holds_a_lease(broker: LeaseBroker, options: dict[str, Any]) -> None:
    with lease("aws-ci", hold_seconds=60.0, **options) as held:
        assert (held.lease_id, held.fencing_token, held.lost.is_set()) == (LEASE, 7, False)
        held.check()
        assert broker.count(RELEASE) == 0
    assert broker.bodies(ACQUIRE)[0]["hold_seconds"] == 60.0
    assert [body.get("result", "done") for body in broker.bodies(RELEASE)] == ["done"]


async def test_an_async_block_holds_a_lease(broker: LeaseBroker, options: dict[str, Any]) -> None:
    async with lease("aws-ci", **options) as held:
        assert (held.lease_id, held.fencing_token) == (LEASE, 7)
    assert [body.get("result", "done") for body in broker.bodies(RELEASE)] == ["done"]


async def test_a_block_that_fails_releases_once(broker: LeaseBroker, options: dict[str, Any]) -> None:
    with pytest.raises(ZeroDivisionError):
        async with lease("aws-ci", **options):
            raise ZeroDivisionError
    with pytest.raises(ZeroDivisionError), lease("aws-ci", **options):
        raise ZeroDivisionError
    assert [body.get("result", "done") for body in broker.bodies(RELEASE)] == ["failed", "failed"]


async def test_a_block_learns_of_its_loss(broker: LeaseBroker, options: dict[str, Any]) -> None:
    """The loss is an event during the block, and with `raise` an exception at its end."""
    broker.answers[ACQUIRE] = [lease_answers.lease(ttl_seconds=TTL_SECONDS)]
    broker.answers[RENEW] = [problem(410, "lease-ended", reason="lost")]
    options["on_loss"] = "raise"
    with pytest.raises(LeaseLost, match="is lost: lost"), lease("aws-ci", **options) as held:
        assert held.lost.wait(SECONDS)

    async def until_lost() -> None:
        async with lease("aws-ci", **options) as later:
            await asyncio.wait_for(later.lost.wait(), SECONDS)

    with pytest.raises(LeaseLost, match="is lost: lost"):
        await until_lost()
    assert (broker.count(RELEASE), broker.count(UNLEASED)) == (0, 0)


async def test_a_block_that_does_not_check_outlives_its_lease(broker: LeaseBroker, options: dict[str, Any]) -> None:
    """It is charged until the end of its hold, or its own."""
    broker.answers[ACQUIRE] = [lease_answers.lease(ttl_seconds=0.6)]
    broker.answers[RENEW] = [problem(410, "lease-ended", reason="lost")]
    broker.answers[UNLEASED] = [
        (200, {"charged": 1, "items": [lease_answers.lease(lease_id="l-0", fencing_token=8)[1]]})
    ]
    broker.answers["POST /leases/l-0/release"] = [lease_answers.RELEASED]
    async with lease("aws-ci", **options) as held:
        await asyncio.wait_for(held.lost.wait(), SECONDS)
        with pytest.raises(LeaseLost, match="is lost: lost"):
            held.check()
        await until(lambda: broker.count(UNLEASED) == 1, "it is charged")
    assert [body["starts"][0]["cause"] for body in broker.bodies(UNLEASED)] == ["lost"]
    assert (broker.count("POST /leases/l-0/release"), broker.count(RELEASE)) == (1, 0)


async def test_a_block_outlives_its_hold(broker: LeaseBroker, options: dict[str, Any]) -> None:
    """The end of the hold is no loss, also for a block that needs fencing."""
    broker.answers[ACQUIRE] = [lease_answers.lease(hold_seconds=0.3)]
    for on_loss in ("continue", "raise"):
        lines: list[str] = []
        with lease("aws-ci", on_loss=on_loss, **options) as held:
            assert not held.lost.wait(0.6)
            held.check()
        async with lease("aws-ci", on_loss=on_loss, log=lines.append, **options) as later:
            await asyncio.sleep(0.6)
            later.check()
    assert [body.get("result", "done") for body in broker.bodies(RELEASE)] == ["done"] * 4
    assert broker.count(RENEW) == 0
    with pytest.raises(ValueError, match="on_loss is 'stop'"):
        lease("aws-ci", on_loss="stop", **options)


async def test_a_renewal_after_an_outage_ends_the_doubt(broker: LeaseBroker, options: dict[str, Any]) -> None:
    """A block that checks is fenced while another holder may have its units, and only then."""
    broker.answers[ACQUIRE] = [lease_answers.lease(ttl_seconds=0.6)]
    broker.answers[RENEW] = [problem(503, "unavailable")]
    async with lease("aws-ci", **options) as held:
        await asyncio.wait_for(held.lost.wait(), SECONDS)
        with pytest.raises(LeaseLost, match="not renewed in time"):
            held.check()
        broker.answers[RENEW] = [lease_answers.lease()]
        await until(lambda: not held.lost.is_set(), "it was renewed")
        held.check()
    assert (broker.count(RELEASE), broker.count(UNLEASED)) == (1, 0)


async def test_a_block_is_not_entered_without_a_lease(broker: LeaseBroker, options: dict[str, Any]) -> None:
    broker.answers[ACQUIRE] = [waiting()]
    with pytest.raises(NotAdmitted) as refusal, lease("aws-ci", max_wait_seconds=0.0, **options):
        pytest.fail("entered")
    assert refusal.value.waiting is not None
    with pytest.raises(NotAdmitted):
        async with lease("aws-ci", max_wait_seconds=0.0, **options):
            pytest.fail("entered")
    assert sum(asked.startswith(CANCEL) for asked, _ in broker.received) == 2
    broker.answers[ACQUIRE] = [problem(403, "scope-missing")]
    with pytest.raises(Refused), lease("aws-ci", **options):
        pytest.fail("entered")
    with (
        pytest.raises(Unreachable),
        lease("aws-ci", max_wait_seconds=0.1, fail_open="pessimistic", url=NOWHERE, token="x"),
    ):
        pytest.fail("entered")


async def test_a_cancelled_block_withdraws_its_request(broker: LeaseBroker, options: dict[str, Any]) -> None:
    broker.answers[ACQUIRE] = [waiting(retry_after_seconds=30.0)]

    async def block() -> None:
        async with lease("aws-ci", request_id="r-1", **options):
            pytest.fail("entered")

    waits = asyncio.create_task(block())
    began = monotonic_seconds()
    while broker.count(ACQUIRE) < 2 and monotonic_seconds() - began < SECONDS:
        await asyncio.sleep(0.01)
    waits.cancel()
    await asyncio.wait({waits})
    assert waits.cancelled()
    assert broker.count(CANCEL + "r-1") == 1


PROGRAM = """
import asyncio, os, signal, sys, time
from slipway_client.leases import lease
{before}
# One long wait could begin just after the signal has come, and before its handler has run: the handler would wait too.
def sync():
    with lease("aws-ci"):
        print("held", flush=True)
        while True:
            time.sleep(0.05)
async def coroutine():
    async with lease("aws-ci"):
        print("held", flush=True)
        while True:
            await asyncio.sleep(0.05)
{main}
print("afterwards", signal.getsignal(signal.SIGTERM) in (signal.SIG_DFL, mine if "mine" in globals() else None))
"""
MINE = """
def mine(*_):
    os.write(1, b"mine\\n")  # the print that it may have interrupted is not to be entered again
    raise KeyError("mine")
signal.signal(signal.SIGTERM, mine)
"""
GUARDED = """
try:
    sync()
except KeyError:
    pass
"""


@pytest.mark.parametrize(
    ("before", "main", "signum", "code", "words"),
    [
        ("", "sync()", signal.SIGTERM, 143, []),
        ("", "asyncio.run(coroutine())", signal.SIGTERM, 143, []),
        ("", "sync()", signal.SIGHUP, 129, []),
        ("", "sync()", signal.SIGINT, -signal.SIGINT, []),
        (MINE, GUARDED, signal.SIGTERM, 0, ["mine", "afterwards True"]),
    ],
)
def test_signals_unwind_a_block_and_handlers_of_the_program_stay(
    broker: LeaseBroker, environment: dict[str, str], before: str, main: str, signum: int, code: int, words: list[str]
) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM.format(before=before, main=main)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        process.send_signal(signum)
        out, _ = process.communicate(timeout=SECONDS)
    finally:
        process.kill()
    assert (process.returncode, out.splitlines(), broker.count(RELEASE)) == (code, words, 1)
