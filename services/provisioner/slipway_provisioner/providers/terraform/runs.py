"""Runs of claimed workspaces: jobs for the driver, and the results of what it ran."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from slipway_api.events.worker import Scope
from slipway_common.base.clock import monotonic_seconds
from slipway_common.base.ids import new_id
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.orphan_workspaces import Resource
from slipway_provisioner.domain.recovery import UUID
from slipway_provisioner.domain.workspace_runs import Result
from slipway_provisioner.domain.workspaces import Operation
from slipway_provisioner.providers.port import Provider
from slipway_provisioner.providers.terraform.credentials import NoCredential, environment_of
from slipway_provisioner.providers.terraform.identities import Identities, is_foreign
from slipway_provisioner.providers.terraform.outcomes import failed
from slipway_provisioner.providers.terraform.settings import (
    WORKER,
    Plugin,
    TerraformAccount,
    TerraformLaunch,
    account_settings,
    launch_settings,
)
from slipway_provisioner.providers.workspaces import RunClaim
from slipway_terraform.domain import errors
from slipway_terraform.domain.results import Command, Failure, Run
from slipway_terraform.domain.specs import Mode, ProviderSpec
from slipway_terraform.plugins.runner import PluginRunner
from slipway_terraform.runs.driver import Driver, Imported, Job
from slipway_terraform.runs.modules import checked_module, module_digest

DEPLOYMENT, INCARNATION, ACCOUNT = "slipway-deployment", "slipway-incarnation", "slipway-account"
BATCH, LAUNCH_CONFIG, WORKSPACE = "slipway-batch", "slipway-launch-config", "slipway-workspace"
NOBODY: Final = "nobody"
"""Account in a look-up for its identity alone. Letters, since label values of some clouds allow little else."""
DESTROY_SECONDS: Final = 1800.0
LOOK_UP_SECONDS: Final = 300.0
OUTPUT_CHARACTERS_MAX: Final = 500
# Errors before a run that are charged to the launch config: its module or plugin cannot be used. Others concern this
# host.
REFUSED: Final = (
    errors.SharingUnsafe,
    errors.SpecInvalid,
    errors.ModuleMissing,
    errors.ModuleInvalid,
    errors.DigestMismatch,
    errors.InitFailed,
    errors.ProviderIncompatible,
    errors.Unschedulable,
)


class Found(msgspec.Struct, frozen=True):
    """A resource that the look-up module has found by its tags: the workspace in its tags, its address in the user's
    module, its id at the provider, and all its tags."""

    workspace: str
    address: str
    id: str
    tags: dict[str, str] = {}


class Looked(msgspec.Struct, frozen=True):
    """Outputs of a look-up module."""

    resources: tuple[Found, ...]
    identity: str = ""


class LookUpFailed(Exception):
    """The look-up module failed, or has other outputs than a look-up needs; the message is redacted. `failure` is that
    of its run, if there was one."""

    def __init__(self, message: str, failure: Failure | None = None) -> None:
        super().__init__(message)
        self.failure = failure


class ForeignCredential(LookUpFailed):
    """The credential belongs to another account than the declared one."""

    def __init__(self, account: Account, identity: str) -> None:
        found = f"the credential of account {account.id} belongs to {identity}, not to {account.identity}"
        super().__init__(f"{found}; correct the credential, or `identity` of the account in slipway.yaml")


class Ended(msgspec.Struct, frozen=True):
    """End of a run: its result, and its newest state, None if nothing was run."""

    result: Result
    state: bytes | None = None


class Runs:
    """Runs of a driver in one account. `empty` is a folder with a module that has no resources."""

    def __init__(self, provider: Provider, driver: Driver, empty: Path, identities: Identities) -> None:
        self._provider, self._driver, self._empty, self._identities = provider, driver, empty, identities
        self._empty_digest = module_digest(empty)
        self._environment: dict[str, str] | None = None

    async def run(self, claim: RunClaim) -> Ended:
        """Do what a claimed workspace needs. Never raises, except for cancellation."""
        try:
            match claim.operation:
                case Operation.APPLY:
                    return await self._apply(claim)
                case Operation.LOOK_UP:
                    return await self._look_up(claim)
                case Operation.REFRESH:
                    return await self._refresh(claim)
                case Operation.DESTROY:
                    return await self._destroy(claim)
                case Operation.RECLAIM:
                    return await self._reclaim(claim)
        except NoCredential as error:
            outcome = self._provider.failure(claim.account, _config(claim), "NoCredential", Scope.CREDENTIAL)
            return Ended(Result(failure=str(error), outcome=outcome, resources=resources_of(claim.state)))
        except REFUSED as error:
            code = type(error).__name__
            outcome = self._provider.failure(claim.account, _config(claim), code, Scope.CONFIG)
            return Ended(Result(failure=str(error), outcome=outcome, resources=resources_of(claim.state)))
        except errors.OutcomeUnknown as error:
            return Ended(Result(failure=str(error), unknown=True, resources=resources_of(claim.state)))
        except LookUpFailed as error:
            return Ended(self._not_looked_up(claim, error))
        except (errors.TerraformError, msgspec.ValidationError, OSError) as error:
            return Ended(Result(failure=str(error), nothing=True, resources=resources_of(claim.state)))

    async def listed(self, account: Account, name: str) -> list[Resource]:
        """Resources of the workspaces of an account. Raises LookUpFailed, NoCredential, TerraformError."""
        own = {DEPLOYMENT: account.deployment, ACCOUNT: account.id}
        return [_resource(found) for found in (await self.look_up(account, own, name)).resources]

    async def look_up(self, account: Account, tags: dict[str, str], name: str) -> Looked:
        """Resources with these tags in the account. Raises LookUpFailed, also if its credential belongs to another one,
        where it would find nothing; NoCredential, TerraformError."""
        looked = await self.look_up_anywhere(account, tags, name)
        if is_foreign(account, looked.identity):
            raise ForeignCredential(account, looked.identity)
        return looked

    async def identity(self, account: Account) -> str:
        """Account that the credential belongs to, as the look-up module outputs it; the declared one if it outputs
        none. Raises LookUpFailed, NoCredential, TerraformError."""

        async def look_up() -> str:
            return (await self.look_up_anywhere(account, {ACCOUNT: NOBODY}, f"identity-{new_id()}")).identity

        return await self._identities.of(account, self._credential(account), look_up) or account.identity

    async def look_up_anywhere(self, account: Account, tags: dict[str, str], name: str) -> Looked:
        """Resources with these tags in the account that the credential belongs to, in a workspace of its own. Raises
        LookUpFailed, NoCredential, TerraformError."""
        settings = account_settings(account.settings)
        job = Job(
            module=_look_up_folder(settings),
            module_digest=settings.lookup.digest,
            variables={"tags": tags},
            providers=self._specs(account, settings, None),
        )
        run = await self._run(Command.APPLY, name, job, None, LOOK_UP_SECONDS)
        if run.failure is not None:
            message = f"look-up in {account.id}: {run.failure.code}: {run.failure.message}"
            raise LookUpFailed(message, run.failure)
        try:
            looked = msgspec.convert(dict(run.outputs), Looked)
        except msgspec.ValidationError as error:
            raise LookUpFailed(f"module {settings.lookup.module}: {error}; see the guide on Terraform") from None
        # A module may show more than it was asked for, such as resources of other deployments.
        asked = [found for found in looked.resources if tags.items() <= (tags | found.tags).items()]
        return msgspec.structs.replace(looked, resources=tuple(asked))

    async def plan(self, account: Account, config: Mapping[str, Any], name: str, runner: PluginRunner) -> str:
        """Problem with the plan of a launch config; empty if there is none. Raises LookUpFailed, TerraformError,
        NoCredential."""
        inputs = {"config": config, "batch_id": name, "incarnation": "plan", "user_data": ""}
        job = self._job(account, inputs, name)
        # A module that is installed already runs without its folder, but a plan has to fail if the folder is missing.
        await asyncio.to_thread(checked_module, job.module, job.module_digest)
        settings = account_settings(account.settings)
        await asyncio.to_thread(checked_module, _look_up_folder(settings), settings.lookup.digest)
        for spec in job.providers:  # a plugin that runs already is found by its digest
            await runner.check(spec)
        await self._check_credential(account)
        run = await self._run(Command.PLAN, name, job, None, LOOK_UP_SECONDS)
        return "" if run.failure is None else f"{run.failure.code}: {run.failure.message}"

    async def _apply(self, claim: RunClaim) -> Ended:
        assert claim.inputs is not None
        settings = _launch(claim.inputs)
        # Later another replica may have applied the workspace, if this one was suspended.
        ends_at = claim.began_at + settings.apply_seconds
        job = self._job(claim.account, claim.inputs, claim.workspace.id)
        await self._check_credential(claim.account)
        run = await self._run(Command.APPLY, claim.workspace.id, job, claim.state, ends_at - monotonic_seconds())
        resources = resources_of(run.newest_state)
        if run.failure is not None:
            return self._failed(claim, run)
        instance_id, address = _outputs(run, settings)
        if instance_id is None:
            message = (
                f"the module has no output {settings.outputs.instance_id} with the id of its instance, printable and "
                f"of at most {OUTPUT_CHARACTERS_MAX} characters"
            )
            outcome = self._provider.failure(claim.account, _config(claim), "NoInstanceId", Scope.CONFIG)
            return Ended(Result(failure=message, outcome=outcome, resources=resources), run.newest_state)
        return Ended(Result(resources=resources, instance_id=instance_id, address=address), run.newest_state)

    async def _look_up(self, claim: RunClaim) -> Ended:
        """Import what the tags of the workspace show and its state lacks."""
        assert claim.inputs is not None
        id_ = claim.workspace.id
        own = {WORKSPACE: id_, DEPLOYMENT: claim.account.deployment}
        looked = await self.look_up(claim.account, own, f"look-up-{id_}")
        job, state = self._job(claim.account, claim.inputs, id_, exact=False), claim.state
        known = _ids_in(state)
        for found in looked.resources:
            if found.workspace == id_ and found.id not in known:
                imported = Imported(found.address, found.id)
                run = await self._run(Command.IMPORT, id_, job, state, LOOK_UP_SECONDS, imported)
                state = run.newest_state or state
                if run.failure is not None:
                    return self._failed(claim, run)
        return Ended(Result(resources=resources_of(state)), state)

    async def _refresh(self, claim: RunClaim) -> Ended:
        """Refresh without the module, which may have changed: a refresh only reads what is in the state."""
        job, id_ = self._without_module(claim), claim.workspace.instance_id
        await self._check_credential(claim.account)
        run = await self._run(Command.REFRESH, claim.workspace.id, job, claim.state, DESTROY_SECONDS)
        if run.failure is not None:
            return self._failed(claim, run)
        before, after = resources_of(claim.state), resources_of(run.newest_state)
        # The id of an instance need not be that of a resource.
        is_left = id_ in _ids_in(run.newest_state) if id_ in _ids_in(claim.state) else after == before
        if not (after and is_left):
            await self._confirm(claim)
        result = Result(resources=after, instance_id=id_ if is_left else None, address=claim.workspace.address)
        return Ended(result, run.newest_state)

    async def _destroy(self, claim: RunClaim) -> Ended:
        """Destroy without the module, whose changes must not prevent it: the state contains what to destroy."""
        if not resources_of(claim.state):
            return Ended(Result())
        job = self._without_module(claim)
        await self._check_credential(claim.account)
        run = await self._run(Command.DESTROY, claim.workspace.id, job, claim.state, DESTROY_SECONDS)
        if run.failure is not None:
            return self._failed(claim, run)
        if run.changes is None or run.changes.remove < _instances_of(claim.state):  # some were missing
            await self._confirm(claim)
        return Ended(Result(resources=resources_of(run.newest_state)), run.newest_state)

    async def _check_credential(self, account: Account) -> None:
        """Check that the credential belongs to the declared account. In another one a run would create resources that
        nobody finds, or destroy those with the same names. Raises LookUpFailed, NoCredential, TerraformError."""
        if is_foreign(account, found := await self.identity(account)):
            raise ForeignCredential(account, found)

    async def _confirm(self, claim: RunClaim) -> None:
        """Look up the identity again, since a credential of another account finds nothing. Raises LookUpFailed,
        TerraformError."""
        await self.look_up(claim.account, {ACCOUNT: NOBODY}, f"identity-{claim.workspace.id}")

    async def _reclaim(self, claim: RunClaim) -> Ended:
        """Import what the tags of an orphan show, and destroy it."""
        looked = await self._look_up(claim)
        if looked.result.failure:
            return looked
        return await self._destroy(msgspec.structs.replace(claim, state=looked.state or claim.state))

    def _failed(self, claim: RunClaim, run: Run) -> Ended:
        assert run.failure is not None
        extra = account_settings(claim.account.settings).errors
        result = failed(self._provider, claim.account, _config(claim), run.failure, extra)
        return Ended(msgspec.structs.replace(result, resources=resources_of(run.newest_state)), run.newest_state)

    def _not_looked_up(self, claim: RunClaim, error: LookUpFailed) -> Result:
        """Result without a run, since a look-up before it has failed. A refused credential and a limit concern a launch
        as well; any other failure is one of the look-up, and says nothing about it."""
        result, resources = None, resources_of(claim.state)
        if isinstance(error, ForeignCredential):
            code = type(error).__name__
            outcome = self._provider.failure(claim.account, _config(claim), code, Scope.CREDENTIAL)
            return Result(failure=str(error), outcome=outcome, resources=resources)
        if error.failure is not None:
            extra = account_settings(claim.account.settings).errors
            result = failed(self._provider, claim.account, _config(claim), error.failure, extra)
        if result is None or result.outcome is None or result.outcome.scope not in (Scope.CREDENTIAL, Scope.LIMITER):
            return Result(failure=str(error), nothing=True, resources=resources)
        return msgspec.structs.replace(result, failure=str(error), resources=resources)

    def _credential(self, account: Account) -> dict[str, str]:
        """Variables of the account's credential, read once: a run uses what was checked. Raises NoCredential."""
        if self._environment is None:
            self._environment = environment_of(account.credential)
        return self._environment

    def _job(self, account: Account, inputs: Mapping[str, Any], workspace_id: str, *, exact: bool = True) -> Job:
        settings, launch = account_settings(account.settings), _launch(inputs)
        config, user_data = inputs["config"], inputs["user_data"]
        worker = {
            "id": workspace_id,
            "tags": {
                DEPLOYMENT: account.deployment,
                INCARNATION: inputs["incarnation"],
                ACCOUNT: account.id,
                BATCH: inputs["batch_id"],
                LAUNCH_CONFIG: config["id"],
                WORKSPACE: workspace_id,
            },
            "user_data": user_data,
            "zone": config["zone"],
            "instance_type": config["instance_type"],
            "image": config["image"],
        }
        return Job(
            module=Path(settings.modules_folder) / launch.module,
            module_digest=launch.digest,
            variables=launch.variables | {WORKER: worker},
            outputs=tuple(filter(None, (launch.outputs.instance_id, launch.outputs.address))),
            providers=self._specs(account, settings, launch, exact=exact),
            secrets=(user_data,) if user_data else (),
        )

    def _without_module(self, claim: RunClaim) -> Job:
        launch = None if claim.inputs is None else _launch(claim.inputs)
        providers = self._specs(claim.account, account_settings(claim.account.settings), launch)
        return Job(module=self._empty, module_digest=self._empty_digest, providers=providers)

    def _specs(
        self, account: Account, settings: TerraformAccount, launch: TerraformLaunch | None, *, exact: bool = False
    ) -> tuple[ProviderSpec, ...]:
        """Providers of a launch config, with the account's credential. Raises NoCredential, SpecInvalid."""
        environment = self._credential(account)
        return tuple(
            ProviderSpec(
                source=plugin.source,
                version=plugin.version,
                binary=plugin.binary,
                digest=plugin.digest,
                arguments=plugin.arguments,
                mode=Mode(plugin.mode),
                configuration=settings.configuration,
                environment=environment,
                tenant=account.id,
            )
            for plugin in _plugins(account.id, settings, launch, exact=exact)
        )

    async def _run(
        self,
        command: Command,
        name: str,
        job: Job,
        state: bytes | None,
        seconds: float,
        imported: Imported | None = None,
    ) -> Run:
        """Result of a run. One that is cancelled is interrupted, and its result is returned nevertheless: it has the
        newest state. Raises TerraformError, as RunInterrupted if it had not begun."""
        deadline = asyncio.get_running_loop().time() + seconds
        try:
            return await self._driver.run(command, name, job, state=state, deadline=deadline, imported=imported)
        except asyncio.CancelledError:
            operation, task = self._driver.operations.get(name), asyncio.current_task()
            if operation is None or operation.is_running or task is None:
                raise
            task.uncancel()
            return await operation.wait()
        finally:
            self._driver.forget(name)


def _look_up_folder(settings: TerraformAccount) -> Path:
    return Path(settings.modules_folder) / settings.lookup.module


def _resource(found: Found) -> Resource:
    """Resource of a listing, as it can be stored: with empty text for what cannot be, or is no id of ours."""
    workspace, batch_id = found.workspace, found.tags.get(BATCH, "")
    return Resource(
        workspace=workspace if UUID.fullmatch(workspace) else "",
        address=_text(found.address),
        id=_text(found.id),
        batch_id=batch_id if UUID.fullmatch(batch_id) else "",
        launch_config_id=_text(found.tags.get(LAUNCH_CONFIG, "")),
        incarnation=_text(found.tags.get(INCARNATION, "")),
    )


def resources_of(state: bytes | None) -> int:
    """Number of resources in a state that Terraform manages."""
    return sum(resource.get("mode") == "managed" for resource in _resources(state))


def _resources(state: bytes | None) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = msgspec.json.decode(state).get("resources", []) if state else []
    return found


def _instances_of(state: bytes | None) -> int:
    """Number of instances of the managed resources in a state."""
    return sum(len(each.get("instances", [])) for each in _resources(state) if each.get("mode") == "managed")


def _ids_in(state: bytes | None) -> set[str]:
    """Ids of the managed resources in a state."""
    return {
        str(instance.get("attributes", {}).get("id"))
        for resource in _resources(state)
        if resource.get("mode") == "managed"
        for instance in resource.get("instances", [])
    }


def _outputs(run: Run, settings: TerraformLaunch) -> tuple[str | None, str]:
    """Instance id and address among the outputs of a module; no id if that output is missing or no id."""
    id_ = run.outputs.get(settings.outputs.instance_id)
    address = run.outputs.get(settings.outputs.address, "") if settings.outputs.address else ""
    return _text(id_) or None, _text(address)


def _text(output: Any) -> str:
    """Output that can be stored and indexed; empty for any other."""
    text = str(output) if isinstance(output, str | int) else ""
    return text if text.isprintable() and len(text) <= OUTPUT_CHARACTERS_MAX else ""


def _launch(inputs: Mapping[str, Any]) -> TerraformLaunch:
    return launch_settings(inputs["config"]["settings"])


def _config(claim: RunClaim) -> Mapping[str, Any]:
    """Launch config of a workspace, to attribute a failure to; of one that is ready its id is enough."""
    if claim.inputs is not None:
        config: Mapping[str, Any] = claim.inputs["config"]
        return config
    id_ = claim.workspace.launch_config_id
    return {"id": id_, "zone": "", "instance_type": "", "image": "", "settings": {}}


def _plugins(
    account_id: str, settings: TerraformAccount, launch: TerraformLaunch | None, *, exact: bool
) -> list[Plugin]:
    """Plugin of a launch config; without one, the first of each source. Unless its version must be `exact`, the first
    of its source replaces it, since workers made before an upgrade must be destroyed. Raises SpecInvalid."""
    first = [*{plugin.source: plugin for plugin in reversed(settings.plugins)}.values()]
    if launch is None:
        return first
    source, version = launch.provider.source, launch.provider.version
    chosen = [plugin for plugin in settings.plugins if (plugin.source, plugin.version) == (source, version)]
    chosen = chosen or [plugin for plugin in first if plugin.source == source and not exact]
    if not chosen:
        wanted = f"{source} {version}" if exact else source
        raise errors.SpecInvalid(f"{wanted} is not among the plugins of account {account_id}; add it there")
    return chosen[:1]
