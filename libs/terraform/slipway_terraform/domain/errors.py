"""Errors of this package: each says what was wrong, where, and what to do; none holds a secret."""

from typing import Literal


class TerraformError(Exception):
    """Base of all errors of this package. `retryable`: the same call may succeed later."""

    retryable: bool = False


class SharingUnsafe(TerraformError):
    """The module configures a provider itself, so that one process would serve two configurations."""


class Unschedulable(TerraformError):
    """No process can ever serve these specifications together."""


class ProviderIncompatible(TerraformError):
    """The plugin cannot be shared: it speaks net/rpc or another protocol version, requires TLS, or listens on TCP."""

    def __init__(self, text: str, *, reason: Literal["netrpc", "tls", "version", "network"] = "version") -> None:
        super().__init__(text)
        self.reason = reason


class ProviderStartError(TerraformError):
    """The plugin did not start. `exit_code` is None if it did not exit by itself, negative for a signal; `stderr` is
    the redacted end of its output. `retryable` is false for a binary that has to be changed first."""

    def __init__(self, text: str, *, exit_code: int | None = None, stderr: str = "", retryable: bool = True) -> None:
        super().__init__(text)
        self.exit_code = exit_code
        self.stderr = stderr
        self.retryable = retryable


class HandshakeTimeout(ProviderStartError):
    """The plugin ran and printed no handshake in time."""


class ReuseBudgetExceeded(TerraformError):
    """Compatibility mode only: the process has served more invocations than its TTL and the margin allow."""

    retryable = True


class QueueTimeout(TerraformError):
    """No process was free before the deadline."""

    retryable = True


class QueueFull(TerraformError):
    """Too many callers wait already."""

    retryable = True


class SchedulerClosed(TerraformError):
    """The scheduler shuts down and takes no new callers."""

    retryable = True


class ProviderCrashed(TerraformError):
    """The leased process exited before the invocation began: nothing was done, another lease gets another process."""

    retryable = True


class OutcomeUnknown(TerraformError):
    """The process exited during the invocation: what it created may exist without being in the state."""


class SpecInvalid(TerraformError):
    """The job or a provider specification contradicts itself."""


class ToolMissing(TerraformError):
    """There is no program at the configured path, or it cannot be executed."""


class ToolUnsupported(TerraformError):
    """The program is neither Terraform nor OpenTofu, or too old."""


class ModuleMissing(TerraformError):
    """There is no module in the folder."""


class ModuleInvalid(TerraformError):
    """A file of the module is unreadable, or the module needs what the job does not provide."""


class DigestMismatch(TerraformError):
    """A module or a provider does not have the digest that the job names."""


class OperationInProgress(TerraformError):
    """Another operation of this workspace runs."""

    retryable = True


class InitFailed(TerraformError):
    """Modules or providers could not be installed; `output` is the redacted end of what the tool printed."""

    def __init__(self, text: str, *, output: str = "") -> None:
        super().__init__(text)
        self.output = output


class DiskFull(TerraformError):
    """A file could not be written before anything was run."""

    retryable = True


class RunInterrupted(TerraformError):
    """The run was interrupted before it began: nothing was done."""

    retryable = True
