"""TLS contexts whose certificates, keys and authorities are files. A handshake uses the files as they are then, so that
replacing them needs no restart and drops no connection."""

import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

CERTIFICATE_TIME: Final = "%b %d %H:%M:%S %Y GMT"
Signature = tuple[tuple[int, int, int], ...]


class UnusableFile(ValueError):
    """A certificate, key or list of authorities cannot be used; the message names the file and quotes none of it."""


class FileContext(ssl.SSLContext):
    """Context of handshakes that reads its files again when they have changed. Files that cannot be used, such as a
    certificate that is replaced before its key, leave the previous ones in use; `problem` then says why."""

    def __init__(self, protocol: int, make: Callable[[], ssl.SSLContext], files: tuple[Path, ...]) -> None:
        self._make = make
        self._files = files
        self._signature = self._sign()
        self._current = make()
        self.problem = ""

    def wrap_bio(self, *arguments: Any, **options: Any) -> ssl.SSLObject:
        return self.current.wrap_bio(*arguments, **options)

    def wrap_socket(self, *arguments: Any, **options: Any) -> ssl.SSLSocket:
        return self.current.wrap_socket(*arguments, **options)

    @property
    def current(self) -> ssl.SSLContext:
        """Context made of the files as they are, or as they last could be used."""
        signature = self._sign()
        if signature != self._signature or self.problem:
            try:
                self._current = self._make()
            except UnusableFile as error:
                self.problem = str(error)
            else:
                self.problem = ""
                self._signature = signature
        return self._current

    def _sign(self) -> Signature:
        return tuple(_signature(path) for path in self._files)


def client_context(
    *, ca_file: Path | None = None, certificate_file: Path | None = None, key_file: Path | None = None
) -> FileContext:
    """Context of a client that verifies servers, by `ca_file` or else by the authorities of the system, which
    SSL_CERT_FILE replaces. It presents a certificate if it is given one. Raises UnusableFile."""

    def make() -> ssl.SSLContext:
        context: ssl.SSLContext = _usable(lambda: ssl.create_default_context(cafile=ca_file), ca_file)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if certificate_file is not None:
            _usable(lambda: context.load_cert_chain(certificate_file, key_file), certificate_file, key_file)
        return context

    return FileContext(ssl.PROTOCOL_TLS_CLIENT, make, _given(ca_file, certificate_file, key_file))


def server_context(
    *, certificate_file: Path, key_file: Path | None = None, client_ca_file: Path | None = None
) -> FileContext:
    """Context of a server. With `client_ca_file` it accepts only clients with a certificate of these authorities.
    Raises UnusableFile."""

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        _usable(lambda: context.load_cert_chain(certificate_file, key_file), certificate_file, key_file)
        if client_ca_file is not None:
            _usable(lambda: context.load_verify_locations(client_ca_file), client_ca_file)
            context.verify_mode = ssl.CERT_REQUIRED
        return context

    return FileContext(ssl.PROTOCOL_TLS_SERVER, make, _given(certificate_file, key_file, client_ca_file))


def certificate_expires_at(certificate_file: Path) -> datetime:
    """End of the validity of the first certificate of a PEM file. Raises UnusableFile."""
    # No public function of the standard library reads a certificate that no peer has presented.
    decoded = _usable(lambda: ssl._ssl._test_decode_cert(certificate_file), certificate_file)  # type: ignore[attr-defined]
    return datetime.strptime(decoded["notAfter"], CERTIFICATE_TIME).replace(tzinfo=UTC)


def _given(*files: Path | None) -> tuple[Path, ...]:
    return tuple(file for file in files if file is not None)


def _usable(read: Callable[[], Any], *files: Path | None) -> Any:
    try:
        return read()
    except (OSError, ValueError) as error:  # the messages hold no content of a file
        named = " and ".join(map(str, _given(*files))) or "the authorities of the system"
        raise UnusableFile(f"{named}: {getattr(error, 'strerror', None) or error}") from None


def _signature(path: Path) -> tuple[int, int, int]:
    try:
        found = path.stat()
    except OSError:
        return 0, 0, 0
    return found.st_mtime_ns, found.st_size, found.st_ino
