"""Assembly of the weight-calculator: its work, loops and routes."""

from slipway_common.base.settings import from_environment
from slipway_common.service import Loop, Service
from slipway_weight_calculator.http import signals, weights
from slipway_weight_calculator.loops.prune import PruneLoop
from slipway_weight_calculator.settings import Settings
from slipway_weight_calculator.work import Calculation

NAME = "weight-calculator"


def build(settings: Settings) -> Service:
    work = Calculation(
        settings.policies(),
        settings.signal_rules(),
        refresh_seconds=settings.refresh_seconds,
        republish_seconds=settings.republish_seconds,
    )
    return Service(
        NAME,
        settings,
        work=work,  # only the leader folds, publishes and issues permits
        loops=[Loop("prune", PruneLoop().step, tick_seconds=600.0)],
        routers=[weights.router, signals.router],
        state={"signal_rules": work.rules},
    )


def main() -> None:
    build(from_environment(Settings)).run()


if __name__ == "__main__":
    main()
