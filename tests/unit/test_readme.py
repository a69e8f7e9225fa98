"""Runner of documented commands."""

from pathlib import Path

import pytest

from tests.tools.readme import (
    BACKGROUND_ARGUMENTS,
    DEMO,
    Block,
    Command,
    Outcome,
    Wrong,
    blocks,
    commands,
    problem,
    read,
)

GOOD = """\
# Title

```sh
cd sub                # the folder applies to the following commands
NAME='a b'
echo "$NAME" |
  cat
cat <<END
# no comment
END
```

```yaml
never: run
```

<!-- expect: exit 3 -->
<!-- expect: in sub a b -->
```sh
true
echo "in ${PWD##*/} $NAME"; (exit 3)
```

```console
$ echo typed
printed
```
"""


def planted(tmp_path: Path, text: str) -> tuple[Path, Path]:
    """Tree with one document."""
    root = tmp_path / "root"
    (root / "sub").mkdir(parents=True)
    (root / "sub/file").touch()
    (root / "README.md").write_text(text)
    return root, root / "README.md"


async def outcomes(tmp_path: Path, text: str) -> list[Outcome]:
    root, document = planted(tmp_path, text)
    (tmp_path / "place").mkdir()
    return await read(root, [document], tmp_path / "place")


async def test_good_document(tmp_path: Path) -> None:
    """Each command runs once, in order, in one shell; expectations apply to the last command of their block."""
    found = await outcomes(tmp_path, GOOD)
    assert [(outcome.where, outcome.what, outcome.problem) for outcome in found] == [
        ("README.md:4", "cd sub                # the folder applies to the following commands", ""),
        ("README.md:5", "NAME='a b'", ""),
        ("README.md:6", 'echo "$NAME" | …', ""),
        ("README.md:8", "cat <<END …", ""),
        ("README.md:20", "true", ""),
        ("README.md:21", 'echo "in ${PWD##*/} $NAME"; (exit 3)', ""),
        ("README.md:25", "$ echo typed".removeprefix("$ "), ""),
    ]


async def test_failures_are_reported_and_the_rest_is_run(tmp_path: Path) -> None:
    """A failing command, unexpected output and a missing program are reported; files stay in the copy."""
    text = """
```sh
touch mess; echo why; false
```
<!-- expect: green -->
```sh
echo red
```
```sh
no-such-program
echo after
```
"""
    found = await outcomes(tmp_path, text)
    assert [outcome.problem.partition("\n")[0] for outcome in found] == [
        "exit 1",
        "its output has no 'green'",
        "exit 127",
        "",
    ]
    assert found[0].problem == "exit 1\nwhy"
    assert "no-such-program" in found[2].problem
    assert found[0].line().startswith("FAILED")
    assert not (tmp_path / "root/mess").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("```bash\nls\n```\n", "unknown language 'bash'"),
        ("```sh\nif true\n```\n", "would wait for more"),
        ("```sh\ncat <<END\n```\n", "would wait for more"),
        ("```sh\nls\n", "never closed"),
        ("```sh\n# nothing\n```\n", "no command"),
        ("```sh\nmake readme\n```\n", "run itself"),
        ("<!-- expect: exit 3 -->\n\ntext\n```sh\nls\n```\n", "right before its block"),
        ("<!-- expect: exit 3 -->\n```yaml\na: b\n```\n", "not run"),
        ("<!-- expect: exit 3 -->\n", "before no block"),
    ],
)
async def test_document_that_cannot_be_run(tmp_path: Path, text: str, reason: str) -> None:
    """A document that cannot be run is a failure, and its block is not skipped."""
    (outcome,) = await outcomes(tmp_path, text)
    assert reason in outcome.problem


def test_expectations() -> None:
    assert problem(0, "all good", ["good"]) == ""
    assert problem(3, "", ["exit 3"]) == ""
    assert problem(0, "", ["exit 3"]).startswith("exit 0, 3 was expected")
    assert problem(1, "last words", []) == "exit 1\nlast words"
    assert problem(None, "", []).startswith("took more than")


def test_long_commands_are_shortened_by_their_arguments() -> None:
    """A demo that runs beside other commands is not waited for."""
    block = Block(1, "sh", "make demo\nmake demo DURATION=0\nmake demo SEED=7\nls\n. .slipway/env")
    default, endless, short, listing, reading = commands(block)
    assert (default.background, default.shorter, default.demo) == (True, BACKGROUND_ARGUMENTS, DEMO)
    assert (endless.background, endless.shorter, endless.demo) == (True, BACKGROUND_ARGUMENTS, DEMO)
    assert (short.background, short.shorter, short.demo) == (False, {"DURATION": "5s"}, "")
    assert (listing.shorter, listing.demo) == (None, "")
    assert (reading.background, reading.demo) == (False, DEMO)


def test_python_is_one_program() -> None:
    text = "```python\nimport os\n\nprint(os.name)\n```\n"
    (block,) = blocks(text)
    assert commands(block) == [Command(1, "python", "import os\n\nprint(os.name)")]
    with pytest.raises(Wrong):
        commands(Block(1, "rust", "fn main() {}"))
