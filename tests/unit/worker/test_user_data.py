"""User data of a worker."""

from pathlib import Path

import msgspec
import pytest

from slipway_client.worker.settings import Settings
from slipway_client.worker.user_data import InvalidUserData, UserData, read

GIVEN = {
    "register_url": "http://p:1/",
    "batch_id": "b",
    "secret": "hush",
    "settings": {"tasks_per_worker": 2, "idle_exit_seconds": None, "labels": ["x"]},
}


def test_read(tmp_path: Path) -> None:
    """Settings for the provider or the agent are ignored; null ones get defaults; the secret is not shown."""
    path = tmp_path / "user-data.json"
    path.write_bytes(msgspec.json.encode(GIVEN))
    data = read(str(path))
    assert data.settings == Settings(tasks_per_worker=2)
    assert (data.secret, data.queue_url, data.provisioner_url) == ("hush", "", "http://p:1")
    assert "hush" not in f"{data!r} {data} {[data]!r}"


@pytest.mark.parametrize("url", ["http://p:1", "http://p:1/", "http://p:1/workers/register"])
def test_the_provisioner_may_be_given_with_the_path(url: str) -> None:
    """With and without the path of the endpoint."""
    assert UserData(register_url=url, batch_id="b", secret="s").provisioner_url == "http://p:1"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (b"", "Input data was truncated"),
        (b"[]", "Expected `object`, got `array`"),
        (b'{"register_url": "u", "batch_id": "b"}', "missing required field `secret`"),
        (b'{"register_url": "u", "batch_id": "b", "secret": "hush", "settings": {"stop_seconds": 0}}', "stop_seconds"),
        (b'{"register_url": "u", "batch_id": "b", "secret": "hush", "settings": {"tasks_per_worker": 0}}', ">= 1"),
    ],
)
def test_unusable(tmp_path: Path, text: bytes, reason: str) -> None:
    """The message names the file and the problem, and quotes nothing of the data."""
    path = tmp_path / "user-data.json"
    path.write_bytes(text)
    with pytest.raises(InvalidUserData) as caught:
        read(str(path))
    assert reason in str(caught.value)
    assert str(path) in str(caught.value)
    assert "hush" not in str(caught.value)
    with pytest.raises(InvalidUserData, match="No such file"):
        read(str(tmp_path / "nowhere"))
