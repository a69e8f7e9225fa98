"""Check 25: TLS and net/rpc are refused, protocols 5 and 6 are served; on test programs and on real providers."""

import json
from pathlib import Path

import pytest
from msgspec import structs

from slipway_local.terraform import ledger, packages
from slipway_terraform.domain.errors import ProviderIncompatible
from slipway_terraform.domain.specs import Mode, ProviderSpec
from tests.support.plugins import plugin, plugins_in, shared, soon
from tests.support.terraform import installed


@pytest.mark.parametrize(
    ("fault", "reason", "text"),
    [
        ("tls", "tls", "requires TLS and cannot be reattached; start it in debug mode"),
        ("netrpc", "netrpc", "speaks netrpc, not gRPC, and cannot be shared; use a newer release"),
        ("protocol=4", "version", "speaks protocol 4 of Terraform; 5 and 6 can be shared"),
        ("protocol=7", "version", "speaks protocol 7 of Terraform; 5 and 6 can be shared"),
        ("tcp", "network", "listens on tcp 127.0.0.1:1, which has no protection"),
        ("elsewhere", "network", "where others may use it; it has to use TMPDIR"),
    ],
)
async def test_refused(sockets: Path, fault: str, reason: str, text: str) -> None:
    async with shared(sockets) as scheduler:
        with pytest.raises(ProviderIncompatible) as caught:
            await scheduler.acquire([plugin(fault)], owner="one", deadline=soon())
        assert caught.value.reason == reason
        assert text in str(caught.value)
        assert "registry.example/tests/plugin 1.0.0" in str(caught.value)
        assert not caught.value.retryable


@pytest.mark.parametrize(
    ("faults", "mode", "protocol"),
    [
        (("protocol=5",), Mode.COOKIE, 5),
        (("protocol=6",), Mode.COOKIE, 6),
        (("debug",), Mode.DEBUG, 6),
    ],
)
async def test_served(sockets: Path, faults: tuple[str, ...], mode: Mode, protocol: int) -> None:
    async with (
        shared(sockets) as scheduler,
        await scheduler.acquire([plugin(*faults, mode=mode)], owner="one", deadline=soon()) as lease,
    ):
        (entry,) = json.loads(lease.env["TF_REATTACH_PROVIDERS"]).values()
        assert entry["ProtocolVersion"] == protocol


async def test_real_providers(sockets: Path, tmp_path: Path) -> None:
    """The provider for AWS speaks protocol 5; one written in Python requires TLS, and speaks 6 in debug mode."""
    programs = installed()
    aws = ProviderSpec(
        source=packages.AWS.source,
        version=packages.AWS.version,
        binary=str(programs.aws),
        digest=packages.AWS.digest,
        configuration={"region": "us-east-1"},
    )
    path = tmp_path / "provider"
    written = ProviderSpec(
        source=ledger.SOURCE,
        version=ledger.VERSION,
        binary=str(path),
        digest=ledger.write_executable(path, programs.python),
        configuration={"folder": str(tmp_path)},
    )
    debugged = structs.replace(written, mode=Mode.DEBUG, arguments=("--dev",))
    async with shared(sockets) as scheduler:
        with pytest.raises(ProviderIncompatible) as caught:
            await scheduler.acquire([written], owner="one", deadline=soon())
        assert caught.value.reason == "tls"
        async with await scheduler.acquire([aws, debugged], owner="one", deadline=soon()) as lease:
            entries = json.loads(lease.env["TF_REATTACH_PROVIDERS"])
            assert {source: entry["ProtocolVersion"] for source, entry in entries.items()} == {
                packages.AWS.source: 5,
                ledger.SOURCE: 6,
            }
            assert len(plugins_in(sockets)) == 2
