"""Source `keda`: the value of any scaler of KEDA, from the external metrics API of Kubernetes."""

from collections.abc import Sequence
from decimal import Decimal, InvalidOperation
from math import ceil
from typing import Any, ClassVar, Final
from urllib.parse import quote

from slipway_api.http.provisioner.demand import TASKS_MAX
from slipway_monitor.domain.counts import Counting, Counts, Unreadable
from slipway_monitor.sources.web import Web, WebSettings

API: Final = "/apis/external.metrics.k8s.io/v1beta1/namespaces"
SUFFIXES: Final = {
    "n": Decimal("1e-9"), "u": Decimal("1e-6"), "m": Decimal("1e-3"), "": Decimal(1),
    "k": Decimal(10**3), "M": Decimal(10**6), "G": Decimal(10**9), "T": Decimal(10**12),
    "Ki": Decimal(2**10), "Mi": Decimal(2**20), "Gi": Decimal(2**30), "Ti": Decimal(2**40),
}  # fmt: skip


class KedaSettings(WebSettings):
    """Settings of a metric of a ScaledObject, as `kubectl get scaledobject -o yaml` names it."""

    countings: ClassVar = frozenset({Counting.WAITING, Counting.WAITING_AND_RUNNING})
    namespace: str
    scaled_object: str
    metric: str


class KedaSource:
    """A metric of a ScaledObject."""

    Settings = KedaSettings

    def __init__(self, settings: KedaSettings) -> None:
        self._settings = settings
        self._web = Web(settings)

    async def read(self) -> Sequence[Counts]:
        settings = self._settings
        path = f"{API}/{quote(settings.namespace, safe='')}/{quote(settings.metric, safe='')}"
        selector = f"scaledobject.keda.sh/name={settings.scaled_object}"
        body = await self._web.get(path, {"labelSelector": selector})
        try:
            values = [quantity(each["value"]) for each in body["items"]]
        except (KeyError, TypeError):
            raise Unreadable("the answer is no list of external metrics") from None
        if len(values) != 1:
            raise Unreadable(f"the metric has {len(values)} values, not one")
        return [Counts(values[0])]

    async def close(self) -> None:
        await self._web.close()


def quantity(text: Any) -> int:
    """Tasks in a quantity of Kubernetes such as "5", "1500m" or "2k"; a part of a task is one. Raises Unreadable."""
    number = str(text).rstrip("".join(SUFFIXES)) if isinstance(text, str) else ""
    try:
        value = Decimal(number) * SUFFIXES[str(text)[len(number) :]]
    except (InvalidOperation, KeyError):
        raise Unreadable("the value is not a quantity") from None
    if not value.is_finite() or not 0 <= value <= TASKS_MAX:
        raise Unreadable(f"the value is {value:.15g}, not a number of tasks from 0 to {TASKS_MAX:,}")
    return ceil(value)
