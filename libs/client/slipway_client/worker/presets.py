"""Presets of `slipway-worker wrap`: how known agents report their tasks, and how they are asked to leave. Pure.

The hooks of an agent are files for its own interpreter, which may be another one than that of this process.
"""

from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Final

CELERY: Final = ("--include=slipway_celery", "--prefetch-multiplier=1")
"""Options of a Celery worker: one that fetches tasks ahead of those that it runs keeps them from the others."""
HOOKS: Final = Path(__file__).parent / "preset_hooks"


class Preset(StrEnum):
    """Agents that report their tasks without hooks of yours. All drain on SIGTERM: they end their task and exit."""

    CELERY = "celery"
    RQ = "rq"
    GENERIC = "generic"

    @property
    def leader_alone(self) -> bool:
        """True if signals are for the agent's first process alone: a process of Celery's pool ends its task at SIGTERM,
        and that of RQ has a group of its own."""
        return self is Preset.CELERY


def prepared(preset: Preset, command: Sequence[str], python_path: str) -> list[str]:
    """The command of an agent with its hooks. `python_path`: PYTHONPATH of this process.

    `celery … worker` imports a module that listens to its signals and fetches no more tasks than it runs, `rq worker`
    takes a class of worker; another program calls `slipway-worker hook` itself.
    """
    found = ":".join(part for part in (str(HOOKS), python_path) if part)
    match preset:
        case Preset.CELERY:
            return ["env", f"PYTHONPATH={found}", *command, *CELERY]
        case Preset.RQ:
            return ["env", f"PYTHONPATH={found}", *command, "--worker-class=slipway_rq.ReportingWorker"]
        case Preset.GENERIC:
            return list(command)
