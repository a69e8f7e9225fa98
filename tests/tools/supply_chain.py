"""`make audit`: what the images are made of, by tools of others: advisories, licences, bills of materials.

Exit codes: 0 everything was checked and nothing found, 1 something was found, 3 nothing was found, but not everything
could be checked, as where no advisories can be had.
"""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

ROOT: Final = Path(__file__).parents[2]
TOOLS: Final = Path(sys.prefix).with_name(".venv-audit") / "bin"
BILLS: Final = ROOT / ".sbom"
FOUND, UNCHECKED = 1, 3
SERVICES: Final = "requirements.services.lock"
IMAGES: Final = {
    "provisioner": (SERVICES, "requirements.aws.lock", "requirements.terraform.lock"),
    "weight-calculator": (SERVICES,),
    "lease-broker": (SERVICES,),
    "simulator": (SERVICES,),
    "monitor": (SERVICES, "requirements.aws.lock", "requirements.redis.lock"),
    "operations": (SERVICES, "requirements.operations.lock"),
}
"""Locks of what an image has, with all of its extras."""
LICENCES: Final = frozenset(
    {
        "0BSD",
        "Apache Software License",
        "Apache-2.0",
        "BSD License",
        "BSD-2-Clause",
        "BSD-3-Clause",
        "ISC License (ISCL)",
        "MIT",
        "MIT License",
        "MIT-0",
        "MPL-2.0",
        "Mozilla Public License 2.0 (MPL 2.0)",
        "PSF-2.0",
        "Python Software Foundation License",
    }
)
"""Licences of what may be shipped beside our MPL-2.0, as SPDX and as packages name them."""
NAMED: Final = re.compile(r"^([a-z0-9][a-z0-9._-]*)==(\S+)", re.MULTILINE)
DIGEST: Final = re.compile(r"@sha256:[0-9a-f]{64}$")


class Verdict(NamedTuple):
    """Lines of a check for people; `code` is 0, FOUND or UNCHECKED."""

    code: int
    lines: Sequence[str]


def pinned(locks: Iterable[str]) -> dict[str, str]:
    """Versions in locks, by package."""
    return {name: version for lock in locks for name, version in NAMED.findall((ROOT / lock).read_text())}


def shipped() -> tuple[str, ...]:
    """Every lock of an image, once."""
    return tuple(dict.fromkeys(lock for locks in IMAGES.values() for lock in locks))


def advisories(report: Mapping[str, Any] | None, number: int) -> Verdict:
    """Verdict on the report of pip-audit about `number` packages; None if it made none."""
    dependencies = [] if report is None else report["dependencies"]
    checked = [each for each in dependencies if "skip_reason" not in each]
    lines = [
        f"{each['name']} {each['version']}: {one['id']}, fixed in {', '.join(one['fix_versions']) or 'no release'}"
        for each in checked
        for one in each["vulns"]
    ]
    code = FOUND if lines else UNCHECKED if len(checked) < number else 0
    summary = f"advisories: {len(lines)} in {len(checked)} of {number} packages"
    unreached = "; the others have none here: the index answers no advisories" if len(checked) < number else ""
    return Verdict(code, [summary + unreached, *lines])


def licences(packages: Sequence[Mapping[str, str]], wanted: Mapping[str, str]) -> Verdict:
    """Verdict on the licences of the packages that are wanted. Of alternatives one has to be allowed, of several that
    hold together each."""
    known = {normal(each["Name"]): each["License"] for each in packages}
    wrong = [
        f"{name}: {known.get(name, 'unknown')} is not in the list of tests/tools/supply_chain.py"
        for name in sorted(wanted)
        if name in known and not is_allowed(known[name])
    ]
    absent = sorted(wanted.keys() - known.keys())
    text = f"licences: {len(wrong)} not allowed of {len(wanted) - len(absent)} packages"
    return Verdict(
        FOUND if wrong else UNCHECKED if absent else 0,
        [text + (f"; not installed here: {', '.join(absent)}" if absent else ""), *wrong],
    )


def is_allowed(licence: str) -> bool:
    """True if the allowed licences suffice for this SPDX expression, or for each of a list of classifiers."""
    return all(
        part in LICENCES or any(one.strip("() ") in LICENCES for one in part.split(" OR "))
        for part in re.split(r" AND |; ", licence)
    )


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def images() -> Verdict:
    """Verdict on the images of others: which are fixed by a digest."""
    text = "\n".join((ROOT / file).read_text() for file in ("docker-compose.yml", "Dockerfile"))
    named = re.findall(r"^(?:\s+image: |FROM |ARG PYTHON_IMAGE=)([a-z0-9./-]+:[\w.@:-]+)", text, re.MULTILINE)
    theirs = sorted({one for one in named if not one.startswith("slipway-")})
    without = [one for one in theirs if not DIGEST.search(one)]
    line = f"images: {len(theirs) - len(without)} of {len(theirs)} have a digest; by a tag alone: {', '.join(without)}"
    return Verdict(UNCHECKED if without else 0, [line])


def run(tool: str, *arguments: str | Path) -> "subprocess.CompletedProcess[str]":
    """Run one of the tools."""
    return subprocess.run([TOOLS / tool, *arguments], capture_output=True, text=True, check=False)


def check_advisories() -> Verdict:
    locks = shipped()
    given = [part for lock in locks for part in ("--requirement", ROOT / lock)]
    done = run("pip-audit", "--no-deps", "--disable-pip", "--progress-spinner=off", "--format=json", *given)
    report = msgspec.json.decode(done.stdout) if done.stdout.startswith("{") else None
    verdict = advisories(report, len(pinned(locks)))
    if report is None:
        return Verdict(verdict.code, [*verdict.lines, (done.stderr.splitlines() or ["pip-audit said nothing"])[-1]])
    return verdict


def check_licences() -> Verdict:
    done = run("pip-licenses", "--python", sys.executable, "--from=mixed", "--format=json")
    return licences(msgspec.json.decode(done.stdout), pinned(shipped()))


def write_bills() -> Verdict:
    """Write a bill of materials for each image, in the format CycloneDX."""
    BILLS.mkdir(exist_ok=True)
    lines = []
    for image, locks in IMAGES.items():
        path = BILLS / f"slipway-{image}.cdx.json"
        with tempfile.NamedTemporaryFile("w", suffix=".txt") as together:
            together.write("\n".join((ROOT / lock).read_text() for lock in locks))
            together.flush()
            options = ("--output-format=JSON", "--output-reproducible", "--output-file", path)
            done = run("cyclonedx-py", "requirements", *options, together.name)
        listed = msgspec.json.decode(path.read_bytes())["components"] if done.returncode == 0 else []
        missing = pinned(locks).keys() - {normal(each["name"]) for each in listed}
        if missing:
            return Verdict(FOUND, [f"bill of {image}: it lacks {', '.join(sorted(missing))}", done.stderr])
        lines.append(f"{path.relative_to(ROOT)}: {len(listed)} packages")
    return Verdict(0, ["bills of materials:", *lines])


def main() -> int:
    verdicts = [check_advisories(), check_licences(), write_bills(), images()]
    for verdict in verdicts:
        first, *others = verdict.lines
        print(first, *(f"  {line}" for line in others), sep="\n")
    codes = {verdict.code for verdict in verdicts}
    return FOUND if FOUND in codes else max(codes)


if __name__ == "__main__":
    sys.exit(main())
