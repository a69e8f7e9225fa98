"""The provisioner's input of a decision on the virtual clock, counted from workers' rows and weight records. Pure."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from math import inf
from typing import Final, TypeAlias

from slipway_common.declaration.identity import config_name
from slipway_common.declaration.models import WorkerPool
from slipway_common.events.launch_config import LaunchConfigCreated
from slipway_common.events.lifecycle import IN_FLIGHT, REGISTERED
from slipway_common.events.scopes import (
    NEW_SHARED_WINDOWS,
    NEW_WINDOWS,
    Key,
    capacity_of,
    credential_key,
    image_key,
    quota_of,
)
from slipway_common.events.weight import SharedWindow, WeightChanged
from slipway_common.events.worker import WorkerEvent
from slipway_local.demo.replay.run import Pool
from slipway_provisioner.domain import pool as observed
from slipway_provisioner.domain.workers import Worker, ended_stage
from slipway_simulator.queue import Counts

Levels: TypeAlias = Counter[tuple[str, str]]
"""Starts in flight by config and stage."""
# Starts in an earlier stage arrive in the later ones.
ARRIVING: Final = {"launch": ("launch",), "boot": ("launch", "boot"), "claim": ("launch", "boot", "claim")}


class Provisioner:
    """Rows of all live workers, failures by config and stage, and the newest records and shared windows."""

    def __init__(self, pools: Mapping[str, WorkerPool], regions: Mapping[str, str]) -> None:
        self.configs = {
            pool_id: [_declared(pool, place, regions) for place in range(len(pool.launch_configs))]
            for pool_id, pool in pools.items()
        }
        self.place_of = {
            config.launch_config_id: place for configs in self.configs.values() for place, config in enumerate(configs)
        }
        self.shares = {
            config.launch_config_id: _shares(config) for configs in self.configs.values() for config in configs
        }
        self.rows: dict[str, Worker] = {}  # of live workers
        self.spent: set[tuple[str, int]] = set()  # permits of workers, by config
        self.failures: Counter[tuple[str, str]] = Counter()
        self.records: dict[str, WeightChanged] = {}
        self.shared: dict[observed.Share, SharedWindow] = {}
        self.drawn: Counter[str] = Counter()  # launches by pool
        self.frozen: set[str] = set()  # pools

    def all_configs(self) -> Iterator[LaunchConfigCreated]:
        for configs in self.configs.values():
            yield from configs

    def save(self, row: Worker, event: WorkerEvent) -> None:
        """Store a changed row, and count the failure that its event reports, if any."""
        self.rows[row.id] = row
        if row.probe_permit is not None:
            self.spent.add((row.launch_config_id, row.probe_permit))
        ended = ended_stage(event)
        if ended is not None and ended[2]:
            self.failures[ended[:2]] += 1

    def apply(self, record: WeightChanged) -> None:
        """Apply a published record to the view."""
        self.records[record.launch_config_id] = record
        for window in record.shared:
            share = Key(window.kind, window.id), window.stage
            known = self.shared.get(share)
            if known is None or known.version < window.version:
                self.shared[share] = window

    def observe(self, pool: Pool, counts: Counts, *, idle_timeout_seconds: float) -> observed.Observed:
        """Input of a decision for a pool with these tasks."""
        declared, configs = pool.declared, self.configs[pool.id]
        levels = self._levels()
        mine = [(worker, self.rows[worker.id]) for worker in pool.workers.values()]
        return observed.Observed(
            pool=observed.Pool(
                id=pool.id,
                min_capacity=declared.min_capacity,
                max_capacity=declared.max_capacity,
                scaling_ratio=declared.scaling_ratio,
                mode=declared.mode or "enforce",
                frozen=pool.id in self.frozen,
                drawn=self.drawn[pool.id],
                on_bad_image=declared.on_bad_image,
                freeze_after=declared.freeze_after,
            ),
            demands=[
                observed.Demand(
                    source="queue",
                    pending=counts.pending,
                    claimed=counts.claimed,
                    gone=0,
                    stale=False,
                    fresh_seconds=inf,
                )
            ],
            fleet=observed.Fleet(serving=len(mine), leaving=0),
            configs=[self._config(pool, config, levels) for config in configs],
            shared=self._shared(configs, levels),
            waiting=[
                observed.Waiting(worker_id=row.id, config_id=row.launch_config_id, permit=row.probe_permit)
                for worker, row in mine
                if worker.waits
            ],
            idle=sorted(
                (
                    observed.Idle(worker_id=row.id, config_id=row.launch_config_id, since=row.idle_since)
                    for _, row in mine
                    if row.state in REGISTERED and row.idle_since is not None
                ),
                key=lambda idle: idle.since,
            ),
            idle_timeout_seconds=idle_timeout_seconds,
        )

    def _levels(self) -> Levels:
        """Starts in flight by config and stage."""
        found: Levels = Counter()
        for row in self.rows.values():
            for stage, states in IN_FLIGHT.items():
                if row.state in states and (stage != "claim" or row.first_claimed_at is None):
                    found[row.launch_config_id, stage] += 1
        return found

    def _config(self, pool: Pool, config: LaunchConfigCreated, levels: Levels) -> observed.Config:
        id_, known = config.launch_config_id, self.records.get(config.launch_config_id)
        prior = config.base_weight * config.price_factor
        permit = known.probe_permit if known is not None else None
        is_tripped = known is not None and known.state != "healthy"
        is_free = known is not None and known.probe_ready and (id_, permit) not in self.spent
        return observed.Config(
            id=id_,
            name=config.name,
            current_id=id_,
            account_id=config.account_id,
            lease_pool_id="",
            image_revision=config.image_revision,
            max_capacity=pool.configs[self.place_of[id_]].max_capacity,
            live=sum(row.launch_config_id == id_ for row in self.rows.values()),
            weight=known.weight if known is not None else prior,
            prior_weight=prior,
            tripped=is_tripped,
            permit=permit if is_free and is_tripped else None,
            last_permit=permit,
            shares=self.shares[id_],
            launch=self._stage(config, "launch", levels),
            boot=self._stage(config, "boot", levels),
            claim=self._stage(config, "claim", levels),
        )

    def _stage(self, config: LaunchConfigCreated, stage: str, levels: Levels) -> observed.Stage:
        id_, known = config.launch_config_id, self.records.get(config.launch_config_id)
        published = known.stages[stage] if known is not None else None
        window = published.window if published is not None else NEW_WINDOWS[stage]
        return observed.Stage(
            in_flight=levels[id_, stage],
            failures=self.failures[id_, stage],
            folded=published.failures_folded if published is not None else 0,
            window=None if stage == "claim" and config.claim_evidence == "none" else window,
        )

    def _shared(self, configs: Sequence[LaunchConfigCreated], levels: Levels) -> list[observed.Shared]:
        """Shares of these configs, with what the configs of all pools have in flight in them."""
        found = []
        for share in dict.fromkeys(share for config in configs for share in self.shares[config.launch_config_id]):
            key, stage = share
            known, size = self.shared.get(share), NEW_SHARED_WINDOWS.get((key.kind, stage))
            users = [config for config in self.all_configs() if share in self.shares[config.launch_config_id]]
            arriving = ARRIVING[stage]
            found.append(
                observed.Shared(
                    key=key,
                    stage=stage,
                    in_flight=sum(levels[config.launch_config_id, name] for config in users for name in arriving),
                    unfolded=sum(self._stage(config, stage, levels).unfolded for config in users),
                    window=known.window if known is not None and size is not None else size,
                    tripped=known is not None and known.state == "tripped",
                    reason=known.reason if known is not None else "",
                    unconfirmed=known.unconfirmed if known is not None else 0,
                )
            )
        return found


def _declared(pool: WorkerPool, place: int, regions: Mapping[str, str]) -> LaunchConfigCreated:
    config = pool.launch_configs[place]
    name = config_name(pool, config)
    return LaunchConfigCreated(
        launch_config_id=name,
        name=name,
        pool_id=pool.id,
        account_id=config.account,
        region=regions[config.account],
        zone=config.zone,
        instance_type=config.instance_type,
        image_revision=config.image,
        base_weight=config.base_weight,
        price_factor=config.price_factor,
        state="active",
        revision=1,
        profile=config.profile or pool.profile,
        boot_evidence=pool.evidence.boot,
        claim_evidence=pool.evidence.claim,
        on_bad_image=pool.on_bad_image,
        freeze_after=pool.freeze_after,
    )


def _shares(config: LaunchConfigCreated) -> list[observed.Share]:
    """Shares of a config, in the order in which they trip it."""
    image = image_key(config.image_revision)
    quota = quota_of(config)
    stages = ("boot", "launch") if config.claim_evidence == "none" else ("boot", "claim", "launch")
    others = (quota, credential_key(config.account_id), capacity_of(config))
    return [*((image, stage) for stage in stages), *((key, "launch") for key in others)]
