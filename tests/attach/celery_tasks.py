"""The Celery app of `make attach QUEUE=celery`."""

import os
from typing import Any

from celery import Celery

from tests.attach.record import run

app: Any = Celery(broker=os.environ["QUEUE_URL"], backend=os.environ["QUEUE_URL"])
app.task(name="attach.run")(run)
