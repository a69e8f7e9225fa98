"""Expected meaning of the error codes of EC2, written from its documentation and independent of the product's table."""

import csv
from pathlib import Path
from typing import Final

import msgspec

DATA: Final = Path(__file__).parents[1] / "data"


class Code(msgspec.Struct, frozen=True, kw_only=True):
    """An error of a call. `http` is a status, or `sdk` for an exception of the SDK. `advice` is what to do about it,
    `lease` what becomes of the lease of the launch, `window` the kinds of the rows whose windows shrink, `alert` the
    kind of the alert that is raised when it goes on."""

    code: str
    http: str
    message: str
    scope: str
    resource: str
    advice: str
    launched: str
    lease: str
    window: str
    alert: str

    @property
    def http_status(self) -> int:
        return 0 if self.http == "sdk" else int(self.http)

    def __str__(self) -> str:
        return self.code


class StateReason(msgspec.Struct, frozen=True, kw_only=True):
    """Reason of the end of an instance that AWS had accepted."""

    code: str
    message: str
    stage: str
    scope: str
    resource: str
    window: str
    alert: str

    def __str__(self) -> str:
        return self.code


def codes() -> list[Code]:
    with (DATA / "ec2_codes.tsv").open(encoding="utf-8", newline="") as file:
        return [Code(**row) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]


def state_reasons() -> list[StateReason]:
    with (DATA / "ec2_state_reasons.tsv").open(encoding="utf-8", newline="") as file:
        return [StateReason(**row) for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
