"""Check of an account of EC2: asks for all that launches need, without changing anything.

Launches are tried by dry runs, with the tags, profile, subnet and image of each launch config. Every call waits until
launches leave half of its token bucket unused, and no call is repeated.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

import msgspec

from slipway_api.events.scopes import lifecycle_of
from slipway_api.events.worker import Scope
from slipway_common.base.clock import utc_now
from slipway_common.base.ids import new_id
from slipway_common.base.redaction import redacted
from slipway_common.base.text import listed
from slipway_provisioner.domain import account_check
from slipway_provisioner.domain.account_check import Finding
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.providers.aws import body, calls, findings, replies
from slipway_provisioner.providers.aws.caller import PAGE, Caller, case_of, filters, unknown
from slipway_provisioner.providers.aws.calls import CHECKS, DESCRIBE, Call
from slipway_provisioner.providers.aws.failures import CallFailed, answered_at
from slipway_provisioner.providers.aws.quotas import CODES, quota_family
from slipway_provisioner.providers.aws.settings import subnet_of
from slipway_provisioner.providers.port import OutcomeUnknown

DRY_RUNS_MAX: Final = 50
PAGES_MAX: Final = 50
ASKED_AT_ONCE: Final = 100
"""Values of a filter."""
PATIENCE_SECONDS: Final = 20.0
"""Longest wait for tokens that launches do not need."""
REST: Final = ("permission", "launch-config", "subnet", "image", "quota")
"""Kinds of findings that need a credential of the right account."""
ALLOWED: Final = "DryRunOperation"
NONE_RUNS: Final = "unknown until a machine of this deployment runs in the account, on which it can be tried"

Config = Mapping[str, Any]


async def check(
    caller: Caller, account: Account, configs: Sequence[Config], committed: Callable[[Config], Mapping[str, Any]]
) -> list[Finding]:
    """Findings on an account and the launch configs in it. `committed` gives the parameters of the launches of one.
    Raises OutcomeUnknown if the account does not answer."""
    asking = _Check(caller, account, configs)
    if await asking.identity():
        await asking.zones()
        await asking.reads()
        await asking.instances()
        await asking.subnets()
        await asking.images()
        await asking.launches(committed)
        await asking.quotas()
    return asking.found


class _Check:
    """One check: its findings so far. A part of it that fails leaves the others as they are."""

    def __init__(self, caller: Caller, account: Account, configs: Sequence[Config]) -> None:
        self._found: dict[tuple[str, str], Finding] = {}
        self._caller, self._account, self._configs = caller, account, configs
        self._decodes = True

    @property
    def found(self) -> list[Finding]:
        return list(self._found.values())

    def _add(self, *found: Finding) -> None:
        """Add findings; the first one on a subject counts."""
        for each in found:
            self._found.setdefault(each.key, each)

    async def identity(self) -> bool:
        """Identity, clock and credential; True if the rest can be asked for."""
        account, before = self._account, utc_now()
        try:
            reply = await self._caller.call(account, calls.IDENTITY)
            expiry = await self._caller.expiry(account)
        except CallFailed as failed:
            case = case_of(account, failed)
            if case.scope is not Scope.CREDENTIAL:
                raise unknown(account, f"identity of {account.id}", failed) from None
            message = redacted(failed.message)
            self._add(findings.refused(failed.code, message, case.advice))
            if failed.date is not None:
                self._add(findings.clock(failed.date, before=before, after=utc_now()))
            self._skip(("identity", *REST), "AWS refuses the credential")
            return False
        after = utc_now()
        number = str(reply.get("Account", ""))
        identity = account_check.identity(account.identity, number, about=str(reply.get("Arn", "")))
        self._add(
            identity,
            findings.clock(answered_at(reply), before=before, after=after),
            findings.credential(expiry, now=after),
        )
        if identity.is_problem:
            self._skip(REST, "the credential belongs to another AWS account")
        return not identity.is_problem

    async def zones(self) -> None:
        """Zones of launch configs."""
        reply = await self._asked(calls.ZONES, ["launch-config"])
        if reply is None:
            return
        rows = reply.get("AvailabilityZones", ())
        known = {str(row.get(name)) for row in rows for name in ("ZoneName", "ZoneId")}
        for config in self._configs:
            if config["zone"] not in known:
                message = f"zone {config['zone']} does not exist in {self._account.region}"
                remedy = f"correct its zone; there are {listed(sorted(str(row.get('ZoneId')) for row in rows), 6)}"
                self._add(findings.problem("launch-config", config["name"], message, remedy))

    async def reads(self) -> None:
        """Permissions of all calls that read, but for those on an instance."""
        for call in calls.CALLS:
            if call.calls is DESCRIBE and call not in (*CHECKS, calls.CONSOLE):
                await self._tried(call)

    async def instances(self) -> None:
        """Permissions of calls on an instance of Slipway, since the policy may allow them for these only."""
        own = filters(self._account, instance_state_name=replies.LIVE)
        reply = await self._asked(calls.LIST, [], Filters=own, MaxResults=5)
        ids = replies.ids(list(replies.instances(reply or {})))
        if ids:
            await self._tried(calls.TERMINATE, InstanceIds=ids[:1])
            await self._tried(calls.CONSOLE, InstanceId=ids[0])
            return
        for call in (calls.TERMINATE, calls.CONSOLE):
            self._add(findings.unknown("permission", NONE_RUNS, subject=call.action))

    async def subnets(self) -> None:
        """Free addresses, state and zone of the subnets of launch configs."""
        own: dict[str, dict[str, str]] = {}
        for config in self._configs:
            if subnet_id := subnet_of(config["settings"]):
                own.setdefault(subnet_id, {})[config["name"]] = config["zone"]
        rows = await self._rows(calls.SUBNETS, "subnet", "Subnets", "subnet-id", sorted(own))
        if rows is not None:
            by_id = {row.get("SubnetId"): row for row in rows}
            self._add(*(findings.subnet(id_, by_id.get(id_), own[id_], self._account) for id_ in sorted(own)))
        others = [config for config in self._configs if not subnet_of(config["settings"])]
        if not others:
            return
        rows = await self._rows(calls.SUBNETS, "subnet", "Subnets", "default-for-az", ["true"])
        for row in rows or ():
            zone = {row.get("AvailabilityZone"), row.get("AvailabilityZoneId")}
            if names := {config["name"]: config["zone"] for config in others if config["zone"] in zone}:
                self._add(findings.subnet(str(row.get("SubnetId")), row, names, self._account))

    async def images(self) -> None:
        """State of the images of launch configs."""
        users: dict[str, list[str]] = {}
        for config in self._configs:
            users.setdefault(config["image"], []).append(config["name"])
        ids = sorted(id_ for id_ in users if id_.startswith("ami-"))
        rows = await self._rows(calls.IMAGES, "image", "Images", "image-id", ids, IncludeDeprecated=True)
        if rows is not None:
            by_id = {row.get("ImageId"): row for row in rows}
            self._add(*(findings.image(id_, by_id.get(id_), users[id_], self._account) for id_ in ids))
        for id_ in sorted(users.keys() - ids):
            self._add(findings.unknown("image", "is not an ID of an image", subject=id_))

    async def launches(self, committed: Callable[[Config], Mapping[str, Any]]) -> None:
        """Dry runs of launches, one for all launch configs whose calls differ in zone and type only."""
        alike: dict[str, list[Config]] = {}
        for config in self._configs:
            try:
                call = committed(config)
            except msgspec.ValidationError:
                continue  # its settings are a finding of their own
            alike.setdefault(_alike(call), []).append(config)
        denied: dict[findings.Denial, list[str]] = {}
        untried: list[str] = []
        for number, group in enumerate(alike.values()):
            names = [config["name"] for config in group]
            failed = await self._dry_run(committed(group[0]), group[0]) if number < DRY_RUNS_MAX else None
            if failed is None or (case := case_of(self._account, failed)).is_unknown or case.scope is Scope.LIMITER:
                untried += names
            elif failed.code in findings.DENIED:
                denied.setdefault(await self._denial(calls.RUN, failed), []).extend(names)
            elif case.scope not in (Scope.NOTHING, Scope.CAPACITY, Scope.QUOTA):
                self._refused_launch(names, failed, case.advice)
        self._add(*_merged(denied))
        if untried:
            message = f"launches of {listed(untried, 3)} were not tried, since calls are limited"
            self._add(*(findings.unknown(kind, message) for kind in ("permission", "launch-config")))
        elif alike and not denied:
            configs = f"{len(self._configs)} launch config{'s' if len(self._configs) > 1 else ''}"
            allowed = f"allowed, with the tags, profiles, subnets and images of {configs}"
            self._add(findings.found("permission", calls.RUN.action, allowed))

    async def quotas(self) -> None:
        """vCPUs in use and quotas of the families that launch configs use."""
        families: dict[str, set[str]] = {}
        for config in self._configs:
            family = quota_family(config["instance_type"], lifecycle_of(config["settings"]))
            families.setdefault(family, set()).add(config["instance_type"])
        limits = {family: limit for family in sorted(families) if (limit := await self._limit(family)) is not None}
        if not limits:
            return
        running = await self._running()
        types = {type_ for type_, _ in running or {}} | {type_ for names in families.values() for type_ in names}
        rows = await self._rows(calls.TYPES, "quota", "InstanceTypes", "instance-type", sorted(types))
        if running is None or rows is None:
            return
        vcpus = {str(row.get("InstanceType")): int(row.get("VCpuInfo", {}).get("DefaultVCpus", 0)) for row in rows}
        used: dict[str, int] = {}
        for (type_, lifecycle), count in running.items():
            family = quota_family(type_, lifecycle)
            used[family] = used.get(family, 0) + count * vcpus.get(type_, 0)
        for family, limit in limits.items():
            if needed := {type_: vcpus[type_] for type_ in families[family] if vcpus.get(type_)}:
                about = findings.Quota(family=family, limit=limit, used=used.get(family, 0), needed=needed)
                self._add(findings.quota(about, self._account))
            else:
                message = f"{listed(sorted(families[family]), 3)} is not offered in {self._account.region}"
                self._add(findings.problem("quota", family, message, "use another instance type"))

    async def _limit(self, family: str) -> float | None:
        """Quota of a family in vCPUs; None if it is unknown, which is a finding."""
        if family not in CODES:
            self._add(findings.unknown("quota", "Service Quotas has no code for this family", subject=family))
            return None
        reply = await self._asked(calls.QUOTA, [("quota", family)], ServiceCode="ec2", QuotaCode=CODES[family])
        return None if reply is None else float(reply.get("Quota", {}).get("Value", 0))

    async def _running(self) -> dict[tuple[str, str], int] | None:
        """Instances of the AWS account and region by type and lifecycle, not only those of Slipway; None if they are
        unknown, which is a finding."""
        counts: dict[tuple[str, str], int] = {}
        states = [{"Name": "instance-state-name", "Values": ["pending", "running"]}]
        token: str | None = None
        for _ in range(PAGES_MAX):
            more: dict[str, Any] = {"NextToken": token} if token else {}
            reply = await self._asked(calls.LIST, ["quota"], Filters=states, MaxResults=PAGE, **more)
            if reply is None:
                return None
            for instance in replies.instances(reply):
                key = str(instance.get("InstanceType", "")), str(instance.get("InstanceLifecycle", ""))
                counts[key] = counts.get(key, 0) + 1
            if not (token := reply.get("NextToken")):
                return counts
        message = f"more than {PAGES_MAX * PAGE:,} instances run in the account; their vCPUs were not counted"
        self._add(findings.unknown("quota", message))
        return None

    # Calls

    async def _asked(
        self, call: Call, about: Iterable[str | tuple[str, str]], **parameters: Any
    ) -> Mapping[str, Any] | None:
        """Reply to a call; None if it fails, which is a finding. `about` are the kinds of findings, or those and their
        subjects, that are unknown then."""
        try:
            return await self._caller.spare(self._account, call, within_seconds=PATIENCE_SECONDS, **parameters)
        except CallFailed as failed:
            if failed.code in findings.DENIED:
                await self._add_denied(call, failed)
                reason = f"{call.action} is not allowed"
            else:
                reason = str(failed)
        except OutcomeUnknown as error:
            reason = str(error)
        for each in about:
            kind, subject = (each, "") if isinstance(each, str) else each
            self._add(findings.unknown(kind, f"not checked: {reason}", subject=subject))
        return None

    async def _rows(
        self, call: Call, kind: str, member: str, name: str, values: Sequence[str], **more: Any
    ) -> list[Mapping[str, Any]] | None:
        """Rows of a description, of those with one of the values; None if it fails, which is a finding. A filter fails
        for no unknown id."""
        rows: list[Mapping[str, Any]] = []
        for start in range(0, len(values), ASKED_AT_ONCE):
            wanted = [{"Name": name, "Values": list(values[start : start + ASKED_AT_ONCE])}]
            reply = await self._asked(call, [kind], Filters=wanted, **more)
            if reply is None:
                return None
            rows += reply.get(member, ())
        return rows

    async def _tried(self, call: Call, **parameters: Any) -> None:
        """Permission of a call, by a dry run."""
        try:
            await self._caller.spare(self._account, call, within_seconds=PATIENCE_SECONDS, DryRun=True, **parameters)
        except CallFailed as failed:
            if failed.code == ALLOWED:
                self._add(findings.found("permission", call.action, "allowed"))
            elif failed.code in findings.DENIED:
                await self._add_denied(call, failed)
            else:
                self._add(findings.unknown("permission", f"not tried: {failed}", subject=call.action))
        except OutcomeUnknown as error:
            self._add(findings.unknown("permission", f"not tried: {error}", subject=call.action))

    async def _dry_run(self, call: Mapping[str, Any], config: Config) -> CallFailed | None:
        """Answer to the dry run of a launch, which is always an error; None if there is none."""
        tags = {
            body.DEPLOYMENT: self._account.deployment,
            body.ACCOUNT: self._account.id,
            body.INCARNATION: "check",
            body.BATCH: "check",
            body.LAUNCH_CONFIG: config["id"],
        }
        launch = body.run_instances(call, token=new_id(), count=1, user_data="", tags=tags)
        dry = {**launch, "DryRun": True}
        try:
            await self._caller.spare(self._account, calls.RUN, within_seconds=PATIENCE_SECONDS, **dry)
        except CallFailed as failed:
            return failed
        except OutcomeUnknown:
            return None
        return None

    async def _denial(self, call: Call, failed: CallFailed) -> findings.Denial:
        """Action that a refused call was not allowed to do, decoded if the caller may do that."""
        decoded = ""
        if self._decodes and (message := findings.encoded(failed.message)):
            self._decodes = False  # also while it is asked, since that may be denied itself
            reply = await self._asked(calls.DECODE, [], EncodedMessage=message)
            self._decodes = reply is not None
            decoded = str((reply or {}).get("DecodedMessage", ""))
        return findings.denial(failed.message, decoded, action=call.action)

    async def _add_denied(self, call: Call, failed: CallFailed) -> None:
        self._add(findings.denied(await self._denial(call, failed), optional=call in CHECKS))

    def _refused_launch(self, names: Sequence[str], failed: CallFailed, advice: str) -> None:
        """A launch that EC2 would refuse, unless a finding on its zone, image or subnet says so already."""
        known = {each.key for each in self.found if each.is_problem}
        for config in self._configs:
            parts = {("image", config["image"]), ("subnet", subnet_of(config["settings"]))}
            if config["name"] in names and not parts & known:
                message = f"a launch would be refused: {failed}"
                self._add(findings.problem("launch-config", config["name"], message, advice))

    def _skip(self, kinds: Iterable[str], reason: str) -> None:
        self._add(*(findings.unknown(kind, f"not checked: {reason}") for kind in kinds))


def _alike(call: Mapping[str, Any]) -> str:
    """Text that is equal for calls which differ in zone and instance type only. No permission of Slipway's policy
    depends on these."""
    parameters = {name: value for name, value in call["parameters"].items() if name != "InstanceType"}
    parameters["Placement"] = parameters["Placement"].get("GroupName")
    return msgspec.json.encode([parameters, call["tags"]], order="deterministic").decode()


def _merged(denied: Mapping[findings.Denial, Sequence[str]]) -> list[Finding]:
    """One finding for each action that is denied."""
    by_action: dict[str, tuple[findings.Denial, list[str]]] = {}
    for denial, names in denied.items():
        by_action.setdefault(denial.action, (denial, []))[1].extend(names)
    return [findings.denied(denial, names) for denial, names in by_action.values()]
