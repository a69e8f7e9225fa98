"""Health signals of launch configs: apply, extend, clear, expire, and drop those beyond a source's share of a pool.
Pure."""

from msgspec.structs import replace

from slipway_api.events.scopes import Key, config_key, credential_key
from slipway_api.events.signal import SignalRaised
from slipway_common.base.signal_rules import DEFAULT_RULES, Rules, is_for_provisioner
from slipway_weight_calculator.domain import health, signals, trips
from slipway_weight_calculator.domain.draft import Draft
from slipway_weight_calculator.domain.rows import STAGES, Config, name_key, pool_key
from slipway_weight_calculator.domain.signals import Signal


def apply(draft: Draft, event: SignalRaised, at: float, rules: Rules = DEFAULT_RULES) -> str:
    """Apply a signal received at `at`; returns the reason if it has no effect.

    The reason is empty if the signal has an effect here or is for the provisioner.
    """
    boot = draft.boot(event.target_id) if event.target_kind == "worker" else None
    booting = boot.config_id if boot is not None else ""
    configs = _candidates(draft, event, booting)
    reached = signals.reached(event, configs, booting)
    live = {signal.key: signal for id_ in configs for signal in draft.signals_on(id_) if signal.until > at}
    problem = signals.problem(event, reached, configs, live, at, rules)
    if problem or is_for_provisioner(event):
        return problem
    draft.touched |= {configs[config_id].key for config_id in reached}
    if event.kind == "recovered":
        for key in signals.cleared(event, live):
            _drop(draft, key, live[key])
        for config_id in sorted(reached):
            health.bring_forward(draft, configs[config_id], STAGES, at, by=trips.brought_forward_by_signal)
    draft.set_signal(*signals.signal_of(event, reached, at))
    return ""


def extend(draft: Draft, config: Config, now: float) -> None:
    """Extend the live signals on other revisions of a config's name to it, if they are about it too.

    A launch config that is down stays down when its image changes; a signal on the image before ends with that.
    """
    siblings = draft.members(config.name) - {config.id}
    for signal in {signal.key: signal for id_ in sorted(siblings) for signal in draft.signals_on(id_)}.values():
        if signal.until > now and signals.is_about(signal.target_kind, signal.target_id, config):
            draft.touched.add(config.key)
            reached = tuple(sorted({*signal.configs, config.id}))
            draft.set_signal(signal.key, replace(signal, configs=reached))


def enforce_shares(draft: Draft, config_id: str, now: float, rules: Rules = DEFAULT_RULES) -> list[tuple[Signal, str]]:
    """Drop signals by which a source would trip more than its share of a pool after a config has changed.

    The newest ones go first. Returns the dropped signals with the reasons.
    """
    dropped = []
    found = (draft.world.configs.get(config_id), draft.config(config_id))
    for pool_id in sorted({config.declared.pool_id for config in found if config is not None}):
        ids = sorted(draft.members(pool_key(pool_id)))
        configs = {id_: config for id_ in ids if (config := draft.config(id_)) is not None}
        live = {signal.key: signal for id_ in configs for signal in draft.signals_on(id_) if signal.until > now}
        for key, why in signals.exceeding_share(pool_id, configs, live, rules) if live else ():
            _drop(draft, key, live[key])
            dropped.append((live[key], why))
    return dropped


def expire(draft: Draft, key: str, when: float, now: float) -> None:
    """Delete a signal at the end of its TTL."""
    signal = draft.live_signal(key)
    if signal is not None and signal.until == when:
        _drop(draft, key, signal)


def _drop(draft: Draft, key: str, signal: Signal) -> None:
    draft.touched.update(map(config_key, signal.configs))
    draft.set_signal(key, None)


def _candidates(draft: Draft, event: SignalRaised, booting: str) -> dict[str, Config]:
    """Configs that a signal may reach, and the others of their pools, of which it may trip only a share."""
    target = event.target_id
    ids: set[str] = {
        "config": {target} | draft.members(name_key(target)),
        "worker": {booting},
        "pool": draft.members(pool_key(target)),
        "account": draft.members(credential_key(target)),
        "image": {*draft.world.configs, *draft.configs},
        "capacity": draft.members(Key("capacity", target)),
        "zone": {*draft.world.configs, *draft.configs},
    }.get(event.target_kind, set())
    pools = {config.pool for id_ in ids if (config := draft.config(id_)) is not None}
    ids = ids.union(*(draft.members(pool) for pool in pools))
    return {id_: config for id_ in sorted(ids) if (config := draft.config(id_)) is not None}
