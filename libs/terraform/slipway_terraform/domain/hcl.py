"""Structure of Terraform's configuration files: blocks, their labels and the attributes in them. Pure.

Values of attributes are tokens, since nothing here evaluates an expression. The grammar is HCL's native syntax
(https://github.com/hashicorp/hcl/blob/main/hclsyntax/spec.md); a text that breaks it raises Unreadable, since a
module that cannot be read cannot be checked for provider blocks.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

_PLAIN: Final = re.compile(r"[ \t\r\ufeff]+|#[^\n]*|//[^\n]*|/\*.*?\*/", re.DOTALL)
_HEREDOC: Final = re.compile(r"<<-?([\w-]+)[ \t]*\r?\n")
_NAME: Final = re.compile(r"[^\W\d][\w-]*")
_OPENING, _CLOSING = frozenset("{[("), frozenset("}])")
_ESCAPES: Final = ("$${", "%%{")
_TEMPLATES: Final = ("${", "%{")


class Unreadable(Exception):
    """The text is not HCL; the message names the line."""


class Token(msgspec.Struct, frozen=True):
    """A name, a sign, a newline or a string. `text` of a string is its source without the quotes."""

    kind: str
    text: str
    line: int


class Block(msgspec.Struct, frozen=True):
    """One block: `provider "aws" { … }` has the kind `provider` and the label `aws`."""

    kind: str
    labels: Sequence[str]
    line: int
    attributes: Mapping[str, Sequence[Token]]
    blocks: "Sequence[Block]"


def read(text: str) -> Block:
    """The file as one block without a kind. Raises Unreadable."""
    return _Reader(_tokens(text)).body("", (), 1, is_file=True)


def _tokens(text: str) -> list[Token]:
    found: list[Token] = []
    at, line = 0, 1
    while at < len(text):
        begin = at
        if blank := _PLAIN.match(text, at):
            at = blank.end()
        elif heredoc := _HEREDOC.match(text, at):
            end = re.compile(rf"^[ \t]*{re.escape(heredoc[1])}[ \t]*\r?$", re.MULTILINE).search(text, heredoc.end())
            if end is None:
                raise Unreadable(f"line {line}: the heredoc {heredoc[1]} has no end")
            at = end.end()
            found.append(Token("string", text[heredoc.end() : end.start()], line))
        elif text[at] == '"':
            at = _after_string(text, at + 1, line)
            found.append(Token("string", text[begin + 1 : at - 1], line))
        elif name := _NAME.match(text, at):
            at = name.end()
            found.append(Token("name", name[0], line))
        else:
            at += 1
            found.append(Token("newline" if text[begin] == "\n" else "sign", text[begin], line))
        line += text.count("\n", begin, at)
    return found


def _after_string(text: str, at: int, line: int) -> int:
    """Place after the quote that ends the string which begins before `at`."""
    while at < len(text) and text[at] not in '"\n':
        if text[at] == "\\":
            at += 2
        elif text.startswith(_ESCAPES, at):
            at += 3
        elif text.startswith(_TEMPLATES, at):
            at = _after_template(text, at + 2, line)
        else:
            at += 1
    if at >= len(text) or text[at] != '"':
        raise Unreadable(f"line {line}: a string has no end")
    return at + 1


def _after_template(text: str, at: int, line: int) -> int:
    """Place after the brace that ends the template which begins before `at`."""
    depth = 1
    while at < len(text):
        if text[at] == '"':
            at = _after_string(text, at + 1, line)
            continue
        depth += (text[at] == "{") - (text[at] == "}")
        at += 1
        if not depth:
            return at
    raise Unreadable(f"line {line}: a template in a string has no end")


class _Reader:
    """Reads blocks from tokens, from the first to the last."""

    def __init__(self, tokens: Sequence[Token]) -> None:
        self.tokens = tokens
        self.at = 0

    def body(self, kind: str, labels: Sequence[str], line: int, *, is_file: bool = False) -> Block:
        attributes: dict[str, Sequence[Token]] = {}
        blocks: list[Block] = []
        while (token := self.next()) is not None:
            if token.kind == "newline":
                continue
            if token.text == "}" and token.kind == "sign" and not is_file:
                return Block(kind, labels, line, attributes, blocks)
            if token.kind != "name":
                raise Unreadable(f"line {token.line}: {token.text!r} begins neither a block nor an attribute")
            self.statement(token, attributes, blocks)
        if not is_file:
            raise Unreadable(f"line {line}: the block {kind} has no end")
        return Block(kind, labels, line, attributes, blocks)

    def statement(self, first: Token, attributes: dict[str, Sequence[Token]], blocks: list[Block]) -> None:
        """Read one attribute or block, whose name is `first`."""
        labels: list[str] = []
        while (token := self.next()) is not None:
            if token.kind in ("name", "string"):
                labels.append(token.text)
            elif token.text == "{":
                blocks.append(self.body(first.text, labels, first.line))
                return
            elif token.text == "=" and not labels:
                attributes[first.text] = self.expression()
                return
            else:
                break
        raise Unreadable(f"line {first.line}: {first.text} begins neither a block nor an attribute")

    def expression(self) -> Sequence[Token]:
        """Tokens until the end of the line, or the brace that closes the block of the same line."""
        found: list[Token] = []
        depth = 0
        while (token := self.next()) is not None:
            if depth == 0 and token.kind == "newline":
                break
            if token.kind == "sign":
                if depth == 0 and token.text == "}":
                    self.at -= 1
                    break
                depth += (token.text in _OPENING) - (token.text in _CLOSING)
            if token.kind != "newline":
                found.append(token)
        return found

    def next(self) -> Token | None:
        """The next token; None at the end."""
        if self.at == len(self.tokens):
            return None
        self.at += 1
        return self.tokens[self.at - 1]
