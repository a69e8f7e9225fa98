"""Queue of runs of this replica: claims workspaces that are due, at most as many as it may run, and saves each run."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

import msgspec

from slipway_common.base.clock import monotonic_seconds
from slipway_common.observability.telemetry import logger
from slipway_provisioner.domain.cloud import Account
from slipway_provisioner.domain.orphan_workspaces import Resource
from slipway_provisioner.domain.workspace_runs import RETRY_SECONDS_MAX, Next, Result, after, sweep_pause
from slipway_provisioner.domain.workspaces import Operation
from slipway_provisioner.providers.port import TerraformSettings
from slipway_provisioner.providers.terraform.runs import Ended, LookUpFailed, resources_of
from slipway_provisioner.providers.workspaces import ListingClaim, RunClaim, Workspaces

LOG = logger(__name__)
RENEW_SECONDS: Final = 20.0
SAVE_AGAIN_SECONDS: Final = 1.0
SEARCH_SECONDS: Final = 15.0
"""Interval between two searches for unresponsive workers."""
# Each limit of a shutdown is longer than the one inside it: Terraform has its grace to end by itself, then it is
# killed, and what it wrote is read and saved. With the end of the plugins (engine.py) this stays below the 30 s that
# Kubernetes gives a process.
INTERRUPT_SECONDS: Final = 10.0
"""Time in which an interrupted run of Terraform ends by itself."""
STOP_SECONDS: Final = INTERRUPT_SECONDS + 6.0
"""Time in which interrupted runs end and are saved when this process shuts down."""
RELEASE_SECONDS: Final = 2.0
"""Time in which the locks of runs that had not begun are released then."""
INTERRUPTED: Final = "interrupted by the shutdown of its provisioner"


class RunQueue:
    """Runs of this replica. `step` is called again and again; nothing is done between its calls but the runs."""

    def __init__(
        self,
        holder: str,
        workspaces: Workspaces,
        settings: TerraformSettings,
        run: Callable[[RunClaim], Awaitable[Ended]],
        visibility: Callable[[RunClaim], float],
        list_: Callable[[Account], Awaitable[tuple[Sequence[Resource], float]]],
    ) -> None:
        self._holder, self._workspaces, self._settings = holder, workspaces, settings
        self._run, self._visibility, self._list = run, visibility, list_
        self._running: dict[asyncio.Task[None], RunClaim] = {}
        self._listing: asyncio.Task[None] | None = None
        self._saving: set[str] = set()
        self._renewed_at = self._looked_at = self._swept_at = monotonic_seconds()
        self._sweep_pause = 0.0
        self._lists_next = False
        self._is_stopping = False

    async def step(self) -> bool:
        """Claim and begin runs; waits for the end of one while there are any. False if there is nothing to do."""
        try:
            await self._renew()
            await self._make_due()
            free = self._settings.runs_max - len(self._tasks)
            for claim in await self._workspaces.claim(self._holder, free):
                self._running[asyncio.create_task(self._ran(claim))] = claim
            if not self._tasks:
                return False
            done, _ = await asyncio.wait(self._tasks, timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                workspace = self._running.pop(task).workspace.id if task in self._running else ""
                if task is self._listing:
                    self._listing = None
                if not task.cancelled() and (error := task.exception()) is not None:
                    LOG.error("internal error in a run of terraform", workspace=workspace, exc_info=error)
        except asyncio.CancelledError:
            await self.stop()
            raise
        return True

    @property
    def _tasks(self) -> set[asyncio.Task[None]]:
        """All runs of this replica, of which one at most lists an account."""
        return {*self._running, *([self._listing] if self._listing is not None else [])}

    async def _listed(self, claim: ListingClaim) -> None:
        """List an account and store what has no workspace. A listing that is not stored is repeated."""
        began = monotonic_seconds()
        listings = self._workspaces.listings
        try:
            found, visibility = await self._list(claim.account)
        except LookUpFailed as error:
            LOG.warning("listing the resources of an account failed", account=claim.account.id, error=str(error))
            await listings.fail(claim, str(error))
            return
        finally:
            self._sweep_pause = sweep_pause(monotonic_seconds() - began, self._settings.sweep_share)
        orphans = await listings.finish(claim, found, visibility_seconds=visibility)
        LOG.info("listed an account", account=claim.account.id, resources=len(found), orphans=orphans)

    async def _ran(self, claim: RunClaim) -> None:
        """Run a claimed workspace and save its result, after errors again: only this process has its new state."""
        began = monotonic_seconds()
        if claim.problem:
            ended = Ended(Result(failure=claim.problem, nothing=True))
            LOG.error("terraform cannot run for a workspace", workspace=claim.workspace.id, problem=claim.problem)
        else:
            ended = await self._ended(claim)
        if claim.operation is Operation.REFRESH and self._settings.sweep_share > 0:
            self._sweep_pause = sweep_pause(monotonic_seconds() - began, self._settings.sweep_share)
        next_ = self._next(claim, ended)
        if claim.problem:  # whatever its phase
            next_ = Next(
                phase=claim.workspace.phase,
                due_seconds=RETRY_SECONDS_MAX / 10,
                failed_runs=claim.workspace.failed_runs + 1,
                instance_id=claim.workspace.instance_id,
                address=claim.workspace.address,
                problem=claim.problem,
            )
        await self._save(claim, ended, next_)

    def _next(self, claim: RunClaim, ended: Ended) -> Next:
        return after(
            claim.workspace,
            claim.operation,
            ended.result,
            unsettled_seconds=claim.unsettled_seconds,
            visibility_seconds=self._visibility(claim),
        )

    async def _ended(self, claim: RunClaim) -> Ended:
        """Run a workspace. After an error of our own its outcome is unknown."""
        try:
            ended = await self._run(claim)
        except Exception as error:
            LOG.exception("a run of terraform failed", workspace=claim.workspace.id)
            return Ended(Result(failure=f"{type(error).__name__}; the log has it", unknown=True, resources=1))
        if self._is_stopping and (ended.result.nothing or ended.result.unknown):
            return msgspec.structs.replace(
                ended, result=msgspec.structs.replace(ended.result, failure=INTERRUPTED, interrupted=True)
            )
        return ended

    async def _save(self, claim: RunClaim, ended: Ended, next_: Next) -> None:
        self._saving.add(claim.workspace.id)
        try:
            await self._saved(claim, ended, next_)
        finally:
            self._saving.discard(claim.workspace.id)

    async def _saved(self, claim: RunClaim, ended: Ended, next_: Next) -> None:
        while True:
            try:
                rejected = await self._workspaces.finish(claim, ended.state, next_)
            except Exception as error:
                LOG.error("saving the state of a run failed; retrying", workspace=claim.workspace.id, error=repr(error))
                await asyncio.sleep(SAVE_AGAIN_SECONDS)
                continue
            if rejected:
                LOG.error(
                    "the state of a run was rejected and stored beside the current one",
                    workspace=claim.workspace.id,
                    reason=rejected,
                )
            LOG.info(
                "ran terraform",
                workspace=claim.workspace.id,
                operation=claim.operation.value,
                phase=next_.phase.value,
                problem=next_.problem,
            )
            return

    async def _renew(self) -> None:
        if not self._running or monotonic_seconds() - self._renewed_at < RENEW_SECONDS:
            return
        lost = set(await self._workspaces.renew([*self._running.values()]))
        self._renewed_at = monotonic_seconds()  # after an outage nothing is claimed before all are renewed
        for task, claim in self._running.items():
            # One that has just been saved has released its lock.
            if claim.workspace.id in lost and not task.done() and claim.workspace.id not in self._saving:
                LOG.error("a run lost the lock of its workspace", workspace=claim.workspace.id)

    async def _make_due(self) -> None:
        now = monotonic_seconds()
        if now - self._looked_at >= SEARCH_SECONDS:
            self._looked_at = now
            await self._workspaces.refresh_unresponsive(self._settings.refresh_after_seconds)
            if self._settings.sweep_share > 0 and now - self._swept_at >= self._sweep_pause:
                self._swept_at = now
                await self._sweep()
        await self._list_next(all_=False)

    async def _sweep(self) -> None:
        """List an account or refresh a workspace, in turn while both are due."""
        self._lists_next = not self._lists_next
        if self._lists_next and await self._list_next(all_=True):
            return
        if not await self._workspaces.refresh_oldest(self._settings.sweep_seconds) and not self._lists_next:
            await self._list_next(all_=True)

    async def _list_next(self, *, all_: bool) -> bool:
        """Begin to list an account that is due, and could be run now; False if there is none."""
        if self._listing is not None or len(self._tasks) >= self._settings.runs_max:
            return False
        if (claim := await self._workspaces.listings.claim(all_=all_)) is None:
            return False
        self._listing = asyncio.create_task(self._listed(claim))
        return True

    async def stop(self) -> None:
        """Interrupt all runs, and save their states, for at most STOP_SECONDS. The database must be connected."""
        self._is_stopping = True
        for task, claim in self._running.items():
            if claim.workspace.id not in self._saving:
                task.cancel()
        if self._listing is not None:
            self._listing.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=STOP_SECONDS)
        unbegun = [claim for task, claim in self._running.items() if task.cancelled()]
        with contextlib.suppress(TimeoutError):  # then their locks lapse
            async with asyncio.timeout(RELEASE_SECONDS):
                for claim in unbegun:
                    resources = resources_of(claim.state)
                    ended = Ended(Result(failure=INTERRUPTED, nothing=True, interrupted=True, resources=resources))
                    await self._save(claim, ended, self._next(claim, ended))
        self._running.clear()
