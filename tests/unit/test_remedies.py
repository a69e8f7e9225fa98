"""The command of every alert is one that can be typed: each is read from the code, and parsed as the command line does.

Values are replaced by words, so that a command that is built from text for people (`image linux-1`) fails.
"""

import ast
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from typer._click.exceptions import UsageError
from typer.core import TyperGroup
from typer.main import get_command

import slipway_common
import slipway_lease_broker
import slipway_provisioner
import slipway_weight_calculator
from slipway_api.events.scopes import Key
from slipway_client.cli.main import app

PACKAGES: Final = (slipway_common, slipway_provisioner, slipway_weight_calculator, slipway_lease_broker)
BY_PROVIDERS: Final = frozenset({"first.remedy"})
"""Commands of a provider's own tool, which the tests of providers check."""
OTHER_PROGRAMS: Final = frozenset({"openssl", "infra/kafka/acls.sh"})
WORD: Final = "word"


def alerts() -> Iterator[tuple[str, str]]:
    """Place and command of each alert in the services and in what they share."""
    for path in (path for package in PACKAGES for path in Path(package.__path__[0]).rglob("*.py")):
        tree = ast.parse(path.read_text())
        for function in ast.walk(tree):
            if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            arguments = function.args
            assigned = {
                argument.arg: default
                for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)
                if default is not None
            } | {
                target.id: node.value
                for node in ast.walk(function)
                if isinstance(node, ast.Assign)
                for target in node.targets
                if isinstance(target, ast.Name)
            }
            for call in ast.walk(function):
                given = {word.arg: word.value for word in call.keywords} if isinstance(call, ast.Call) else {}
                if "command" in given and (
                    {"subject_kind", "doing"} & given.keys() or isinstance(given.get(None), ast.Call)
                ):
                    where = f"{path.parent.name}/{path.name}:{given['command'].lineno}"
                    yield from ((where, command) for command in commands(given["command"], assigned))


def commands(node: ast.expr, assigned: dict[str, ast.expr]) -> Iterator[str]:
    """The texts that an expression may have; a table has one for each of its values."""
    match node:
        case ast.Subscript(value=ast.Dict(values=values)):
            for value in values:
                yield from commands(value, assigned)
        case ast.IfExp(body=body, orelse=orelse):
            yield from commands(body, assigned)
            yield from commands(orelse, assigned)
        case ast.Name(id=name) if name in assigned:
            yield from commands(assigned[name], assigned)
        case _ if ast.unparse(node) not in BY_PROVIDERS:
            yield text(node, assigned)


def text(node: ast.expr, assigned: dict[str, ast.expr]) -> str:
    """An expression as text, with words for its values."""
    match node:
        case ast.Constant(value=str(value)):
            return value
        case ast.JoinedStr(values=parts):
            return "".join(text(part, assigned) for part in parts)
        case ast.FormattedValue(value=value):
            return text(value, assigned)
        case ast.Name(id=name) if name in assigned:
            return text(assigned[name], assigned)
        case ast.Name(id="image"):
            return str(Key("image", WORD))
        case ast.BinOp(left=left, right=right):
            return text(left, assigned) + text(right, assigned)
        case ast.Call(func=ast.Attribute(attr="join"), args=[ast.List(elts=elements)]):
            return " ".join(text(element, assigned) for element in elements)
        case ast.Call(func=ast.Attribute(attr="quote"), args=[value]):
            return text(value, assigned)
        case ast.Call(func=ast.Name(id="image_key")):
            return str(Key("image", WORD))
        case _:
            return "1" if "units" in ast.unparse(node) else WORD


COMMANDS: Final = sorted(alerts())


def test_every_alert_was_found() -> None:
    assert len(COMMANDS) > 25


@pytest.mark.parametrize("command", [command for _, command in COMMANDS], ids=[where for where, _ in COMMANDS])
def test_the_command_of_an_alert_can_be_typed(command: str) -> None:
    """A comment may say when."""
    assert problem(command) == "", command


def problem(command: str) -> str:
    """Refusal of a command by the command line; empty if it takes it."""
    name, *words = shlex.split(command, comments=True)
    if name in OTHER_PROGRAMS:
        return ""
    context, found = None, get_command(app)
    try:
        while True:
            context = found.make_context(name, list(words), parent=context)
            if not isinstance(found, TyperGroup):
                return "" if context.find_root().info_name == "slipway" else f"{name} is another program"
            _, sub, words = found.resolve_command(context, [*context._protected_args, *context.args])
            assert sub is not None
            name, found = sub.name or "", sub
    except UsageError as error:
        return error.message
