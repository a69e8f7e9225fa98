"""Entry point of the provisioner: its topics, loops and routes."""

import contextlib
import sys
import tempfile
from collections.abc import AsyncIterator
from functools import partial
from random import Random
from typing import Final

from slipway_api.events.topics import LAUNCH_CONFIG_SIGNAL, LEASE_LIFECYCLE, POOL_DEMAND
from slipway_common.base.settings import from_environment
from slipway_common.base.text import listed
from slipway_common.database.process_alerts import StartNotice
from slipway_common.measure import MEASURE_SECONDS
from slipway_common.service import Loop, Service
from slipway_common.web.bodies import REPORT_BYTES_MAX
from slipway_common.web.runtime import Runtime
from slipway_provisioner.apply.enrolment import Enroller
from slipway_provisioner.apply.recovery import stop_until_confirmed
from slipway_provisioner.apply.workspace_runs import WorkspaceRuns
from slipway_provisioner.domain.declaration import Times
from slipway_provisioner.domain.operator import in_environment
from slipway_provisioner.handlers import demand, leases, signals
from slipway_provisioner.handlers.heartbeats import HeartbeatView
from slipway_provisioner.handlers.weights import WeightView
from slipway_provisioner.http import (
    accounts,
    configs,
    decisions,
    declaration,
    fleet,
    limits,
    pools,
    recovery,
    sources,
    user_data,
    workers,
    workspaces,
)
from slipway_provisioner.http import consoles as console_routes
from slipway_provisioner.http import errors as error_routes
from slipway_provisioner.http import providers as provider_routes
from slipway_provisioner.loops import consoles, expire, plan, reap, resolve, roll_out, sweep, terminate, unleased
from slipway_provisioner.loops.check_accounts import AccountChecks
from slipway_provisioner.loops.launch import LAUNCH_LOOP, Launcher
from slipway_provisioner.loops.measure import measure
from slipway_provisioner.loops.watch import Watch, effects
from slipway_provisioner.loops.work import work
from slipway_provisioner.providers.installed import installed
from slipway_provisioner.providers.operator import UnusableSettings, permitted, running_commands
from slipway_provisioner.providers.operator import resolve as resolve_account
from slipway_provisioner.providers.port import Provider, ProviderSettings, TerraformSettings
from slipway_provisioner.settings import Settings
from slipway_provisioner.store import owners
from slipway_provisioner.store.pacing import SharedBuckets
from slipway_provisioner.store.retention import RETENTION

PAUSE_SECONDS: Final = 0.5
"""Pause of loops for which events are seldom. Only plans and launches follow each event at once: to look for work that
there is not costs as much as a decision."""


def build(settings: Settings) -> Service:
    """Assemble the service from its settings."""
    runtime = Runtime()
    providers: dict[str, Provider] = {}
    found = installed(
        ProviderSettings(
            timeout_seconds=settings.call_timeout_seconds,
            pacing=SharedBuckets(runtime.connected),
            accepted_seconds=settings.accepted_timeout_seconds,
            workspaces=WorkspaceRuns(
                runtime.connected, settings.state_key_ring(), resolve=partial(resolve_account, providers)
            ),
            terraform=_terraform(settings),
            child_user=settings.user_of_children(),
        )
    )
    providers |= permitted(found, settings.operator_settings())
    secrets_of = [] if settings.secrets_in_environment else in_environment(settings.operator_settings())
    if secrets_of:
        raise UnusableSettings(
            f"{listed(secrets_of)} would be read from the environment, which others are shown; write them into a file "
            "that only this user can read, and `file: PATH` instead of `environment`"
        )
    commands_of = [] if settings.child_user else running_commands(providers)
    if commands_of and not settings.commands_as_service:
        raise UnusableSettings(
            f"{listed(commands_of)} would run commands as the user of this service, who reads its keys and passwords; "
            "set SLIPWAY_CHILD_USER to another user, or SLIPWAY_COMMANDS_AS_SERVICE=yes"
        )
    rng = Random()  # noqa: S311 (spreads starts over replicas)
    wake = partial(runtime.wake, but=LAUNCH_LOOP)
    launcher = Launcher(settings, providers, wake=wake, publish=runtime.publish, rng=rng)
    heartbeats = HeartbeatView()
    unavailable = partial(heartbeats.unavailable_seconds, after_seconds=settings.unavailable_after_seconds)
    calculator_unavailable = partial(unavailable, "weight-calculator")
    planner = plan.Planner(
        settings=settings, calculator_unavailable_seconds=calculator_unavailable, publish=runtime.publish
    )
    broker_unavailable = partial(unavailable, "lease-broker")
    admit_unleased = partial(unleased.admit_unleased, settings=settings, broker_unavailable_seconds=broker_unavailable)
    sweep_next = partial(
        sweep.sweep_next,
        settings=settings,
        calculator_unavailable_seconds=calculator_unavailable,
        providers=providers,
    )

    @contextlib.asynccontextmanager
    async def open_providers() -> AsyncIterator[None]:
        # Calls in flight are not awaited: their outcome is unknown, and the next process resolves it.
        async with contextlib.AsyncExitStack() as stack:
            for provider in providers.values():
                stack.push_async_callback(provider.close)
                await provider.open()
            yield

    return Service(
        "provisioner",
        settings,
        runtime=runtime,
        consumes={
            POOL_DEMAND: demand.record_demand,
            LEASE_LIFECYCLE: leases.record_leases,
            LAUNCH_CONFIG_SIGNAL: partial(signals.record_requests, rules=settings.signal_rules()),
        },
        views=[WeightView(), heartbeats],
        loops=[
            Loop("plan", planner.step),
            Loop(
                "wake-waiting",
                partial(plan.wake_waiting, calculator_unavailable_seconds=calculator_unavailable),
                woken=False,
            ),
            Loop(
                "resend-requests",
                partial(plan.resend_requests, resend_seconds=settings.resend_seconds),
                pause_seconds=PAUSE_SECONDS,
            ),
            Loop("admit-unleased", admit_unleased, pause_seconds=PAUSE_SECONDS),
            Loop(LAUNCH_LOOP, launcher.launch_next),
            Loop("resolve", partial(resolve.resolve_next, launcher=launcher), pause_seconds=PAUSE_SECONDS),
            Loop("poll", partial(resolve.poll_next, launcher=launcher), pause_seconds=PAUSE_SECONDS),
            Loop(
                "expire",
                partial(expire.expire_next, settings=settings, providers=providers),
                pause_seconds=PAUSE_SECONDS,
            ),
            Loop(
                "terminate-instances",
                partial(terminate.terminate_instances, settings=settings, providers=providers),
                pause_seconds=PAUSE_SECONDS,
            ),
            Loop(roll_out.LOOP, roll_out.roll_out_next, pause_seconds=PAUSE_SECONDS),
            Loop(consoles.LOOP, partial(consoles.fetch_next, settings=settings, providers=providers), woken=False),
            Loop(reap.LOOP, reap.Reaper(settings, providers).reap_due, woken=False),
            Loop("check-accounts", AccountChecks(settings, providers).step, woken=False),
            Loop("watch", Watch(unavailable, effects(settings.broker_unavailable_mode)).step, woken=False),
            Loop("sweep", sweep_next, woken=False),
            *(
                Loop(f"work-{name}", partial(work, provider=provider), stop=provider.stop, pause_seconds=PAUSE_SECONDS)
                for name, provider in providers.items()
            ),
            Loop(
                "measure",
                measure(partial(heartbeats.unavailable_seconds, after_seconds=0)).step,
                MEASURE_SECONDS,
                woken=False,
            ),
        ],
        routers=[
            declaration.router,
            accounts.router,
            limits.router,
            provider_routes.router,
            pools.router,
            user_data.router,
            sources.router,
            configs.router,
            decisions.router,
            fleet.router,
            console_routes.router,
            error_routes.router,
            recovery.router,
            workers.router,
            workspaces.router,
        ],
        resources=[open_providers()],
        state={
            "settings": settings,
            "body_bytes_max": {"/declaration": declaration.BODY_BYTES_MAX, "/workers/register": REPORT_BYTES_MAX},
            "providers": providers,
            "owner_of": owners.of,
            "enroller": Enroller(
                providers, deadlines=settings.deadlines(), grace_seconds=settings.identity_grace_seconds
            ),
            "times": Times(
                call_timeout_seconds=settings.call_timeout_seconds,
                accepted_timeout_seconds=settings.accepted_timeout_seconds,
                clock_skew_seconds=settings.clock_skew_seconds,
            ),
        },
        retention=RETENTION,
        schema_minimum="0001",
        renewed=stop_until_confirmed,
        start_notices=[
            StartNotice(
                "commands-as-service",
                applies=bool(commands_of),
                summary=f"{listed(commands_of)} may run commands as the user of the provisioner",
                effect="who may declare an account of it can have a command read what this service reads",
                doing="runs them, since SLIPWAY_COMMANDS_AS_SERVICE is set",
                command="slipway doctor  # until SLIPWAY_CHILD_USER is set instead",
            )
        ],
    )


def _terraform(settings: Settings) -> TerraformSettings:
    return TerraformSettings(
        folder=settings.terraform_folder or f"{tempfile.gettempdir()}/slipway-terraform-{settings.port}",
        runs_max=settings.terraform_runs_max,
        shares=settings.terraform_shares_plugins,
        refresh_after_seconds=settings.unresponsive_timeout_seconds / 2,
        sweep_share=settings.terraform_sweep_share,
    )


def main() -> None:
    settings = from_environment(Settings)
    try:
        service = build(settings)
    except UnusableSettings as error:
        sys.exit(f"SLIPWAY_PROVIDERS: {error}")
    service.run()


if __name__ == "__main__":
    main()
