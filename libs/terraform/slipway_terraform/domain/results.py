"""Results of runs: what a run of the CLI changed, and why it failed."""

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Final

import msgspec


class Command(StrEnum):
    """Subcommands that a caller runs."""

    PLAN, APPLY, REFRESH, DESTROY, IMPORT = "plan", "apply", "refresh", "destroy", "import"


class Plugins(StrEnum):
    """Origin of the plugins of a run: a lease of the scheduler, or the CLI itself."""

    LEASED, OWN = "leased", "own"


class Scope(StrEnum):
    """Subject to which a failure is attributed."""

    CONFIG, CAPACITY, QUOTA, IMAGE = "config", "capacity", "quota", "image"
    CREDENTIAL, LIMITER = "credential", "limiter"
    NOTHING = "nothing"
    """Our own machine or a person's interruption: nothing is known about the cloud, and nothing was done there."""
    UNCLASSIFIED = "unclassified"
    """A definite failure of unknown meaning."""
    OUTCOME_UNKNOWN = "outcome-unknown"
    """Resources may exist that are not in the state: look them up by their tags before another attempt."""


RETRYABLE = frozenset({Scope.CAPACITY, Scope.LIMITER, Scope.NOTHING})
"""Scopes after which the same run may succeed later without any change. An unknown outcome is looked up first."""


PLUGIN_LOST: Final = "PluginLost"
PLUGIN_GONE: Final = "PluginGone"
SHARED_UNSAFELY: Final = "SharedUnsafely"
STATE_LOST: Final = "StateLost"
PLUGIN_CODES: Final = frozenset({PLUGIN_LOST, PLUGIN_GONE, SHARED_UNSAFELY})
"""Codes of our own about the plugin: it ended during a call, or before the first one, or served two configurations."""


class Diagnostic(msgspec.Struct, frozen=True):
    """One error or warning, redacted. `address` is that of the resource, if it concerns one."""

    severity: str
    summary: str
    detail: str = ""
    address: str = ""
    file: str = ""

    def __str__(self) -> str:
        return ": ".join(part for part in (self.address, self.summary, self.detail) if part)


class Changes(msgspec.Struct, frozen=True):
    """Numbers of resources that a plan would change or a run has changed."""

    add: int
    change: int
    remove: int

    @property
    def exists(self) -> bool:
        """True if a plan creates nothing: every resource exists."""
        return self.add == 0

    @property
    def is_up_to_date(self) -> bool:
        """True if a plan updates nothing."""
        return self.change == 0


class Failure(msgspec.Struct, frozen=True, kw_only=True):
    """Reason why a run failed. `unresolved` are addresses of resources whose creation, change or destruction began and
    has no known end."""

    scope: Scope
    code: str
    message: str
    diagnostics: tuple[Diagnostic, ...] = ()
    unresolved: tuple[str, ...] = ()

    @property
    def retryable(self) -> bool:
        return self.scope in RETRYABLE

    @property
    def distrusts_plugin(self) -> bool:
        """True if the plugin must serve no other run: it was lost, or has served two configurations."""
        return self.scope is Scope.OUTCOME_UNKNOWN or self.code in PLUGIN_CODES


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """One run that began. Its state must be saved, failed or not.

    `state` is the content of the state file after the run, None if there is none; `errored_state` the newer one that
    the CLI could not write there. `unshared` is the reason why the CLI started its own plugins.
    """

    command: Command
    plugins: Plugins
    unshared: str = ""
    state: bytes | None = None
    errored_state: bytes | None = None
    outputs: Mapping[str, Any] = {}
    changes: Changes | None = None
    failure: Failure | None = None
    seconds: float = 0.0

    @property
    def newest_state(self) -> bytes | None:
        return self.errored_state if self.errored_state is not None else self.state

    def __repr__(self) -> str:
        """Without state and outputs, which hold secrets."""
        return f"Run({self.command}, {self.plugins}, changes={self.changes}, failure={self.failure})"
