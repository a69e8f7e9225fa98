"""Assembly of the weight-calculator: its work, loops and routes."""

from slipway_common.base.settings import from_environment
from slipway_common.service import Service
from slipway_weight_calculator.http import signals, weights
from slipway_weight_calculator.settings import Settings
from slipway_weight_calculator.store.retention import RETENTION
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
        routers=[weights.router, signals.router],
        state={"signal_rules": work.rules},
        retention=RETENTION,
    )


def main() -> None:
    build(from_environment(Settings)).run()


if __name__ == "__main__":
    main()
