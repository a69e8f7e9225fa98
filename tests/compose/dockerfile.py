"""Parser for the subset of Dockerfiles that the project uses; anything else is an error instead of being ignored.

As in the Dockerfile reference, variables are substituted except in RUN, CMD and HEALTHCHECK, where they come from the
environment.
"""

import re
import shlex
from collections.abc import Mapping
from typing import Final

import msgspec

KNOWN: Final = {
    "FROM",
    "ARG",
    "ENV",
    "WORKDIR",
    "COPY",
    "RUN",
    "USER",
    "CMD",
    "ENTRYPOINT",
    "HEALTHCHECK",
    "LABEL",
    "EXPOSE",
    "STOPSIGNAL",
}
FLAGS: Final = {
    "COPY": {"from", "chown", "chmod"},
    "HEALTHCHECK": {"interval", "timeout", "start-period", "start-interval", "retries"},
}


class BadDockerfile(ValueError):
    """The Dockerfile has something that this parser does not support; the message has the line."""


class Instruction(msgspec.Struct, frozen=True):
    line: int
    keyword: str
    flags: dict[str, str]
    text: str

    def exec_form(self) -> list[str]:
        """Words of a JSON array; raises BadDockerfile for the shell form."""
        try:
            return msgspec.json.decode(self.text, type=list[str])
        except msgspec.DecodeError:
            raise BadDockerfile(f"line {self.line}: {self.keyword} has to be a JSON array: {self.text}") from None

    def pairs(self) -> dict[str, str]:
        """NAME=value pairs, unquoted, before the substitution of variables."""
        words = [word.partition("=") for word in shlex.split(self.text)]
        if not all(equals for _, equals, _ in words):
            raise BadDockerfile(f"line {self.line}: {self.keyword} takes NAME=value: {self.text}")
        return {name: value for name, _, value in words}


class Stage(msgspec.Struct, frozen=True):
    """One build stage. `base` is the name of an image or of an earlier stage."""

    name: str
    base: str
    instructions: list[Instruction]

    def last(self, keyword: str) -> Instruction | None:
        return next((one for one in reversed(self.instructions) if one.keyword == keyword), None)


class Dockerfile(msgspec.Struct, frozen=True):
    stages: list[Stage]

    @property
    def final(self) -> Stage:
        return self.stages[-1]

    def external_images(self) -> list[str]:
        """External images: bases, and sources of COPY --from."""
        own = {stage.name for stage in self.stages}
        named = [stage.base for stage in self.stages]
        named += [one.flags["from"] for s in self.stages for one in s.instructions if "from" in one.flags]
        return sorted(set(named) - own)

    def environment(self) -> dict[str, str]:
        """ENV of the final stage with ARG defaults substituted; $PATH is kept."""
        known: dict[str, str] = {}
        result: dict[str, str] = {}
        for one in self.final.instructions:
            if one.keyword == "ARG":
                name, _, value = one.text.partition("=")
                known[name] = substitute(value, known, one.line)
            elif one.keyword == "ENV":
                added = {n: substitute(v, {"PATH": "$PATH", **known}, one.line) for n, v in one.pairs().items()}
                result |= added
                known |= added
        return result


def parse(text: str) -> Dockerfile:
    """Parse a Dockerfile; raises BadDockerfile."""
    stages: list[Stage] = []
    arguments: dict[str, str] = {}
    for one in _instructions(text):
        if one.keyword == "FROM":
            words = substitute(one.text, arguments, one.line).split()
            if len(words) not in (1, 3) or (len(words) == 3 and words[1].upper() != "AS"):
                raise BadDockerfile(f"line {one.line}: FROM image [AS name], not {one.text!r}")
            stages.append(Stage(words[2] if len(words) == 3 else str(len(stages)), words[0], []))
        elif stages:
            stages[-1].instructions.append(one)
        elif one.keyword == "ARG":
            name, _, value = one.text.partition("=")
            arguments[name] = value
        else:
            raise BadDockerfile(f"line {one.line}: {one.keyword} before FROM")
    if not stages:
        raise BadDockerfile("line 1: no FROM")
    return Dockerfile(stages)


def substitute(text: str, variables: Mapping[str, str], line: int) -> str:
    """Substitute $NAME and ${NAME}; raises BadDockerfile for an unknown name or another form."""

    def value(found: re.Match[str]) -> str:
        name = found["plain"] or found["braced"]
        if not name or name not in variables:
            raise BadDockerfile(f"line {line}: {found[0]} is not known here")
        return variables[name]

    return re.sub(r"\$(?:(?P<plain>\w+)|\{(?P<braced>\w+)\}|.?)", value, text)


def _instructions(text: str) -> list[Instruction]:
    found: list[Instruction] = []
    pending, begin = "", 0
    for number, raw in enumerate(text.splitlines(), start=1):
        line = raw.strip()
        if line.startswith("#"):
            if re.match(r"#\s*(escape|syntax|check)\s*=", line):
                raise BadDockerfile(f"line {number}: parser directives are not known: {line}")
            continue
        if not line:
            if pending:
                raise BadDockerfile(f"line {number}: an empty line inside an instruction")
            continue
        begin = begin or number
        if line.endswith("\\"):
            pending += line[:-1].rstrip() + " "
            continue
        found.append(_instruction(pending + line, begin))
        pending, begin = "", 0
    if pending:
        raise BadDockerfile(f"line {begin}: the file ends inside an instruction")
    return found


def _instruction(text: str, line: int) -> Instruction:
    keyword, _, rest = text.partition(" ")
    keyword, rest = keyword.upper(), rest.strip()
    if keyword not in KNOWN:
        raise BadDockerfile(f"line {line}: {keyword} is not known")
    if keyword == "RUN" and (rest.startswith("--") or re.search(r"<<-?['\"]?\w", rest)):
        raise BadDockerfile(f"line {line}: RUN with flags or a here-document is not known")
    flags: dict[str, str] = {}
    while rest.startswith("--"):
        flag, _, rest = rest.partition(" ")
        name, _, value = flag[2:].partition("=")
        if name not in FLAGS.get(keyword, set()):
            raise BadDockerfile(f"line {line}: {keyword} {flag} is not known")
        flags[name], rest = value, rest.strip()
    return Instruction(line, keyword, flags, rest)


def ignored(path: str, rules: str) -> bool:
    """True if .dockerignore excludes a file of the context: the last matching rule decides."""
    verdict = False
    for rule in (line.strip() for line in rules.splitlines()):
        if not rule or rule.startswith("#"):
            continue
        kept, pattern = rule.startswith("!"), rule.removeprefix("!").strip("/")
        body = re.escape(pattern).replace(r"\*\*/", "(?:.*/)?").replace(r"\*", "[^/]*").replace(r"\?", "[^/]")
        if re.fullmatch(f"{body}(?:/.*)?", path):
            verdict = not kept
    return verdict
