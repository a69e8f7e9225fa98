"""`slipway export`: the deployment as declarations that can be applied again."""

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import typer

from slipway_api.http.declaration import OwnedSpec
from slipway_api.percent import encoded
from slipway_client.cli.options import api_of
from slipway_client.transport.failed import Failed
from slipway_client.transport.http import Api

Declaration = dict[str, Any]


Format = Literal["yaml", "json"]
UNOWNED: Final = "unowned"
"""Name of the file with what has no owner."""

Owner = Annotated[str | None, typer.Option(metavar="NAME", help="Owner of what is exported [default: all owners]")]
Folder = Annotated[
    Path | None,
    typer.Option("--dir", metavar="DIR", file_okay=False, help="Folder for one file per owner [default: stdout]"),
]
AsFormat = Annotated[Format, typer.Option("-o", "--output", help="Output format")]


def export(context: typer.Context, owner: Owner = None, folder: Folder = None, output: AsFormat = "yaml") -> None:
    """Export the deployment as declarations

    Applied, they change nothing. What several owners declared needs --dir, which writes a file for each; `slipway apply
    -f DIR` restores all of them. What has no owner is in the file unowned.yaml, which owns it once it is applied.

    \b
    Examples:
      slipway export --dir backup
      slipway export --owner team-a > team-a.yaml
    """
    declarations = _declarations(api_of(context), owner)
    if not declarations:
        raise Failed(f"nothing is declared by {owner}" if owner else "nothing is declared")
    texts = {each: _text(declaration, output) for each, declaration in declarations.items()}
    if folder is not None:
        _write(folder, texts, f".{output}")
    elif len(texts) > 1:
        names = ", ".join(each or "nobody" for each in texts)
        raise Failed(
            f"several owners have declared this deployment: {names}.\n"
            "--dir DIR writes a file for each, and --owner NAME prints the declaration of one.",
            "several-owners",
        )
    else:
        sys.stdout.write(*texts.values())


def _declarations(api: Api, owner: str | None) -> dict[str, Declaration]:
    """Declaration of each owner, in the order of their names; that of nobody comes first."""
    from slipway_common.declaration.parsing import ENTRY

    sections: dict[str, list[OwnedSpec]] = {section: [] for section in ENTRY}
    for service in ("provisioner", "lease-broker"):
        sections |= api.get(dict[str, list[OwnedSpec]], service, "/declaration", owner=owner)
    found: dict[str, Declaration] = {}
    for each in sorted({row.owner for rows in sections.values() for row in rows}):
        found[each] = {"version": 1} | ({"metadata": {"owner": each}} if each else {})
    for section, rows in sections.items():
        for row in rows:
            found[row.owner].setdefault(section, []).append(_spec(section, row.spec))
    return found


def _spec(section: str, spec: Declaration) -> Declaration:
    """An entry of a section without its defaults. What a newer service has declared is kept as it is: to apply it takes
    a command that knows it."""
    from pydantic import ValidationError

    from slipway_common.declaration.parsing import ENTRY

    try:
        return ENTRY[section].model_validate(spec).model_dump(mode="json", exclude_defaults=True)
    except (KeyError, ValidationError):
        return spec


def _text(declaration: Declaration, output: Format) -> str:
    from slipway_common.declaration.strict_yaml import write

    if output == "json":
        return json.dumps(declaration, indent=2, ensure_ascii=False) + "\n"
    return write(declaration)


def _write(folder: Path, texts: Mapping[str, str], suffix: str) -> None:
    """Write the declaration of each owner into a file. The folder must have no other declarations, which an apply of
    it would apply too."""
    from slipway_client.cli.declarations import SUFFIXES

    try:
        folder.mkdir(parents=True, exist_ok=True)
        if old := sorted(file.name for file in folder.iterdir() if file.suffix in SUFFIXES):
            raise Failed(
                f"{folder} has declarations already, such as {old[0]}: give an empty folder", "folder-not-empty"
            )
        taken: set[str] = set()
        for owner, text in texts.items():
            file = folder / _file_name(owner, suffix, taken)
            file.write_text(text, encoding="utf-8")
            print(file)
    except OSError as error:
        raise Failed(f"{error.filename or folder} cannot be written: {error.strerror}", "not-written") from error


def _file_name(owner: str, suffix: str, taken: set[str]) -> str:
    """Name of an owner's file, which is not taken yet, also where capitals do not count."""
    name = encoded(owner.removesuffix(suffix) or UNOWNED)
    name = f"%2E{name[1:]}" if name.startswith(".") else name  # hidden files are not applied
    name += suffix
    while name.casefold() in taken:
        name += suffix
    taken.add(name.casefold())
    return name
