"""`slipway worker state`, `slipway worker unlock` and `slipway state-key` commands: Terraform states of workers."""

import os
import sys
from pathlib import Path
from typing import Annotated, Final

import typer

from slipway_api.http.provisioner import workspaces as answers
from slipway_client.cli.commands.workers import full_id
from slipway_client.cli.options import AsOutput, WorkerId, api_of, noun
from slipway_client.cli.tables import Field, Output, show
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import path
from slipway_client.view.phrases import count

app = noun("Manage the keys of Terraform states")
of_workers = typer.Typer(rich_markup_mode=None)

MODE: Final = 0o600
STDOUT: Final = Path("-")
GONE: Final = "gone"
Why = Annotated[str, typer.Option(metavar="TEXT", help="Reason for the audit")]


def _use(row: answers.StateKey) -> str:
    if not row.available:
        return "unavailable"
    return "encrypts" if row.encrypts else "decrypts"


FIELDS: Final[tuple[Field[answers.StateKey], ...]] = ("id", ("use", _use), "documents")


@of_workers.command("state")
def export_state(
    context: typer.Context,
    worker: WorkerId,
    export: Annotated[
        Path | None, typer.Option(metavar="FILE", help="New file for the state, mode 600 [default: print it]")
    ] = None,
    rejected: Annotated[bool, typer.Option(help="Newest rejected state in place of the stored one")] = False,
    reason: Why = "",
) -> None:
    """Export the Terraform state of a worker

    Decrypted, in Terraform's own format: it may contain secrets. Only workers made by a module have one. Audited.

    \b
    Examples:
      slipway worker state 3f9a12cd --export terraform.tfstate
      slipway worker state 3f9a12cd | jq .resources
    """
    id_ = full_id(api_of(context), worker)
    export = None if export == STDOUT else export
    if export is not None and export.exists():
        raise Failed(f"{export} exists already, and nothing was exported; choose another file")
    answer = api_of(context).post(
        answers.ExportedState, "provisioner", path("workers", id_, "state"), {"reason": reason, "rejected": rejected}
    )
    state = answer.state
    if export is None:
        print(state)
    else:
        try:
            with os.fdopen(os.open(export, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE), "w", encoding="utf-8") as file:
                file.write(state)
        except OSError as error:
            raise Failed(f"{export}: {error.strerror}; choose another file") from None
        print(f"state of worker {id_} written to {export}")
    if answer.rejected and not rejected:
        other = count(answer.rejected, "rejected state")
        print(f"this worker also has {other}; --rejected exports the newest", file=sys.stderr)


@of_workers.command()
def unlock(context: typer.Context, worker: WorkerId, reason: Why = "") -> None:
    """Release the lock of a worker's Terraform workspace

    Use it only after its run has certainly ended, for example with its host: two concurrent runs may create resources
    twice. What the run created is looked up at once, and a failed destruction is retried at once. Audited.

    \b
    Example:
      slipway worker unlock 3f9a12cd --reason "its host was removed"
    """
    id_ = full_id(api_of(context), worker)
    answer = api_of(context).post(
        answers.UnlockedWorkspace, "provisioner", path("workers", id_, "unlock"), {"reason": reason}
    )
    if answer.phase == GONE:
        print(f"workspace of worker {id_} is gone; there is nothing to unlock")
        return
    done = "unlocked" if answer.was_locked else "was not locked"
    print(f"workspace of worker {id_} {done}; its phase is {answer.phase}, and its next run is due now")


@app.command("ls")
def list_keys(context: typer.Context, output: AsOutput = Output.TABLE) -> None:
    """List the keys of Terraform states

    With the number of documents encrypted with each: states, rejected states, and inputs of launches. The keys
    themselves are in the file of SLIPWAY_STATE_KEYS_FILE of the provisioner; an unavailable key is missing there.

    \b
    Example:
      slipway state-key ls
    """
    show(api_of(context).rows(answers.StateKey, "provisioner", "/state-keys"), FIELDS, output, nothing="no state keys")


@app.command("rotate")
def rotate(context: typer.Context) -> None:
    """Encrypt all Terraform states with the first key

    Write the new key as the first line of the file of SLIPWAY_STATE_KEYS_FILE, keep the old one as the second, and
    rotate once it has reached every provisioner; then remove the old key. May be repeated. Documents that cannot be
    decrypted are skipped and named, with exit code 1.

    \b
    Example:
      slipway state-key rotate
    """
    encrypted, after = 0, None
    not_authentic: list[answers.UnauthenticDocument] = []
    while True:
        answer = api_of(context).post(answers.RotatedKeys, "provisioner", "/state-keys/rotate", {"after": after})
        encrypted += answer.encrypted
        not_authentic += answer.not_authentic
        if (after := answer.after) is None:
            break
    problems = [_not_authentic(document) for document in not_authentic]
    if (left := answer.left - len(not_authentic)) > 0:
        problems.append(f"{count(left, 'document')} not encrypted yet, in use by a run; rotate again")
    if answer.unavailable:
        lost = count(answer.unavailable, "document")
        problems.append(f"{lost} not encrypted: the key is unavailable. `slipway state-key ls` names it; add it again")
    already = "" if encrypted or problems else "; all were already"
    print(f"{count(encrypted, 'document')} encrypted with the first key{already}")
    if problems:
        raise Failed("\n".join(problems))


def _not_authentic(document: answers.UnauthenticDocument) -> str:
    """Problem with a document that no key can decrypt."""
    whose = f"worker {document.worker_id}" if document.worker_id else f"workspace {document.workspace_id}"
    return (
        f"{document.kind} of {whose} not encrypted: it was changed, or belongs to another row. Restore its row of "
        f"workspace_document ({document.workspace_id}, {document.kind}, {document.number}) from a backup, and "
        "rotate again; keep the old key until then"
    )
