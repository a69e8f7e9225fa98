"""Verdicts of `make audit` on what its tools report."""

from typing import Any

import pytest

from tests.tools.supply_chain import FOUND, IMAGES, UNCHECKED, advisories, is_allowed, licences, pinned

BAD: dict[str, Any] = {"id": "PYSEC-1", "fix_versions": ["2.1"]}
GOOD: dict[str, Any] = {"name": "a", "version": "1", "vulns": []}
SKIPPED: dict[str, Any] = {"name": "b", "skip_reason": "Dependency not found on PyPI"}


@pytest.mark.parametrize(
    ("dependencies", "code", "first"),
    [
        ([GOOD, GOOD | {"name": "b"}], 0, "advisories: 0 in 2 of 2 packages"),
        ([GOOD, SKIPPED], UNCHECKED, "advisories: 0 in 1 of 2 packages; the others have none here"),
        ([GOOD | {"vulns": [BAD]}, SKIPPED], FOUND, "advisories: 1 in 1 of 2 packages"),
        (None, UNCHECKED, "advisories: 0 in 0 of 2 packages"),
    ],
)
def test_packages_without_advisories_are_not_called_safe(
    dependencies: list[dict[str, Any]] | None, code: int, first: str
) -> None:
    """Where no index answers, the exit code says so."""
    found = advisories(None if dependencies is None else {"dependencies": dependencies}, 2)
    assert found.code == code
    assert found.lines[0].startswith(first)
    if code == FOUND:
        assert found.lines[1] == "a 1: PYSEC-1, fixed in 2.1"


@pytest.mark.parametrize(
    ("licence", "allowed"),
    [
        ("MIT", True),
        ("MIT OR GPL-3.0", True),
        ("MIT AND GPL-3.0", False),
        ("Apache-2.0 AND (MIT OR GPL-3.0)", True),
        ("Mozilla Public License 2.0 (MPL 2.0)", True),
        ("Apache Software License; BSD License", True),
        ("Apache Software License; GNU General Public License v2 (GPLv2)", False),
        ("UNKNOWN", False),
    ],
)
def test_a_licence_is_allowed_by_the_list_alone(licence: str, allowed: bool) -> None:
    assert is_allowed(licence) == allowed


def test_a_package_that_is_not_installed_is_named() -> None:
    packages = [{"Name": "A_b", "License": "MIT"}, {"Name": "tool-of-ours", "License": "GPL-3.0"}]
    found = licences(packages, {"a-b": "1", "elsewhere": "1"})
    assert (found.code, found.lines) == (
        UNCHECKED,
        ["licences: 0 not allowed of 1 packages; not installed here: elsewhere"],
    )
    assert licences([{"Name": "a-b", "License": "GPL-3.0"}], {"a-b": "1"}).code == FOUND


def test_every_lock_of_an_image_is_read() -> None:
    """With the packages of its extras; more of them than of the services alone."""
    sizes = {image: len(pinned(locks)) for image, locks in IMAGES.items()}
    assert sizes["provisioner"] > sizes["simulator"] > 30
