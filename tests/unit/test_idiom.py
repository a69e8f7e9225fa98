"""The mechanical style check finds each kind of offence, names its line, and finds none in the tree."""

import ast
from pathlib import Path

import pytest

from tests.tools.idiom import banned, check, docstrings, exemptions, helps, public_classes, twins


def test_tree_is_clean() -> None:
    assert [str(finding) for finding in check()] == []


@pytest.mark.parametrize(
    "text",
    [
        "the gate shuts",
        "probe_gate = 1",
        "class LeaseDesk:",
        "an errand",
        "open circuit",
        "the circuit is closed",
        "Whoever waits",
        "house-keeping",
        "ROWLESS = 1",
        "DeposedError",
        "buried",
    ],
)
def test_banned_words_are_found(text: str) -> None:
    (finding,) = banned("x.py", f"\n{text}\n")
    assert finding.line == 2


@pytest.mark.parametrize("text", ["aggregate", "delegates", "the gateway answers", "propagated", "a closed client"])
def test_ordinary_words_are_not(text: str) -> None:
    assert list(banned("x.md", text)) == []


@pytest.mark.parametrize(
    ("source", "lines"),
    [
        ('"""What it is."""', [1]),
        ('class A:\n    """Whether."""', [1]),
        ('def f():\n    "`Who` asks."', [1]),
        ('"""Group commit for lease commands."""', []),
        ("def f():\n    return 1", []),
    ],
)
def test_docstrings_name_their_object(source: str, lines: list[int]) -> None:
    assert [finding.line for finding in docstrings("x.py", ast.parse(source))] == lines


COMMAND = '''
@app.command("renew")
def renew(tenant: str = typer.Option("", help="{option}")) -> None:
    """{command}"""
'''


@pytest.mark.parametrize(
    ("command", "option", "lines"),
    [
        ("Renew a lease and print its remaining TTL.", "Fair-share tenant [default: token name]", []),
        ("Renew a lease and print its remaining TTL.", "Whose share it counts in", [3]),
        ("A lease is renewed.", "Fair-share tenant", [3]),
        ("", "Fair-share tenant", [3]),
        ("Renew " + "x" * 60, "Fair-share tenant", [3]),
        ("Renew.", "Tenant " + "x" * 60, [3]),
    ],
)
def test_help_texts(command: str, option: str, lines: list[int]) -> None:
    tree = ast.parse(COMMAND.format(command=command, option=option))
    assert [finding.line for finding in helps("x.py", tree)] == lines


def test_commands_registered_elsewhere_and_groups_are_read(tmp_path: Path) -> None:
    """`app.command()(module.function)` and `noun(help)`."""
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "why.py").write_text('def why():\n    """A state is explained."""\n')
    (tmp_path / "libs" / "cli.py").write_text('app.command()(why.why)\ngroup = noun("Whose alerts are open")\n')
    assert [(finding.path, finding.line) for finding in check(tmp_path)] == [("libs/cli.py", 2), ("libs/why.py", 1)]


def test_two_classes_of_one_name() -> None:
    tree = ast.parse("class A: ...\nclass _B: ...")
    assert list(public_classes(tree)) == [("A", 1)]
    (finding,) = twins({("slipway_x", "A"): ["a.py:1", "b.py:7"], ("slipway_x", "C"): ["a.py:3"]})
    assert (finding.path, finding.line) == ("b.py", 7)


def test_exemptions_from_the_formatter_are_counted() -> None:
    assert len(list(exemptions("x.py", "a = 1  # fmt: skip\n# fmt: off\nb = 2\n"))) == 2


def test_a_tree_with_an_offence(tmp_path: Path) -> None:
    (tmp_path / "libs").mkdir()
    (tmp_path / "libs" / "a.py").write_text('"""Whether it works."""\n')
    assert [str(finding) for finding in check(tmp_path)] == [
        "libs/a.py:1: docstring begins with 'Whether'; say what the object is or does"
    ]
