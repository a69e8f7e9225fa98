"""Metrics of the daemon over HTTP, and who may read them."""

from pathlib import Path

import httpx2
import pytest

from slipway_common.base.ids import hash_secret
from slipway_terraform.daemon.endpoint import EndpointUnavailable
from slipway_terraform.daemon.scrapes import serve_metrics


def test_a_token_of_the_file_reads_the_metrics(tmp_path: Path) -> None:
    """Whatever else is sent is refused without a word, also the sum itself. The file may change while it serves."""
    tokens = tmp_path / "metrics_tokens"
    tokens.write_text(f"{hash_secret('first')}\n{hash_secret('second')}\n")
    url = f"http://127.0.0.1:{serve_metrics(0, tokens)}/metrics"

    def status(sent: str = "") -> int:
        with httpx2.Client(trust_env=False) as client:
            answer = client.get(url, headers={"Authorization": sent} if sent else {})
        assert ("slipway_terraform_processes" in answer.text) == (answer.status_code == 200)
        return answer.status_code

    assert [status("Bearer first"), status("Bearer second")] == [200, 200]
    for sent in ("", "Bearer", "Bearer other", "first", "Basic first", f"Bearer {hash_secret('first')}"):
        assert status(sent) == 401, sent
    tokens.write_text(hash_secret("third"))
    assert [status("Bearer first"), status("Bearer third")] == [401, 200]
    tokens.unlink()
    assert status("Bearer third") == 401


@pytest.mark.parametrize("content", [None, "", "first\n", f"{'a' * 64} comment"])
def test_metrics_without_usable_tokens_are_not_served(tmp_path: Path, content: str | None) -> None:
    """The daemon ends with the remedy before it serves anything."""
    tokens = tmp_path / "metrics_tokens"
    if content is not None:
        tokens.write_text(content)
    with pytest.raises(EndpointUnavailable, match=f"metrics_tokens_file {tokens}.*sha256sum"):
        serve_metrics(0, tokens)
