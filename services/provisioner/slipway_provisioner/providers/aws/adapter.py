"""Provider of EC2 instances, on demand and spot: RunInstances with an idempotency token, and tags on all that it makes.

The SDK is an extra (`slipway-provisioner[aws]`). It is loaded when the provider is opened, so that a service without it
starts, and refuses only accounts of this provider.
"""

from collections.abc import AsyncIterator, Mapping, Sequence
from functools import partial
from typing import Any, Final
from urllib.parse import quote

import msgspec

from slipway_api.events.scopes import SPOT, lifecycle_of, subnet_key
from slipway_api.events.worker import Outcome, Scope, Stage
from slipway_api.percent import encoded
from slipway_common.observability.telemetry import logger
from slipway_provisioner.domain.account_check import Finding
from slipway_provisioner.domain.cloud import Account, Instance, InstanceState, Protected
from slipway_provisioner.domain.identity import Attested, Proof
from slipway_provisioner.providers.aws import body, calls, errors, replies
from slipway_provisioner.providers.aws.account_check import check
from slipway_provisioner.providers.aws.caller import MISSING, Caller, case_of, filters, is_installed, unknown
from slipway_provisioner.providers.aws.checks import passed
from slipway_provisioner.providers.aws.errors import Advice, Case
from slipway_provisioner.providers.aws.failures import CallFailed
from slipway_provisioner.providers.aws.lookups import Ec2LookUps, described
from slipway_provisioner.providers.aws.quotas import quota_family
from slipway_provisioner.providers.aws.remains import Remains
from slipway_provisioner.providers.aws.settings import (
    OPERATOR_SETTINGS,
    account_problem,
    account_settings,
    credential_problem,
    launch_problem,
    launch_settings,
    subnet_of,
)
from slipway_provisioner.providers.aws.terminations import terminate
from slipway_provisioner.providers.port import (
    UNCLASSIFIED,
    CreateRequest,
    Meaning,
    OutcomeUnknown,
    Provider,
    ProviderSettings,
    Refused,
    TerminationRefused,
)

LOG = logger(__name__)
TERMINATED_AT_ONCE: Final = 200
CONSOLES: Final = {
    "aws": "console.aws.amazon.com",
    "aws-cn": "console.amazonaws.cn",
    "aws-us-gov": "console.amazonaws-us-gov.com",
}


class Zones:
    """Ids of the zones of each account, which are the same in all of them, by the names that the account has for them:
    a name may mean another zone in another account."""

    def __init__(self, caller: Caller) -> None:
        self._caller = caller
        self._ids: dict[str, dict[str, str]] = {}

    async def learn(self, account: Account, *, again: bool = False) -> None:
        """Ask for the zones of an account, once unless `again`. Raises CallFailed and OutcomeUnknown."""
        if again or account.id not in self._ids:
            reply = await self._caller.call(account, calls.ZONES)
            zones = reply.get("AvailabilityZones", ())
            self._ids[account.id] = {
                row["ZoneName"]: row["ZoneId"] for row in zones if row.get("ZoneName") and row.get("ZoneId")
            }

    def id_of(self, account: Account, zone: str) -> str:
        """Id of a zone that is given by its id or its name; empty if the name is not known yet."""
        return zone if body.ZONE_ID.fullmatch(zone) else self._ids.get(account.id, {}).get(zone, "")


class Ec2(Ec2LookUps, Provider):
    """Provider of EC2 instances."""

    runs_commands = False
    operator_settings = OPERATOR_SETTINGS
    launches_per_second = calls.RUN_INSTANCES.refill_per_second

    def __init__(self, settings: ProviderSettings) -> None:
        super().__init__(Caller(settings))
        self.settings = settings
        self._remains = Remains(self.caller)
        self._zones = Zones(self.caller)

    async def open(self) -> None:
        await self.caller.open()

    async def close(self) -> None:
        await self.caller.close()

    # Declarations

    def problem(self, account_settings: Mapping[str, Any], region: str) -> str:
        if not is_installed():
            return MISSING
        from slipway_provisioner.providers.aws import certificates

        own = account_settings.get("identity_certificates", ())
        return account_problem(account_settings, region) or certificates.problem(region, own)

    def credential_problem(self, credential: Mapping[str, Any]) -> str:
        return credential_problem(credential)

    def config_problem(self, account_settings: Mapping[str, Any], config_settings: Mapping[str, Any]) -> str:
        return launch_problem(account_settings, config_settings)

    def meaning(self, account_settings: Mapping[str, Any], code: str, message: str) -> Meaning:
        case = (
            errors.classify_end(code, message)
            if errors.is_state_reason(code)
            else errors.classify(code, message, extra=account_settings.get("errors"))
        )
        return Meaning(
            stage=case.stage,
            scope=case.scope.value if case.scope is not None else UNCLASSIFIED,
            resource=case.resource,
            launched=case.launched.value,
            advice=case.advice.value,
        )

    def attested(self, account: Account, image: str, proof: Proof | None) -> Attested:
        if not is_installed():
            raise OutcomeUnknown(MISSING)
        from slipway_provisioner.providers.aws import identity

        return identity.attested(account, image, proof)

    def honours_tokens(self, account: Account) -> bool:
        return True

    def checks_tokens_first(self, account: Account) -> bool:
        return False  # it is undocumented whether image, quota and permission are checked before the token

    def visibility_seconds(self, account: Account) -> float:
        return account_settings(account.settings).visibility_seconds

    def capacity_key(self, account: Account, config: Mapping[str, Any]) -> str:
        """Zones have other names in other accounts, but one id. Empty until the names are known."""
        zone = self._zones.id_of(account, config["zone"])
        return encoded(account.region, zone, config["instance_type"], lifecycle_of(config["settings"])) if zone else ""

    def quota_family(self, account: Account, config: Mapping[str, Any]) -> str:
        return quota_family(config["instance_type"], lifecycle_of(config["settings"]))

    def subnet(self, account: Account, config: Mapping[str, Any]) -> str:
        return subnet_of(config["settings"])

    def call(self, account: Account, config: Mapping[str, Any]) -> Mapping[str, Any]:
        try:
            return _committed(account, config)
        except msgspec.ValidationError:
            return {}  # declared for another provider, or another release of this one: `create` refuses it

    def console(self, account: Account, batch_id: str, instance_id: str) -> str:
        host = CONSOLES.get(account_settings(account.settings).partition)
        if host is None:
            return ""
        return f"https://{account.region}.{host}/ec2/home?region={account.region}#InstanceDetails:instanceId={quote(instance_id)}"

    # Launches

    async def create(self, account: Account, request: CreateRequest) -> Sequence[str]:
        try:
            call = request.config.get("call") or _committed(account, request.config)
        except msgspec.ValidationError as error:
            raise Refused(self.failure(account, request.config, "InvalidSettings", Scope.CONFIG), str(error)) from None
        parameters = body.run_instances(
            call,
            token=request.token,
            count=request.count,
            user_data=request.user_data,
            tags=_tags(account, request),
        )
        # The rest of the timeout is for the call itself.
        patience = self.settings.timeout(account) / 2
        missing = await self.caller.missing_seconds(account, calls.RUN, request.count, within_seconds=patience)
        if missing:
            outcome = self.failure(account, request.config, "Paced", Scope.LIMITER)
            raise Refused(outcome, "the token bucket of the account is empty", retry_after_seconds=missing)
        try:
            reply = await self.caller.send(account, calls.RUN, **parameters)
        except CallFailed as failed:
            return await _failed(self, account, request, failed)
        launched = reply.get("Instances", [])
        if not (found := replies.ids(launched)):
            raise OutcomeUnknown("the reply contains no instances")
        if lifecycle_of(request.config["settings"]) == SPOT and any(
            row.get("InstanceLifecycle") != SPOT for row in launched
        ):
            LOG.warning("instances of a spot launch are not spot instances", account=account.id, instances=found)
        return found

    # Instances

    async def pages(self, account: Account, *, batch_id: str | None = None) -> AsyncIterator[Sequence[Instance]]:
        wanted = filters(account, **_of_batch(batch_id), instance_state_name=replies.LIVE)
        async for reply in self.caller.pages(account, calls.LIST, wanted):
            yield replies.listed(reply)

    async def ready(self, account: Account, instance_ids: Sequence[str]) -> list[str]:
        return await passed(self.caller, account, instance_ids)

    async def ending(self, account: Account, config: Mapping[str, Any], instance_id: str) -> Outcome | None:
        found = (await described(self.caller, account, [instance_id])).get(instance_id)
        if found is None or replies.state(found) is not InstanceState.TERMINATED:
            return None
        code, message = replies.state_reason(found)
        return _outcome(self, account, config, code, message, errors.classify_end(code, message)) if code else None

    async def terminate(self, account: Account, instance_ids: Sequence[str]) -> None:
        failures = [
            failure
            for start in range(0, len(instance_ids), TERMINATED_AT_ONCE)
            for failure in await terminate(self.caller, account, instance_ids[start : start + TERMINATED_AT_ONCE])
        ]
        protected: dict[str, Protected] = {}
        for failure in failures:
            protected |= failure.instances if isinstance(failure, TerminationRefused) else {}
        if protected:
            raise TerminationRefused(protected)
        if failures:
            raise OutcomeUnknown("; ".join(dict.fromkeys(map(str, failures))))

    # Accounts

    async def identity(self, account: Account) -> str:
        try:
            reply = await self.caller.call(account, calls.IDENTITY)
            await self._zones.learn(account)
        except CallFailed as failed:
            raise unknown(account, f"identity of {account.id}", failed) from None
        return str(reply.get("Account", ""))

    async def health(self, account: Account) -> None:
        try:
            await self._zones.learn(account, again=True)
        except CallFailed as failed:
            case = case_of(account, failed)
            if case.scope is not Scope.CREDENTIAL:
                raise unknown(account, f"health of {account.id}", failed) from None
            config = {"id": "", "zone": "", "instance_type": "", "image": "", "settings": {}}
            raise Refused(_outcome(self, account, config, failed.code, failed.message, case), failed.message) from None

    async def check(self, account: Account, configs: Sequence[Mapping[str, Any]]) -> Sequence[Finding]:
        return await check(self.caller, account, configs, partial(_committed, account))

    async def clean_up(self, account: Account) -> None:
        await self._remains.clean_up(account)


def _committed(account: Account, config: Mapping[str, Any]) -> dict[str, Any]:
    """Parts of the call of a launch config. Raises msgspec.ValidationError if EC2 cannot use its settings."""
    return body.committed(config, account_settings(account.settings), launch_settings(config["settings"]))


async def _failed(provider: Ec2, account: Account, request: CreateRequest, failed: CallFailed) -> Sequence[str]:
    """Instances of a call that had succeeded earlier. Raises Refused or OutcomeUnknown otherwise."""
    case = case_of(account, failed)
    if case.advice is Advice.LOOK_UP:
        # EC2 may list only a part of them by now.
        if len(found := await _all_of(provider.caller, account, request.batch_id)) >= request.count:
            return found
        raise OutcomeUnknown(str(failed), look_up=True)
    if case.is_unknown:
        raise OutcomeUnknown(str(failed))
    outcome = _outcome(provider, account, request.config, failed.code, failed.message, case)
    raise Refused(outcome, failed.message, retry_after_seconds=failed.retry_after_seconds)


def _outcome(
    provider: Ec2, account: Account, config: Mapping[str, Any], code: str, message: str, case: Case
) -> Outcome:
    """Outcome of a certain failure, under the key of what it concerns."""
    # Codes of other calls mean nothing here, and a launch that no row counts would be tried for ever.
    scope = None if case.scope is Scope.NOTHING and case.stage is Stage.LAUNCH else case.scope
    key = ""
    if scope is Scope.CREDENTIAL and case.resource:
        key = encoded(account.id, case.resource)
    elif scope is Scope.QUOTA and case.resource == errors.SUBNET:
        key = subnet_key(account.id, account.region, provider.subnet(account, config)).id
    elif scope is Scope.QUOTA and case.resource:
        key = encoded(account.id, account.region, case.resource)
    return provider.failure(account, config, code, scope, message, stage=case.stage, key=key)


def _tags(account: Account, request: CreateRequest) -> dict[str, str]:
    return {
        body.DEPLOYMENT: account.deployment,
        body.ACCOUNT: account.id,
        body.INCARNATION: request.incarnation,
        body.BATCH: request.batch_id,
        body.LAUNCH_CONFIG: request.config["id"],
    }


async def _all_of(caller: Caller, account: Account, batch_id: str) -> list[str]:
    """Ids of the instances of a batch, also of those that have ended. Those found gone later end their workers."""
    found: list[str] = []
    async for reply in caller.pages(account, calls.LIST, filters(account, **_of_batch(batch_id))):
        found += replies.ids(list(replies.instances(reply)))
    return found


def _of_batch(batch_id: str | None) -> dict[str, list[str]]:
    return {} if batch_id is None else {f"tag:{body.BATCH}": [batch_id]}
