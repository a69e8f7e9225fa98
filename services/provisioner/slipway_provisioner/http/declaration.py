"""Routes of the declaration: all of it, and single pools with their history."""

from collections.abc import AsyncIterator
from typing import Annotated, Any, Final, Literal

import msgspec
from fastapi import APIRouter, Depends, Query, Request, Response

from slipway_common.database.postgres import Connection, Database
from slipway_common.declaration.changes import ConfirmationRequired
from slipway_common.declaration.strict_yaml import DocumentProblem, Invalid
from slipway_common.web.access import require
from slipway_common.web.problem import Problem
from slipway_common.web.runtime import database, wake
from slipway_provisioner.apply import declaration
from slipway_provisioner.apply.declaration import PreconditionFailed
from slipway_provisioner.domain import declaration as domain
from slipway_provisioner.domain.declaration import SECTIONS, Applied, DeclarationRefused, OwnedByAnother, Reading
from slipway_provisioner.store import declarations
from slipway_provisioner.store.declarations import ChangedMeanwhile

router = APIRouter(tags=["declaration"])
DatabaseDep = Annotated[Database, Depends(database)]
Caller = Annotated[str, Depends(require("declaration:write"))]
LINES: Final = "application/x-ndjson"
BODY_BYTES_MAX: Final = 50_000_000
