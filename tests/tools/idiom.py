"""Checks the mechanical part of the house style: docstrings, CLI help, banned words, class names, formatter exemptions.

`python -m tests.tools.idiom` prints a line per finding, as path:line: message, and exits with 1 if there is any. The
terms and their replacements are in docs/glossary.md.
"""

import ast
import re
import sys
from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Final

import msgspec

ROOT: Final = Path(__file__).parents[2]
HELP_CHARACTERS_MAX: Final = 60
EXEMPTIONS_MAX: Final = 20

# First words of a riddle: such a line asks what the object is instead of naming it.
RIDDLES: Final = frozenset({"What", "Who", "Whose", "Whom", "Whether", "Whoever", "Whatever", "That"})
# Words that only this project used, and that no ordinary sentence of the field needs.
BANNED: Final = re.compile(
    r"(?<![A-Za-z])"
    r"(?i:gates?|gated|desks?|errands?|wakes|deposed|astray|rowless|farewell|house-?keeping|whoever|buried|untold"
    r"|(?:open|closed)[ _-]circuits?|circuits?[ _-](?:is[ _-]|are[ _-]|was[ _-])?(?:open|closed))"
    r"(?![a-z])"
    r"|(?<=[a-z])(?:Gate|Desk|Errand|Wakes|Deposed|Farewell)(?![a-z])"
)
# Imperatives that a command's help may begin with.
VERBS: Final = frozenset(
    """
    Acquire Add Adopt Apply Archive Cancel Change Check Classify Compare Confirm Convert Create Declare Delete
    Demote Diagnose Drain Drop Edit Encrypt Explain Export Follow Freeze Get Grant Import Inspect Launch Lift
    List Manage Mark Pause Pin Plan Print Promote Publish Raise Record Recover Refuse Register Release Remove Renew
    Replay Report Reset Resume Retire Retry Roll Run Set Show Silence Start Stop Subscribe Tail Terminate Unfreeze Unpin
    Update Validate View Wait Watch Withdraw Write
    """.split()  # noqa: SIM905 # one word a line would be a page
)
# Classes of one name that are the same idea in two layers: an event and its row, a body and its value.
SAME_IDEA: Final[dict[str, frozenset[str]]] = {}

FOLDERS: Final = ("libs", "services", "tests", "bench", "contracts", "docs", "examples", "infra", "generate", ".ci")
SUFFIXES: Final = frozenset(
    {".py", ".md", ".toml", ".sql", ".yml", ".yaml", ".sh", ".mako", ".json", ".ini", ".txt", ""}
)
# Lists of words that are not used, and figures that were written once.
LEFT_OUT: Final = frozenset({"tests/tools/idiom.py", "tests/unit/test_idiom.py", "docs/glossary.md"})
RESULTS: Final = "bench/results/"
CHECKED_NODES: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef, ast.Call)


class Finding(msgspec.Struct, frozen=True, order=True):
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def files(root: Path = ROOT) -> Iterator[Path]:
    """Text files of the project, in order; nothing that a tool wrote beside them."""
    found = [file for file in root.iterdir() if file.is_file() and file.name != "LICENSE"]
    for folder in FOLDERS:
        found += [file for file in (root / folder).rglob("*") if file.is_file()]
    for file in sorted(found):
        path = file.relative_to(root)
        hidden = any((part.startswith(".") and part != ".ci") or part.endswith(".egg-info") for part in path.parts[:-1])
        if file.suffix in SUFFIXES and not hidden and "__pycache__" not in path.parts:
            yield file


def check(root: Path = ROOT) -> list[Finding]:
    """All findings of a tree, by path and line."""
    findings: list[Finding] = []
    classes: dict[tuple[str, str], list[str]] = defaultdict(list)
    exempt: list[Finding] = []
    functions: dict[tuple[str, str], Finding] = {}
    registered: set[tuple[str, str]] = set()
    for file in files(root):
        path = file.relative_to(root).as_posix()
        if path in LEFT_OUT or path.startswith(RESULTS) or path.endswith(".lock"):
            continue
        try:
            text = file.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        findings += banned(path, text)
        if file.suffix == ".py":
            tree = ast.parse(text)
            findings += [*docstrings(path, tree), *helps(path, tree)]
            functions |= {(file.stem, name): place for name, place in heads(path, tree)}
            registered |= set(registrations(tree))
            exempt += exemptions(path, text)
            package = program(path)
            for name, line in public_classes(tree) if package else ():
                classes[package, name].append(f"{path}:{line}")
    for key in registered & functions.keys():
        findings += help_of_command(functions[key].path, functions[key].line, functions[key].message)
    findings += exempt if len(exempt) > EXEMPTIONS_MAX else []
    return sorted([*findings, *twins(classes)])


def program(path: str) -> str:
    """Package whose public classes have one name each: a service, a library, or a program of its own in the client."""
    folders = path.split("/")[:-1]
    found = next((place for place, name in enumerate(folders) if name.startswith("slipway_")), None)
    if found is None:
        return ""
    return ".".join(folders[found : found + 1 + (folders[found] == "slipway_client")])


def banned(path: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        for match in BANNED.finditer(line):
            yield Finding(path, number, f"banned word {match[0]!r}; docs/glossary.md has the field's own")


@lru_cache(maxsize=1)
def checked_nodes(tree: ast.Module) -> Sequence[ast.AST]:
    """Nodes that the checks look at. Cached, since walking the tree takes most of the time of this tool."""
    return [node for node in ast.walk(tree) if isinstance(node, CHECKED_NODES)]


def docstrings(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Docstrings whose first word is a riddle."""
    for node in checked_nodes(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = first_word(ast.get_docstring(node) or "")
            if first in RIDDLES:
                line = 1 if isinstance(node, ast.Module) else node.lineno
                yield Finding(path, line, f"docstring begins with {first!r}; say what the object is or does")


def helps(path: str, tree: ast.Module) -> Iterator[Finding]:
    """Help texts of commands and options that are too long, or begin with the wrong kind of word."""
    for node in checked_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and any(map(is_command, node.decorator_list)):
            head = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
            yield from help_of_command(path, node.lineno, head)
        elif isinstance(node, ast.Call) and called(node) == "noun" and node.args:
            if (text := literal(node.args[0])) is not None:
                yield from help_of_command(path, node.lineno, text)
        elif isinstance(node, ast.Call) and called(node) in ("Option", "Argument", "Typer"):
            for keyword in node.keywords:
                text = literal(keyword.value)
                if keyword.arg == "help" and text is not None:
                    check_one = help_of_command if called(node) == "Typer" else help_of_option
                    yield from check_one(path, keyword.value.lineno, " ".join(text.partition("\n\n")[0].split()))


def heads(path: str, tree: ast.Module) -> Iterator[tuple[str, Finding]]:
    """Functions of a module by name, with their place and the first paragraph of their docstring."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            head = " ".join((ast.get_docstring(node) or "").partition("\n\n")[0].split())
            yield node.name, Finding(path, node.lineno, head)


def registrations(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Module and function of each `app.command()(module.function)`."""
    for node in checked_nodes(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Call) and called(node.func) == "command":
            for argument in node.args:
                if isinstance(argument, ast.Attribute) and isinstance(argument.value, ast.Name):
                    yield argument.value.id, argument.attr


def help_of_command(path: str, line: int, text: str) -> Iterator[Finding]:
    if not text:
        yield Finding(path, line, "command without a help text")
        return
    yield from length(path, line, text)
    if (first := first_word(text)) not in VERBS:
        yield Finding(path, line, f"help of a command begins with {first!r}, not with a verb of tests/tools/idiom.py")


def help_of_option(path: str, line: int, text: str) -> Iterator[Finding]:
    yield from length(path, line, text)
    first = first_word(text)
    if first in RIDDLES:
        yield Finding(path, line, f"help of an option begins with {first!r}; use a noun phrase: {text!r}")


def length(path: str, line: int, text: str) -> Iterator[Finding]:
    if len(text) > HELP_CHARACTERS_MAX:
        yield Finding(path, line, f"help has {len(text)} characters, above {HELP_CHARACTERS_MAX}: {text!r}")


def exemptions(path: str, text: str) -> Iterator[Finding]:
    for number, line in enumerate(text.splitlines(), 1):
        if re.search(r"#\s*fmt:\s*(skip|off)", line) and path != "tests/tools/idiom.py":
            yield Finding(path, number, f"more than {EXEMPTIONS_MAX} exemptions from the formatter, this is one")


def public_classes(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node.name, node.lineno


def twins(classes: dict[tuple[str, str], list[str]]) -> Iterator[Finding]:
    """Public classes of one name in one package, but for one idea in two layers."""
    for (package, name), places in classes.items():
        if len(places) > 1 and name not in SAME_IDEA.get(package, ()):
            path, _, line = places[-1].rpartition(":")
            yield Finding(path, int(line), f"second public class {name} of {package}; the first is {places[0]}")


def is_command(decorator: ast.expr) -> bool:
    """True for @app.command() and @app.command."""
    called_ = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called_, ast.Attribute) and called_.attr == "command"


def called(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def literal(node: ast.expr) -> str | None:
    """Text of a string literal; None for anything that only running shows."""
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None


def first_word(text: str) -> str:
    return (re.match(r"[A-Za-z]+", text.lstrip("`*\"'( \n")) or [""])[0]


def main(argv: Sequence[str]) -> int:
    findings = check(Path(argv[0]).resolve() if argv else ROOT)
    print(*findings, sep="\n") if findings else print("idiom ok")
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
