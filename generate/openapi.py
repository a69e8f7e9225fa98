"""OpenAPI documents of the services and of the simulator, from their routes."""

from typing import Any, Final

from fastapi import FastAPI

from slipway_common.service import Service
from slipway_lease_broker import main as lease_broker
from slipway_lease_broker.boskos import openapi as boskos
from slipway_lease_broker.settings import Settings as LeaseBrokerSettings
from slipway_provisioner import main as provisioner
from slipway_provisioner.settings import Settings as ProvisionerSettings
from slipway_simulator import main as simulator
from slipway_simulator.settings import Settings as SimulatorSettings
from slipway_weight_calculator import main as weight_calculator
from slipway_weight_calculator.settings import Settings as WeightCalculatorSettings

NOWHERE: Final[dict[str, Any]] = {"database_url": "", "kafka": ""}

# Of no deployment: documents need a service that starts.
KEY = "cmVnaXN0cmF0aW9uIGtleSBvZiB0aGUgdGVzdHMuLi4="


def documents() -> dict[str, dict[str, Any]]:
    """Name of each API → its document."""
    return {name: app.openapi() for name, app in apps().items()} | {"lease-broker-boskos": boskos.document()}


def apps() -> dict[str, FastAPI]:
    """Name of each service and of the simulator → its routes."""
    return {service.name: service.app() for service in _services()} | {
        "simulator": simulator.build(SimulatorSettings())
    }


def _services() -> list[Service]:
    """The services with settings that no route shows; none of them is started."""
    return [
        lease_broker.build(LeaseBrokerSettings(**NOWHERE)),
        provisioner.build(ProvisionerSettings(**NOWHERE, registration_keys=KEY)),
        weight_calculator.build(WeightCalculatorSettings(**NOWHERE)),
    ]
