"""What the weight-calculator consumes, does and answers, on one screen."""

from functools import partial

from slipway_common.service import Loop, Service
from slipway_common.settings import from_environment
from slipway_common.topics import LAUNCH_CONFIG_LIFECYCLE, WORKER_LIFECYCLE
from slipway_weight_calculator.handlers import configs, outcomes
from slipway_weight_calculator.http import weights
from slipway_weight_calculator.loops.publish import PublishLoop
from slipway_weight_calculator.loops.watch import WatchLoop
from slipway_weight_calculator.settings import Settings

NAME = "weight-calculator"


def build(settings: Settings) -> Service:
    policy = settings.policy()
    return Service(
        NAME,
        settings,
        consumes={
            WORKER_LIFECYCLE: partial(outcomes.fold_outcomes, policy=policy),
            LAUNCH_CONFIG_LIFECYCLE: configs.record_configs,
        },
        loops=[
            Loop("publish", PublishLoop(policy, settings.republish_seconds).step, tick_seconds=0.1),
            Loop("watch", WatchLoop(policy, settings.refresh_seconds).step, tick_seconds=0.1),
        ],
        routers=[weights.router],
    )


def main() -> None:
    build(from_environment(Settings)).run()


if __name__ == "__main__":
    main()
