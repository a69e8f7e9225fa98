"""Provider port: one suite for every installed provider, and for one that accepts its calls."""

import asyncio
from collections.abc import Awaitable, Callable
from datetime import timedelta
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from slipway_api.events.worker import Outcome, Result, Scope, Stage
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_provisioner.domain.account_check import CheckState
from slipway_provisioner.domain.cloud import Account, Instance, InstanceState
from slipway_provisioner.providers.installed import installed
from slipway_provisioner.providers.port import Accepted, OutcomeUnknown, Provider, Refused
from slipway_provisioner.providers.process import Processes
from slipway_provisioner.providers.simulated import Simulated
from tests.support.harness import until
from tests.support.provider_contract import Setup
from tests.support.providers import ACCOUNT, CONFIG, DEPLOYMENT, provider_settings

LONG_AGO = timedelta(days=1)


async def test_providers_are_found_by_entry_point() -> None:
    found = installed(provider_settings())
    assert {"process": Processes, "simulated": Simulated}.items() <= {n: type(p) for n, p in found.items()}.items()
    for provider in found.values():
        await provider.close()


# Calls and listings


async def test_created_instances_are_listed_by_batch(setup: Setup) -> None:
    """As many instances as requested exist, each with an id of its own, under the batch's tag only."""
    one, two = setup.request(1), setup.request(2)
    first, second = await setup.create(one), await setup.create(two)
    assert (len(set(first)), len(set(second)), len({*first, *second})) == (1, 2, 3)
    assert await setup.listed(one.batch_id) == {*first}
    assert await setup.listed(two.batch_id) == {*second}
    assert await setup.listed() == {*first, *second}


async def test_an_unknown_batch_has_no_instances(setup: Setup) -> None:
    await setup.create(setup.request())
    assert await setup.listed(new_id()) == set()


async def test_instances_carry_their_tags_and_time(setup: Setup) -> None:
    """Batch and launch config are read from the tags; the time is about that of the call."""
    before = utc_now()
    asked = setup.request()
    (created,) = await setup.create(asked)
    (listed,) = await setup.provider.instances(setup.account)
    assert (listed.id, listed.batch_id, listed.launch_config_id) == (created, asked.batch_id, CONFIG)
    # The kernel counts from the time of the boot, which it knows in whole seconds.
    assert before - timedelta(seconds=5) <= listed.created_at <= utc_now() + timedelta(seconds=5)


async def test_instances_run_in_the_end(setup: Setup) -> None:
    await setup.create(setup.request(2))

    async def listed() -> list[Instance]:
        found = [*await setup.provider.instances(setup.account)]
        assert {i.state for i in found} <= {InstanceState.PENDING, InstanceState.RUNNING}
        return found

    async def all_run() -> bool:
        return all(i.running for i in await listed())

    await until(all_run, "every instance runs")


async def test_pages_make_up_the_listing(setup: Setup) -> None:
    """Every instance is on one page."""
    created = await setup.create(setup.request(3))
    listed = [i.id async for page in setup.provider.pages(setup.account) for i in page]
    assert sorted(listed) == sorted(created)


async def test_a_listing_has_no_secret(setup: Setup) -> None:
    await setup.create(setup.request())
    assert "the-secret" not in repr(await setup.provider.instances(setup.account))


async def test_concurrent_calls_share_no_instance(setup: Setup) -> None:
    asked = [setup.request() for _ in range(3)]
    created = await asyncio.gather(*map(setup.create, asked))
    assert len({id_ for ids in created for id_ in ids}) == 3
    assert [await setup.listed(one.batch_id) for one in asked] == [{*ids} for ids in created]


async def test_another_token_launches_again(setup: Setup) -> None:
    """Batches of equal content are two calls."""
    asked = setup.request()
    again = replace(asked, batch_id=(other := new_id()), token=f"t-{other}")
    assert not {*await setup.create(asked)} & {*await setup.create(again)}


async def test_a_repetition_adds_nothing_where_tokens_are_honoured(setup: Setup) -> None:
    asked = setup.request(2)
    first = await setup.create(asked)
    if setup.provider.honours_tokens(setup.account):
        assert {*await setup.create(asked)} == {*first}
    assert await setup.listed(asked.batch_id) == {*first}


async def test_a_cancelled_create_is_found_by_its_tag(setup: Setup) -> None:
    """The instances that a cancelled call leaves are listed by its tag, and a repetition with its token adds none."""
    asked = setup.request(3)
    left = await setup.cancelled(asked)
    assert await setup.listed(asked.batch_id) == left
    assert all([await setup.exists(id_) for id_ in left])
    if setup.provider.honours_tokens(setup.account):
        repeated = {*await setup.create(asked)}
        assert left <= repeated == await setup.listed(asked.batch_id)


# Termination


async def test_terminate_is_repeatable(setup: Setup) -> None:
    """The terminated instance is gone from the listing and by id, the others stay, and a repetition succeeds."""
    gone, stays = await setup.create(setup.request(2))
    for _ in range(2):
        await setup.terminate(gone)
    assert await setup.listed() == {stays}
    assert await setup.exists(stays)


async def test_several_instances_are_terminated_at_once(setup: Setup) -> None:
    created = await setup.create(setup.request(3))
    await setup.terminate(*created)
    assert await setup.listed() == set()


async def test_nothing_is_terminated(setup: Setup) -> None:
    created = await setup.create(setup.request())
    await setup.provider.terminate(setup.account, [])
    assert await setup.listed() == {*created}


async def test_an_unknown_id_spares_no_other(setup: Setup) -> None:
    """An instance that is gone already does not keep the others alive."""
    one, two = await setup.create(setup.request(2))
    await setup.terminate(one, setup.unknown_id, two)
    assert await setup.listed() == set()


async def test_an_unknown_id_is_terminated_already(setup: Setup) -> None:
    await setup.provider.terminate(setup.account, [setup.unknown_id])
    assert await setup.listed() == set()


# Existence by id


async def test_instances_exist_at_once(setup: Setup) -> None:
    created = await setup.create(setup.request(2))
    assert all([await setup.provider.exists(setup.account, id_, launched_at=utc_now()) for id_ in created])


async def test_what_was_terminated_is_gone_by_id(setup: Setup) -> None:
    (created,) = await setup.create(setup.request())
    await setup.terminate(created)

    async def gone() -> bool:
        return not await setup.provider.exists(setup.account, created, launched_at=utc_now() - LONG_AGO)

    await until(gone, "the instance is gone")


async def test_an_unknown_old_instance_is_gone(shared_setup: Setup) -> None:
    assert not await shared_setup.provider.exists(
        shared_setup.account, shared_setup.unknown_id, launched_at=utc_now() - LONG_AGO
    )


async def test_the_console_output_of_an_instance_that_is_gone(setup: Setup) -> None:
    """It is text, or empty where there is none, also of an instance that is not known."""
    (created,) = await setup.create(asked := setup.request())
    await setup.terminate(created)
    assert isinstance(await setup.provider.console_output(setup.account, asked.batch_id, created), str)
    assert await setup.provider.console_output(setup.account, "unknown", setup.unknown_id) == ""


async def test_those_that_are_gone_are_told_from_the_others(setup: Setup) -> None:
    ended, stays = await setup.create(setup.request(2))
    await setup.terminate(ended)
    asked = dict.fromkeys((ended, stays, setup.unknown_id), utc_now() - LONG_AGO)

    async def gone() -> bool:
        return {*await setup.provider.gone(setup.account, asked)} == {ended, setup.unknown_id}

    await until(gone, "two of three are gone")


async def test_nothing_is_gone_without_an_answer(shared_setup: Setup) -> None:
    if shared_setup.unreachable is None:
        pytest.skip("this host always answers")
    assert not await shared_setup.provider.gone(shared_setup.unreachable, {shared_setup.unknown_id: None})


# Capacity


async def test_fewer_instances_than_requested(setup: Setup) -> None:
    asked = setup.request(5)
    created = await setup.create(asked)
    assert len(created) == 3
    assert await setup.listed(asked.batch_id) == {*created}


async def test_exhausted_capacity_is_refused(setup: Setup) -> None:
    await setup.create(setup.request(3))
    asked = setup.request()
    with pytest.raises(Refused) as refused:
        await setup.create(asked)
    outcome = refused.value.outcome
    key = setup.provider.capacity_key(setup.account, asked.config)
    assert (outcome.stage, outcome.result, outcome.scope) == (Stage.LAUNCH, Result.FAILED, Scope.CAPACITY)
    assert (outcome.scope_key, outcome.classified, refused.value.throttled) == (key, True, False)
    assert await setup.listed(asked.batch_id) == set()


async def test_freed_capacity_is_used_again(setup: Setup) -> None:
    created = await setup.create(setup.request(3))
    await setup.terminate(created[0])
    assert len(await setup.create(setup.request())) == 1


# Accounts and deployments


@pytest.mark.parametrize("other_id", ["ci/there", "ci", f"{ACCOUNT}/more", "ci%2Fhere"])
async def test_accounts_are_separate(setup: Setup, other_id: str) -> None:
    """An account's listing leaves out instances of other accounts, whatever their ids have in common."""
    other = replace(setup.account, id=other_id)
    created = await setup.create(setup.request())
    assert await setup.provider.instances(other) == []
    assert await setup.listed() == {*created}


@pytest.mark.parametrize("other_id", ["other", "test", f"{DEPLOYMENT}/more"], ids=["other", "shorter", "longer"])
async def test_deployments_are_separate(setup: Setup, other_id: str) -> None:
    """Two deployments in one account never list each other's instances, also by a batch id."""
    other = replace(setup.account, deployment=other_id)
    asked = setup.request()
    await setup.create(asked)
    assert await setup.provider.instances(other) == []
    assert await setup.provider.instances(other, batch_id=asked.batch_id) == []


async def test_the_credentials_identity_is_the_declared_one(shared_setup: Setup) -> None:
    assert await shared_setup.provider.identity(shared_setup.account) == shared_setup.account.identity


async def test_identity_is_that_of_the_credentials(shared_setup: Setup) -> None:
    """Not what is declared, with which it is compared."""
    declared = replace(shared_setup.account, identity="declared by mistake")
    assert await shared_setup.provider.identity(declared) == shared_setup.account.identity


async def test_an_account_that_answers_is_healthy(shared_setup: Setup) -> None:
    await shared_setup.provider.health(shared_setup.account)


async def test_cleaning_up_spares_live_instances(setup: Setup) -> None:
    created = await setup.create(setup.request(2))
    await setup.provider.clean_up(setup.account)
    assert await setup.listed() == {*created}


# Checks


def named_config(setup: Setup) -> dict[str, Any]:
    return {**setup.request().config, "name": "linux/a"}


async def test_a_check_of_a_good_account(shared_setup: Setup) -> None:
    """It finds no problem, and says who we are. A subject has one finding."""
    found = await shared_setup.provider.check(shared_setup.account, [named_config(shared_setup)])
    assert [finding for finding in found if finding.is_problem] == []
    states = {finding.key: finding.state for finding in found}
    assert len(states) == len(found)
    assert states["identity", ""] is CheckState.OK


async def test_a_check_names_a_foreign_account(shared_setup: Setup) -> None:
    """With both identities and what to do."""
    declared = replace(shared_setup.account, identity="declared by mistake")
    found = {f.key: f for f in await shared_setup.provider.check(declared, [named_config(shared_setup)])}
    identity = found["identity", ""]
    assert identity.is_problem
    assert shared_setup.account.identity in identity.message
    assert "declared by mistake" in identity.message
    assert all(finding.remedy for finding in found.values() if finding.is_problem)


async def test_a_check_changes_nothing(setup: Setup) -> None:
    created = await setup.create(setup.request(2))
    assert "the-secret" not in repr(await setup.provider.check(setup.account, [named_config(setup)]))
    assert await setup.listed() == {*created}


# Restart of the provisioner


async def test_another_process_lists_the_instances(setup: Setup) -> None:
    asked = setup.request(2)
    created = await setup.create(asked)
    other = setup.restarted()
    await other.open()
    assert {i.id for i in await other.instances(setup.account, batch_id=asked.batch_id)} == {*created}


async def test_another_process_terminates_the_instances(setup: Setup) -> None:
    (created,) = await setup.create(setup.request())
    other = setup.restarted()
    await other.open()
    await other.terminate(setup.account, [created])

    async def gone() -> bool:
        return await setup.listed() == set()

    await until(gone, "the instance is gone")


async def test_another_process_repeats_the_call(setup: Setup) -> None:
    """The same token in another process launches nothing where it is honoured."""
    asked = setup.request(2)
    created = await setup.create(asked)
    other = replace(setup, provider=setup.restarted())
    await other.provider.open()
    if setup.provider.honours_tokens(setup.account):
        assert {*await other.create(asked)} == {*created}
    assert await other.listed(asked.batch_id) == {*created}


async def test_another_process_resolves_an_accepted_call(setup: Setup) -> None:
    """By its handle, and as often as it asks."""
    asked = setup.request(2)
    reply = await setup.provider.create(setup.account, asked)
    other = replace(setup, provider=setup.restarted())
    await other.provider.open()
    if isinstance(reply, Accepted):
        created = await other.resolved(asked, reply)
        assert await setup.provider.poll(setup.account, asked, reply.handle) == created
    else:
        created = [*reply]
    assert await other.listed(asked.batch_id) == {*created}


async def test_an_unknown_handle_resolves_nothing(shared_setup: Setup) -> None:
    """Else its instances would count as missing."""
    with pytest.raises(OutcomeUnknown):
        await shared_setup.provider.poll(shared_setup.account, shared_setup.request(), "no such handle")


# An account that does not answer

CALLS: dict[str, Callable[[Provider, Account, Setup], Awaitable[Any]]] = {
    "create": lambda provider, account, setup: provider.create(account, setup.request()),
    "instances": lambda provider, account, setup: provider.instances(account),
    "exists": lambda provider, account, setup: provider.exists(account, "1-1-nobody", launched_at=None),
    "terminate": lambda provider, account, setup: provider.terminate(account, ["1-1-nobody"]),
    "identity": lambda provider, account, setup: provider.identity(account),
    "health": lambda provider, account, setup: provider.health(account),
    "check": lambda provider, account, setup: provider.check(account, [named_config(setup)]),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
async def test_no_answer_proves_nothing(
    shared_setup: Setup, call: Callable[[Provider, Account, Setup], Awaitable[Any]]
) -> None:
    if shared_setup.unreachable is None:
        pytest.skip("this host always answers")
    with pytest.raises(OutcomeUnknown):
        await call(shared_setup.provider, shared_setup.unreachable, shared_setup)


# Declarations


def test_the_settings_have_no_problem(shared_setup: Setup) -> None:
    assert shared_setup.provider.problem(shared_setup.account.settings, shared_setup.account.region) == ""
    assert shared_setup.provider.credential_problem(shared_setup.account.credential) == ""
    assert (
        shared_setup.provider.config_problem(shared_setup.account.settings, shared_setup.request().config["settings"])
        == ""
    )


def test_bad_settings_have_a_remedy(shared_setup: Setup) -> None:
    assert shared_setup.provider.problem(
        dict(shared_setup.account.settings) | dict(shared_setup.bad_settings), shared_setup.account.region
    )


def test_tokens_and_delays_are_known_without_a_call(shared_setup: Setup) -> None:
    provider = shared_setup.provider
    assert isinstance(provider.honours_tokens(shared_setup.account), bool)
    assert isinstance(provider.checks_tokens_first(shared_setup.account), bool)
    delay = provider.visibility_seconds(shared_setup.account)
    assert delay is None or 0 < delay < 86_400


def test_parameters_of_a_call_are_the_same_each_time(shared_setup: Setup) -> None:
    """They are committed as JSON."""
    config = shared_setup.request().config
    one, two = (shared_setup.provider.call(shared_setup.account, config) for _ in range(2))
    assert msgspec.json.decode(msgspec.json.encode(one)) == one == two


def test_a_console_is_found_without_a_call(shared_setup: Setup) -> None:
    assert isinstance(shared_setup.provider.console(shared_setup.account, new_id(), shared_setup.unknown_id), str)


# Keys of failures


@pytest.mark.parametrize("changed", [{"zone": "zone-b"}, {"instance_type": "c6i.large"}], ids=["zone", "type"])
def test_capacity_is_that_of_a_zone_and_type(shared_setup: Setup, changed: dict[str, Any]) -> None:
    config = shared_setup.request().config
    key = shared_setup.provider.capacity_key(shared_setup.account, config)
    assert key
    assert len(key) <= 2000
    assert shared_setup.provider.capacity_key(shared_setup.account, {**config, **changed}) != key


def test_capacity_is_that_of_a_lifecycle(shared_setup: Setup) -> None:
    config = shared_setup.request().config
    spot = {**config, "settings": {**config["settings"], "lifecycle": "spot"}}
    assert shared_setup.provider.capacity_key(shared_setup.account, spot) != shared_setup.provider.capacity_key(
        shared_setup.account, config
    )


def test_capacity_does_not_depend_on_the_image(shared_setup: Setup) -> None:
    config = shared_setup.request().config
    other = {**config, "id": "another", "image": "image-2"}
    assert shared_setup.provider.capacity_key(shared_setup.account, other) == shared_setup.provider.capacity_key(
        shared_setup.account, config
    )


def test_a_quota_has_a_family(shared_setup: Setup) -> None:
    assert shared_setup.provider.quota_family(shared_setup.account, shared_setup.request().config)


SCOPES = [Scope.CAPACITY, Scope.QUOTA, Scope.IMAGE, Scope.CREDENTIAL, Scope.LIMITER, Scope.CONFIG]


@pytest.mark.parametrize("scope", SCOPES)
def test_a_failure_is_counted_under_the_key_of_its_scope(shared_setup: Setup, scope: Scope) -> None:
    config, provider = shared_setup.request().config, shared_setup.provider
    outcome = provider.failure(shared_setup.account, config, "Code", scope)
    keys = {
        Scope.CAPACITY: provider.capacity_key(shared_setup.account, config),
        Scope.QUOTA: outcome.scope_key,
        Scope.IMAGE: config["image"],
        Scope.CREDENTIAL: shared_setup.account.id,
        Scope.LIMITER: shared_setup.account.id,
        Scope.CONFIG: config["id"],
    }
    assert outcome == Outcome(Stage.LAUNCH, Result.FAILED, scope, keys[scope], "Code")
    assert outcome.scope_key


def test_a_failure_of_another_stage_and_key(shared_setup: Setup) -> None:
    config = shared_setup.request().config
    outcome = shared_setup.provider.failure(
        shared_setup.account, config, "Code", Scope.QUOTA, stage=Stage.BOOT, key="subnet-1"
    )
    assert outcome == Outcome(Stage.BOOT, Result.FAILED, Scope.QUOTA, "subnet-1", "Code")


def test_an_unknown_failure_is_charged_to_the_config(shared_setup: Setup) -> None:
    """Without the secrets in its message."""
    config = shared_setup.request().config
    outcome = shared_setup.provider.failure(shared_setup.account, config, "Gremlins", None, "token=abcdef123456 failed")
    assert (outcome.scope, outcome.scope_key, outcome.code) == (Scope.CONFIG, config["id"], "Gremlins")
    assert not outcome.classified
    assert "abcdef123456" not in outcome.sample
