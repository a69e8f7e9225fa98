"""Contexts of TLS from files: what a handshake accepts, and files that are replaced."""

import ssl
from datetime import timedelta
from pathlib import Path

import pytest

from slipway_common.base.clock import utc_now
from slipway_common.base.tls import UnusableFile, certificate_expires_at, client_context, server_context
from tests.support.authority import Authority


def handshake(client: ssl.SSLContext, server: ssl.SSLContext, host: str = "localhost") -> ssl.SSLObject:
    """The client's side after a handshake in memory. Raises ssl.SSLError of the side that refuses."""
    to_client, to_server = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=host),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(4):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
    return ends[0]


def names(authority: Authority, server: ssl.SSLContext) -> str:
    """Common name of the certificate that a server presents."""
    certificate = handshake(client_context(ca_file=authority.ca_file), server).getpeercert()
    assert certificate is not None
    return str(dict(part[0] for part in certificate["subject"])["commonName"])  # type: ignore[misc]


def test_replaced_certificate(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    server = server_context(certificate_file=authority.issue("first", file="server"))
    assert names(authority, server) == "first"
    authority.issue("second", file="server")
    assert names(authority, server) == "second"


def test_unusable_replacement(tmp_path: Path) -> None:
    """A certificate without its key leaves the previous one in use until the key follows."""
    authority = Authority(tmp_path)
    path = authority.issue("first", file="server")
    server = server_context(certificate_file=path)
    path.write_text("-----BEGIN CERTIFICATE-----\n")
    assert names(authority, server) == "first"
    assert str(path) in server.problem
    authority.issue("second", file="server")
    assert names(authority, server) == "second"
    assert server.problem == ""


def test_replaced_authority(tmp_path: Path) -> None:
    """An authority that is no longer in the file is no longer trusted."""
    old, new = Authority(tmp_path, "old"), Authority(tmp_path, "new")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(old.ca_file.read_bytes())
    client = client_context(ca_file=trusted)
    handshake(client, server_context(certificate_file=old.issue("old-server")))
    trusted.write_bytes(new.ca_file.read_bytes())
    handshake(client, server_context(certificate_file=new.issue("new-server")))
    with pytest.raises(ssl.SSLCertVerificationError):
        handshake(client, server_context(certificate_file=old.issue("old-server")))


@pytest.mark.parametrize(
    ("hosts", "begins", "ends", "reason"),
    [
        (("other.example",), -1, 90, "Hostname mismatch"),
        (("localhost",), -10, -1, "certificate has expired"),
        (("localhost",), 1, 90, "certificate is not yet valid"),
    ],
)
def test_what_a_client_refuses(tmp_path: Path, hosts: tuple[str, ...], begins: int, ends: int, reason: str) -> None:
    authority = Authority(tmp_path)
    path = authority.issue("server", hosts=hosts, begins=timedelta(days=begins), ends=timedelta(days=ends))
    with pytest.raises(ssl.SSLCertVerificationError, match=reason):
        handshake(client_context(ca_file=authority.ca_file), server_context(certificate_file=path))


def test_client_certificates(tmp_path: Path) -> None:
    authority, other = Authority(tmp_path), Authority(tmp_path, "other")
    server = server_context(certificate_file=authority.issue("server"), client_ca_file=authority.ca_file)
    handshake(client_context(ca_file=authority.ca_file, certificate_file=authority.issue("client")), server)
    for certificate in (None, other.issue("client", file="foreign")):
        with pytest.raises(ssl.SSLError):
            handshake(client_context(ca_file=authority.ca_file, certificate_file=certificate), server)


def test_old_versions(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    client = ssl.create_default_context(cafile=authority.ca_file)
    client.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    with pytest.deprecated_call():
        client.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises(ssl.SSLError):
        handshake(client, server_context(certificate_file=authority.issue("server")))


def test_end_of_a_certificate(tmp_path: Path) -> None:
    path = Authority(tmp_path).issue("server", ends=timedelta(days=10))
    left = certificate_expires_at(path) - utc_now()
    assert timedelta(days=9.99) < left <= timedelta(days=10)
    with pytest.raises(UnusableFile):
        certificate_expires_at(tmp_path / "absent.pem")
