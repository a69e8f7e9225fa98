"""Calls whose provider takes long: accepted ones, which are polled, and those whose instances are listed late."""

from typing import Any

import pytest

from slipway_api.events.lease import LeaseConfirmed, LeaseReleaseRequested, LeaseRenewRequested
from slipway_api.events.worker import (
    Outcome,
    Result,
    Scope,
    Stage,
    WorkerDelayed,
    WorkerLaunched,
    WorkerLaunchFailed,
)
from slipway_common.base.clock import monotonic_seconds
from slipway_local.servers.postgres import EmbeddedPostgres
from slipway_provisioner.loops.launch import Launcher
from slipway_provisioner.providers.port import OutcomeUnknown, PutBack, Refused
from slipway_provisioner.store import accounts, batches
from tests.support.cloud import ReplyLost
from tests.support.provisioner import Provisioner, after, declared, provisioner_on


async def accepted(provisioner: Provisioner, pending: int = 2) -> None:
    """Create intents whose call is accepted."""
    provisioner.cloud.accepts_calls = True
    grants = await provisioner.admitted(pending)
    await provisioner.launch()
    await provisioner.leases(*(confirmed(grant.lease_id, grant.fencing_token, 300) for grant in grants))
    assert await provisioner.states() == {"launching": pending}
    await provisioner.events()


def confirmed(lease_id: str, fencing_token: int, expires: float) -> LeaseConfirmed:
    return LeaseConfirmed(
        lease_pool_id="sim-a", lease_id=lease_id, fencing_token=fencing_token, expires_at=after(expires)
    )


def refusal(scope: Scope, code: str) -> Refused:
    return Refused(Outcome(Stage.LAUNCH, Result.FAILED, scope, "key", code), "no")


async def batch(provisioner: Provisioner) -> Any:
    """The only batch."""
    (row,) = await provisioner.database.fetch("SELECT * FROM launch_batch")
    return row


async def test_an_accepted_call_is_polled_until_it_is_resolved(provisioner: Provisioner) -> None:
    """It is polled every 5 s with the handle and the call that was accepted, and its intents wait for it."""
    await accepted(provisioner)
    for seconds, polls in ((4, 0), (6, 1), (7, 1), (12, 2)):
        await provisioner.set_clock(seconds)
        await provisioner.poll()
        await provisioner.resolve()
        assert len(provisioner.cloud.polled) == polls
        assert await provisioner.states() == {"launching": 2}
    provisioner.cloud.polls.append(2)
    await provisioner.set_clock(18)
    await provisioner.poll()
    (call,) = provisioner.cloud.calls
    assert provisioner.cloud.polled == 3 * [(f"working on {call.token}", call)]
    assert [w.instance_id for w in await provisioner.workers()] == ["i-0001", "i-0002"]
    assert [event.looked_up for event in await provisioner.published(WorkerLaunched)] == [False, False]
    await provisioner.set_clock(60)
    await provisioner.poll()
    assert len(provisioner.cloud.polled) == 3


async def test_fewer_instances_than_accepted(provisioner: Provisioner) -> None:
    """The intents without an instance were refused for lack of capacity."""
    await accepted(provisioner)
    provisioner.cloud.polls.append(1)
    await provisioner.set_clock(6)
    await provisioner.poll()
    assert await provisioner.states() == {"starting": 1, "stopped": 1}
    (failed,) = await provisioner.published(WorkerLaunchFailed)
    assert (failed.outcome.scope, failed.outcome.code) == (Scope.CAPACITY, "PartialCapacity")


async def test_a_refused_call_fails_its_intents(provisioner: Provisioner) -> None:
    await accepted(provisioner)
    provisioner.cloud.polls.append(refusal(Scope.IMAGE, "ImageNotFound"))
    await provisioner.set_clock(6)
    await provisioner.poll()
    assert await provisioner.states() == {"stopped": 2}
    assert sum(e.units for e in await provisioner.published(LeaseReleaseRequested)) == 2


NO_ANSWERS = [
    refusal(Scope.LIMITER, "RequestLimitExceeded"),
    refusal(Scope.CREDENTIAL, "AuthFailure"),
    OutcomeUnknown("no reply"),
    KeyError("url"),
]


@pytest.mark.parametrize("answer", NO_ANSWERS, ids=lambda answer: type(answer).__name__)
async def test_a_poll_without_an_answer_is_repeated(provisioner: Provisioner, answer: Exception) -> None:
    """It says nothing about the call, and the next poll resolves it."""
    await accepted(provisioner)
    provisioner.cloud.polls.extend((answer, 2))
    await provisioner.set_clock(6)
    await provisioner.poll()
    assert await provisioner.states() == {"launching": 2}
    await provisioner.set_clock(12)
    await provisioner.poll()
    assert await provisioner.states() == {"starting": 2}


@pytest.mark.parametrize("scope", [Scope.LIMITER, Scope.CREDENTIAL])
async def test_the_outcome_of_a_call_may_be_a_throttle_or_a_refused_credential(
    provisioner: Provisioner, scope: Scope
) -> None:
    """If the provider says that it concludes the call, it is no refusal of the poll."""
    await accepted(provisioner, 1)
    outcome = Outcome(Stage.LAUNCH, Result.FAILED, scope, "key", "Code")
    provisioner.cloud.polls.append(Refused(outcome, "no", concludes=True))
    await provisioner.set_clock(6)
    await provisioner.poll()
    assert await provisioner.states() == ({"requested": 1} if scope is Scope.LIMITER else {"stopped": 1})
    assert (await batch(provisioner))["state"] == "known"


async def test_a_call_that_did_nothing_is_put_back(provisioner: Provisioner) -> None:
    """Its intents request admission again, and nothing is charged to their config."""
    await accepted(provisioner, 1)
    provisioner.cloud.polls.append(PutBack("nothing was applied"))
    await provisioner.set_clock(6)
    await provisioner.poll()
    assert await provisioner.states() == {"requested": 1}
    assert (await batch(provisioner))["outcome"] == "nothing was applied"
    assert await provisioner.published(WorkerLaunchFailed) == []


async def test_a_provider_may_limit_the_instances_of_a_call(provisioner: Provisioner) -> None:
    """The intents of one lease start by several calls."""
    provisioner.cloud.most = 1
    await provisioner.admitted(3)
    await provisioner.launch()
    assert [call.count for call in provisioner.cloud.calls] == [1, 1, 1]
    assert await provisioner.states() == {"starting": 3}


async def test_another_process_polls_it(provisioner: Provisioner) -> None:
    """The handle is stored with the call, which is the same after a restart."""
    await accepted(provisioner)
    restarted = Launcher(provisioner.settings, provisioner.providers)
    provisioner.launcher, (call,) = restarted, provisioner.cloud.calls
    provisioner.cloud.polls.append(2)
    await provisioner.set_clock(6)
    await provisioner.poll()
    assert provisioner.cloud.polled == [(f"working on {call.token}", call)]
    assert await provisioner.states() == {"starting": 2}


async def test_its_lease_is_renewed_while_it_waits(provisioner: Provisioner) -> None:
    """A lease of 300 s is renewed every 100 s, and released once a machine has registered."""
    await accepted(provisioner, 1)
    for seconds in (101, 202, 303):
        await provisioner.set_clock(seconds)
        await provisioner.expire()
        (renewal,) = await provisioner.published(LeaseRenewRequested)
        await provisioner.leases(confirmed(renewal.lease_id, renewal.fencing_token, seconds + 300))
    assert await provisioner.published(LeaseReleaseRequested) == []
    provisioner.cloud.polls.append(1)
    await provisioner.poll()
    (worker,) = await provisioner.workers()
    await provisioner.register(worker.instance_id or "", worker.batch_id)
    assert len(await provisioner.published(LeaseReleaseRequested)) == 1


@pytest.mark.parametrize("created", [0, 2])
async def test_it_is_looked_up_after_its_deadline(postgres: EmbeddedPostgres, created: int) -> None:
    """Not before the visibility delay has passed too, and never repeated, also where tokens are honoured and its lease
    would last."""
    async with provisioner_on(postgres, accepted_timeout_seconds=100.0) as provisioner:
        provisioner.cloud.honours = True
        await accepted(provisioner)
        (call,) = provisioner.cloud.calls
        await provisioner.set_clock(109)
        await provisioner.resolve()
        assert await provisioner.states() == {"launching": 2}
        provisioner.cloud.make(call, created)
        await provisioner.set_clock(120)
        await provisioner.resolve()
        assert provisioner.cloud.calls == [call]
        assert await provisioner.states() == ({"starting": 2} if created else {"requested": 2})


async def test_a_jump_of_the_clock_ends_no_deadline(provisioner: Provisioner) -> None:
    """The provider still works on the call: it is polled, and looked up only after that much uptime."""
    await accepted(provisioner)
    await provisioner.set_clock(1)
    await provisioner.jump_clock(3800)
    await provisioner.expire()
    await provisioner.set_clock(3900)
    await provisioner.resolve()
    await provisioner.poll()
    assert (len(provisioner.cloud.polled), await provisioner.states()) == (1, {"launching": 2})
    await provisioner.set_clock(7500)
    await provisioner.resolve()
    assert await provisioner.states() == {"requested": 2}


async def test_an_account_has_timeouts_of_its_own(provisioner: Provisioner) -> None:
    """Of a call, by which it is looked up, and of an accepted call."""
    body = declared()
    body["accounts"][0] |= {"request_timeout_seconds": 100.0, "accepted_timeout_seconds": 400.0}
    provisioner.cloud.script.append(ReplyLost)
    grants = [provisioner.granted(one) for one in await provisioner.requested(1)]
    await provisioner.declare(body)
    await provisioner.leases(*grants)
    await provisioner.launch()
    stored = await batch(provisioner)
    assert stored["call_deadline"] == after(100)
    for seconds, state in ((109, "launching"), (111, "starting")):
        await provisioner.set_clock(seconds)
        await provisioner.resolve()
        assert await provisioner.states() == {state: 1}


async def test_a_lost_acceptance_is_repeated_with_its_token(provisioner: Provisioner) -> None:
    """As after a crash between the reply and its commit. The provider accepts the same call again."""
    provisioner.cloud.honours = provisioner.cloud.accepts_calls = True
    provisioner.cloud.script.append(ReplyLost)
    await provisioner.admitted(2)
    await provisioner.launch()
    assert (await batch(provisioner))["handle"] == ""
    await provisioner.set_clock(16)
    await provisioner.resolve()
    first, second = provisioner.cloud.calls
    assert first == second
    stored = await batch(provisioner)
    assert (stored["handle"], stored["call_deadline"]) == (f"working on {first.token}", after(3616))


async def test_a_lost_acceptance_without_tokens_is_looked_up(provisioner: Provisioner) -> None:
    """Once the time of an accepted call has passed, since the provider may have worked on it so long."""
    provisioner.cloud.accepts_calls = True
    provisioner.cloud.visibility = 3600.0
    provisioner.cloud.script.append(ReplyLost)
    await provisioner.admitted(2)
    await provisioner.launch()
    (call,) = provisioner.cloud.calls
    await provisioner.set_clock(3600)
    await provisioner.resolve()
    assert await provisioner.states() == {"launching": 2}
    provisioner.cloud.make(call, 2)
    await provisioner.set_clock(3622)
    await provisioner.resolve()
    assert await provisioner.states() == {"starting": 2}


async def test_a_late_acceptance_changes_no_recorded_outcome(provisioner: Provisioner) -> None:
    await provisioner.admitted()
    provisioner.cloud.script.append(OutcomeUnknown("no reply"))
    await provisioner.launch()
    async with provisioner.database.acquire() as db:
        late = await batches.get(db, str((await batch(provisioner))["id"]))
        account = await accounts.get(db, "sim-a")
    assert late is not None
    await provisioner.set_clock(16)
    await provisioner.resolve()
    provisioner.cloud.accepts_calls = True
    assert (await batch(provisioner))["state"] == "known"
    await provisioner.launcher.call(provisioner.database, late, account, began=monotonic_seconds())
    assert (await batch(provisioner))["handle"] == ""


# Calls that are listed late


async def lost(provisioner: Provisioner, *, repeat: Exception | None = None) -> None:
    """A call without a reply, whose instances are listed after 300 s at most; `repeat` answers its repetition."""
    provisioner.cloud.visibility = 300.0
    provisioner.cloud.script.append(ReplyLost)
    if repeat is not None:
        provisioner.cloud.honours = True
        provisioner.cloud.script.append(repeat)
    await provisioner.admitted(2)
    await provisioner.launch()


async def test_a_look_up_waits_for_the_providers_visibility(provisioner: Provisioner) -> None:
    """Else instances that are not listed yet would be launched a second time."""
    await lost(provisioner)
    hidden = provisioner.cloud.hidden = {*provisioner.cloud.live}
    for seconds in (16, 40, 100, 200, 304):
        await provisioner.set_clock(seconds)
        await provisioner.resolve()
        assert await provisioner.states() == {"launching": 2}
    hidden.clear()
    await provisioner.set_clock(340)
    await provisioner.resolve()
    assert await provisioner.states() == {"starting": 2}
    assert len(provisioner.cloud.calls) == 1


REPEATS = {
    "mismatch": (OutcomeUnknown("the token belongs to another call", look_up=True), True),
    "capacity": (refusal(Scope.CAPACITY, "InsufficientCapacity"), False),
    "image": (refusal(Scope.IMAGE, "ImageNotFound"), False),
}


@pytest.mark.parametrize(("answer", "first"), REPEATS.values(), ids=REPEATS)
async def test_a_repeat_that_proves_nothing_is_looked_up(
    provisioner: Provisioner, answer: Exception, first: bool
) -> None:
    """It is not repeated again, and the visibility delay counts from the call before it."""
    await lost(provisioner, repeat=answer)
    provisioner.cloud.checks_first = first
    hidden = provisioner.cloud.hidden = {*provisioner.cloud.live}
    for seconds in (16, 40, 100, 200, 304):
        await provisioner.set_clock(seconds)
        await provisioner.resolve()
        assert await provisioner.states() == {"launching": 2}
    hidden.clear()
    await provisioner.set_clock(340)
    await provisioner.resolve()
    assert await provisioner.states() == {"starting": 2}
    assert len(provisioner.cloud.calls) == 2


async def test_a_refused_repeat_proves_that_the_call_had_no_effect(provisioner: Provisioner) -> None:
    """Where the provider looks at the token first."""
    await lost(provisioner, repeat=refusal(Scope.CAPACITY, "InsufficientCapacity"))
    await provisioner.set_clock(16)
    await provisioner.resolve()
    assert await provisioner.states() == {"stopped": 2}


async def test_a_throttled_repeat_is_repeated(provisioner: Provisioner) -> None:
    await lost(provisioner, repeat=refusal(Scope.LIMITER, "RequestLimitExceeded"))
    provisioner.cloud.checks_first = False
    await provisioner.set_clock(16)
    await provisioner.resolve()
    assert await provisioner.states() == {"launching": 2}
    await provisioner.set_clock(40)
    await provisioner.resolve()
    assert await provisioner.states() == {"starting": 2}
    assert len(provisioner.cloud.live) == 2


async def test_a_call_is_committed_with_its_parameters(provisioner: Provisioner) -> None:
    """A repeat has those of the first call, though the account's settings have changed meanwhile."""
    provisioner.cloud.parameters = {"tags": {"team": "ci"}}
    await lost(provisioner, repeat=refusal(Scope.LIMITER, "RequestLimitExceeded"))
    provisioner.cloud.parameters = {"tags": {"team": "other"}}
    await provisioner.set_clock(16)
    await provisioner.resolve()
    first, second = provisioner.cloud.calls
    assert first == second
    assert second.config.get("call") == {"tags": {"team": "ci"}}


async def test_a_missing_instance_of_a_repeat(provisioner: Provisioner) -> None:
    """Nothing of a call that was put back is delayed again."""
    await lost(provisioner)
    provisioner.cloud.live.clear()
    await provisioner.set_clock(320)
    await provisioner.resolve()
    assert len(await provisioner.published(WorkerDelayed)) == 2
    assert await provisioner.states() == {"requested": 2}
